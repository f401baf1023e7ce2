"""What a lowering sees of conversions around its primitive: the operations that made its operands.

In mixed precision a softmax of 16 bits is that of a float32 copy, and becomes 16 bits again.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax.interpreters import mlir

# What float32 holds every digit of.
NARROW = (jnp.dtype("bfloat16"), jnp.dtype("float16"))
# That a search for a conversion looks at: masked and scaled logits and their log-softmax are 20.
MOST_VALUES = 32
# What XLA fuses nothing across.
UNFUSED = {
    f"stablehlo.{name}"
    for name in ("case", "convolution", "dot_general", "optimization_barrier", "sort", "while")
}


def before_widening(operand: Any, aval: Any) -> tuple[Any, Any] | None:
    """What the float32 operand was converted from, and its type, where it has all its digits."""
    made_by = operand.owner  # an operation, or a block, whose argument it is
    # What its type says on an explicit mesh, and the source's will.
    if aval.sharding.mesh.are_all_axes_explicit and _name(made_by) == "sdy.sharding_constraint":
        made_by = made_by.operands[0].owner
    if aval.dtype != jnp.float32 or _name(made_by) != "stablehlo.convert":
        return None
    (source,) = made_by.operands
    dtype = _narrow_dtype(source, operand)
    return None if dtype is None else (aval.update(dtype=dtype), source)


def was_narrow(value: Any) -> bool:
    """Whether a float32 array is computed, element by element or row by row, from 16 bits.

    Looks among what has its type, nearest first: what was masked, scaled and shifted.
    """
    found = [value]
    for like in found:
        made_by = like.owner
        operands = list(getattr(made_by, "operands", ()))
        converts = _name(made_by) in ("stablehlo.convert", "stablehlo.custom_call")
        if converts and operands and _narrow_dtype(operands[0], like):
            return True
        moves = _name(made_by) == "stablehlo.transpose"
        if len(found) < MOST_VALUES and _name(made_by) not in UNFUSED:
            found += [v for v in operands if moves or v.type == like.type]
    return False


def _name(operation: Any) -> str | None:
    return getattr(operation, "name", None)


def _narrow_dtype(source: Any, like: Any) -> Any:
    """The dtype of `source`, if it has the shape of `like` and 16 bits; or None."""
    shape = mlir.ir.RankedTensorType(like.type).shape
    types = {d: mlir.ir.RankedTensorType.get(shape, mlir.dtype_to_ir_type(d)) for d in NARROW}
    return next((dtype for dtype, type_ in types.items() if source.type == type_), None)


def without_last(ctx: Any, operands: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
    return ctx.replace(avals_in=ctx.avals_in[:-1]), operands[:-1]


def with_last_first(ctx: Any, operands: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
    """The last operand in place of the first one."""
    (_, *avals, aval), (_, *values, value) = ctx.avals_in, operands
    return ctx.replace(avals_in=[aval, *avals]), [value, *values]
