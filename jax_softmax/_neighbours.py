"""What XLA may have within the code that it makes of a primitive: its makers, and its readers.

What is to read a result a lowering does not see: what the program returns, and what of its
arguments nothing has read yet, tell what is likely (`likely_read`). A derivative's lowering sees
what has read the result before it (`how_read`).
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from jax.interpreters import mlir

from ._operations import (
    CONSTRAINTS,
    MOST_VALUES,
    PRODUCTS,
    SPREAD,
    Search,
    before,
    is_made_of,
    name_of,
    number_of,
    readers_of,
    shape_of,
)

STAND_IN = "stablehlo.reshape"
MARKS = "mhlo.frontend_attributes"
MANUAL = "sdy.manual_computation"
RESHAPING = CONSTRAINTS | {STAND_IN}
SPREADING = CONSTRAINTS | {"stablehlo.broadcast_in_dim"}
SUMS = {"stablehlo.add", "stablehlo.subtract"}  # whose derivative by an operand is 1, or -1
ELEMENTWISE = SUMS | {
    f"stablehlo.{name}"
    for name in (
        *("abs", "and", "atan2", "cbrt", "ceil", "clamp", "compare", "convert", "cosine"),
        *("divide", "exponential", "exponential_minus_one", "floor", "log", "log_plus_one"),
        *("logistic", "maximum", "minimum", "multiply", "negate", "not", "or", "power"),
        *("reduce_precision", "remainder", "round_nearest_afz", "round_nearest_even", "rsqrt"),
        *("select", "sign", "sine", "sqrt", "tan", "tanh", "xor"),
    )
}
ELEMENTWISE |= {"chlo.erf", "chlo.erf_inv", "chlo.square"}
TOLD = "mhlo.backend_config"  # the attribute of a call that has its handler's
# Of softmax or log-softmax by XLA's code.
LAST = {f"stablehlo.{name}" for name in ("convert", "divide", "subtract")}
FEWEST_ACROSS = 16  # rows that are reduced to one
PICKING = {"stablehlo.dynamic_slice", "stablehlo.gather", "stablehlo.slice"}


# No makers: a matrix product has them within its own code.
OF_PRODUCT: list[Any] = []


def is_fused(value: Any, functions: Any) -> bool | None:
    """Whether XLA may have what made an array within the code that reads it; None if unknown."""
    makers = _makers(value, functions)
    return None if makers is None else bool(makers)


def is_narrowed(value: Any, functions: Any) -> bool:
    """Whether XLA may have within the code that reads an array the rounding of what was wider.

    Not where that was made of 16 bits itself, which are read then.
    """
    makers = _makers(value, functions) or ()
    widths = [_widths(m) for m in makers if name_of(m) == "stablehlo.convert"]
    read = {before for before, _ in widths}
    return 16 not in read and any(before > after for before, after in widths)


def is_scaled(value: Any, functions: Any) -> bool | None:
    """Whether it may have there what is made of a derivative by the array, being more than that.

    As the derivative by `x` of a softmax of `2 * x` is twice that by the softmax's operand.
    """
    makers = _makers(value, functions)
    return None if makers is None else any(map(_scales, makers))


def beside(tangent: Any, result: Any, axis: int) -> tuple[list[Any], bool]:
    """What else a tangent is made of, element by element, than the log-softmax that it is of.

    The others of its type that XLA's code made right here, and whether there is an array that has
    another number for each row, not counting those that log-softmaxes are made of.
    """
    search, others, by_rows = Search(tangent, but=[result]), [], False
    for value in search:
        made_by = value.owner
        if is_log_softmax(value, axis):
            others.append(value)
        elif name_of(made_by) == "stablehlo.broadcast_in_dim":
            by_rows |= _differs_by_row(made_by, axis)
        elif name_of(made_by) in ELEMENTWISE | RESHAPING:
            search.add(made_by.operands)
    return [v for v in others if v.type == result.type and not is_asked(v)], by_rows


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


def _differs_by_row(spread: Any, axis: int) -> bool:
    """Whether a broadcast is of numbers that may differ, and not along that axis alone."""
    (value,) = spread.operands
    along = zip(shape_of(value), spread.attributes["broadcast_dimensions"], strict=True)
    if all(size == 1 or dimension == axis for size, dimension in along):
        return False
    search = Search(value)
    for found in search:
        made_by = found.owner
        if math.prod(shape_of(found)) == 1 or name_of(made_by) == "stablehlo.constant":
            continue
        if name_of(made_by) not in ELEMENTWISE | RESHAPING | SPREADING:
            return True
        search.add(made_by.operands)
    return not search.has_all


def is_of_product(value: Any, functions: Any) -> bool:
    """Whether it may have what made an array, and what is made of it, within matrix products."""
    return _makers(value, functions) is OF_PRODUCT


def likely_read(
    operand: Any, axis: int, dtype: Any, functions: Any, beside: Sequence[Any] = ()
) -> str | None:
    """How the program reads what is made here of an array, of its shape and `dtype`, by its type.

    As `_choice.choose` is told, or None. What it returns, and what no operation has read yet of its
    arguments, say what may come, and mostly what does: "returned" if it returns an array of that
    type, and nothing is left to be read, or "converted" if that is of another floating-point type;
    by "elements" if an array of its shape is left, and it returns one of that shape alone, of that
    type. If it returns none as large: "across" if it returns one as long along some dimension, of
    many rows each; "picked" if an integer for each row is left, as labels are; else "reduced", or
    "summed" if no number for each row is returned or left, so that rows are added up too. Of all
    but "returned" nothing is left that is as long along any dimension, but for arrays of that shape
    and vectors added to what is made by elements, nor is `operand` along another. Where it would be
    reduced or summed, but arrays of that shape are left, it is "weighed", or "weighed sum". Such an
    array, and what there is of each row, are left as well where they are made of others, or have
    been compared with something; but where a softmax by XLA's code is, which may have both within,
    it is none of these four, unless that is `beside`.
    """
    block, returned = _program_of()
    if block is None:
        return None
    made = mlir.ir.RankedTensorType.get(operand.type.shape, mlir.dtype_to_ir_type(dtype))
    arguments = [v for v in block.arguments if v != operand and hasattr(v.type, "shape")]
    left: list[Any] = [v.type for v in arguments if readers_of(v) == 0]
    shape = shape_of(operand)
    columns, elements = shape[axis], math.prod(shape)
    as_large = [t for t in returned if math.prod(t.shape) >= elements]
    large = [v for v in arguments if math.prod(v.type.shape) == elements]
    own = [v for v in large if readers_of(v) and is_made_of(operand, v, unknown=False)]
    foreign = [v for v in large if v not in own]
    alike = [v for v in _left_of(elements, foreign) if shape_of(v) == shape and v != operand]
    if made in returned and not left and (as_large != [made] or not alike):
        return "returned"
    if shape.count(columns) > 1:
        return None
    others = [t for t in left if columns in t.shape and t.shape != shape]
    floats = [t for t in as_large if t.shape == shape and not _is_of_integers(t, least=1)]
    if floats and as_large == floats[:1]:
        vectors = all(math.prod(t.shape) == columns for t in others)
        if floats != [made]:
            return None if left or alike else "converted"
        return "elements" if alike and vectors else None
    if as_large or others:
        return None
    kept = [math.prod(t.shape) for t in returned if columns in t.shape]
    rows = elements // max(columns, 1)
    if kept and not alike:
        # A mean over an ensemble is of few each, which XLA's code adds up as it makes them.
        return "across" if max(kept) * FEWEST_ACROSS <= elements else None
    of_rows = _left_of(rows, arguments)
    labels = any(_is_of_integers(v.type) for v in of_rows)
    if alike and (kept or labels):
        return None
    if labels:
        return "picked"
    others = [*alike, *(v for v in _left_of(elements, [*own, operand]) if v != operand)]
    if any(logits_within(v, None, functions) is not None for v in others if v not in beside):
        return None
    summed = not of_rows and all(math.prod(t.shape) != rows for t in returned)
    if alike:
        return "weighed sum" if summed else "weighed"
    return "summed" if summed else "reduced"


def are_rows_kept(operand: Any, axis: int) -> bool:
    """Whether the program returns a number for each row, or has one left of its arguments."""
    shape = shape_of(operand)
    rows = math.prod(shape) // max(shape[axis], 1)
    block, returned = _program_of()
    if block is None:
        return False
    arguments = [v for v in block.arguments if hasattr(v.type, "shape")]
    return any(math.prod(t.shape) == rows for t in returned) or bool(_left_of(rows, arguments))


def are_returned(operand: Any, dtype: Any) -> bool:
    """Whether the program returns two arrays, of that shape and `dtype`, or more."""
    made = mlir.ir.RankedTensorType.get(operand.type.shape, mlir.dtype_to_ir_type(dtype))
    return _program_of()[1].count(made) > 1


def _program_of() -> tuple[Any, list[Any]]:
    """Where code is put now, if that is a program and no function or loop of its, and its results.

    Tokens, of effects in an order, have no shape, and are none of these.
    """
    point: Any = mlir.ir.InsertionPoint
    block = point.current.block
    program = block.owner.operation
    if not _is_program(program):
        return None, []
    results = mlir.ir.FunctionType(program.attributes["function_type"].value).results
    return block, [t for t in results if hasattr(t, "shape")]


def _left_of(size: int, values: list[Any]) -> list[Any]:
    """Of those, and of what is made of them, the arrays of so many elements left to be read.

    These are what nothing has read but comparisons. They may be made of one another, or cut from
    integers.
    """

    def has_size(value: Any) -> bool:
        shape = shape_of(value)
        return shape is not None and math.prod(shape) == size

    def may_be_cut(value: Any) -> bool:
        return _is_of_integers(value.type) and math.prod(shape_of(value)) > size

    search, left = Search(*(v for v in values if has_size(v) or may_be_cut(v))), []
    for value in search:
        readers = [use.owner for use in value.uses]
        if has_size(value) and all(name_of(r) == "stablehlo.compare" for r in readers):
            left.append(value)
        search.add(v for r in readers for v in r.results if has_size(v))
    return left


def _is_of_integers(kind: Any, least: int = 2) -> bool:
    """Of so many bits at least; booleans have one."""
    integers = mlir.ir.IntegerType
    return isinstance(kind.element_type, integers) and kind.element_type.width >= least


def is_product(value: Any, functions: Any) -> bool:
    """Whether a matrix product's rows are these, as it wrote them."""
    made_by = maker_behind(RESHAPING, value, functions)
    if name_of(made_by) not in PRODUCTS:
        return False
    return shape_of(made_by.results[0])[-1:] == shape_of(value)[-1:]


def is_scattered(value: Any, functions: Any) -> bool:
    """Whether a scatter wrote an array, as the transpose of picking a few of its elements does.

    Of a sum of such arrays, what is picked in several places, XLA makes one.
    """
    search = Search(value)
    for found in search:
        made_by = maker_behind(RESHAPING, found, functions)
        if name_of(made_by) == "stablehlo.add":
            search.add(made_by.operands)
        elif name_of(made_by) != "stablehlo.scatter":
            return False
    return search.has_all


def logits_here(result: Any, axis: int, functions: Any) -> Any | None:
    """What a kernel, or XLA's code, made this softmax or log-softmax of right here; or None.

    The kernel may have multiplied that, or read and written other types.
    """
    call = writer_of(result)
    if target_of(call) in ("log_softmax", "softmax"):
        return call.operands[0]  # further ones are a symbolic shape
    logits = logits_within(result, axis, functions) if name_of(result.owner) in LAST else None
    return logits if logits is not None and logits.type == result.type else None


def is_call(result: Any) -> bool:
    """Whether a kernel of this package wrote it."""
    return target_of(writer_of(result)) is not None


def mark_asked(result: Any) -> None:
    """Has whoever sees this array know that it was asked for as it is."""
    mark = mlir.ir.DictAttr.get({"jax_softmax": mlir.ir.StringAttr.get("asked for")})
    result.owner.attributes[MARKS] = mark


def is_asked(result: Any) -> bool:
    return MARKS in result.owner.attributes and "jax_softmax" in result.owner.attributes[MARKS]


def stand_in(written: Any) -> Any:
    """An array that is one a kernel wrote, until it is made otherwise: what has read it sees that.

    XLA knows it as the same.
    """
    create, like = mlir.ir.Operation.create, [written.type]
    return create(STAND_IN, results=like, operands=[written]).result


def writer_of(result: Any) -> Any:
    """What made an array, or the one that it stands for."""
    made_by = result.owner
    if name_of(made_by) == STAND_IN and made_by.operands[0].type == result.type:
        return made_by.operands[0].owner
    return made_by


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


def is_of_pairs_along(value: Any, axis: int, functions: Any) -> bool:
    """Whether XLA makes this log-softmax along that axis of a kernel's values for each row."""
    op, values = made_of_rows(value, functions) or ("", None)
    return op == "log_softmax" and values is not None and values.axis == axis


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


def how_read(result: Any, axis: int, functions: Any) -> set[str]:
    """How code reads an array that XLA may have it within.

    "reduced", and "across" too where that is not along the axis, by "elements", "picked", or
    "converted" to another type, and "exponentials" where these are made of it; "unread" if nothing
    has. Nothing if anything else does.
    """
    if readers_of(result) == 0:
        return {"unread"}
    pending, made, how = [result], set(), set()  # of it, element by element
    seen, calls = set(pending), {}  # by what is called
    while pending and len(seen) <= MOST_VALUES:
        value = pending.pop(0)
        for use in value.uses:
            reader, new = use.owner, []
            name = name_of(reader)
            if name == "func.call" and reader.attributes["callee"].value in functions:
                callee = reader.attributes["callee"].value
                new = [functions[callee].entry_block.arguments[use.operand_number]]
                calls.setdefault(callee, []).append(reader)
            elif name == "func.return":
                function = reader.parent.attributes["sym_name"].value
                new = [call.results[use.operand_number] for call in calls.get(function, ())]
                if not new and value not in made:
                    return set()
            elif name in RESHAPING or name in ELEMENTWISE:
                new = list(reader.results)
            elif name == "stablehlo.reduce":
                how.add("reduced")
                # What is behind the axis, and so the axis, lies as it did where that has its shape.
                shape, behind = shape_of(value), shape_of(result)[axis:]
                along = len(shape) - len(behind) in list(reader.attributes["dimensions"])
                if not along and shape[-len(behind) :] == behind:
                    how.add("across")
            elif name in PICKING:
                how.add("picked")
            elif value not in made:
                return set()
            if name == "stablehlo.exponential" and value not in made:
                how.add("exponentials")
            if name in ELEMENTWISE:
                how.add("converted" if name == "stablehlo.convert" else "elements")
            if value in made or name in ELEMENTWISE:
                made.update(new)
            pending += [v for v in new if v not in seen]
            seen.update(new)
    return how if made.issuperset(pending) else set()


def values_behind(result: Any, functions: Any) -> int:
    """Of how many values for each row, by a kernel, XLA makes this log-softmax; 0 of others.

    Two, or three that it makes the softmax beside of, too; then of that as well.
    """
    op, values = made_of_rows(result, functions) or ("", None)
    return values.of if values and (op == "log_softmax" or values.of == 3) else 0


class OfRows(NamedTuple):
    """One of so many values for each row, along an axis, that a call makes."""

    call: Any
    axis: int
    kind: str  # the "largest", the "log of the sum", or the "factor" that is 1 over that
    of: int


def made_of_rows(result: Any, functions: Any) -> tuple[str, OfRows] | None:
    """Which function XLA makes of such values, as `_lowering` has it, and the last one of them.

    A log-softmax that is rounded is none: its derivative is made of the logits.
    """
    made_by = maker_behind(RESHAPING, result, functions)
    if name_of(made_by) == "stablehlo.subtract":
        op, kind = "log_softmax", "log of the sum"
        shifted, spread = made_by.operands
    else:
        made_by = maker_behind(RESHAPING | {"stablehlo.convert"}, result, functions)
        if name_of(made_by) == "stablehlo.divide" and number_of(made_by.operands[1]) == 1:
            made_by = made_by.operands[0].owner  # what is left as it is
        if name_of(made_by) != "stablehlo.multiply":
            return None
        op, kind = "softmax", "factor"
        e, spread = made_by.operands
        (shifted,) = _operands(e, "exponential", 1)
    _, spread_too = _operands(shifted, "subtract", 2)
    if spread_too is None:
        return None
    largest, last = _value_of_rows(spread_too), _value_of_rows(spread)
    if largest is None or last is None or (largest.kind, last.kind) != ("largest", kind):
        return None
    return (op, last) if largest.call == last.call else None


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


def target_of(operation: Any) -> str | None:
    """What one of this package's calls is for."""
    if name_of(operation) != "stablehlo.custom_call":
        return None
    package, _, op = operation.attributes["call_target_name"].value.partition(".")
    return op.partition(".")[0] if package == "jax_softmax" else None


def maker_behind(operations: set[str], value: Any, functions: Any) -> Any:
    """What made an array, before those operations and within calls."""
    while True:
        value = before(value, operations)
        returned = _returned(value, functions)
        if returned is None:
            return value.owner
        value = returned


def _makers(value: Any, functions: Any) -> list[Any] | None:
    """The operations that made an array element by element; some of them may be in `functions`.

    Empty if there are none, or any of what they read is a matrix product: XLA has most of them
    within its code then, and what is made of a derivative within the products that read that.
    None if nothing is seen of what made it, being the argument of a function called elsewhere.
    """
    called: list[Any] = []  # and, of each value, which of them it is within
    pending: list[tuple[Any, tuple[int, ...]]] = [(value, ())]
    makers, seen = [], set(pending)
    while pending and len(seen) <= MOST_VALUES:
        value, within = pending.pop(0)
        made_by, operands = value.owner, []
        if name_of(made_by) in PRODUCTS:
            return OF_PRODUCT
        if isinstance(made_by, mlir.ir.Block):
            number, outside = mlir.ir.BlockArgument(value).arg_number, made_by.owner.operation
            if within:
                *within, call = within
                operands = [called[call].operands[number]]
            elif outside.name == MANUAL:
                operands = [outside.operands[number]]
            elif not makers and not _in_memory(outside):
                return None
        elif (returned := _returned(value, functions)) is not None:
            within = (*within, len(called))
            called.append(made_by)
            operands = [returned]
        elif name_of(made_by) == "stablehlo.add" and is_scattered(value, functions):
            continue
        elif name_of(made_by) in ELEMENTWISE:
            makers.append(made_by)
            operands = [v for v in made_by.operands if shape_of(v) == shape_of(value)]
        elif name_of(made_by) in SPREAD:
            makers.append(made_by)
        elif name_of(made_by) in RESHAPING:
            operands = made_by.operands
        new = [(v, tuple(within)) for v in operands]
        pending += [found for found in new if found not in seen]
        seen.update(new)
    return makers


def _returned(value: Any, functions: Any) -> Any | None:
    """Of a result of a call, or of `shard_map`, what is returned there; None of others."""
    made_by = value.owner
    if name_of(made_by) == MANUAL:
        operations = made_by.regions[0].blocks[0].operations
    elif name_of(made_by) == "func.call" and made_by.attributes["callee"].value in functions:
        operations = functions[made_by.attributes["callee"].value].entry_block.operations
    else:
        return None
    return operations[len(operations) - 1].operands[mlir.ir.OpResult(value).result_number]


def _in_memory(outside: Any) -> bool:
    """Whether what an operation's region is given is: a loop's, and the program's arguments."""
    return _is_program(outside) or outside.name == "stablehlo.while"


def _is_program(operation: Any) -> bool:
    return operation.name == "func.func" and operation.attributes["sym_name"].value == "main"


def _scales(made_by: Any) -> bool:
    if name_of(made_by) == "stablehlo.convert":
        before, after = _widths(made_by)
        return before < after  # what comes back is narrower: XLA would write that alone
    return name_of(made_by) not in SUMS | SPREAD


def _widths(conversion: Any) -> tuple[float, float]:
    """The bits of what a conversion reads and makes; of complex numbers more than all others'."""
    types = (v.type.element_type for v in (*conversion.operands, *conversion.results))
    before, after = (getattr(of, "width", math.inf) for of in types)
    return before, after


def logits_within(result: Any, axis: int | None, functions: Any) -> Any | None:
    """The logits that XLA's code makes this softmax or log-softmax of along that axis, or any.

    None of others' results. It computes in float32 with 16 bits, which these are then.
    """
    passed = {"convert", "divide", "exponential", "multiply", "reshape", "subtract", "transpose"}
    passed = {f"stablehlo.{name}" for name in passed} | CONSTRAINTS
    value = result
    for _ in range(MOST_VALUES):
        while (returned := _returned(value, functions)) is not None:
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
            return value.owner.operands[0] if _widths(value.owner) == (16, 32) else value
    return None
