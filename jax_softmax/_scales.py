"""Numbers that logits are multiplied with before a softmax: its kernels do that as they read them.

The temperature of a sampler and the scale of attention cost a pass over the logits otherwise.
"""

from typing import Any

from ._operations import CONSTRAINTS, MOVED, before, before_spreading, name_of

# Beyond, products of what the kernels shift logits by and this might overflow.
LARGEST = 2.0**40
TOLD = "mhlo.backend_config"  # the attribute of a call that has its handler's


def scale_before(operand: Any) -> tuple[float, Any] | None:
    """The positive number that made an array, and the array of the same type that it multiplied.

    A quotient by a number is a product with its reciprocal to XLA too.
    """
    made_by = before(operand, CONSTRAINTS).owner
    if name_of(made_by) == "stablehlo.multiply":
        a, b = made_by.operands
        number, source = (_number(b), a) if _number(a) is None else (_number(a), b)
    elif name_of(made_by) == "stablehlo.divide":
        source, divisor = made_by.operands
        number = _number(divisor)
        number = number and 1 / number
    else:
        return None
    if number is None or not 1 / LARGEST <= number <= LARGEST or source.type != operand.type:
        return None
    return number, source


def _number(value: Any) -> float | None:
    """That which all elements are, if it is known."""
    made_by = before_spreading(before(value, CONSTRAINTS)).owner
    if name_of(made_by) != "stablehlo.constant":
        return None
    constant = made_by.attributes["value"]
    return float(constant.get_splat_value().value) if constant.is_splat else None


def scale_within(result: Any) -> float | None:
    """By what a kernel multiplied the logits of this softmax or log-softmax; None of others."""
    made_by = before(result, CONSTRAINTS | MOVED).owner
    if name_of(made_by) != "stablehlo.custom_call" or TOLD not in made_by.attributes:
        return None
    told = made_by.attributes[TOLD]
    return told["scale"].value if "scale" in told else None
