"""Numbers that logits are multiplied with before a softmax: its kernels do that as they read them.

The temperature of a sampler costs a pass over the logits otherwise.
"""

from typing import Any

from . import _native
from ._choice import FORWARD
from ._neighbours import maker_behind
from ._operations import CONSTRAINTS, MOVED, before, name_of, number_of

# With larger ones, logits of 16 bits that the kernels tell apart without it might be as one.
LARGEST, SMALLEST = 2.0**10, 2.0**-40
TOLD = "mhlo.backend_config"  # the attribute of a call that has its handler's


def scale_before(operand: Any, *, explicit: bool) -> tuple[float, Any] | None:
    """The positive number that made an array, and the array of the same type that it multiplied.

    A quotient by a number is a product with its reciprocal to XLA too. None where something else
    has read the product before: it is in memory then. `explicit` is for a mesh whose operations
    each have a constraint behind them, their type's; any other one is the user's.
    """
    product, readers, shardings = operand, 0, set()
    while explicit and name_of(product.owner) in CONSTRAINTS and _readers(product) == readers:
        shardings.add(str(product.owner.attributes["sharding"]))
        product, readers = product.owner.operands[0], 1
    if _readers(product) > readers or len(shardings) > 1:
        return None
    made_by = product.owner
    if name_of(made_by) == "stablehlo.multiply":
        source, factor = made_by.operands
        number = number_of(before(factor, CONSTRAINTS))
        if number is None:
            source, factor = factor, source
            number = number_of(before(factor, CONSTRAINTS))
    elif name_of(made_by) == "stablehlo.divide":
        source, divisor = made_by.operands
        number = number_of(before(divisor, CONSTRAINTS))
        number = number and 1 / number
    else:
        return None
    if number is None or not SMALLEST <= number <= LARGEST or source.type != operand.type:
        return None
    return number, source


def _readers(value: Any) -> int:
    return sum(1 for _ in value.uses)


def scale_within(result: Any, functions: Any) -> float | None:
    """By what a kernel multiplied the logits of this softmax or log-softmax; None of others."""
    made_by = maker_behind(CONSTRAINTS | MOVED, result, functions)
    if name_of(made_by) != "stablehlo.custom_call" or TOLD not in made_by.attributes:
        return None
    told, called = made_by.attributes[TOLD], made_by.attributes["call_target_name"].value
    of_softmax = called in map(_native.target, FORWARD)
    return told["scale"].value if of_softmax and "scale" in told else None
