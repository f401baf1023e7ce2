"""What logits are multiplied with, what is added to them, and what a mask puts in their place.

Before a softmax its kernels do that as they read them. The temperature of a sampler, the bias of a
position and the mask of what is to come cost a pass over the logits otherwise.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.interpreters import mlir

from ._calls import BIAS, TOLD, WITH_TERMS
from ._casts import FLOAT32, NARROW, reshaped
from ._makers import makers_of
from ._operations import (
    CONSTRAINTS,
    MOVED,
    before,
    before_spreading,
    dtype_among,
    maker_behind,
    name_of,
    number_of,
    readers_of,
    shape_of,
)
from ._results import is_call, logits_here, target_of
from ._rule import FORWARD

# With larger ones, logits of 16 bits that the kernels tell apart without it might be as one.
LARGEST, SMALLEST = 2.0**10, 2.0**-40
# Of the logits' elements: a bias that is in memory, and one that XLA writes there for a kernel. And
# a mask that it writes there.
LARGEST_BIAS, LARGEST_MADE, LARGEST_MASK_MADE = 1 / 4, 1 / 64, 1 / 4
SPREADS = "stablehlo.broadcast_in_dim"
RESHAPES = {SPREADS, "stablehlo.reshape"}
DTYPES = (*NARROW, FLOAT32)


class Affine(NamedTuple):
    """`where(mask, scale * logits + bias, fill)`, mask and bias of the logits' rank in that shape.

    All is kept where `fill` is None; with `inverted`, what the mask has False.
    """

    logits: Any
    scale: float = 1.0
    bias: Any = None
    bias_shape: tuple[int, ...] = ()
    mask: Any = None
    mask_shape: tuple[int, ...] = ()
    inverted: bool = False
    fill: float | None = None

    @property
    def is_bare(self) -> bool:
        return self.scale == 1 and self.bias is None and self.fill is None

    def types(self, logits: Any) -> list[Any]:
        """Of a mask and a bias, or what there is of them; `logits` is the type of these."""
        types = []
        if self.fill is not None:
            types.append(logits.update(shape=self.mask_shape, dtype=jnp.dtype(bool)))
        if self.bias is not None:
            types.append(logits.update(shape=self.bias_shape))
        return types

    def terms(self) -> list[Any]:
        """These, in the logits' rank; what the mask has True is kept."""
        terms = []
        if self.fill is not None:
            mask = reshaped(self.mask, self.mask_shape)
            if self.inverted:
                types, operands = [mask.type], [mask]
                create = mlir.ir.Operation.create
                mask = create("stablehlo.not", results=types, operands=operands).result
            terms.append(mask)
        if self.bias is not None:
            terms.append(reshaped(self.bias, self.bias_shape))
        return terms


def affine_before(
    operand: Any,
    axis: int,
    functions: Any,
    *,
    explicit: bool,
    biased: bool,
    masked: bool = False,
    readers: float = 0,
) -> Affine:
    """What made an array, of arrays of its dtype; nothing of it where that is nothing of the kind.

    Nor where more than so many `readers` have read a product or sum before: it is in memory then. A
    bias only if it is `biased`, a mask only if `masked`, and either has columns along that axis.
    `explicit` is for a mesh whose operations each have a constraint behind them, their type's; any
    other one is the user's.
    """
    found = Affine(operand)
    if masked and (selected := _mask_before(operand, axis, functions, readers)):
        found, readers = selected, readers + 1
    if biased and (added := _bias_before(found.logits, axis, functions, readers)):
        logits, bias, shape = added
        found, readers = found._replace(logits=logits, bias=bias, bias_shape=shape), readers + 1
    scale, logits = _scale_before(found.logits, readers, explicit) or (1.0, found.logits)
    return found._replace(scale=scale, logits=logits)


def _mask_before(operand: Any, axis: int, functions: Any, readers: float) -> Affine | None:
    """What selected between logits and a number; in a function of its own, as `jnp.where` is.

    None where the selected array has more than so many `readers`.
    """
    if readers_of(operand) > readers:
        return None
    selected, outside = _within(operand, functions)
    if name_of(selected.owner) != "stablehlo.select":
        return None
    keep, *values = selected.owner.operands
    full = shape_of(operand)
    if shape_of(keep) != full or full[axis] == 1:
        return None  # a flag for all, or as one for each row
    for logits, number in (values, reversed(values)):
        source, fill = outside(logits), _number_of(number, outside)
        if fill is None or math.isnan(fill) or source is None or source.type != operand.type:
            continue
        mask, shape = _broadcast_of(keep, outside)
        if mask is None or shape[axis] != full[axis]:
            return None
        in_memory = makers_of(mask, functions).fused is False
        largest = 1 if in_memory else LARGEST_MASK_MADE
        if math.prod(shape) > largest * math.prod(full):
            return None
        found = Affine(source, mask=mask, mask_shape=shape, fill=fill)
        return found._replace(inverted=logits == values[1])
    return None


def _within(value: Any, functions: Any) -> tuple[Any, Callable[[Any], Any | None]]:
    """Of a result of a call what is returned there; and what an array there is at the call."""
    made_by = value.owner
    if name_of(made_by) != "func.call" or made_by.attributes["callee"].value not in functions:
        return value, lambda v: v
    block = functions[made_by.attributes["callee"].value].entry_block

    def outside(v: Any) -> Any | None:
        is_argument = v.owner == block
        return made_by.operands[mlir.ir.BlockArgument(v).arg_number] if is_argument else None

    *_, end = block.operations
    return end.operands[mlir.ir.OpResult(value).result_number], outside


def _number_of(value: Any, outside: Callable[[Any], Any | None]) -> float | None:
    """That which all elements of an array are, if that is a constant, maybe converted once."""
    value = before_spreading(value)
    dtype = dtype_among(DTYPES, value)
    if name_of(value.owner) == "stablehlo.convert":
        value = before_spreading(value.owner.operands[0])
    number = number_of(outside(value) or value)
    if number is None or dtype is None:
        return None
    with np.errstate(over="ignore"):  # of float16
        return float(np.asarray(number).astype(dtype))


def _broadcast_of(
    value: Any, outside: Callable[[Any], Any | None]
) -> tuple[Any | None, tuple[int, ...]]:
    """An array at the call that this is a broadcast of, and its shape in dimensions of this one's.

    None where it is made of what is there, or where dimensions change places.
    """
    rank = len(shape_of(value))
    dimensions = list(range(rank))
    for at_call in (False, True):
        while name_of(value.owner) == SPREADS:
            along = value.owner.attributes["broadcast_dimensions"]
            dimensions = [dimensions[d] for d in along]
            value = value.owner.operands[0]
        if not at_call and (value := outside(value)) is None:
            return None, ()
    return (value if dimensions == sorted(dimensions) else None), _spread(value, dimensions, rank)


def _spread(value: Any, dimensions: Sequence[int], rank: int) -> tuple[int, ...]:
    """The shape of so many dimensions that an array of these has."""
    shape = [1] * rank
    for dimension, size in zip(dimensions, shape_of(value), strict=True):
        shape[dimension] = size
    return tuple(shape)


def _bias_before(
    operand: Any, axis: int, functions: Any, readers: float
) -> tuple[Any, Any, tuple[int, ...]] | None:
    """The array that a bias was broadcast to, the bias that was added, and its shape of that rank.

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
        dimensions = list(spread.attributes["broadcast_dimensions"])
        shape = _spread(bias, dimensions, len(full))
        if shape[axis] != full[axis] or dimensions != sorted(dimensions):
            continue
        in_memory = makers_of(_before_reshapes(bias), functions).fused is False
        largest = LARGEST_BIAS if in_memory else LARGEST_MADE
        if math.prod(shape) <= largest * math.prod(full):
            return logits, bias, shape
    return None


def _before_reshapes(value: Any) -> Any:
    """What has the same elements: dimensions of one are added by a broadcast."""
    while name_of(value.owner) in RESHAPES:
        (operand,) = value.owner.operands
        if math.prod(shape_of(operand)) != math.prod(shape_of(value)):
            break
        value = operand
    return value


def is_tiled(term: Sequence[int], logits: Sequence[int], axis: int) -> bool:
    """Whether a mask or bias of that shape has several rows, and is repeated, as a causal one."""
    return axis > 0 and term[axis - 1] > 1 and math.prod(term) < math.prod(logits)


def mask_within(result: Any) -> Any | None:
    """By which a kernel put a number in, before this softmax or log-softmax of its."""
    if not is_call(result) or TOLD not in result.owner.attributes:
        return None
    told = result.owner.attributes[TOLD]
    return result.owner.operands[1] if "fills" in told and told["fills"].value else None


def affine_of(result: Any, axis: int, functions: Any) -> Affine | None:
    """What a kernel, or XLA's code, made this softmax or log-softmax of right here; or None.

    Whatever else has read the product, or the sum. XLA's code made that of a matrix product of what
    lies in memory. A kernel may have read 16 bits to write float32.
    """
    logits = logits_here(result, axis, functions)
    if is_call(result):
        scale = scale_within(result, functions)
        if logits is not None:
            widened = dtype_among(NARROW, logits) and dtype_among([FLOAT32], result)
            return Affine(logits, scale or 1.0) if widened or logits.type == result.type else None
        operands = list(result.owner.operands)
        dtypes = {v.type.element_type for v in (result, *operands)}
        if scale is None or len(operands) != 2 or len(dtypes) != 1:
            return None  # it converts, or is of other terms
        return Affine(operands[0], scale, operands[1], tuple(shape_of(operands[1])))
    if logits is None:
        return None
    if makers_of(logits, functions).of_product:
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
    told, op = made_by.attributes[TOLD], target_of(made_by)
    if op in FORWARD:
        return told["scale"].value if "scale" in told else None
    if op not in WITH_TERMS.values():
        return None
    alone = told["terms"].value == BIAS and not told["causal"].value and not told["softcap"].value
    return told["factor"].value if alone else None


def scale_behind(result: Any, functions: Any) -> float | None:
    """The same, of what XLA multiplies that comes back: 1 where a matrix product reads it."""
    scale = scale_within(result, functions)
    if scale in (None, 1):
        return scale
    (logits, *_) = maker_behind(CONSTRAINTS | MOVED, result, functions).operands
    return 1.0 if makers_of(before(logits, MOVED), functions).of_product else scale
