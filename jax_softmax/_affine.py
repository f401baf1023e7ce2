"""What logits are multiplied with, and what is added to them, before a softmax.

Its kernels do that as they read them. The temperature of a sampler, and the bias of a position,
cost a pass over the logits otherwise.
"""

import itertools
import math
from typing import Any, NamedTuple

from . import _native
from ._choice import FORWARD
from ._neighbours import (
    TOLD,
    is_call,
    is_fused,
    is_of_product,
    logits_here,
    maker_behind,
)
from ._operations import CONSTRAINTS, MOVED, before, name_of, number_of, readers_of, shape_of

# With larger ones, logits of 16 bits that the kernels tell apart without it might be as one.
LARGEST, SMALLEST = 2.0**10, 2.0**-40
# Of the logits' elements: a bias that is in memory, and one that XLA writes there for a kernel.
LARGEST_BIAS, LARGEST_MADE = 1 / 4, 1 / 64
SPREADS = "stablehlo.broadcast_in_dim"
RESHAPES = {SPREADS, "stablehlo.reshape"}
# Of a call that adds a bias to logits: its op, by that without any, and the letter of the term.
WITH_TERMS = {op: f"masked_{op}" for op in FORWARD}
BIAS = "b"


class Affine(NamedTuple):
    """`scale * logits + bias`, the bias of the logits' rank in that shape."""

    logits: Any
    scale: float = 1.0
    bias: Any = None
    bias_shape: tuple[int, ...] = ()


def affine_before(
    operand: Any,
    axis: int,
    functions: Any,
    *,
    explicit: bool,
    biased: bool,
    readers: float = 0,
) -> Affine:
    """What made an array, of arrays of its dtype; nothing of it where that is nothing of the kind.

    Nor where more than so many `readers` have read a product or sum before: it is in memory then. A
    bias only if it is `biased`, and has columns along that axis. `explicit` is for a mesh whose
    operations each have a constraint behind them, their type's; any other one is the user's.
    """
    found = _bias_before(operand, axis, functions, readers) if biased else None
    product = found.logits if found else operand
    more = 1 if found else 0  # which is the sum
    scale, logits = _scale_before(product, readers + more, explicit) or (1.0, product)
    found = found or Affine(operand)
    return found._replace(scale=scale, logits=logits)


def _bias_before(operand: Any, axis: int, functions: Any, readers: float) -> Affine | None:
    """The bias that was added, and the array that it was broadcast to.

    None where the sum has more than so many `readers`.
    """
    if name_of(operand.owner) != "stablehlo.add" or readers_of(operand) > readers:
        return None
    full = shape_of(operand)
    for logits, added in itertools.permutations(operand.owner.operands):
        spread = added.owner
        if name_of(spread) != SPREADS or name_of(logits.owner) == SPREADS:
            continue
        (bias,) = spread.operands
        shape = [1] * len(full)
        dimensions = list(spread.attributes["broadcast_dimensions"])
        for dimension, size in zip(dimensions, shape_of(bias), strict=True):
            shape[dimension] = size
        if shape[axis] != full[axis] or dimensions != sorted(dimensions):
            continue
        in_memory = is_fused(_before_reshapes(bias), functions) is False
        largest = LARGEST_BIAS if in_memory else LARGEST_MADE
        if math.prod(shape) <= largest * math.prod(full):
            return Affine(logits, bias=bias, bias_shape=tuple(shape))
    return None


def _before_reshapes(value: Any) -> Any:
    """What has the same elements: dimensions of one are added by a broadcast."""
    while name_of(value.owner) in RESHAPES:
        (operand,) = value.owner.operands
        if math.prod(shape_of(operand)) != math.prod(shape_of(value)):
            break
        value = operand
    return value


def affine_of(result: Any, axis: int, functions: Any) -> Affine | None:
    """What a kernel, or XLA's code, made this softmax or log-softmax of right here; or None.

    Whatever else has read the product, or the sum. That of a matrix product is as it lies.
    """
    logits = logits_here(result, functions)
    if is_call(result):
        scale = scale_within(result, functions)
        if logits is not None:
            return Affine(logits, scale or 1.0)
        operands = list(result.owner.operands)
        dtypes = {v.type.element_type for v in (result, *operands)}
        if scale is None or len(operands) != 2 or len(dtypes) != 1:
            return None  # it converts, or is of other terms
        return Affine(operands[0], scale, operands[1], tuple(shape_of(operands[1])))
    if logits is None:
        return None
    if is_of_product(logits, functions):
        return Affine(logits)
    return affine_before(logits, axis, functions, explicit=False, biased=True, readers=math.inf)


def _scale_before(operand: Any, readers: float, explicit: bool) -> tuple[float, Any] | None:
    """The positive number that made an array, and the array of the same type that it multiplied.

    A quotient by a number is a product with its reciprocal to XLA too. None where it has more than
    so many `readers`.
    """
    product, shardings = operand, set()
    while explicit and name_of(product.owner) in CONSTRAINTS and readers_of(product) == readers:
        shardings.add(str(product.owner.attributes["sharding"]))
        product, readers = product.owner.operands[0], 1
    if readers_of(product) > readers or len(shardings) > 1:
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


def scale_within(result: Any, functions: Any) -> float | None:
    """By what a kernel multiplied the logits of this softmax or log-softmax; None of others.

    It may have added a bias, and nothing else.
    """
    made_by = maker_behind(CONSTRAINTS | MOVED, result, functions)
    if name_of(made_by) != "stablehlo.custom_call" or TOLD not in made_by.attributes:
        return None
    told, called = made_by.attributes[TOLD], made_by.attributes["call_target_name"].value
    if called in map(_native.target, FORWARD):
        return told["scale"].value if "scale" in told else None
    if called not in map(_native.target, WITH_TERMS.values()):
        return None
    alone = told["terms"].value == BIAS and not told["causal"].value and not told["softcap"].value
    return told["factor"].value if alone else None
