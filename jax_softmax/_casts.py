"""What a lowering sees of conversions around its primitive: the operations that made its operands.

In mixed precision a softmax of 16 bits is that of a float32 copy, and becomes 16 bits again.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax.interpreters import mlir

# What float32 holds every digit of.
NARROW = (jnp.dtype("bfloat16"), jnp.dtype("float16"))
# Operations that a search for a conversion goes through: masked and scaled logits and their
# log-softmax, in plain JAX, are 12.
MOST_STEPS = 16


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
    """Whether a float32 array, as large as what it is a function of, goes back to 16 bits.

    Follows the first operand of its type, which is what was masked, scaled and shifted.
    """
    for _ in range(MOST_STEPS):
        made_by = value.owner
        operands = list(getattr(made_by, "operands", ()))
        if _name(made_by) in ("stablehlo.convert", "stablehlo.custom_call"):
            return any(_narrow_dtype(v, value) for v in operands[:1])
        if _name(made_by) != "stablehlo.transpose":
            operands = [v for v in operands if v.type == value.type]
        if not operands:
            return False
        value = operands[0]
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
