"""What each op computes, in plain JAX: the default lowering, and what the kernels are held to.

Every function takes and returns arrays of one shape and reduces along `axis`. The result has
`dtype`, the operands may each have another; the widest of them all is computed in, or float32.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def compute_dtype(*dtypes: Any) -> Any:
    """The widest of `dtypes`, which are all real or all complex, and at least float32."""
    float32 = jnp.dtype("float32")
    return max((float32 if d.itemsize < 4 else d for d in dtypes), key=lambda d: d.itemsize)


def _in_compute_dtype(f: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    @functools.wraps(f)
    def wrapped(*operands: jax.Array, axis: int, dtype: Any) -> jax.Array:
        wide = compute_dtype(dtype, *(x.dtype for x in operands))
        return f(*(x.astype(wide) for x in operands), axis=axis).astype(dtype)

    return wrapped


def _exp_of_shifted(x: jax.Array, axis: int) -> tuple[jax.Array, jax.Array]:
    """`x - max(x)`, and its exponential with the rounding error of the difference put back.

    Without that, the exponential is off by |x - max| units in the last place.
    """
    top = jnp.max(x, axis, keepdims=True, initial=-jnp.inf)
    # In a row of only -inf, shift by zero: -inf - -inf would hide which elements are -inf.
    top = jnp.where(jnp.isneginf(top.real), 0, top)
    d = x - top
    top_part = d - x
    error = (x - (d - top_part)) - (top + top_part)
    e = jnp.exp(d)
    # Where e is 0, the difference may be infinite and its error NaN.
    return d, jnp.where(e == 0, 0, e * (1 + error))


@_in_compute_dtype
def softmax(x: jax.Array, *, axis: int) -> jax.Array:
    _, e = _exp_of_shifted(x, axis)
    return e / jnp.sum(e, axis, keepdims=True)


@_in_compute_dtype
def log_softmax(x: jax.Array, *, axis: int) -> jax.Array:
    d, e = _exp_of_shifted(x, axis)
    # Without the maximum (one of them), the sum keeps its digits where the result is near zero.
    at_top = d == 0
    ties = jnp.sum(at_top.astype(d.dtype), axis, keepdims=True)
    rest = jnp.sum(jnp.where(at_top, 0, e), axis, keepdims=True)
    return d - jnp.log1p(rest + (ties - 1))


@_in_compute_dtype
def softmax_tangent(y: jax.Array, t: jax.Array, *, axis: int) -> jax.Array:
    return y * (t - jnp.sum(y * t, axis, keepdims=True))


@_in_compute_dtype
def log_softmax_tangent(y: jax.Array, t: jax.Array, *, axis: int) -> jax.Array:
    return t - jnp.sum(jnp.exp(y) * t, axis, keepdims=True)


@_in_compute_dtype
def log_softmax_cotangent(y: jax.Array, g: jax.Array, *, axis: int) -> jax.Array:
    return g - jnp.exp(y) * jnp.sum(g, axis, keepdims=True)
