"""What XLA may have within the code that reads an array: what made it, element by element."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from jax.interpreters import mlir

from ._operations import (
    ELEMENTWISE,
    MANUAL,
    MOST_VALUES,
    PRODUCTS,
    RESHAPING,
    SPREAD,
    SUMS,
    Search,
    is_program,
    maker_behind,
    name_of,
    returned_by,
    shape_of,
    widths_of,
)


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


def _scales(made_by: Any) -> bool:
    if name_of(made_by) == "stablehlo.convert":
        before, after = widths_of(made_by)
        return before < after  # what comes back is narrower: XLA would write that alone
    return name_of(made_by) not in SUMS | SPREAD
