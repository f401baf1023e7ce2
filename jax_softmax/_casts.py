"""Conversions to float32 before a primitive, which its lowering sees: what made its operands.

In mixed precision a softmax of 16 bits is often that of a float32 copy of them.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax.interpreters import mlir

from ._operations import BARRIER, MOVED, SPREAD, UNFUSED, Search, before, dtype_among, name_of

# What float32 holds every digit of.
NARROW = (jnp.dtype("bfloat16"), jnp.dtype("float16"))
FLOAT32 = jnp.dtype("float32")


def cast_before(operand: Any, aval: Any) -> tuple[Any, Any] | None:
    """The conversion that made a float32 operand of 16 bits, and the type that these would have.

    There may be reshapes between them, as where all tokens' logits become the rows of a loss.
    """
    # What its type says on an explicit mesh, and the source's will.
    explicit = aval.sharding.mesh.are_all_axes_explicit
    passed = "sdy.sharding_constraint" if explicit else "stablehlo.reshape"
    made_by = before(operand, {passed}).owner  # an operation, or a block, whose argument it is
    if aval.dtype != jnp.float32 or name_of(made_by) != "stablehlo.convert":
        return None
    dtype = dtype_among(NARROW, made_by.operands[0])
    return None if dtype is None else (made_by, aval.update(dtype=dtype))


def rounded(cast: Any, operand: Any) -> Any:
    """What `cast` converts, in memory, and in the shape of the operand that it made.

    So all that use its result have the same digits from there on. XLA may drop a conversion to 16
    bits and back, and give the digits that these would have lost to its own code alone: a loss, its
    logsumexp by a kernel, could be less than 0.
    """
    (source,) = cast.operands
    if name_of(source.owner) != BARRIER:
        with mlir.ir.InsertionPoint(cast):
            barrier = mlir.ir.Operation.create(BARRIER, results=[source.type], operands=[source])
        cast.operands[0] = source = barrier.result
    return reshaped(source, operand.type.shape)


def reshaped(value: Any, shape: Sequence[int]) -> Any:
    if list(value.type.shape) == list(shape):
        return value
    like = mlir.ir.RankedTensorType.get(shape, value.type.element_type)
    return mlir.ir.Operation.create("stablehlo.reshape", results=[like], operands=[value]).result


def was_narrow(value: Any) -> bool:
    """Whether all that a float32 array is computed from, element by element or row by row, was 16
    bits: XLA fuses these conversions, and may fuse those of a derivative."""
    search = Search(value)
    for found in search:
        made_by = found.owner
        operands = list(getattr(made_by, "operands", ()))
        converts = name_of(made_by) in ("stablehlo.convert", "stablehlo.custom_call")
        if converts and operands and dtype_among(NARROW, operands[0]) is not None:
            continue
        if name_of(made_by) not in MOVED:
            operands = [
                v for v in operands if v.type == found.type and name_of(v.owner) not in SPREAD
            ]
        if not operands or name_of(made_by) in UNFUSED:
            return False
        search.add(operands)
    return search.has_all
