"""Softmaxes and log-softmaxes as they are in a program: by a kernel, or by XLA's code."""

import itertools
import math
from typing import Any, NamedTuple

from jax.interpreters import mlir

from ._calls import TOLD
from ._operations import (
    CONSTRAINTS,
    MOST_VALUES,
    RESHAPING,
    SPREADING,
    STAND_IN,
    before,
    before_spreading,
    is_made_of,
    maker_behind,
    name_of,
    number_of,
    returned_by,
    shape_of,
    widths_of,
)
from ._rule import FORWARD

MARKS = "mhlo.frontend_attributes"
# Of softmax or log-softmax by XLA's code.
LAST = {f"stablehlo.{name}" for name in ("convert", "divide", "subtract")}


def target_of(operation: Any) -> str | None:
    """What one of this package's calls is for."""
    if name_of(operation) != "stablehlo.custom_call":
        return None
    package, _, op = operation.attributes["call_target_name"].value.partition(".")
    return op.partition(".")[0] if package == "jax_softmax" else None


def is_call(result: Any) -> bool:
    """Whether a kernel of this package wrote it."""
    return target_of(writer_of(result)) is not None


def writer_of(result: Any) -> Any:
    """What made an array, or the one that it stands for."""
    made_by = result.owner
    if name_of(made_by) == STAND_IN and made_by.operands[0].type == result.type:
        return made_by.operands[0].owner
    return made_by


def stand_in(written: Any) -> Any:
    """An array that is one a kernel wrote, until it is made otherwise: what has read it sees that.

    XLA knows it as the same.
    """
    create, like = mlir.ir.Operation.create, [written.type]
    return create(STAND_IN, results=like, operands=[written]).result


def mark_asked(result: Any) -> None:
    """Has whoever sees this array know that it was asked for as it is."""
    mark = mlir.ir.DictAttr.get({"jax_softmax": mlir.ir.StringAttr.get("asked for")})
    result.owner.attributes[MARKS] = mark


def is_asked(result: Any) -> bool:
    return MARKS in result.owner.attributes and "jax_softmax" in result.owner.attributes[MARKS]


def logits_here(result: Any, axis: int, functions: Any) -> Any | None:
    """What a kernel, or XLA's code, made this softmax or log-softmax of right here; or None.

    The kernel may have multiplied that, or read and written other types.
    """
    call = writer_of(result)
    if target_of(call) in FORWARD:
        return call.operands[0]  # further ones are a symbolic shape
    logits = logits_within(result, axis, functions) if name_of(result.owner) in LAST else None
    return logits if logits is not None and logits.type == result.type else None


def logits_within(result: Any, axis: int | None, functions: Any) -> Any | None:
    """The logits that XLA's code makes this softmax or log-softmax of along that axis, or any.

    None of others' results. It computes in float32 with 16 bits, which these are then.
    """
    passed = {"convert", "divide", "exponential", "multiply", "reshape", "subtract", "transpose"}
    passed = {f"stablehlo.{name}" for name in passed} | CONSTRAINTS
    value = result
    for _ in range(MOST_VALUES):
        while (returned := returned_by(value, functions)) is not None:
            value = returned
        made_by = value.owner
        if name_of(made_by) not in passed:
            return None
        value, *others = made_by.operands
        if name_of(made_by) == "stablehlo.subtract" and _value_of_rows(others[0]) is not None:
            return None  # of pairs; behind these there may be another softmax
        along = range(len(shape_of(value))) if axis is None else (axis,)
        if any(is_shifted(made_by.results[0], d) for d in along):
            same = value.type.element_type == result.type.element_type
            if same or name_of(value.owner) != "stablehlo.convert":
                return value
            return value.owner.operands[0] if widths_of(value.owner) == (16, 32) else value
    return None


def is_log_softmax(value: Any, axis: int) -> bool:
    """Whether XLA's code made it as `_reference.log_softmax` does in float32, along that axis.

    That is `d - log1p(sum(e - ones) + (sum(ones) - 1))`, of `d = x - max(x)` and `e = exp(d)`: the
    logarithm of their sum whatever `ones` are.
    """
    difference, log_sum = _operands(value, "subtract", 2)
    if not is_shifted(difference, axis):
        return False
    (sums,) = _operands(rows_behind(log_sum, axis), "log_plus_one", 1)
    of_rest, less_one = _operands(sums, "add", 2)
    of_ones, one = _operands(less_one, "subtract", 2)
    if one is None or number_of(one) != 1:
        return False
    rest, ones = summed(of_rest, axis), summed(of_ones, axis)
    e, subtracted = _operands(rest, "subtract", 2)
    same = ones is not None and subtracted == ones
    return same and _operands(e, "exponential", 1) == [difference]


def is_softmax(result: Any, e: Any, difference: Any, axis: int, functions: Any) -> bool:
    """Whether it is a quotient of those exponentials and their sums, as `_reference.softmax` has.

    Or by pairs.
    """
    numerator, factor = result.owner.operands
    if numerator != e:
        return False
    values = made_of_rows(result, functions)
    if values is not None:
        return (values.op, values.axis) == ("softmax", axis)
    if name_of(result.owner) == "stablehlo.multiply":
        inverse: Any = getattr(rows_behind(factor, axis), "owner", None)
        if name_of(inverse) != "stablehlo.divide" or number_of(inverse.operands[0]) != 1:
            return False
        factor = inverse.operands[1]
    terms = summed(factor, axis)
    return terms is not None and terms == e and is_shifted(difference, axis)


def is_shifted(difference: Any, axis: int) -> bool:
    """Whether it is `x - max(x)` along that axis."""
    x, spread = _operands(difference, "subtract", 2)
    if x is None:
        return False
    operands = _operands(rows_behind(spread, axis), "maximum", 2)
    largest = [before(v, CONSTRAINTS) for v in operands if v is not None]
    for least, maxima in itertools.permutations(largest, 2):
        if number_of(least) != -math.inf:
            continue
        of = _reduced(maxima, axis, "maximum", -math.inf)
        if of is not None and before(of, CONSTRAINTS) == before(x, CONSTRAINTS):
            return True
    return False


def summed(value: Any, axis: int) -> Any | None:
    """Of what this has the sum along that axis alone, for each row of it."""
    return _reduced(rows_behind(value, axis), axis, "add", 0)


def _reduced(value: Any, axis: int, operation: str, first: float) -> Any | None:
    """What was reduced along that axis alone by that operation, and from that number on."""
    made_by: Any = getattr(value, "owner", None)
    if name_of(made_by) != "stablehlo.reduce" or len(made_by.operands) != 2:
        return None
    of, begin = made_by.operands
    combines, *others = (name_of(o) for o in made_by.regions[0].blocks[0].operations)
    alike = combines == f"stablehlo.{operation}" and others == ["stablehlo.return"]
    along = list(made_by.attributes["dimensions"])
    return of if alike and along == [axis] and number_of(begin) == first else None


def rows_behind(value: Any, axis: int) -> Any | None:
    """What has a number for each row that this is spread from along that axis, and nowhere else.

    It may have that axis itself, of size 1.
    """
    if value is None or axis >= len(shape_of(value)):
        return None
    shape = shape_of(value)
    dimensions = list(range(len(shape)))
    while name_of(value.owner) in SPREADING:
        made_by = value.owner
        if name_of(made_by) == "stablehlo.broadcast_in_dim":
            dimensions = [dimensions[d] for d in made_by.attributes["broadcast_dimensions"]]
        (value,) = made_by.operands
    sizes = dict(zip(dimensions, shape_of(value), strict=True))
    is_one = sizes.pop(axis, 1) == 1
    rows = {d: size for d, size in enumerate(shape) if d != axis}
    return value if is_one and list(sizes.items()) == list(rows.items()) else None


def _operands(value: Any, operation: str, count: int) -> list[Any]:
    """Those of what made an array, if that is such an operation; else as many None."""
    made_by: Any = getattr(value, "owner", None)
    if name_of(made_by) != f"stablehlo.{operation}" or len(made_by.operands) != count:
        return [None] * count
    return list(made_by.operands)


class OfRows(NamedTuple):
    """One of so many values for each row, along an axis, that a call makes."""

    call: Any
    axis: int
    kind: str  # the "largest", the "log of the sum", or the "factor" that is 1 over that
    of: int

    @property
    def op(self) -> str | None:
        """What XLA makes of it last, as `_pairs` has it."""
        return {"log of the sum": "log_softmax", "factor": "softmax"}.get(self.kind)


def made_of_rows(result: Any, functions: Any) -> OfRows | None:
    """The last one of such values that XLA makes a softmax or log-softmax of, if it is one.

    A log-softmax that is rounded is none: its derivative is made of the logits.
    """
    made_by = maker_behind(RESHAPING, result, functions)
    if name_of(made_by) == "stablehlo.subtract":
        op = "log_softmax"
        shifted, spread = made_by.operands
    else:
        made_by = maker_behind(RESHAPING | {"stablehlo.convert"}, result, functions)
        if name_of(made_by) == "stablehlo.divide" and number_of(made_by.operands[1]) == 1:
            made_by = made_by.operands[0].owner  # what is left as it is
        if name_of(made_by) != "stablehlo.multiply":
            return None
        op = "softmax"
        e, spread = made_by.operands
        (shifted,) = _operands(e, "exponential", 1)
    _, spread_too = _operands(shifted, "subtract", 2)
    if spread_too is None:
        return None
    largest, last = _value_of_rows(spread_too), _value_of_rows(spread)
    if largest is None or last is None or (largest.kind, last.op) != ("largest", op):
        return None
    return last if largest.call == last.call else None


def values_behind(result: Any, functions: Any) -> int:
    """Of how many values for each row, by a kernel, XLA makes this log-softmax; 0 of others.

    Two, or three that it makes the softmax beside of, too; then of that as well.
    """
    values = made_of_rows(result, functions)
    return values.of if values and (values.op == "log_softmax" or values.of == 3) else 0


def is_of_pairs_along(value: Any, axis: int, functions: Any) -> bool:
    """Whether XLA makes this log-softmax along that axis of a kernel's values for each row."""
    values = made_of_rows(value, functions)
    return values is not None and (values.op, values.axis) == ("log_softmax", axis)


def _value_of_rows(spread: Any) -> OfRows | None:
    value = before(spread, RESHAPING | SPREADING)
    axis, kinds = _told_of_rows(value.owner) or (0, ())
    if not kinds:
        return None
    kind = kinds[mlir.ir.OpResult(value).result_number]
    return OfRows(value.owner, axis, kind, len(kinds))


def _told_of_rows(call: Any) -> tuple[int, tuple[str, ...]] | None:
    """The axis of the rows that a call makes values of, and what these are."""
    if target_of(call) != "row_pairs":
        return None
    told = call.attributes[TOLD]
    kinds = kinds_of_rows(told["log_sums"].value, len(call.results))
    return told["axis"].value, kinds


def kinds_of_rows(log_sums: bool, count: int) -> tuple[str, ...]:
    kinds = ("largest", "log of the sum", "factor")
    return kinds[:count] if log_sums else ("largest", "factor")


def of_pairs(logits: Any, like: Any, axis: int, functions: Any) -> Any | None:
    """The log-softmax that XLA makes of two values for each row, if one is made of these here.

    Or of a float32 copy, where a kernel read 16 bits. It is of the type `like`.
    """
    point: Any = mlir.ir.InsertionPoint
    here = point.current.block
    copies = (v for v in (logits, *results_of(logits, "stablehlo.convert")) if v.type == like)
    shifted = (v for copy in copies for v in differences_from(copy))
    differences = (v for value in shifted for v in differences_from(value))
    made = (v for v in differences if is_of_pairs_along(v, axis, functions))
    return next((v for v in made if point(v.owner).block == here), None)


def differences_from(value: Any) -> list[Any]:
    """What something was subtracted from this array to make."""
    uses = [use for use in value.uses if use.operand_number == 0]
    return [u.owner.results[0] for u in uses if name_of(u.owner) == "stablehlo.subtract"]


def results_of(value: Any, operation: str) -> list[Any]:
    """What such operations, of the last ones that read an array, made of it, each one array."""
    readers = [use.owner for use, _ in zip(value.uses, range(MOST_VALUES), strict=False)]
    made = [r for r in readers if name_of(r) == operation]
    several = {"stablehlo.custom_call"}  # a workspace is one more
    return [r.results[0] for r in made if len(r.results) == 1 or operation in several]


def logits_of(result: Any, other: Any) -> tuple[Any, ...]:
    """The float32 logits that XLA's code makes this softmax of, and what mask it is selected by.

    A derivative that reads these in its place may leave the result in 16 bits alone. Nothing if
    `other` has something of it, as the cotangent of an entropy: XLA reads both once then. Nothing
    on an explicit mesh, where constraints of sharding are between all these.
    """
    quotient, mask = result, ()
    if name_of(result.owner) == "stablehlo.select":
        keep, quotient, masked = result.owner.operands
        if keep.type.shape != result.type.shape or number_of(masked) != 0:
            return ()
        mask = (keep,)
    e, _ = _parts_of(quotient) or (None, None)
    if e is None:
        return ()
    (difference,) = e.owner.operands
    if name_of(difference.owner) != "stablehlo.subtract" or is_made_of(other, result):
        return ()
    return (difference.owner.operands[0], *mask)


def exponentials_of(result: Any, other: Any) -> tuple[Any, Any] | None:
    """Those that XLA's code makes this softmax of, and the rows' sums of them; None as above."""
    parts = _parts_of(result)
    return None if parts is None or is_made_of(other, result) else parts


def _parts_of(quotient: Any) -> tuple[Any, Any] | None:
    """Of a result of softmax's: what is reduced with its numerator is summed along the rows."""
    if name_of(quotient.owner) != "stablehlo.divide":
        return None
    e, total = quotient.owner.operands
    total = before_spreading(total)
    if name_of(total.owner) != "stablehlo.reduce" or total.owner.operands[0] != e:
        return None
    return (e, total) if name_of(e.owner) == "stablehlo.exponential" else None
