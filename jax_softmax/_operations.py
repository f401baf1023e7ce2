"""The operations of a program, as lowerings walk back through what made their operands."""

import math
from collections.abc import Iterable, Iterator
from typing import Any

from jax.interpreters import mlir

# That a search looks at: masked and scaled logits and their log-softmax are 20.
MOST_VALUES = 32
BARRIER = "stablehlo.optimization_barrier"
# On an explicit mesh these are behind every operation.
CONSTRAINTS = {"sdy.sharding_constraint"}
# What has no elements of its own, all of an operand's, and some of them.
SPREAD = {"stablehlo.broadcast_in_dim", "stablehlo.constant", "stablehlo.iota"}
MOVED = {"stablehlo.reshape", "stablehlo.transpose"}
CUT = {"stablehlo.pad", "stablehlo.slice"}
PRODUCTS = {"stablehlo.convolution", "stablehlo.dot_general"}
UNFUSED = PRODUCTS | {BARRIER}  # what XLA fuses nothing across
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


def name_of(operation: Any) -> str | None:
    return getattr(operation, "name", None)


def shape_of(value: Any) -> Any:
    return getattr(value.type, "shape", None)


def dtype_among(dtypes: Iterable[Any], value: Any) -> Any | None:
    """The one of them that an array has, if it has one."""
    element = getattr(value.type, "element_type", None)
    return next((d for d in dtypes if element == mlir.dtype_to_ir_type(d)), None)


def readers_of(value: Any) -> int:
    return sum(1 for _ in value.uses)


def before_spreading(value: Any) -> Any:
    return before(value, {"stablehlo.broadcast_in_dim"})


def before(value: Any, operations: set[str]) -> Any:
    while name_of(value.owner) in operations:
        value = value.owner.operands[0]
    return value


def number_of(value: Any) -> float | None:
    """That which all elements of an array are, if it is known."""
    made_by = before_spreading(value).owner
    if name_of(made_by) != "stablehlo.constant":
        return None
    constant = made_by.attributes["value"]
    return float(constant.get_splat_value().value) if constant.is_splat else None


def make_like(result: Any, other: Any) -> None:
    """Has what made an array read what an operation of its kind, which is erased, does."""
    assert name_of(result.owner) == name_of(other.owner) and result.type == other.type
    for number, operand in enumerate(other.owner.operands):
        result.owner.operands[number] = operand
    other.owner.erase()


class Search:
    """Values to look at, each once: some, and what is added as they are, but not too many."""

    def __init__(self, *values: Any, but: Iterable[Any] = ()):
        self._values, self._seen = list(values), {*values, *but}
        self._most = len(values) - 1 + MOST_VALUES
        self.has_all = True  # that were added

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)  # which may grow

    def add(self, values: Iterable[Any]) -> None:
        new = [v for v in dict.fromkeys(values) if v not in self._seen]
        if len(self._values) + len(new) > self._most:
            self.has_all = False
            return
        self._values += new
        self._seen.update(new)


def is_made_of(value: Any, other: Any, *, unknown: bool = True) -> bool:
    """Whether there is anything of the other array in this one; `unknown` if a search ends."""
    search = Search(value)
    for found in search:
        if found == other:
            return True
        operands = list(getattr(found.owner, "operands", ()))
        if name_of(found.owner) not in MOVED | CUT:
            operands = [v for v in operands if shape_of(v) == shape_of(found)]
        search.add(operands)
    return unknown and not search.has_all


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


def is_program(operation: Any) -> bool:
    return operation.name == "func.func" and operation.attributes["sym_name"].value == "main"


def widths_of(conversion: Any) -> tuple[float, float]:
    """The bits of what a conversion reads and makes; of complex numbers more than all others'."""
    types = (v.type.element_type for v in (*conversion.operands, *conversion.results))
    before, after = (getattr(of, "width", math.inf) for of in types)
    return before, after
