"""Scaling by the largest magnitude of each row, and quantisation to 8 bits by it.

Along the last axis both are one primitive, a kernel; derivatives are those of plain JAX.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir, xla
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, Float, Shaped

from . import _canonicalize, _native
from ._calls import one_device, without_axis
from ._canonicalize import Axis
from ._implementation import fastest
from ._lowering import register_rule
from ._primitives import RESIDUAL
from ._reference import compute_dtype


def absmax_scale(
    x: Float[ArrayLike, "*shape"], axis: Axis = -1, *, keepdims: bool = False
) -> tuple[Float[Array, "*shape"], Float[Array, "*rows"]]:
    """Computes `x / absmax` and `absmax = max(abs(x))` along `axis`.

    16-bit inputs are computed in float32 and rounded once; float32 ones are within 2 units in the
    last place. The elements of the largest magnitude come out as exactly 1 or -1. Differentiable in
    both modes and to any order; reverse mode saves `x` and one value per row. The gradient of
    `absmax` goes to the elements that attain it, in equal parts, as `jnp.max`'s does.

    Args:
      x: values of any shape, of any real floating dtype. Integers are converted to float32 first
        (float64 if they have 64 bits).
      axis: the axis, a tuple of axes taken jointly, None for all, or `()` for each element alone.
      keepdims: whether `absmax` keeps the reduced axes, with size 1.

    Returns:
      `(y, absmax)`: `y` of `x`'s shape and floating dtype; `absmax` of the shape of `x` without
      `axis`, in float32 at least. Rows of zeros are 0, with absmax 0 and zero gradients; a row
      without elements has absmax 0. A row that holds NaN is NaN, its absmax too. One with an
      infinity has absmax `inf`; its infinities are 1 or -1 and the rest 0. Where arithmetic flushes
      subnormal numbers to zero, as XLA's on a CPU does, they are zeros in `y`.

    Raises:
      TypeError: `x` is no real numeric array.
      ValueError: `axis` is out of range or repeated.

    A donated `x` is overwritten by `y`: `jax.jit(absmax_scale, donate_argnums=0)`.

    Source: the "ReduceScale" notes on row reductions in CUDA.
    """
    return _absmax_scale(
        x, axis=_canonicalize.hashable(axis), keepdims=_canonicalize.flag("keepdims", keepdims)
    )


def absmax_quantize(
    x: Float[ArrayLike, "*shape"],
    dtype: DTypeLike = jnp.float8_e4m3fn,
    axis: Axis = -1,
    *,
    keepdims: bool = False,
) -> tuple[Shaped[Array, "*shape"], Float[Array, "*rows"]]:
    """Computes `q`, `scale` per row of 8-bit elements, such that `q * scale` is nearly `x`.

    `scale` is `max(abs(x)) / largest` along `axis`, where `largest` is the dtype's largest number:
    448, 57344 or 127. `q` is `x / scale` rounded to the nearest, ties to even; the elements of the
    largest magnitude are `largest` or `-largest`, and int8 never holds -128.

    Args:
      x: values of any shape, of any real dtype.
      dtype: of `q`: `float8_e4m3fn`, `float8_e5m2` or `int8`.
      axis: the axis, a tuple of axes taken jointly, None for all, or `()` for each element alone.
      keepdims: whether `scale` keeps the reduced axes, with size 1, for `q * scale`.

    Returns:
      `(q, scale)`: `q` of `x`'s shape; `scale` of the shape of `x` without `axis`, in float32
      (float64 for float64). A scale is at least the smallest normal number, and so never 0: a row
      of zeros has that one, and zeros in `q`. (Libraries differ: torchao clamps absmax likewise, at
      1e-12; for rows of zeros alone, TransformerEngine's scale is 1 and AQT's 1 / largest.) A row
      that holds NaN or an infinity has that for its scale, so that `q * scale` is NaN in all of it;
      int8, which has no NaN, is 0 there.

    Raises:
      TypeError: `x` is no real numeric array, or `dtype` is not one of the three.
      ValueError: `axis` is out of range or repeated.

    Differentiable as the functions that they are: `q` is a step function with zero gradients, and
    `scale` has that of `max(abs(x)) / largest`. For a straight-through estimate, or any other, wrap
    it in `jax.custom_vjp`.
    """
    return _absmax_quantize(
        x,
        dtype=_canonicalize.quantized_dtype(dtype),
        axis=_canonicalize.hashable(axis),
        keepdims=_canonicalize.flag("keepdims", keepdims),
    )


@partial(jax.jit, static_argnames=("axis", "keepdims"), inline=_canonicalize.EARLY)
def _absmax_scale(x: ArrayLike, *, axis: Axis, keepdims: bool) -> tuple[jax.Array, jax.Array]:
    x, axes = _canonicalize.real_rows(x, axis, "absmax_scale")
    y, absmax = (_scaled_rows if axes == (x.ndim - 1,) else _scaled)(x, axes)
    return y, absmax if keepdims else jnp.squeeze(absmax, axes)


@partial(jax.jit, static_argnames=("dtype", "axis", "keepdims"), inline=_canonicalize.EARLY)
def _absmax_quantize(
    x: ArrayLike, *, dtype: Any, axis: Axis, keepdims: bool
) -> tuple[jax.Array, jax.Array]:
    x, axes = _canonicalize.real_rows(x, axis, "absmax_quantize")
    q, scale = (_quantized_rows if axes == (x.ndim - 1,) else _quantized)(x, axes, dtype)
    return q, scale if keepdims else jnp.squeeze(scale, axes)


def _quantized(x: jax.Array, axes: tuple[int, ...], dtype: Any) -> tuple[jax.Array, jax.Array]:
    is_integer = jnp.issubdtype(dtype, jnp.integer)
    largest = float(jnp.iinfo(dtype).max if is_integer else jnp.finfo(dtype).max)
    wide = x.astype(compute_dtype(x.dtype))
    # Divided before the maximum is taken, and bounded as part of it: as a step of its own, on one
    # value per row, XLA:GPU would make a kernel of that.
    scale = _absmax(wide / largest, axes, float(jnp.finfo(wide.dtype).tiny))
    q = jax.lax.stop_gradient(wide) / jax.lax.stop_gradient(scale)
    q = jnp.clip(jnp.round(q) if is_integer else q, -largest, largest).astype(dtype)
    return q, scale


@partial(
    jax.checkpoint,
    static_argnums=(1,),
    prevent_cse=False,
    policy=jax.checkpoint_policies.save_only_these_names(RESIDUAL),
)
def _scaled(x: jax.Array, axes: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """Reverse mode saves `x` and, by its name, `absmax`, and none of the masks in between."""
    wide = x.astype(compute_dtype(x.dtype))
    absmax = _absmax(wide, axes)
    return _share(wide, absmax).astype(x.dtype), absmax


@partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def _absmax(x: jax.Array, axes: tuple[int, ...], least: float = 0.0) -> jax.Array:
    """`max(abs(x))`, or `least` if that is larger; with the reduced axes.

    Of magnitudes, integers of the same bits have the order, with NaN on top: XLA:CPU's maximum of
    floats may miss a NaN in a long row.
    """
    unsigned = np.dtype(f"uint{8 * x.dtype.itemsize}")
    magnitudes = jax.lax.bitcast_convert_type(x, unsigned) & (jnp.iinfo(unsigned).max >> 1)
    start = np.asarray(least, x.dtype).view(unsigned)
    # Of one element XLA makes that itself, whatever a reduction starts from.
    magnitudes = jnp.maximum(magnitudes, start)
    top = jax.lax.reduce(magnitudes, start, jax.lax.max, axes)
    return jnp.expand_dims(jax.lax.bitcast_convert_type(top, x.dtype), axes)


@_absmax.defjvp
def _absmax_jvp(
    axes: tuple[int, ...], least: float, primals: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    (x,), (t,) = primals, tangents
    absmax = checkpoint_name(_absmax(x, axes, least), RESIDUAL)
    attained = ~(jnp.abs(x) < absmax)  # by every element of a row with NaN
    total = jnp.sum(jnp.where(attained, jnp.sign(x) * t, 0), axes, keepdims=True)
    ties = jnp.sum(attained, axes, keepdims=True, dtype=x.dtype)
    return absmax, total / jnp.maximum(ties, 1)  # none in a row that is empty or below `least`


@jax.custom_jvp
def _share(x: jax.Array, absmax: jax.Array) -> jax.Array:
    """`x / absmax`, but 0 / 0 is 0, inf / inf is 1, and so is `absmax / absmax`.

    On a GPU, XLA divides float32 to two units in the last place, which may miss that 1.
    """
    return jnp.where(jnp.abs(x) == absmax, jnp.sign(x), x / absmax)


@_share.defjvp
def _share_jvp(
    primals: tuple[jax.Array, jax.Array], tangents: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    (x, absmax), (t, t_absmax) = primals, tangents
    y = _share(x, absmax)
    return y, (t - y * t_absmax) * _reciprocal(absmax)


@jax.custom_jvp
def _reciprocal(absmax: jax.Array) -> jax.Array:
    """`1 / absmax`, or 0 where that is 0; JAX's own derivative squares `absmax`, and overflows."""
    return 1 / jnp.where(absmax == 0, jnp.inf, absmax)


@_reciprocal.defjvp
def _reciprocal_jvp(
    primals: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    (absmax,), (t,) = primals, tangents
    reciprocal = _reciprocal(absmax)
    return reciprocal, -reciprocal * (reciprocal * t)


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def _scaled_rows(x: jax.Array, axes: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """`_scaled` along the last axis."""
    y, absmax = absmax_p.bind(x, dtype=x.dtype, quantizes=False)
    return y, jnp.expand_dims(absmax, axes)


@_scaled_rows.defjvp
def _scaled_rows_jvp(axes: tuple[int, ...], primals: Any, tangents: Any) -> Any:
    return jax.jvp(lambda x: _scaled(x, axes), primals, tangents)


@partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def _quantized_rows(x: jax.Array, axes: tuple[int, ...], dtype: Any) -> tuple[jax.Array, jax.Array]:
    """`_quantized` along the last axis."""
    q, scale = absmax_p.bind(x, dtype=dtype, quantizes=True)
    return q, jnp.expand_dims(scale, axes)


@_quantized_rows.defjvp
def _quantized_rows_jvp(axes: tuple[int, ...], dtype: Any, primals: Any, tangents: Any) -> Any:
    return jax.jvp(lambda x: _quantized(x, axes, dtype), primals, tangents)


def _plain(x: jax.Array, *, dtype: Any, quantizes: bool) -> tuple[jax.Array, jax.Array]:
    last = (x.ndim - 1,)
    y, of_row = _quantized(x, last, dtype) if quantizes else _scaled(x, last)
    return y, jnp.squeeze(of_row, last)


def _abstract_eval(x: Any, *, dtype: Any, quantizes: bool) -> tuple[Any, Any]:
    del quantizes
    y = x.update(dtype=dtype, weak_type=False)
    of_row = without_axis(x, x.ndim - 1)
    return y, of_row.update(dtype=compute_dtype(x.dtype), weak_type=False)


def _batch(
    operands: Sequence[jax.Array], dims: Sequence[int], **params: Any
) -> tuple[tuple[jax.Array, jax.Array], tuple[int, int]]:
    (x,), (dim,) = operands, dims
    at = min(dim, x.ndim - 2)  # before the rows' own axis
    return tuple(absmax_p.bind(jnp.moveaxis(x, dim, at), **params)), (at, at)


def _lower(ctx: Any, x: Any, *, here: str, **params: Any) -> Any:
    aval = ctx.avals_in[0]
    request = {"axis": aval.ndim - 1, "dtype": aval.dtype, "strategy": "auto"}
    if (
        aval.dtype.itemsize < 8
        and one_device(ctx)
        and fastest("absmax", [aval], here, **request).implementation == here
    ):
        in_place = here == "cpu" and not params["quantizes"] and _is_donated(ctx, x.type)
        aliases = {0: 0} if in_place else {}
        rule = jax.ffi.ffi_lowering(_native.target("absmax"), operand_output_aliases=aliases)
        return rule(ctx, x)
    return mlir.lower_fun(_plain, multiple_results=True)(ctx, x, **params)


def _is_donated(ctx: Any, type_: Any) -> bool:
    """Whether the program may overwrite an argument of that type.

    Only then is the call told to work in place: XLA first copies an operand that is still needed,
    which an argument that is not donated always is, and that takes longer than the call. Without
    being told it copies the result into the donated buffer.
    """
    for function in ctx.module_context.module.body.operations:
        if "arg_attrs" not in function.attributes:
            continue
        types = mlir.ir.FunctionType(function.attributes["function_type"].value).inputs
        for argument, attributes in zip(types, function.attributes["arg_attrs"], strict=True):
            donated = {"tf.aliasing_output", "jax.buffer_donor"} & {a.name for a in attributes}
            if donated and argument == type_:
                return True
    return False


# x[..., n] to a result of its shape, in its dtype or in 8 bits, and absmax or scale of each row.
absmax_p = Primitive("absmax")
absmax_p.multiple_results = True
absmax_p.def_impl(partial(xla.apply_primitive, absmax_p))
absmax_p.def_abstract_eval(_abstract_eval)
batching.primitive_batchers[absmax_p] = _batch
mlir.register_lowering(absmax_p, mlir.lower_fun(_plain, multiple_results=True))
for backend in _native.BACKENDS:
    if _native.has_handler(backend, "absmax"):
        register_rule(absmax_p, backend, partial(_lower, here=backend))
