"""What reads a result, or is likely to: XLA may have it within that code.

What is to read it a lowering does not see: what the program returns, and what of its arguments
nothing has read yet, tell what is likely (`likely_read`). A derivative's lowering sees what has
read the result before it (`how_read`).
"""

import math
from collections.abc import Sequence
from typing import Any

from jax.interpreters import mlir

from ._operations import (
    ELEMENTWISE,
    MOST_VALUES,
    RESHAPING,
    Search,
    is_made_of,
    is_program,
    name_of,
    readers_of,
    shape_of,
)
from ._results import logits_within

FEWEST_ACROSS = 16  # rows that are reduced to one
PICKING = {"stablehlo.dynamic_slice", "stablehlo.gather", "stablehlo.slice"}


def likely_read(
    operand: Any, axis: int, dtype: Any, functions: Any, beside: Sequence[Any] = ()
) -> str | None:
    """How the program reads what is made here of an array, of its shape and `dtype`, by its type.

    One of the ways that `_choice.Context.read` has, or None. What it returns, and what no operation
    has read yet of its arguments, which is left, say what may come, and mostly what does:

        returned     it returns an array of that type, and nothing is left
        converted    the one as large that it returns is of that shape, of another floating-point
                     type; nothing is left, or arrays of that shape are
        elements     the one as large is of that type, and arrays of that shape are left
        across       it returns none as large, but one as long along some dimension, of many rows
        picked       none of these, and an integer for each row is left, as labels are
        reduced      none of these
        summed       the same, and no number for each row is returned or left: rows are added up
        sums         the same, and it returns more than single numbers
        weighed      as "reduced", and arrays of that shape are left
        weighed sum  as "summed", and arrays of that shape are left; or "weighed sums"

    Of all but "returned" nothing is left that is as long along any dimension, but arrays of that
    shape and vectors added to what is made by elements; nor is `operand`, from "across" on, along
    another. Such an array, and what there is of each row, are left as well where they are made of
    others, or have been compared with something; but where a softmax by XLA's code is, which may
    have both within, it is none from "reduced" on, unless that is `beside`.
    """
    block, returned = _program_of()
    if block is None:
        return None
    made = mlir.ir.RankedTensorType.get(operand.type.shape, mlir.dtype_to_ir_type(dtype))
    arguments = [v for v in block.arguments if v != operand and hasattr(v.type, "shape")]
    left: list[Any] = [v.type for v in arguments if readers_of(v) == 0]
    shape = shape_of(operand)
    columns, elements, square = shape[axis], math.prod(shape), shape.count(shape[axis]) > 1
    as_large = [t for t in returned if math.prod(t.shape) >= elements]
    large = [v for v in arguments if math.prod(v.type.shape) == elements]
    own = [v for v in large if readers_of(v) and is_made_of(operand, v, unknown=False)]
    foreign = [v for v in large if v not in own]
    alike = [v for v in _left_of(elements, foreign) if shape_of(v) == shape and v != operand]
    if made in returned and not left and (as_large != [made] or not alike):
        return "returned"
    others = [t for t in left if columns in t.shape and t.shape != shape]
    floats = [t for t in as_large if t.shape == shape and not _is_of_integers(t, least=1)]
    if floats and as_large == floats[:1]:
        # A square may be multiplied with what is left, as a matrix.
        together = alike and not square and all(math.prod(t.shape) == columns for t in others)
        if floats == [made]:
            return "elements" if together else None
        return "converted" if together or not (left or alike) else None
    kept = [math.prod(t.shape) for t in returned if columns in t.shape]
    # Of a square nobody knows which dimension is reduced, or multiplied with what is left.
    if as_large or others or (square and (kept or alike)):
        return None
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
    several = any(math.prod(t.shape) > 1 for t in returned)
    if not summed:
        return "weighed" if alike else "reduced"
    if alike:
        return "weighed sums" if several else "weighed sum"
    return "sums" if several else "summed"


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
    if not is_program(program):
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
