"""What a lowering sees of its operands: what made them, and what seems to read its result.

Kernels read what was converted to float32, multiplied by a number, had a bias added or one number
put in by a mask, and do the same to it; and who makes a derivative goes by what XLA has within its
code around it. Of a program for one platform. What is to be loaded in place of an operand is put
into the program here, where it is not there: a barrier, a reshape, an inverted mask.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp

from . import _choice, _revision
from ._affine import Affine, affine_before, is_tiled, mask_within, scale_behind
from ._anew import has_exponentials, is_read_narrow, made_again
from ._calls import one_device, without_axis
from ._casts import cast_before, rounded, was_narrow
from ._choice import Context, Problem
from ._implementation import DERIVATIVES, DIFFERENTIATED, adds_bias, chosen, puts_in_terms
from ._makers import is_product, is_scattered, makers_of
from ._operations import is_made_of, shape_of
from ._readers import how_read, likely_read
from ._reference import FEWEST_OF_PARTS, ONE_KERNEL_ALONE, is_last, is_one_kernel, is_static
from ._results import exponentials_of, is_call, logits_of, logits_within, values_behind

# What `Seen.made` is where 16 bits are one operand more.
OF_NARROW = ("loads", "pairs")

Operands = tuple[Any, ...]
Lowered = tuple[Any, Operands]  # a lowering's context, and its operands
More = list[tuple[Any, Any]]  # operands more, each after its type
Decide = Callable[..., str | None]


class Seen(NamedTuple):
    """What a lowering has seen of its operands.

    `made` says what is made of conversions to float32, or of pairs: of an operand, as in
    `softmax(x.astype(jnp.float32))` of 16 bits, or of all that a derivative is computed from.
    "loads": kernels read the 16 bits, which are one operand more, as they compute in float32
    anyway, and a copy would be written and read again. "xla": XLA's code runs, which fuses these
    conversions and may fuse others behind it; softmax's derivative may have the logits, and their
    mask, as operands more. "parts": the same, and softmax's derivative is of the exponentials and
    the rows' sums of them, which are operands more. "pairs": a kernel reduces the rows of 16 bits,
    or of logits that nothing converted, which are one operand more, and XLA's code makes the rest
    of these. "of pairs": so it has made a derivative's result, and makes that; what its last step
    is of are two operands more.

    `around` is, with all operands' types as they are, one of `_choice.AROUND`, or None where that
    is not known. A derivative's result is "stored" where a kernel that multiplied the logits made
    it, so that XLA may multiply what is made of it; or any kernel, and XLA may have what made the
    tangent within its own code, which was made of the result, or by `_revision.reads_stored` is no
    conversion.

    Kernels on a GPU multiply logits by `scale`, and add a bias to them if `biased`, where nothing
    is converted, or put `fill` in by a mask after that: what they were made of is one operand more
    then, or two or three, and what is said of neighbours is said of those that made the logits.
    Forward, `read` says how the program is likely to read the result.
    """

    made: str | None = None
    around: str | None = None
    scale: float = 1.0
    biased: bool = False
    fill: float | None = None
    read: str | None = None

    @property
    def more(self) -> int:
        """How many operands more there are for kernels to load: what the first one was made of."""
        terms = self.biased + (self.fill is not None)
        if self.made == "of pairs":
            return 2  # what the derivative is of once more
        return (self.made in OF_NARROW or self.scale != 1 or terms > 0) + terms

    def context(self, *, alone: bool) -> Context:
        """What `_choice.choose` is told of it, but for a bias, which `adds_bias` is asked about."""
        widened = self.made in ("loads", "xla")
        return Context(alone=alone, widened=widened, around=self.around, read=self.read)


def look(
    ctx: Any, operands: Sequence[Any], decide: Decide, *, op: str, alone: bool, **params: Any
) -> tuple[Seen, More]:
    """What is seen of the operands of a primitive, the name of which is `op`.

    `decide`, given types that kernels may load, says what is done about a conversion: `Seen.made`.
    """
    here, *_ = ctx.module_context.platforms
    if op in DERIVATIVES:
        return _look_at_derivative(ctx, operands, decide, op=op, here=here, alone=alone, **params)
    (aval, *others), operand = ctx.avals_in, operands[0]
    functions, request = ctx.module_context.symbol_table, {"here": here, "alone": alone} | params
    read, forward = None, op in _choice.FORWARD
    free = here in _choice.RULES and not params.get("backend")
    if forward and free and not params.get("differentiated", False):
        read = likely_read(operand, params["axis"], params["dtype"], functions)
    cast, narrow = cast_before(operand, aval) or (None, None)
    if cast is not None:
        if not alone or makers_of(cast.operands[0], functions).fused is not False:
            read = None
        told = {"read": read} if read else {}
        made = decide([narrow, *others], **told, **request)
        more = [(narrow, rounded(cast, operand))] if made in OF_NARROW else []
        return Seen(made, read=read), more
    if not forward:
        return Seen(), []
    return _look_at_logits(ctx, op, operand, read, **request)


def _look_at_derivative(
    ctx: Any,
    operands: Sequence[Any],
    decide: Decide,
    *,
    op: str,
    here: str,
    alone: bool,
    axis: int,
    **params: Any,
) -> tuple[Seen, More]:
    """Of a result and what comes along with it."""
    functions, avals = ctx.module_context.symbol_table, ctx.avals_in
    (y, t), x = operands[:2], avals[0]
    problem = Problem(DIFFERENTIATED[op], x.shape, axis, x.dtype, x.dtype, here)
    values = values_behind(y, functions)
    if values > 0:
        about = {"read": 2 if is_read_narrow(y) else 4, "exponentials": has_exponentials(t)}
        anew = _revision.makes_anew(problem, values=values, **about)
        made = made_again(ctx, [y, t]) if anew else [y, t]
        return Seen("of pairs"), list(zip(avals[:2], made, strict=True))
    # What a kernel wrote XLA reads, whatever the tangent was.
    wide = op == "softmax_tangent" and is_call(y) and is_one_kernel(x, axis)
    converted = [y] if wide else [y, t]
    made = decide(avals, here=here, alone=alone, axis=axis, **params)
    if made != "xla" or not any(map(was_narrow, converted)):
        if here not in _choice.RULES:
            return Seen(), []
        masked = params.get("zeros_are_masked", False)
        around = _seen_around(problem, y, t, functions, masked=masked, alone=alone)
        return Seen(around=around), []
    if op != "softmax_tangent":
        return Seen("xla"), []
    if is_one_kernel(x, axis, ONE_KERNEL_ALONE):
        types = x, x.update(dtype=jnp.dtype(bool))
        return Seen("xla"), list(zip(types, logits_of(*operands), strict=False))
    long = not is_last(x, axis) and x.shape[axis] >= FEWEST_OF_PARTS
    plain = long and not params.get("zeros_are_masked")
    parts = exponentials_of(*operands) if plain else None
    types = x, without_axis(x, axis)
    more = list(zip(types, parts or (), strict=False))
    return Seen("parts" if parts else "xla"), more


def _look_at_logits(
    ctx: Any,
    op: str,
    operand: Any,
    read: str | None,
    *,
    here: str,
    alone: bool,
    axis: int,
    **params: Any,
) -> tuple[Seen, More]:
    """Of the operand of softmax or log-softmax."""
    functions, (aval,) = ctx.module_context.symbol_table, ctx.avals_in
    request = {"op": op, "here": here, "axis": axis} | params
    found = _terms_before(ctx, operand, **request)
    of_product = makers_of(found.logits, functions).of_product
    if found.fill is not None or (found.bias is not None and of_product):
        if _puts_in_terms(found, aval, read, functions, **request):
            seen = Seen(None, None, found.scale, found.bias is not None, found.fill)
            types = [aval, *found.types(aval)]
            return seen, list(zip(types, [found.logits, *found.terms()], strict=True))
        found = found if found.fill is None else Affine(operand)
    see = partial(_seen_before, aval=aval, read=read, functions=functions, here=here, alone=alone)
    seen = see(found)
    if not seen.biased:
        # By the shape of all rows, as what is read is; `_lower` is told of it as "pairs".
        if seen.read and chosen([aval], seen.context(alone=alone), **request).pairs:
            seen = seen._replace(made="pairs")
        return seen, [(aval, found.logits)] if seen.more else []
    (bias,) = found.types(aval)
    without = see(Affine(operand))
    around = [Context(around=of.around, read=seen.read) for of in (seen, without)]
    if not adds_bias([aval, bias], *around, **request):
        return without, []
    return seen, [(aval, found.logits), *((bias, term) for term in found.terms())]


def _terms_before(
    ctx: Any,
    operand: Any,
    *,
    op: str,
    here: str,
    axis: int,
    dtype: Any,
    backend: str | None,
    strategy: str,
    batch_invariant: bool | None,
    **params: Any,
) -> Affine:
    """What made the operand that a GPU's kernels could do as they read it."""
    del params
    functions, (aval,) = ctx.module_context.symbol_table, ctx.avals_in
    if here != "cuda" or dtype != aval.dtype or aval.dtype.itemsize == 8:
        return Affine(operand)
    explicit = aval.sharding.mesh.are_all_axes_explicit
    # Whether a kernel adds a bias goes by how many rows share it.
    free = batch_invariant is False or not (batch_invariant or backend)
    free = free and one_device(ctx) and not explicit and strategy == "auto"
    terms = dict.fromkeys(("biased", "masked"), free and is_static(aval.shape))
    found = affine_before(operand, axis, functions, explicit=explicit, **terms)
    if found.bias is None or found.fill is not None:
        return found
    # Products add a vector, and of log-softmax XLA may have what reads it.
    vector = math.prod(found.bias_shape) == aval.shape[axis]
    of_product = makers_of(found.logits, functions).of_product
    return Affine(operand) if of_product and (vector or op == "log_softmax") else found


def _puts_in_terms(
    found: Affine, aval: Any, read: str | None, functions: Any, *, axis: int, **request: Any
) -> bool:
    """Whether a kernel masks logits, or adds a bias to a matrix product's, where these are apart.

    In mixed precision XLA has the way there and back within its code.
    """
    makers, masked = makers_of(found.logits, functions), found.fill is not None
    if makers.fused is not False or cast_before(found.logits, aval) is not None:
        return False
    shape = found.mask_shape if masked else found.bias_shape
    return puts_in_terms(
        [aval, *found.types(aval)],
        masked=masked,
        tiled=is_tiled(shape, aval.shape, axis),
        product=is_product(found.logits, functions),
        read=read,
        axis=axis,
        **request,
    )


def _seen_before(
    found: Affine, *, aval: Any, read: str | None, functions: Any, here: str, alone: bool
) -> Seen:
    """What is seen of logits, and of what made these."""
    makers = makers_of(found.logits, functions)
    fused = makers.fused if here in _choice.RULES else None
    around = "fused" if fused else "apart" if fused is False and alone else None
    if around == "fused" and aval.dtype.itemsize == 2 and makers.narrows:
        around = "narrowed"
    if around == "apart" and is_product(found.logits, functions):
        around = "product"
    # Between a product and the softmax there may be what XLA has within either.
    told = "unknown" if makers.of_product and around == "apart" else read
    return Seen(None, around, found.scale, found.bias is not None, read=told)


def _seen_around(
    problem: Problem, result: Any, tangent: Any, functions: Any, *, masked: bool, alone: bool
) -> str | None:
    """See `Seen.around`, of the operands of the derivative of what made `result`.

    After a scale, what labels pick of 1,024 float32 columns of log-softmax takes, with its
    gradient, 278 us with the kernel's derivative and 355 with XLA's, of softmax 277 and 250, in
    bfloat16 185 and 147, 179 and 144 (benchmarks/results/h200-graph-attention.json).
    """
    fused = makers_of(tangent, functions).fused
    mask = None if masked else mask_within(result)
    if mask is not None:
        tiled = is_tiled(shape_of(mask), problem.shape, problem.axis)
        if fused or not _revision.keeps_masked(problem, tiled=tiled):
            return "stored apart" if fused is False else "stored"
    scale = None if masked else scale_behind(result, functions)
    narrow = problem.width == 2
    of_kernel = scale is not None and fused
    how = how_read(result, problem.axis, functions) if of_kernel else set()
    if of_kernel and is_made_of(tangent, result, unknown=False):
        if scale == 1 and _revision.keeps_picked(problem, how=how):
            return "apart" if alone else None
        if _revision.rereads(problem, multiplied=scale != 1):
            return "stored again"
    picked = problem.op == "log_softmax" and not narrow and is_scattered(tangent, functions)
    if scale not in (None, 1) and not picked:
        return "stored apart" if fused is False else "stored"
    if of_kernel and _revision.reads_stored(problem, how=how):
        return "stored"
    logits = logits_within(result, problem.axis, functions)
    makers = None if logits is None else makers_of(logits, functions)
    scaled = makers is not None and makers.scales
    if fused:
        # Of 16 bits, as with a sum of squares behind softmax, XLA:GPU makes up to five kernels.
        again = narrow and is_made_of(tangent, result) and not scaled
        if makers is None or again:
            return None
        return "narrowed" if narrow and makers.narrows else "fused"
    if scaled and not picked:
        return "scaled"
    # On an automatic mesh the kernel would gather an axis that may be sharded.
    return "apart" if alone and None not in (fused, scaled) else None


def bound_and_loaded(ctx: Any, operands: Operands, seen: Seen) -> tuple[Lowered, Lowered]:
    """What a primitive is bound to and what its kernels load, each with the context to lower it in.

    These differ where the last operands are what the first one was made of.
    """
    if seen.more == 0:
        return (ctx, operands), (ctx, operands)
    avals, values, first = ctx.avals_in[: -seen.more], operands[: -seen.more], -seen.more
    loaded = [*ctx.avals_in[first:], *avals[1:]], (*operands[first:], *values[1:])
    return (ctx.replace(avals_in=avals), values), (ctx.replace(avals_in=loaded[0]), loaded[1])
