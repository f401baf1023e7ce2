"""Losses: `jax.custom_vjp` around the dispatcher, so that the residuals are ours to choose."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from . import _canonicalize
from ._softmax import log_softmax, softmax


@jax.jit
def softmax_cross_entropy_with_integer_labels(
    logits: Float[ArrayLike, "*batch n"], labels: Int[ArrayLike, "*batch"]
) -> Float[Array, "*batch"]:
    """Computes `-log_softmax(logits)[labels]` along the last axis, one loss per row.

    Values, gradients and label semantics are those of optax's function of this name: a negative
    label counts from the end, one out of range gives NaN. The one difference: the loss of 16-bit
    logits is computed and returned in float32. Reverse mode saves only `logits` and `labels`.

    Args:
      logits: unnormalised log-probabilities.
      labels: the index of the right class per row, any integer dtype.

    Returns:
      The losses, float32 or float64.

    Raises:
      TypeError: `logits` is no floating array or `labels` no integer array.
      ValueError: `labels` does not have the shape of `logits` without its last axis.

    Differentiable in reverse mode, and forward over that (Hessian-vector products); being a
    `custom_vjp`, not in forward mode alone.
    """
    return _cross_entropy(*_canonicalize.logits_and_labels(logits, labels))


def _loss(logits: jax.Array, labels: jax.Array) -> jax.Array:
    log_p = log_softmax(_wide(logits))
    return -jnp.take_along_axis(log_p, labels[..., None], axis=-1)[..., 0]


_cross_entropy = jax.custom_vjp(_loss)


def _forward(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _loss(logits, labels), (logits, labels)


def _backward(residuals: tuple[jax.Array, jax.Array], g: jax.Array) -> tuple[jax.Array, None]:
    logits, labels = residuals
    n = logits.shape[-1]
    p = softmax(_wide(logits))
    is_label = jax.nn.one_hot(jnp.where(labels < 0, labels + n, labels), n, dtype=p.dtype)
    return ((p - is_label) * g[..., None]).astype(logits.dtype), None


_cross_entropy.defvjp(_forward, _backward)


def _wide(logits: jax.Array) -> jax.Array:
    """At least float32: a 16-bit softmax near 1 has no digits left for `p - 1`."""
    return logits if logits.dtype.itemsize >= 4 else logits.astype(jnp.float32)
