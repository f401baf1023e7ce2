"""The public softmax functions: canonicalise, bind one primitive, undo the canonicalisation."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, Bool, Float

from . import _canonicalize, _terms
from ._canonicalize import Axis
from ._primitives import Primitive, log_softmax_p, softmax_p


def softmax(
    x: Float[ArrayLike, "*shape"],
    axis: Axis = -1,
    where: Bool[ArrayLike, "..."] | None = None,
    *,
    dtype: DTypeLike | None = None,
    implementation: str | None = None,
    batch_invariant: bool | None = None,
) -> Float[Array, "*shape"]:
    r"""Computes `exp(x - max(x)) / sum(exp(x - max(x)))` along `axis`.

    A drop-in for `jax.nn.softmax`, differentiable in both modes and to any order. Reductions are
    in float32 for 16-bit inputs, whose results are then within one unit in the last place.

    Args:
      x: values of any shape. float32, float64, float16 and bfloat16 run natively; every other
        floating or complex dtype runs through XLA. Integers are converted to float32 first
        (float64 if they have 64 bits).
      axis: the axis, a tuple of axes taken jointly, None for all, or `()` for each element alone.
      where: boolean, broadcast against `x`; elements where it is False take no part, whatever
        they hold, and come out as 0.
      dtype: the result's dtype, or None for `x`'s floating dtype. From float32 to float16 or
        bfloat16 and back, the kernels convert as they store: `softmax(x, dtype=jnp.float32)` of
        a bfloat16 `x` keeps all digits of float32 and makes no float32 copy of `x`. Other
        conversions run through XLA, in the wider dtype. The gradient has `x`'s dtype, and is
        computed from the result as it was returned (in XLA's code, of float32, may be from `x`).
      implementation: None for what is fastest in a graph: the native kernels, or, where there are
        none and for small arrays and short rows on a GPU, XLA's code, which fuses with its
        neighbours (`plan` tells which, and why); or `"cuda"`, `"cpu"` (this package's kernels) or
        `"xla"`. A kernel strategy may follow, as in `"cuda:stream"`, for tests and measurements.
      batch_invariant: True if, along the last axis, a row's bits must depend neither on its
        neighbours nor on the size of the batch: kernels, wherever there are any. None if
        `implementation=None` may give that up for what is faster: XLA's code, which does not
        promise it, or kernels that split few long rows; the kernels' other plans keep to it. False
        if any plan may depend on the number of rows.

    Returns:
      An array of `x`'s shape and of `dtype`. A row that holds NaN or `+inf`, or only `-inf`,
      is all NaN; a row that `where` masks as a whole is 0, with zero gradient.

    Raises:
      TypeError: `x` is no numeric array, `where` is not boolean, or `dtype` is not floating (for
        complex `x`: not complex).
      ValueError: `axis` is out of range or repeated, `where` does not broadcast against `x`, or
        `implementation` is unknown or cannot run here; the message says why.

    Source: the row kernels follow OneFlow's and PyTorch's softmax (see docs/kernels.md).
    """
    return _apply(softmax_p, 0.0, x, where, axis, dtype, implementation, batch_invariant)


def log_softmax(
    x: Float[ArrayLike, "*shape"],
    axis: Axis = -1,
    where: Bool[ArrayLike, "..."] | None = None,
    *,
    dtype: DTypeLike | None = None,
    implementation: str | None = None,
    batch_invariant: bool | None = None,
) -> Float[Array, "*shape"]:
    """Computes `x - max(x) - log(sum(exp(x - max(x))))` along `axis`.

    A drop-in for `jax.nn.log_softmax`. Arguments, dtypes, errors and special values are those of
    `softmax`, except that a masked element comes out as `-inf`. The logarithm is taken as
    `log1p` of the sum without the maximum, so that results near zero keep all their digits.
    """
    return _apply(log_softmax_p, -jnp.inf, x, where, axis, dtype, implementation, batch_invariant)


def _apply(
    primitive: Primitive,
    masked: float,
    x: ArrayLike,
    where: ArrayLike | None,
    axis: Axis,
    dtype: DTypeLike | None,
    implementation: str | None,
    batch_invariant: bool | None,
) -> Array:
    return _apply_jit(
        primitive,
        masked,
        x,
        where,
        axis=_canonicalize.hashable(axis),
        dtype=_canonicalize.hashable_dtype(dtype),
        implementation=_canonicalize.name_or_none(implementation),
        batch_invariant=_canonicalize.three_state(batch_invariant),
    )


@partial(
    jax.jit,
    static_argnums=(0, 1),
    static_argnames=("axis", "dtype", "implementation", "batch_invariant"),
    inline=_canonicalize.EARLY,
)
def _apply_jit(
    primitive: Primitive,
    masked: float,
    x: ArrayLike,
    where: ArrayLike | None,
    *,
    axis: Axis,
    dtype: Any,
    **request: Any,
) -> Array:
    x = _canonicalize.floating(x, primitive.name)
    dtype = _canonicalize.result_dtype(x, dtype)
    if where is not None:
        x, where = _canonicalize.broadcast_mask(x, where)
        axes = _canonicalize.canonical_axes(axis, x.ndim)
        if len(axes) == 1 and not jnp.iscomplexobj(x):
            operands = {"mask": jnp.expand_dims(where, range(x.ndim - where.ndim))}
            log = primitive is log_softmax_p
            return _terms.bind(x, operands, log=log, axis=axes[0], dtype=dtype, **request)
        x = jnp.where(where, x, -jnp.inf)
    rows, row_axis, restore = _canonicalize.single_axis(x, axis)
    params = _canonicalize.request(primitive.name, rows, axis=row_axis, dtype=dtype, **request)
    y = restore(primitive.bind(rows, **params))
    # The outer select also turns an all-masked row, NaN until here, into `masked`, and its
    # transpose keeps that NaN out of the gradient.
    return y if where is None else jnp.where(where, y, masked)
