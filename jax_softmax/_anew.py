"""What a derivative is made of, element by element, once more: see `_reference.made_anew`."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax.interpreters import mlir

from ._casts import NARROW
from ._operations import ELEMENTWISE, SPREAD, Search, dtype_among, name_of, shape_of
from ._reference import made_anew

# What XLA's code computes in.
WIDE = (jnp.dtype("float32"), jnp.dtype("float64"))


def is_read_narrow(value: Any) -> bool:
    """Whether anything that an array is made of, element by element, was 16 bits."""
    made_by = (v.owner for v in _chain([value]) or ())
    casts = [m for m in made_by if name_of(m) == "stablehlo.convert"]
    return any(dtype_among(NARROW, cast.operands[0]) for cast in casts)


def has_exponentials(value: Any) -> bool:
    """Whether there is an exponential among what an array is made of, element by element."""
    names = {name_of(v.owner) for v in _chain([value]) or ()}
    return bool(names & {"stablehlo.exponential", "stablehlo.exponential_minus_one"})


def made_again(ctx: Any, values: Sequence[Any]) -> list[Any]:
    """Those, made of the same arrays in memory, as others to XLA; or as they are, of too many."""
    copies: dict[Any, Any] = {}

    def again(value: Any) -> Any:
        if value not in copies:
            copies[value] = copied(value)
        return copies[value]

    def copied(value: Any) -> Any:
        made_by, dtype = value.owner, dtype_among(WIDE, value)
        sources = _sources(value)
        is_copy = name_of(made_by) == "stablehlo.convert" and not any(map(_is_made, sources))
        # An operation anew, of what is anew; but a float32 copy of what is in memory is as that is.
        if _is_made(value) and not (is_copy and dtype):
            operands = [again(v) if v in sources else v for v in made_by.operands]
            copy = made_by.operation.clone()
            for number, operand in enumerate(operands):
                copy.operands[number] = operand
            return copy.results[0]
        if dtype is None or name_of(made_by) in SPREAD:
            return value  # integers, and a number for each row
        aval = ctx.avals_in[0].update(dtype=dtype)
        ctx_of_aval = ctx.replace(avals_in=[aval], avals_out=[aval])
        return mlir.lower_fun(made_anew, multiple_results=False)(ctx_of_aval, value)[0]

    return list(values) if _chain(values) is None else list(map(again, values))


def _chain(values: Sequence[Any]) -> list[Any] | None:
    """Those and what they are made of, element by element; None if that is too many."""
    search = Search(*values)
    found = []
    for value in search:
        found.append(value)
        if _is_made(value):
            search.add(_sources(value))
    return found if search.has_all else None


def _is_made(value: Any) -> bool:
    return name_of(value.owner) in ELEMENTWISE


def _sources(value: Any) -> list[Any]:
    operands = getattr(value.owner, "operands", ())
    return [v for v in operands if shape_of(v) == shape_of(value)]
