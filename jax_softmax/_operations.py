"""The operations that made a primitive's operands, as lowerings walk back through them."""

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
