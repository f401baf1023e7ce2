"""The public logsumexp."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, Bool, Float

from . import _canonicalize, _reference
from ._canonicalize import Axis
from ._reductions import bind_logsumexp


def logsumexp(
    x: Float[ArrayLike, "*shape"],
    axis: Axis = -1,
    where: Bool[ArrayLike, "..."] | None = None,
    keepdims: bool = False,
    *,
    dtype: DTypeLike | None = None,
) -> Float[Array, "*rows"]:
    r"""Computes `log(sum(exp(x)))` along `axis`.

    Values and gradients are those of `jax.nn.logsumexp` of real `x`, without its `b` and
    `return_sign`, and with the last axis as the default. 16-bit inputs are computed in float32 and
    rounded once. Differentiable in both modes and to any order; reverse mode saves `x` and two
    values per row, in float32 at least, the maximum and the logarithm of `sum(exp(x - max))`.

    Args:
      x: values of any shape, of any real floating dtype. Integers are converted to float32 first
        (float64 if they have 64 bits).
      axis: the axis, a tuple of axes taken jointly, None for all, or `()` for each element alone.
      where: boolean, broadcast against `x`; elements where it is False take no part, whatever they
        hold.
      keepdims: whether the reduced axes stay, with size 1.
      dtype: the result's dtype, or None for `x`'s floating dtype. The gradient has `x`'s.

    Returns:
      An array of the shape of `x` without `axis`. A row that holds NaN is NaN, one with `+inf` is
      `+inf`; a row of only `-inf`, one without elements and one that `where` masks as a whole are
      `-inf`, the last with zero gradient in reverse mode.

    Raises:
      TypeError: `x` is no real numeric array, `where` is not boolean, or `dtype` is not floating.
      ValueError: `axis` is out of range or repeated, or `where` does not broadcast against `x`.
    """
    return _logsumexp(
        x,
        where,
        axis=_canonicalize.hashable(axis),
        keepdims=_canonicalize.flag("keepdims", keepdims),
        dtype=_canonicalize.hashable_dtype(dtype),
    )


@partial(jax.jit, static_argnames=("axis", "keepdims", "dtype"), inline=_canonicalize.EARLY)
def _logsumexp(
    x: ArrayLike, where: ArrayLike | None, *, axis: Axis, keepdims: bool, dtype: Any
) -> Array:
    x = _canonicalize.floating(x, "logsumexp")
    if jnp.iscomplexobj(x):
        raise TypeError(f"logsumexp wants real x, got {x.dtype}; use jax.nn.logsumexp")
    dtype = _canonicalize.result_dtype(x, dtype)
    if where is not None:
        x, where = _canonicalize.broadcast_mask(x, where)
        x = jnp.where(where, x, -jnp.inf)
    rows, row_axis, _ = _canonicalize.single_axis(x, axis)
    of_rows = _reference.dtype_of_rows(x.dtype, dtype)
    y = bind_logsumexp(rows, row_axis, of_rows).astype(dtype)
    return jnp.expand_dims(y, _canonicalize.canonical_axes(axis, x.ndim)) if keepdims else y
