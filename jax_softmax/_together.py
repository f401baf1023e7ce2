"""Softmax and log-softmax of the same logits, as an entropy is made of: one finds the other."""

import math
from collections.abc import Iterator
from typing import Any

from jax.interpreters import mlir

from ._affine import affine_before
from ._casts import FLOAT32, cast_before
from ._neighbours import (
    STAND_IN,
    TOLD,
    differences_from,
    is_asked,
    is_log_softmax,
    is_of_pairs_along,
    is_shifted,
    made_of_rows,
    results_of,
    rows_behind,
    summed,
    target_of,
)
from ._operations import BARRIER, dtype_among, name_of, number_of

OTHER = {"softmax": "log_softmax", "log_softmax": "softmax"}


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


def other_of(
    op: str, operand: Any, aval: Any, axis: int, dtype: Any, functions: Any
) -> tuple[Any, Any] | None:
    """The softmax, where `op` is log-softmax, or this where that is, and the array that it is of.

    It has that `dtype`, and was made here, of logits that were made as this operand was: by XLA's
    code, or by a kernel that something stands in for. A log-softmax that XLA's code makes in 16
    bits, in one of several forms, is not found.
    """
    point: Any = mlir.ir.InsertionPoint
    here, source = point.current.block, source_of(operand, aval, axis, functions)
    copies = [source[0], *results_of(source[0], BARRIER)]
    found = [pair for v in copies for pair in _written(v, op, source[1], axis)]
    for logits in _likely(operand, copies):
        if source_of(logits, aval, axis, functions) == source:
            found += ((v, logits) for v in _made(logits, op, axis, dtype, functions))
    like = mlir.ir.RankedTensorType.get(operand.type.shape, mlir.dtype_to_ir_type(dtype))
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


def _made(logits: Any, op: str, axis: int, dtype: Any, functions: Any) -> Iterator[Any]:
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
                if _is_softmax(v, e, difference, axis, functions)
            )
        for value in found:
            rounded = results_of(value, "stablehlo.convert")
            if not any(map(is_asked, (value, *rounded))):
                yield from [value] if dtype.itemsize == 4 else rounded


def _is_softmax(result: Any, e: Any, difference: Any, axis: int, functions: Any) -> bool:
    """Whether it is a quotient of those exponentials and their sums, as `_reference.softmax` has.

    Or by pairs.
    """
    numerator, factor = result.owner.operands
    if numerator != e:
        return False
    op, values = made_of_rows(result, functions) or ("", None)
    if values is not None:
        return op == "softmax" and values.axis == axis
    if name_of(result.owner) == "stablehlo.multiply":
        inverse: Any = getattr(rows_behind(factor, axis), "owner", None)
        if name_of(inverse) != "stablehlo.divide" or number_of(inverse.operands[0]) != 1:
            return False
        factor = inverse.operands[1]
    terms = summed(factor, axis)
    return terms is not None and terms == e and is_shifted(difference, axis)


def _is_float32(value: Any) -> bool:
    return dtype_among([FLOAT32], value) is not None
