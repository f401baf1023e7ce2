"""What XLA may have within the code that reads an array: what made it, element by element."""

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
    name_of,
    shape_of,
)

STAND_IN = "stablehlo.reshape"
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


class Makers(NamedTuple):
    """The operations that made an array element by element, if they are `known`.

    Of a matrix product there are none: XLA has most of what it reads within its code then, and what
    is made of a derivative within the products that read that.
    """

    operations: Sequence[Any] = ()
    of_product: bool = False
    known: bool = True

    @property
    def fused(self) -> bool | None:
        """Whether XLA may have these within the code that reads the array; None if unknown."""
        return bool(self.operations) if self.known else None

    @property
    def narrows(self) -> bool:
        """Whether it may have there the rounding of what was wider.

        Not where that was made of 16 bits itself, which are read then.
        """
        widths = [widths_of(m) for m in self.operations if name_of(m) == "stablehlo.convert"]
        read = {before for before, _ in widths}
        return 16 not in read and any(before > after for before, after in widths)

    @property
    def scales(self) -> bool | None:
        """Whether it may have there what is made of a derivative by the array, beyond that.

        As the derivative by `x` of a softmax of `2 * x` is twice that by the softmax's operand.
        """
        return any(map(_scales, self.operations)) if self.known else None


def makers_of(value: Any, functions: Any) -> Makers:
    """Some of them may be in `functions`.

    They are unknown if nothing is seen of what made it, being the argument of a function called
    elsewhere.
    """
    called: list[Any] = []  # and, of each value, which of them it is within
    pending: list[tuple[Any, tuple[int, ...]]] = [(value, ())]
    makers, seen = [], set(pending)
    while pending and len(seen) <= MOST_VALUES:
        value, within = pending.pop(0)
        made_by, operands = value.owner, []
        if name_of(made_by) in PRODUCTS:
            return Makers(of_product=True)
        if isinstance(made_by, mlir.ir.Block):
            number, outside = mlir.ir.BlockArgument(value).arg_number, made_by.owner.operation
            if within:
                *within, call = within
                operands = [called[call].operands[number]]
            elif outside.name == MANUAL:
                operands = [outside.operands[number]]
            elif not makers and not _in_memory(outside):
                return Makers(known=False)
        elif (returned := returned_by(value, functions)) is not None:
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
    return Makers(makers)


def maker_behind(operations: set[str], value: Any, functions: Any) -> Any:
    """What made an array, before those operations and within calls."""
    while True:
        value = before(value, operations)
        returned = returned_by(value, functions)
        if returned is None:
            return value.owner
        value = returned


def returned_by(value: Any, functions: Any) -> Any | None:
    """Of a result of a call, or of `shard_map`, what is returned there; None of others."""
    made_by = value.owner
    if name_of(made_by) == MANUAL:
        operations = made_by.regions[0].blocks[0].operations
    elif name_of(made_by) == "func.call" and made_by.attributes["callee"].value in functions:
        operations = functions[made_by.attributes["callee"].value].entry_block.operations
    else:
        return None
    return operations[len(operations) - 1].operands[mlir.ir.OpResult(value).result_number]


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


def _in_memory(outside: Any) -> bool:
    """Whether what an operation's region is given is: a loop's, and the program's arguments."""
    return is_program(outside) or outside.name == "stablehlo.while"


def is_program(operation: Any) -> bool:
    return operation.name == "func.func" and operation.attributes["sym_name"].value == "main"


def _scales(made_by: Any) -> bool:
    if name_of(made_by) == "stablehlo.convert":
        before, after = widths_of(made_by)
        return before < after  # what comes back is narrower: XLA would write that alone
    return name_of(made_by) not in SUMS | SPREAD


def widths_of(conversion: Any) -> tuple[float, float]:
    """The bits of what a conversion reads and makes; of complex numbers more than all others'."""
    types = (v.type.element_type for v in (*conversion.operands, *conversion.results))
    before, after = (getattr(of, "width", math.inf) for of in types)
    return before, after
