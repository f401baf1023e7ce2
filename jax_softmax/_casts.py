"""What made a primitive's operands, which its lowering sees: conversions to float32, for one.

In mixed precision a softmax of 16 bits is often that of a float32 copy of them.
"""

import operator
from typing import Any

import jax.numpy as jnp
from jax.interpreters import mlir

Operands = tuple[Any, ...]
Lowered = tuple[Any, Operands]  # a lowering's context, and its operands

# What float32 holds every digit of.
NARROW = (jnp.dtype("bfloat16"), jnp.dtype("float16"))
# That a search looks at: masked and scaled logits and their log-softmax are 20.
MOST_VALUES = 32
# What `register_seeing` has seen where these are one operand more.
OF_NARROW = ("loads", "pairs")
# What has no elements of its own, and what XLA fuses nothing across.
SPREAD = {"stablehlo.broadcast_in_dim", "stablehlo.constant", "stablehlo.iota"}
# What is between rows' values and elements; on an explicit mesh they have constraints.
SPREADING = {"stablehlo.broadcast_in_dim", "sdy.sharding_constraint"}
BARRIER = "stablehlo.optimization_barrier"
MANUAL = "sdy.manual_computation"
MOVED = {"stablehlo.reshape", "stablehlo.transpose"}  # of all elements
CUT = {"stablehlo.pad", "stablehlo.slice"}  # of some of them
PRODUCTS = {"stablehlo.convolution", "stablehlo.dot_general"}
UNFUSED = PRODUCTS | {BARRIER}
SUMS = {"stablehlo.add", "stablehlo.subtract"}
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


def cast_before(operand: Any, aval: Any) -> tuple[Any, Any] | None:
    """The conversion that made a float32 operand of 16 bits, and the type that these would have.

    There may be reshapes between them, as where all tokens' logits become the rows of a loss.
    """
    made_by = operand.owner  # an operation, or a block, whose argument it is
    # What its type says on an explicit mesh, and the source's will.
    explicit = aval.sharding.mesh.are_all_axes_explicit
    passed = "sdy.sharding_constraint" if explicit else "stablehlo.reshape"
    while _name(made_by) == passed:
        made_by = made_by.operands[0].owner
    if aval.dtype != jnp.float32 or _name(made_by) != "stablehlo.convert":
        return None
    dtype = _narrow_dtype(made_by.operands[0])
    return None if dtype is None else (made_by, aval.update(dtype=dtype))


def rounded(cast: Any, operand: Any) -> Any:
    """What `cast` converts, in memory, and in the shape of the operand that it made.

    So all that use its result have the same digits from there on. XLA may drop a conversion to 16
    bits and back, and give the digits that these would have lost to its own code alone: a loss, its
    logsumexp by a kernel, could be less than 0.
    """
    (source,) = cast.operands
    if _name(source.owner) != BARRIER:
        with mlir.ir.InsertionPoint(cast):
            barrier = mlir.ir.Operation.create(BARRIER, results=[source.type], operands=[source])
        cast.operands[0] = source = barrier.result
    shape = operand.type.shape
    if source.type.shape == shape:
        return source
    like = mlir.ir.RankedTensorType.get(shape, source.type.element_type)
    return mlir.ir.Operation.create("stablehlo.reshape", results=[like], operands=[source]).result


def was_narrow(value: Any) -> bool:
    """Whether all that a float32 array is computed from, element by element or row by row, was 16
    bits: XLA fuses these conversions, and may fuse those of a derivative."""
    pending, seen = [value], {value}
    while pending and len(seen) <= MOST_VALUES:
        value = pending.pop()
        made_by = value.owner
        operands = list(getattr(made_by, "operands", ()))
        converts = _name(made_by) in ("stablehlo.convert", "stablehlo.custom_call")
        if converts and operands and _narrow_dtype(operands[0]) is not None:
            continue
        if _name(made_by) not in MOVED:
            operands = [
                v for v in operands if v.type == value.type and _name(v.owner) not in SPREAD
            ]
        if not operands or _name(made_by) in UNFUSED:
            return False
        pending += [v for v in operands if v not in seen]
        seen.update(operands)
    return not pending


def is_fused(value: Any, functions: Any) -> bool | None:
    """Whether XLA may have what made an array within the code that reads it; None if unknown."""
    makers = _makers(value, functions)
    return None if makers is None else bool(makers)


def is_scaled(value: Any, functions: Any) -> bool | None:
    """Whether it may have there what is made of a derivative by the array, being more than that.

    As the derivative by `x` of a softmax of `2 * x` is twice that by the softmax's operand.
    """
    makers = _makers(value, functions)
    return None if makers is None else any(map(_scales, makers))


def is_scattered(value: Any, functions: Any) -> bool:
    """Whether a scatter wrote an array, as the transpose of picking a few of its elements does."""
    while True:
        value = _before(value, {"stablehlo.reshape", "sdy.sharding_constraint"})
        returned = _returned(value, functions)
        if returned is None:
            return _name(value.owner) == "stablehlo.scatter"
        value = returned


def _makers(value: Any, functions: Any) -> list[Any] | None:
    """The operations that made an array element by element; some of them may be in `functions`.

    Empty if there are none, or any of what they read is a matrix product: XLA has most of them
    within its code then, and what is made of a derivative within the products that read that.
    None if nothing is seen of what made it, being the argument of a function called elsewhere.
    """
    called: list[Any] = []  # and, of each value, which of them it is within
    pending: list[tuple[Any, tuple[int, ...]]] = [(value, ())]
    makers, seen = [], set(pending)
    while pending and len(seen) <= MOST_VALUES:
        value, within = pending.pop(0)
        made_by, operands = value.owner, []
        if _name(made_by) in PRODUCTS:
            return []
        if isinstance(made_by, mlir.ir.Block):
            number, outside = mlir.ir.BlockArgument(value).arg_number, made_by.owner.operation
            if within:
                *within, call = within
                operands = [called[call].operands[number]]
            elif outside.name == MANUAL:
                operands = [outside.operands[number]]
            elif not makers and not _in_memory(outside):
                return None
        elif (returned := _returned(value, functions)) is not None:
            within = (*within, len(called))
            called.append(made_by)
            operands = [returned]
        elif _name(made_by) in ELEMENTWISE:
            makers.append(made_by)
            operands = [v for v in made_by.operands if _shape(v) == _shape(value)]
        elif _name(made_by) in SPREAD:
            makers.append(made_by)
        elif _name(made_by) in ("stablehlo.reshape", "sdy.sharding_constraint"):
            operands = made_by.operands
        new = [(v, tuple(within)) for v in operands]
        pending += [found for found in new if found not in seen]
        seen.update(new)
    return makers


def _returned(value: Any, functions: Any) -> Any | None:
    """Of a result of a call, or of `shard_map`, what is returned there; None of others."""
    made_by = value.owner
    if _name(made_by) == MANUAL:
        operations = made_by.regions[0].blocks[0].operations
    elif _name(made_by) == "func.call" and made_by.attributes["callee"].value in functions:
        operations = functions[made_by.attributes["callee"].value].entry_block.operations
    else:
        return None
    return operations[len(operations) - 1].operands[mlir.ir.OpResult(value).result_number]


def _in_memory(outside: Any) -> bool:
    """Whether what an operation's region is given is: a loop's, and the program's arguments."""
    is_program = outside.name == "func.func" and outside.attributes["sym_name"].value == "main"
    return is_program or outside.name == "stablehlo.while"


def _scales(made_by: Any) -> bool:
    if _name(made_by) == "stablehlo.convert":
        widths = (v.type.element_type.width for v in (*made_by.operands, *made_by.results))
        return operator.lt(*widths)  # what comes back is narrower: XLA would write that alone
    return _name(made_by) not in SUMS | SPREAD


def logits_within(result: Any, functions: Any) -> Any | None:
    """The logits that XLA's code makes this softmax or log-softmax of; None of others' results."""
    passed = {"convert", "divide", "exponential", "multiply", "reshape", "subtract", "transpose"}
    passed = {f"stablehlo.{name}" for name in passed} | {"sdy.sharding_constraint"}
    value = result
    for _ in range(MOST_VALUES):
        if (returned := _returned(value, functions)) is not None:
            value = returned
        made_by = value.owner
        if _name(made_by) not in passed:
            return None
        value, *others = made_by.operands
        if _name(made_by) == "stablehlo.subtract" and _is_row_maximum(others[0], value):
            dtypes = {v.type.element_type for v in (value, result)}
            widened = len(dtypes) == 2 and _name(value.owner) == "stablehlo.convert"
            return value.owner.operands[0] if widened else value
    return None


def _is_row_maximum(value: Any, of: Any) -> bool:
    made_by = _before_spreading(value).owner
    if _name(made_by) != "stablehlo.maximum":  # with what it is at least
        return False
    return any(
        _name(v.owner) == "stablehlo.reduce" and v.owner.operands[0] == of for v in made_by.operands
    )


def logits_of(result: Any, other: Any) -> tuple[Any, ...]:
    """The float32 logits that XLA's code makes this softmax of, and what mask it is selected by.

    A derivative that reads these in its place may leave the result in 16 bits alone. Nothing if
    `other` has something of it, as the cotangent of an entropy: XLA reads both once then. Nothing
    on an explicit mesh, where constraints of sharding are between all these.
    """
    quotient, mask = result, ()
    if _name(result.owner) == "stablehlo.select":
        keep, quotient, masked = result.owner.operands
        if keep.type.shape != result.type.shape or not _is_zero(masked):
            return ()
        mask = (keep,)
    e, _ = _parts_of(quotient) or (None, None)
    if e is None:
        return ()
    (difference,) = e.owner.operands
    if _name(difference.owner) != "stablehlo.subtract" or is_made_of(other, result):
        return ()
    return (difference.owner.operands[0], *mask)


def exponentials_of(result: Any, other: Any) -> tuple[Any, Any] | None:
    """Those that XLA's code makes this softmax of, and the rows' sums of them; None as above."""
    parts = _parts_of(result)
    return None if parts is None or is_made_of(other, result) else parts


def _parts_of(quotient: Any) -> tuple[Any, Any] | None:
    """Of a result of softmax's: what is reduced with its numerator is summed along the rows."""
    if _name(quotient.owner) != "stablehlo.divide":
        return None
    e, total = quotient.owner.operands
    total = _before_spreading(total)
    if _name(total.owner) != "stablehlo.reduce" or total.owner.operands[0] != e:
        return None
    return (e, total) if _name(e.owner) == "stablehlo.exponential" else None


def is_made_of(value: Any, other: Any) -> bool:
    """Whether there is anything of the other array in this one, for all that a search finds."""
    pending, seen = [value], {value}
    while pending:
        value = pending.pop()
        if value == other or len(seen) > MOST_VALUES:
            return True
        operands = list(getattr(value.owner, "operands", ()))
        if _name(value.owner) not in MOVED | CUT:
            operands = [v for v in operands if _shape(v) == _shape(value)]
        operands = [v for v in operands if v not in seen]
        pending += operands
        seen.update(operands)
    return False


def _shape(value: Any) -> Any:
    return getattr(value.type, "shape", None)


def _before_spreading(value: Any) -> Any:
    return _before(value, {"stablehlo.broadcast_in_dim"})


def _before(value: Any, operations: set[str]) -> Any:
    while _name(value.owner) in operations:
        value = value.owner.operands[0]
    return value


def _is_zero(value: Any) -> bool:
    made_by = _before_spreading(value).owner
    if _name(made_by) != "stablehlo.constant":
        return False
    constant = made_by.attributes["value"]
    return constant.is_splat and constant.get_splat_value().value == 0


def _name(operation: Any) -> str | None:
    return getattr(operation, "name", None)


def _narrow_dtype(value: Any) -> Any:
    """The dtype of an array of 16 bits, or None."""
    element = getattr(value.type, "element_type", None)
    return next((d for d in NARROW if element == mlir.dtype_to_ir_type(d)), None)


def bound_and_loaded(ctx: Any, operands: Operands, seen: str | None) -> tuple[Lowered, Lowered]:
    """What a primitive is bound to and what its kernels load, each with the context to lower it in.

    These differ where the last operand is what the first one was converted from.
    """
    if seen not in OF_NARROW:
        return (ctx, operands), (ctx, operands)
    (*avals, aval), (*values, value) = ctx.avals_in, operands
    bound = ctx.replace(avals_in=avals), (*values,)
    return bound, (ctx.replace(avals_in=[aval, *avals[1:]]), (value, *values[1:]))
