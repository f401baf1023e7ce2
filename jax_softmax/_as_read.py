"""Results that are made otherwise, once their derivative's lowering sees what has read them."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
from jax.interpreters import mlir

from . import _revision
from ._affine import Affine, affine_of
from ._calls import BIAS, lower_last, lower_with_terms
from ._casts import NARROW, cast_before, rounded
from ._choice import Problem
from ._implementation import is_free, takes_bias
from ._makers import makers_of
from ._operations import (
    ELEMENTWISE,
    RESHAPING,
    SPREADING,
    Search,
    dtype_among,
    is_made_of,
    make_like,
    name_of,
    shape_of,
)
from ._pairs import lower_by_pairs
from ._readers import how_read
from ._reference import compute_dtype, log_softmax, softmax, unchanged
from ._results import is_asked, is_call, is_log_softmax, of_pairs


def made_as_read(
    ctx: Any,
    operands: Sequence[Any],
    *,
    op: str,
    axis: int,
    dtype: Any,
    zeros_are_masked: bool = False,
    selected: bool = False,
    **request: Any,
) -> Sequence[Any]:
    """The operands of `op`'s derivative; the first, its result, may be made otherwise.

    What has read the result before is seen by now. Where that is XLA's code alone, which computes
    elements as it needs them, it may read one that is made of pairs, and no other from here on, nor
    does what later reads one that XLA's code made; or one by XLA's code. A kernel that wrote it is
    in the program only for what later reads it, as its caller. Or a kernel writes in place of XLA's
    code what is reduced; what later reads the result as it was has that, too.

    What the tangent is made of beside the result may be made of pairs where that is, such as a
    teacher's log-softmax.
    """
    if zeros_are_masked or selected or not is_free(ctx, **request):
        return operands
    (here,), (result, tangent, *_) = ctx.module_context.platforms, operands
    made = _made_as_read(ctx, result, tangent, op=op, here=here, axis=axis, dtype=dtype)
    return [made if v == result else v for v in operands]


def _made_as_read(
    ctx: Any,
    result: Any,
    tangent: Any,
    *,
    op: str,
    here: str,
    axis: int,
    dtype: Any,
    is_another: bool = False,
) -> Any:
    """That, or what it is made as now; with `is_another`, the tangent is not of its derivative."""
    aval, functions = ctx.avals_in[0], ctx.module_context.symbol_table
    found = affine_of(result, axis, functions)
    if found is None:
        return result
    how = how_read(result, axis, functions)
    # As before another derivative.
    again = how in (set(), {"unread"}, {"picked"}) and op == "log_softmax" and found.is_bare
    made = of_pairs(found.logits, result.type, axis, functions) if again else None
    if made is not None:
        return made
    source = _source_of(found, result, aval, functions) if how else None
    if source is None:
        return result
    by_kernel = is_call(result)
    teachers, by_rows = _beside(tangent, result, axis)
    makers = makers_of(found.logits, functions)
    maker = _revision.maker_as_read(
        Problem(op, aval.shape, axis, aval.dtype, dtype, here),
        how=how,
        by_kernel=by_kernel,
        before=source.before,
        multiplied=found.scale != 1 and not makers.of_product,
        comes_back=is_made_of(tangent, result, unknown=False),
        fused=bool(makers_of(tangent, functions).fused),
        by_rows=by_rows and not is_another,
    )
    if is_another and (maker != "pairs" or by_kernel):
        return result
    request = {"op": op, "axis": axis, "dtype": dtype, "scale": found.scale}
    by_call = {"strategy": "auto", "batch_invariant": True}
    types = [aval, *found.types(aval)]
    adds = maker == "kernel" and found.bias is not None
    if maker is None or (adds and not takes_bias(types, here=here, **by_call, **request)):
        return result
    of_terms = ctx.replace(avals_in=types, avals_out=[aval])
    with mlir.ir.InsertionPoint(result.owner):
        terms = [found.logits, *found.terms()]
        if source.before == "widened":
            of_terms = ctx.replace(avals_in=[source.narrow], avals_out=[aval])
            terms = [source.in_memory(found.logits)]
        if maker == "pairs":
            (made,) = lower_by_pairs(of_terms, *terms, **request)
        elif maker == "xla":
            (made,) = _lower_plain(of_terms, *terms, narrowed=makers.narrows, **request)
        else:
            lower = partial(lower_with_terms, names=BIAS) if adds else lower_last
            (made,) = lower(of_terms, *terms, **by_call, **request)
    if maker == "pairs" and not by_kernel:
        make_like(result, made)
        request = {"op": "log_softmax", "here": here, "axis": axis, "dtype": dtype}
        for other in [] if is_another else teachers:
            _made_as_read(ctx, other, tangent, is_another=True, **request)
        return result
    result.replace_all_uses_with(made)
    if maker == "kernel":
        as_it_was = mlir.lower_fun(partial(unchanged, op=op), multiple_results=False)
        with mlir.ir.InsertionPoint(result.owner):
            make_like(result, *as_it_was(ctx.replace(avals_in=[aval], avals_out=[aval]), made))
    return made


class _Source(NamedTuple):
    """What made logits: `before`, as `_revision.maker_as_read` is told.

    Where that is "widened", 16 bits of that type `narrow`, and the `cast` that made logits of them,
    unless these are the 16 bits.
    """

    before: str | None
    narrow: Any = None
    cast: Any = None

    def in_memory(self, logits: Any) -> Any:
        """The 16 bits that these were, or are."""
        return logits if self.cast is None else rounded(self.cast, logits)


def _source_of(found: Affine, result: Any, aval: Any, functions: Any) -> _Source | None:
    """None where a kernel converted what may not be in memory."""
    cast, narrow = (found.is_bare and cast_before(found.logits, aval)) or (None, None)
    source = found.logits if cast is None else cast.operands[0]
    converts = found.logits.type != result.type  # a kernel that wrote it
    if converts:
        narrow = aval.update(dtype=dtype_among(NARROW, source))
    apart = makers_of(source, functions).fused is False
    if narrow is not None and apart:
        return _Source("widened", narrow, cast)
    if converts:
        return None
    if cast is not None:
        apart = makers_of(found.logits, functions).fused is False
    return _Source(("apart" if found.bias is None else "biased") if apart else None)


def _lower_plain(
    ctx: Any, logits: Any, *bias: Any, op: str, scale: float, narrowed: bool, **request: Any
) -> Any:
    """`op` in plain JAX, of logits that are multiplied, and have a bias added, as programs do."""
    reference = partial(log_softmax, narrowed=narrowed) if op == "log_softmax" else softmax

    def plain(x: jax.Array, *bias: jax.Array) -> jax.Array:
        z = x if scale == 1 else (scale * x.astype(compute_dtype(x.dtype))).astype(x.dtype)
        return reference(sum(bias, z), **request)

    return mlir.lower_fun(plain, multiple_results=False)(ctx, logits, *bias)


def _beside(tangent: Any, result: Any, axis: int) -> tuple[list[Any], bool]:
    """What else a tangent is made of, element by element, than the log-softmax that it is of.

    The others of its type that XLA's code made right here, and whether there is an array that has
    another number for each row, not counting those that log-softmaxes are made of.
    """
    search, others, by_rows = Search(tangent, but=[result]), [], False
    for value in search:
        made_by = value.owner
        if is_log_softmax(value, axis):
            others.append(value)
        elif name_of(made_by) == "stablehlo.broadcast_in_dim":
            by_rows |= _differs_by_row(made_by, axis)
        elif name_of(made_by) in ELEMENTWISE | RESHAPING:
            search.add(made_by.operands)
    return [v for v in others if v.type == result.type and not is_asked(v)], by_rows


def _differs_by_row(spread: Any, axis: int) -> bool:
    """Whether a broadcast is of numbers that may differ, and not along that axis alone."""
    (value,) = spread.operands
    along = zip(shape_of(value), spread.attributes["broadcast_dimensions"], strict=True)
    if all(size == 1 or dimension == axis for size, dimension in along):
        return False
    search = Search(value)
    for found in search:
        made_by = found.owner
        if math.prod(shape_of(found)) == 1 or name_of(made_by) == "stablehlo.constant":
            continue
        if name_of(made_by) not in ELEMENTWISE | RESHAPING | SPREADING:
            return True
        search.add(made_by.operands)
    return not search.has_all
