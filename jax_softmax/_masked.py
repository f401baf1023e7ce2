"""`masked_softmax`: what attention puts around softmax, in plain JAX around the primitives."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, Bool, Float

from . import _canonicalize, _reference
from ._logsumexp import logsumexp
from ._softmax import log_softmax, softmax


def masked_softmax(
    x: Float[ArrayLike, "*shape"],
    mask: Bool[ArrayLike, "..."] | None = None,
    bias: Float[ArrayLike, "..."] | None = None,
    *,
    scale: float | Float[ArrayLike, ""] = 1.0,
    causal: bool = False,
    axis: int = -1,
    log: bool = False,
    dtype: DTypeLike | None = None,
    softcap: float | None = None,
    sink: Float[ArrayLike, "..."] | None = None,
    implementation: str | None = None,
    batch_invariant: bool | None = None,
) -> Float[Array, "*shape"]:
    """Computes the softmax of `cap(scale * x) + bias` along `axis`, over what masks let through.

    Everything before the rounding to `dtype` is in float32 at least. Differentiable in both modes
    and to any order, in `x`, `bias`, `scale` and `sink`.

    Args:
      x: real logits of any shape.
      mask: boolean, broadcast against `x` by NumPy's rules; elements where it is False take no
        part, whatever they hold, and come out as 0 (`log`: `-inf`).
      bias: added to the scaled logits; broadcast against `x` as `mask` is.
      scale: a number or a scalar array that the logits are multiplied by.
      causal: True to let row i of the last two dimensions see columns up to i + columns - rows, so
        that the last row sees all. Wants the last axis.
      axis: one axis.
      log: True for the logarithm, as by `log_softmax`.
      dtype: the result's dtype, or None for `x`'s.
      softcap: a positive number c for which `cap(z) = c * tanh(z / c)`, as in Gemma 2; None for
        none.
      sink: a logit that takes part in every row's sum and has no result (attention sinks, Xiao et
        al. 2023); broadcast against `x` without `axis`.
      implementation: of the softmax, as in `softmax`.
      batch_invariant: as in `softmax`.

    Returns:
      An array of `x`'s shape and of `dtype`. A row that is masked as a whole is 0 (`log`: `-inf`),
      with zero gradients; other rows that hold NaN, `+inf` or only `-inf` are NaN.

    Raises:
      TypeError: `x`, `bias`, `scale` or `sink` is not real, `mask` is not boolean, `axis` is not
        one int, or `dtype` is not floating.
      ValueError: something does not broadcast against `x`, `axis` is out of range, `softcap` is not
        positive, `causal` meets another axis than the last or fewer than two dimensions, or
        `implementation` cannot run here.

    What surrounds the softmax is plain JAX, which XLA fuses; it is no part of the kernels yet.
    """
    x, axis, masks, terms = _canonicalize.masked(x, axis, mask, causal, bias, scale, softcap, sink)
    return _masked_softmax(
        x,
        masks,
        terms,
        causal=bool(causal),
        axis=axis,
        log=bool(log),
        dtype=_canonicalize.hashable_dtype(dtype),
        softcap=None if softcap is None else float(softcap),
        implementation=implementation,
        batch_invariant=_canonicalize.three_state(batch_invariant),
    )


@partial(
    jax.jit,
    static_argnames=(
        *("causal", "axis", "log", "dtype", "softcap"),
        *("implementation", "batch_invariant"),
    ),
    inline=True,
)
def _masked_softmax(
    x: jax.Array,
    mask: jax.Array | None,
    terms: dict[str, jax.Array],
    *,
    causal: bool,
    axis: int,
    log: bool,
    dtype: Any,
    softcap: float | None,
    **request: Any,
) -> jax.Array:
    dtype = _canonicalize.result_dtype(x, dtype)
    z = x.astype(_reference.compute_dtype(x.dtype, dtype))
    if causal:
        seen = _causal(*x.shape[-2:])
        mask = seen if mask is None else mask & seen
    if mask is not None:
        z = jnp.where(mask, z, 0)  # else NaN would reach the gradient of the scale
    if "scale" in terms:
        z = z * terms["scale"].astype(z.dtype)
    if softcap is not None:
        z = softcap * jnp.tanh(z / softcap)
    if "bias" in terms:
        z = z + terms["bias"].astype(z.dtype)
    if mask is not None:
        # A row that is masked as a whole is any finite one, which the last select hides: NaN would
        # reach gradients of second order.
        mask = jnp.expand_dims(mask, range(x.ndim - mask.ndim))
        z = jnp.where(mask, z, jnp.where(mask.any(axis, keepdims=True), -jnp.inf, 0))
    y = (log_softmax if log else softmax)(z, axis, dtype=dtype, **request)
    if "sink" in terms:
        y = _with_sink(y, z, terms["sink"], axis, log).astype(dtype)
    return y if mask is None else jnp.where(mask, y, -jnp.inf if log else 0)


def _with_sink(y: jax.Array, z: jax.Array, sink: jax.Array, axis: int, log: bool) -> jax.Array:
    """What is left of a softmax, or of its logarithm, once its sum holds exp(sink) too."""
    room = logsumexp(z, axis, keepdims=True) - jnp.expand_dims(sink, axis).astype(z.dtype)
    y = y.astype(z.dtype)
    return y + jax.nn.log_sigmoid(room) if log else y * jax.nn.sigmoid(room)


def _causal(rows: int, columns: int) -> jax.Array:
    """[rows, columns], of which the last row and the last column meet on the diagonal."""
    row = jax.lax.broadcasted_iota(jnp.int32, (rows, columns), 0)
    column = jax.lax.broadcasted_iota(jnp.int32, (rows, columns), 1)
    return column <= row + (columns - rows)
