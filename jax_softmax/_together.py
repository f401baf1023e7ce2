"""Softmax and log-softmax of the same logits, as an entropy is made of: one finds the other."""

import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import mlir

from . import _choice, _revision
from ._affine import affine_before
from ._calls import TOLD
from ._casts import FLOAT32, NARROW, cast_before, rounded
from ._implementation import is_free
from ._makers import makers_of
from ._operations import BARRIER, STAND_IN, dtype_among, make_like, name_of
from ._pairs import of_rows, row_triples_p
from ._readers import are_returned, are_rows_kept, likely_read
from ._reference import as_stored, unchanged
from ._results import (
    differences_from,
    is_asked,
    is_call,
    is_log_softmax,
    is_of_pairs_along,
    is_softmax,
    results_of,
    stand_in,
    target_of,
)

OTHER = {"softmax": "log_softmax", "log_softmax": "softmax"}


def made_together(
    ctx: Any,
    operand: Any,
    *,
    op: str,
    axis: int,
    dtype: Any,
    differentiated: bool = False,
    **request: Any,
) -> Any | None:
    """Softmax or log-softmax, if the program has the other one of the same logits before it.

    Both are made of three values for each row then, which one kernel makes, in place of what made
    the other one: XLA's code, which computes their elements where it reads them, would have neither
    with the other's reductions.
    """
    here, (aval,) = ctx.module_context.platforms[0], ctx.avals_in
    if dtype != FLOAT32 or not is_free(ctx, **request):
        return None
    if aval.sharding.mesh.are_all_axes_explicit:
        return None
    functions = ctx.module_context.symbol_table
    source, scale = source_of(operand, aval, axis, functions)
    found = other_of(op, operand, aval, axis, functions)
    if found is None or makers_of(source, functions).fused is not False:
        return None
    other, logits = found
    by_kernel = is_call(other)
    # What a kernel read it reads again; XLA's code may have made a copy of that.
    cast = None if by_kernel else cast_before(logits, aval)
    read = logits if by_kernel else source
    narrow = dtype_among(NARROW, read) or aval.dtype
    way, by_rows = None, are_rows_kept(operand, axis)
    if not differentiated:
        way = likely_read(operand, axis, dtype, functions, [other])
        way = "returned" if are_returned(operand, dtype) else way
    is_faster = _revision.makes_together(
        _choice.Problem(op, aval.shape, axis, narrow, dtype, here),
        by_kernel=by_kernel,
        by_rows=by_rows,
        read=way,
    )
    if not is_faster or (narrow.itemsize == 2 and scale != 1):
        return None
    divides = name_of(other.owner) == "stablehlo.divide"

    def both(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        x = as_stored(x) if cast is None else x
        wide = {"dtype": jnp.dtype("float32"), "log_sums": True}
        shifted, log_sum, factor = of_rows(row_triples_p, x, axis=axis, scale=scale, **wide)
        y, log = jnp.exp(shifted) * factor, shifted - log_sum
        return unchanged(y, op="softmax") if divides else y, log

    with mlir.ir.InsertionPoint(other.owner):
        read = read if cast is None else rounded(cast[0], logits)
        like = aval.update(dtype=dtype)
        ctx = ctx.replace(avals_in=[aval.update(dtype=narrow)], avals_out=[like, like])
        made = mlir.lower_fun(both, multiple_results=True)(ctx, read)
        this, that = made if op == "softmax" else reversed(made)
        make_like(other, stand_in(that) if by_kernel else that)
    return this


def source_of(operand: Any, aval: Any, axis: int, functions: Any) -> tuple[Any, float]:
    """What logits are a float32 copy of, or a number and what it multiplied to make them."""
    cast = cast_before(operand, aval)
    if cast is not None:
        (source,) = cast[0].operands
        # Which `rounded` put behind it.
        while name_of(source.owner) == BARRIER and len(source.owner.operands) == 1:
            (source,) = source.owner.operands
        return source, 1.0
    asked = {"explicit": False, "biased": False, "readers": math.inf}
    found = affine_before(operand, axis, functions, **asked)
    return found.logits, found.scale


def other_of(op: str, operand: Any, aval: Any, axis: int, functions: Any) -> tuple[Any, Any] | None:
    """The softmax, where `op` is log-softmax, or this where that is, and the array that it is of.

    It is float32, and was made here, of logits that were made as this operand was: by XLA's code,
    or by a kernel that something stands in for.
    """
    point: Any = mlir.ir.InsertionPoint
    here, source = point.current.block, source_of(operand, aval, axis, functions)
    copies = [source[0], *results_of(source[0], BARRIER)]
    found = [pair for v in copies for pair in _written(v, op, source[1], axis)]
    for logits in _likely(operand, copies):
        if source_of(logits, aval, axis, functions) == source:
            found += ((v, logits) for v in _made(logits, op, axis, functions))
    like = mlir.ir.RankedTensorType.get(operand.type.shape, mlir.dtype_to_ir_type(FLOAT32))
    alike = (pair for pair in found if pair[0].type == like)
    return next((pair for pair in alike if point(pair[0].owner).block == here), None)


def _written(logits: Any, op: str, scale: float, axis: int) -> Iterator[tuple[Any, Any]]:
    """What stands in for what a kernel wrote, which nothing does where that was asked for."""
    for result in results_of(logits, "stablehlo.custom_call"):
        if target_of(result.owner) != OTHER[op]:
            continue
        told = result.owner.attributes[TOLD]
        along = told["axis"].value, told["logical_axis"].value
        multiplied = told["scale"].value if "scale" in told else 1  # a CPU's never are
        if along == (axis, axis) and multiplied == scale:
            yield from ((v, logits) for v in results_of(result, STAND_IN))


def _likely(operand: Any, copies: list[Any]) -> Iterator[Any]:
    """Arrays that may be made of the source as the operand is; that itself is one."""
    yield operand
    for copy in copies:
        for name in ("convert", "multiply", "divide"):
            yield from (v for v in results_of(copy, f"stablehlo.{name}") if v.type == operand.type)


def _made(logits: Any, op: str, axis: int, functions: Any) -> Iterator[Any]:
    """By XLA's code, which computes in float32."""
    copies = [logits, *results_of(logits, "stablehlo.convert")]
    wide = (v for v in copies if _is_float32(v))
    for difference in (d for v in wide for d in differences_from(v)):
        if op == "softmax":
            found = (
                v
                for v in differences_from(difference)
                if is_log_softmax(v, axis) or is_of_pairs_along(v, axis, functions)
            )
        else:
            found = (
                v
                for e in results_of(difference, "stablehlo.exponential")
                for name in ("divide", "multiply")
                for v in results_of(e, f"stablehlo.{name}")
                if is_softmax(v, e, difference, axis, functions)
            )
        for value in found:
            # Or a rounded one of it.
            if not any(map(is_asked, (value, *results_of(value, "stablehlo.convert")))):
                yield value


def _is_float32(value: Any) -> bool:
    return dtype_among([FLOAT32], value) is not None
