"""Lowering: a custom call on cuda and cpu, and the pure-JAX reference elsewhere or where faster."""

import functools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import mlir

from . import _choice, _native
from ._affine import (
    BIAS,
    MASK,
    WITH_TERMS,
    Affine,
    affine_before,
    affine_of,
    is_tiled,
    mask_within,
    scale_behind,
)
from ._anew import has_exponentials, is_read_narrow, made_again
from ._casts import (
    NARROW,
    OF_NARROW,
    Seen,
    bound_and_loaded,
    cast_before,
    exponentials_of,
    logits_of,
    reshaped,
    rounded,
    was_narrow,
)
from ._neighbours import (
    are_returned,
    are_rows_kept,
    beside,
    how_read,
    is_call,
    is_fused,
    is_narrowed,
    is_of_product,
    is_product,
    is_scaled,
    is_scattered,
    likely_read,
    logits_within,
    mark_asked,
    of_pairs,
    stand_in,
    values_behind,
)
from ._operations import dtype_among, is_made_of, name_of, shape_of
from ._reference import (
    FEWEST_OF_PARTS,
    ONE_KERNEL,
    ONE_KERNEL_ALONE,
    as_stored,
    compute_dtype,
    is_last,
    is_one_kernel,
    is_sharded,
    log_softmax,
    row_pairs,
    softmax,
    tangent_of_parts,
)
from ._together import other_of, source_of

Reference = Callable[..., jax.Array]
Rule = Callable[..., Any]

# Derivatives whose third operand, which may be left out, is for XLA's code alone.
OF_OPERAND = ("log_softmax_tangent", "log_softmax_cotangent")
# Those of a result and a tangent or cotangent.
DERIVATIVES = ("softmax_tangent", *OF_OPERAND)
DIFFERENTIATED = {"softmax_tangent": "softmax"} | dict.fromkeys(OF_OPERAND, "log_softmax")

# What plain JAX is not told.
OF_CHOICE_ALONE = ("selected", "differentiated")
OF_CHOICE = ("strategy", "batch_invariant", *OF_CHOICE_ALONE)

# What handlers want to be told beside the request, and what it is unless a primitive says so.
ATTRIBUTES = {"softmax_tangent": {"scale": 1.0, "zeros_are_masked": False}}


def register(
    primitive: Primitive,
    reference: Reference,
    *,
    per_row: bool = False,
    op: str | None = None,
    values: int = 1,
) -> None:
    """Gives `primitive` its default lowering, and that of each loaded backend with a handler.

    With `per_row` its result is one value for each row: it lacks `axis`. It may be another form of
    an `op`, which has so many `values`.
    """
    request = {"op": op or primitive.name, "per_row": per_row}
    rule = partial(
        _lower,
        call_p=call_primitive(primitive.name, per_row, values=values),
        reference=reference,
        **request,
    )
    default = partial(_lower_reference, reference=reference)
    register_seeing(primitive, default, rule, partial(_decide, **request))


def register_seeing(
    primitive: Primitive, default: Rule, rule: Rule, decide: Callable[..., str | None]
) -> None:
    """Makes `rule`, which is told `here`, the lowering where there is a handler, else `default`.

    In a program for one platform `decide`, given the operands' types, says what is done about
    conversions to float32, and the rule is told so as `seen`: of an operand, as in
    `softmax(x.astype(jnp.float32))` of 16 bits, or of all that a derivative is computed from.
    "loads": kernels read the 16 bits, which are one operand more, as they compute in float32
    anyway, and a copy would be written and read again. "xla": XLA's code runs, which fuses these
    conversions and may fuse others behind it; softmax's derivative may have the logits, and their
    mask, as operands more. "parts": the same, and softmax's derivative is of the exponentials and
    the rows' sums of them, which are operands more. "pairs": a kernel reduces the rows of 16 bits,
    which are one operand more, and XLA's code makes the rest of these. "of pairs": so it has made a
    derivative's result, and makes that; what its last step is of are two operands more.

    Without any, and with all operands' types as they are, one of `_choice.AROUND`, or None where
    that is not known. A derivative's result is "stored" where a kernel that multiplied the logits
    made it, so that XLA may multiply what is made of it; or any kernel, and XLA may have what made
    the tangent within its own code, which was made of the result, or by `_choice.reads_stored` is
    no conversion.

    Kernels on a GPU multiply logits by `seen.scale`, and add a bias to them if `seen.biased`, where
    nothing is converted, or put `seen.fill` in by a mask after that: what they were made of is one
    operand more then, or two or three, and what is said of neighbours is said of those that made
    the logits. Forward, `seen.read` says how the program is likely to read the result; "pairs" may
    be of such logits then.

    Lowerings are cached as functions of their operands, which see nothing of what made these, and
    those that are not cannot be for several platforms (jax 0.10 to 0.12): so there is a primitive
    within the primitive.
    """
    rules = {
        backend: partial(rule, here=backend)
        for backend in _native.BACKENDS
        if _native.has_handler(backend, primitive.name)
    }
    seeing = Primitive(f"{primitive.name}_seeing")
    seeing.multiple_results = primitive.multiple_results

    def abstract_eval(*avals: Any, seen: Seen, **params: Any) -> Any:
        return primitive.abstract_eval(*avals[: len(avals) - seen.more], **params)

    def look(ctx: Any, operands: Sequence[Any], **params: Any) -> tuple[Seen, list[Any]]:
        """`seen`, and the operands more that this takes, each with its type."""
        here, *others = ctx.module_context.platforms
        if here not in rules or others:
            return Seen(), []
        avals = ctx.avals_in
        alone = one_device(ctx) or _have_rows(avals, **params)
        functions = ctx.module_context.symbol_table
        request = {"here": here, "alone": alone} | params
        if primitive.name in DERIVATIVES:
            values = values_behind(operands[0], functions)
            if values > 0:
                y, t = operands[:2]
                shape = avals[0].shape, params["axis"]
                sizes = 2 if is_read_narrow(y) else 4, avals[0].dtype.itemsize
                exponentials = has_exponentials(t)
                choose = partial(_choice.makes_anew, values=values, exponentials=exponentials)
                anew = choose(*shape, *sizes, here)
                made = made_again(ctx, [y, t]) if anew else [y, t]
                return Seen("of pairs"), list(zip(avals[:2], made, strict=True))
            # What a kernel wrote XLA reads, whatever the tangent was.
            wide = primitive.name == "softmax_tangent" and is_call(operands[0])
            wide &= is_one_kernel(avals[0], params["axis"])
            converted = operands[:1] if wide else operands[:2]
            if decide(avals, **request) != "xla" or not any(map(was_narrow, converted)):
                if here not in _choice.RULES:
                    return Seen(), []
                y, t = operands[:2]
                request = {"op": DIFFERENTIATED[primitive.name], "here": here}
                request |= {"axis": params["axis"]}
                request |= {"masked": params.get("zeros_are_masked", False), "alone": alone}
                return Seen(_seen_around(avals[0], y, t, functions, **request)), []
            if primitive.name != "softmax_tangent":
                return Seen("xla"), []
            x, axis = avals[0], params["axis"]
            if is_one_kernel(x, axis, ONE_KERNEL_ALONE):
                types = x, x.update(dtype=jnp.dtype(bool))
                return Seen("xla"), list(zip(types, logits_of(*operands), strict=False))
            long = not is_last(x, axis) and x.shape[axis] >= FEWEST_OF_PARTS
            plain = long and not params.get("zeros_are_masked")
            parts = exponentials_of(*operands) if plain else None
            types = x, without_axis(x, axis)
            more = list(zip(types, parts or (), strict=False))
            return Seen("parts" if parts else "xla"), more
        (aval, *others), operand = avals, operands[0]
        read, forward = None, primitive.name in _choice.FORWARD
        free = here in _choice.RULES and not params.get("backend")
        if forward and free and not params.get("differentiated", False):
            read = likely_read(operand, params["axis"], params["dtype"], functions)
        cast, narrow = cast_before(operand, aval) or (None, None)
        if cast is not None:
            told = {}
            if read and alone and is_fused(cast.operands[0], functions) is False:
                told["read"] = read
            made = decide([narrow, *others], **told, **request)
            seen = Seen(made, **told)
            return seen, [(narrow, rounded(cast, operand))] if made in OF_NARROW else []
        if not forward:
            return Seen(), []
        return _look_at_logits(ctx, primitive.name, operand, read, **request)

    def lower(ctx: Any, *operands: Any, **params: Any) -> Any:
        if primitive.name in DERIVATIVES and ctx.module_context.platforms[0] in rules:
            op = DIFFERENTIATED[primitive.name]
            operands = tuple(_made_as_read(ctx, operands, op=op, **params))
        elif primitive.name in _choice.FORWARD:
            made = _made_together(ctx, *operands, op=primitive.name, **params)
            if made is not None:
                return [made]
        seen, more = look(ctx, operands, **params)
        ctx = ctx.replace(avals_in=[*ctx.avals_in, *(aval for aval, _ in more)])
        operands = (*operands, *(operand for _, operand in more))
        bind = partial(seeing.bind, seen=seen, **params)
        if seen.made == "parts":
            bind = partial(tangent_of_parts, axis=params["axis"], dtype=params["dtype"])
        results = mlir.lower_fun(bind, multiple_results=seeing.multiple_results)(ctx, *operands)
        if params.get("backend") == "xla" and primitive.name in _choice.FORWARD:
            mark_asked(results[0])
        return results

    seeing.def_effectful_abstract_eval(abstract_eval)
    mlir.register_lowering(seeing, partial(_lower_default, default=default))
    for backend, of_backend in rules.items():
        register_rule(seeing, backend, of_backend)
    mlir.register_lowering(primitive, lower, cacheable=False)


def _lower_default(ctx: Any, *operands: Any, default: Rule, seen: Seen, **params: Any) -> Any:
    (ctx, operands), _ = bound_and_loaded(ctx, operands, seen)
    return default(ctx, *operands, **params)


def register_rule(primitive: Primitive, backend: str, rule: Rule) -> None:
    """Makes `rule` the lowering for a platform, of each device's own rows where they are known."""
    rule = partial(_lower_rows, primitive=primitive, rule=rule)
    mlir.register_lowering(primitive, rule, platform=backend)


def _lower_rows(ctx: Any, *operands: Any, primitive: Primitive, rule: Any, **params: Any) -> Any:
    """On an explicit mesh, whose sharding the trace tells, kernels have what `shard_map` gives."""
    if one_device(ctx) or not _have_rows(ctx.avals_in, **params):
        return rule(ctx, *operands, **params)
    mesh = ctx.avals_in[0].sharding.mesh
    in_specs, out_specs = (
        [v.sharding.spec for v in avals] for avals in (ctx.avals_in, ctx.avals_out)
    )
    results = primitive.multiple_results
    mapped = jax.shard_map(
        lambda *parts: primitive.bind(*parts, **params),
        mesh=mesh,
        in_specs=tuple(in_specs),
        out_specs=out_specs if results else out_specs[0],
        check_vma=False,  # the specs say it
    )
    return mlir.lower_fun(mapped, multiple_results=results)(ctx, *operands)


def _have_rows(avals: Sequence[Any], **params: Any) -> bool:
    """Whether each device of an explicit mesh has whole rows."""
    x = avals[0]
    axis = params.get("axis", x.ndim - 1)
    # A causal mask goes by a row's number.
    whole = {axis, x.ndim - 2} if params.get("causal") else {axis}
    return (
        x.sharding.mesh.are_all_axes_explicit
        and not any(is_sharded(x, d) for d in whole)
        # As a tangent may not be that has come by another way (jax 0.10).
        and all(v.sharding.spec == aligned_spec(v, x, axis) for v in avals[1:])
    )


def register_map(primitive: Primitive, reference: Reference) -> None:
    """The same for an op that reduces nothing: x[..., n] and some of its rows to a result like x.

    Along the last axis alone.
    """
    default = mlir.lower_fun(reference, multiple_results=False)
    rule = partial(_lower_map, name=primitive.name, default=default)
    register_seeing(primitive, default, rule, _decide_map)


def _decide_map(avals: Sequence[Any], *, here: str, **params: Any) -> str | None:
    """XLA:GPU fuses the conversion with this, and maybe one of the result."""
    del avals, params
    return "xla" if here == "cuda" else None


def _lower_map(
    ctx: Any,
    *operands: Any,
    name: str,
    default: Rule,
    here: str,
    seen: Seen,
    axis: int,
    dtype: Any,
) -> Any:
    x = ctx.avals_in[0]
    params = {"axis": axis, "dtype": dtype}
    if (
        seen.made is None
        and one_device(ctx)
        and axis == x.ndim - 1
        and dtype == x.dtype
        and fastest(name, [x], here, None, strategy="auto", **params).implementation == here
    ):
        return jax.ffi.ffi_lowering(_native.target(name))(ctx, *operands)
    return default(ctx, *operands, **params)


def _lower_reference(
    ctx: Any,
    *operands: Any,
    reference: Reference,
    axis: int,
    dtype: Any,
    backend: str | None,
    **request: Any,
) -> Any:
    if backend not in (None, "xla"):
        raise ValueError(
            f"implementation='{backend}' was asked for in a computation compiled for "
            f"{'/'.join(ctx.module_context.platforms)}; put the operands on a {backend} device, "
            "or leave implementation=None"
        )
    function = partial(untold(reference), axis=axis, dtype=dtype, **request)
    return mlir.lower_fun(function, multiple_results=len(ctx.avals_out) > 1)(ctx, *operands)


def untold(reference: Reference) -> Reference:
    """Plain JAX that may be given what it is not told."""

    def function(*operands: jax.Array, **request: Any) -> Any:
        return reference(*operands, **{k: v for k, v in request.items() if k not in OF_CHOICE})

    return function


def _decide(avals: Sequence[Any], *, here: str, op: str, **params: Any) -> str | None:
    """See `register_seeing`; `avals` are as kernels would load them."""
    if op in DERIVATIVES and params["dtype"] != jnp.float32:
        return None  # which most are, and is found before anything is chosen
    # On a CPU a loss's gradient has a kernel, which wants the float32.
    if (here == "cpu" and params["per_row"]) or not may_load(avals[0], here, **params):
        return None
    choice = _choose(avals, here=here, op=op, widened=True, **params)
    return "xla" if choice.implementation == "xla" else "pairs" if choice.pairs else "loads"


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
) -> tuple[Seen, list[Any]]:
    """See `register_seeing`, of the operand of softmax or log-softmax."""
    functions, (aval,) = ctx.module_context.symbol_table, ctx.avals_in

    def seen_of(found: Affine) -> Seen:
        fused = is_fused(found.logits, functions) if here in _choice.RULES else None
        made = "fused" if fused else "apart" if fused is False and alone else None
        if made == "fused" and aval.dtype.itemsize == 2 and is_narrowed(found.logits, functions):
            made = "narrowed"
        if made == "apart" and is_product(found.logits, functions):
            made = "product"
        of_product = is_of_product(found.logits, functions)
        # Between a product and the softmax there may be what XLA has within either.
        told = None if of_product and made == "apart" else read
        multiplied = found.scale != 1 and not of_product
        return Seen(made, found.scale, found.bias is not None, told, multiplied=multiplied)

    found = Affine(operand)
    if here == "cuda" and params["dtype"] == aval.dtype and aval.dtype.itemsize < 8:
        explicit = aval.sharding.mesh.are_all_axes_explicit
        # Whether a kernel adds a bias goes by how many rows share it.
        free = params["batch_invariant"] is False or not (
            params["batch_invariant"] or params["backend"]
        )
        biased = free and one_device(ctx) and not explicit
        biased = biased and params["strategy"] == "auto" and _is_static(aval.shape)
        terms = {"biased": biased, "masked": biased}
        found = affine_before(operand, axis, functions, explicit=explicit, **terms)
        of_product = is_of_product(found.logits, functions)
        masked = found.fill is not None
        if found.bias is not None and not masked and of_product:
            # Products add a vector, and of log-softmax XLA may have what reads it.
            vector = math.prod(found.bias_shape) == aval.shape[axis]
            found = Affine(operand) if vector or op == "log_softmax" else found
        if masked or (found.bias is not None and of_product):
            types = [aval, *_types_of_terms(found, aval)]
            # In mixed precision XLA has the way there and back within its code.
            apart = is_fused(found.logits, functions) is False
            apart = apart and cast_before(found.logits, aval) is None
            shape = found.mask_shape if masked else found.bias_shape
            about = {
                "masked": masked,
                "tiled": is_tiled(shape, aval.shape, axis),
                "product": is_product(found.logits, functions),
                "read": read,
            }
            if apart and _takes_terms(types, about, op=op, here=here, axis=axis, **params):
                seen = Seen(None, found.scale, found.bias is not None, fill=found.fill)
                return seen, list(zip(types, [found.logits, *_terms_of(found)], strict=True))
            found = Affine(operand) if masked else found
    seen = seen_of(found)
    if not seen.biased:
        request = {"alone": alone, "per_row": False, "widened": False, "read": seen.read} | params
        request |= {"around": seen.made, "multiplied": seen.multiplied}
        # By the shape of all rows, as what is read is; `_lower` is told of it as "pairs".
        if seen.read and _choose([aval], op=op, here=here, axis=axis, **request).pairs:
            seen = seen._replace(made="pairs")
        return seen, [(aval, found.logits)] if seen.more else []
    (bias,) = _types_of_terms(found, aval)
    without = seen_of(Affine(operand))
    if not _adds_bias(op, [aval, bias], seen, without, here=here, axis=axis, **params):
        return without, []
    return seen, [(aval, found.logits), *((bias, term) for term in _terms_of(found))]


def _types_of_terms(found: Affine, logits: Any) -> list[Any]:
    """Of a mask and a bias, or what there is of them."""
    types = []
    if found.fill is not None:
        types.append(logits.update(shape=found.mask_shape, dtype=jnp.dtype(bool)))
    if found.bias is not None:
        types.append(logits.update(shape=found.bias_shape))
    return types


def _terms_of(found: Affine) -> list[Any]:
    """These, in the logits' rank; what the mask has True is kept."""
    terms = []
    if found.fill is not None:
        mask = reshaped(found.mask, found.mask_shape)
        if found.inverted:
            types, operands = [mask.type], [mask]
            create = mlir.ir.Operation.create
            mask = create("stablehlo.not", results=types, operands=operands).result
        terms.append(mask)
    if found.bias is not None:
        terms.append(reshaped(found.bias, found.bias_shape))
    return terms


def _takes_terms(
    avals: Sequence[Any],
    about: dict[str, Any],
    *,
    op: str,
    here: str,
    axis: int,
    batch_invariant: bool | None,
    backend: str | None,
    differentiated: bool = False,
    **params: Any,
) -> bool:
    """Whether a kernel does what `_choice.takes_terms` says: where there is one.

    And it is the faster one, or is asked for. `about` is what that is told beside.
    """
    x, name = avals[0], WITH_TERMS[op]
    request = {"here": here, "axis": axis, "batch_invariant": batch_invariant} | params
    if not has_kernel_with_terms(avals, name=name, causal=False, **request):
        return False
    if backend:
        return backend == here
    problem = op, x.shape, axis, x.dtype, here
    return fastest(name, [x], **request).implementation == here and _choice.takes_terms(
        *problem, differentiated=differentiated, **about
    )


def _adds_bias(
    op: str, avals: Sequence[Any], seen: Seen, without: Seen, *, here: str, **params: Any
) -> bool:
    """Whether a kernel adds a bias to logits: where it is the faster one, or would be `without`."""
    if not _takes_bias(avals, op=op, here=here, **params):
        return False
    request: dict[str, Any] = {"here": here, "alone": True, "op": op, "per_row": False} | params
    request |= {"widened": False, "read": seen.read}
    choose = partial(_choose, avals[:1], **request)
    chosen = choose(around=seen.made, biased=True), choose(around=without.made)
    if not any(c.implementation == here and c.batch_invariant for c in chosen):
        return False
    if params["backend"]:
        return True
    problem = {k: params[k] for k in ("axis", "dtype", "strategy")}
    biased = fastest(f"biased_{op}", avals[:1], here, params["batch_invariant"], **problem)
    return biased.implementation == here


def _takes_bias(avals: Sequence[Any], *, op: str, **request: Any) -> bool:
    return has_kernel_with_terms(avals, name=WITH_TERMS[op], causal=False, **request)


def _seen_around(
    aval: Any,
    result: Any,
    tangent: Any,
    functions: Any,
    *,
    op: str,
    here: str,
    axis: int,
    masked: bool,
    alone: bool,
) -> str | None:
    """See `register_seeing`, of the operands of `op`'s derivative.

    After a scale, what labels pick of 1,024 float32 columns of log-softmax takes, with its
    gradient, 278 us with the kernel's derivative and 355 with XLA's, of softmax 277 and 250, in
    bfloat16 185 and 147, 179 and 144 (benchmarks/results/h200-graph-attention.json).
    """
    fused = is_fused(tangent, functions)
    mask = None if masked else mask_within(result)
    if mask is not None:
        about = op, aval.shape[axis], aval.dtype, here
        tiled = is_tiled(shape_of(mask), aval.shape, axis)
        if fused or not _choice.keeps_masked(*about, tiled=tiled):
            return "stored apart" if fused is False else "stored"
    scale = None if masked else scale_behind(result, functions)
    narrow = aval.dtype.itemsize == 2
    of_kernel = scale is not None and fused
    how = how_read(result, axis, functions) if of_kernel else set()
    if of_kernel and is_made_of(tangent, result, unknown=False):
        about = op, aval.shape[axis], aval.dtype, here
        if scale == 1 and _choice.keeps_picked(*about, how=how):
            return "apart" if alone else None
        problem = op, aval.shape, axis, aval.dtype, here
        if _choice.rereads(*problem, multiplied=scale != 1):
            return "stored again"
    picked = op == "log_softmax" and not narrow and is_scattered(tangent, functions)
    if scale not in (None, 1) and not picked:
        return "stored apart" if fused is False else "stored"
    if of_kernel and _choice.reads_stored(op, aval.shape, axis, aval.dtype, here, how=how):
        return "stored"
    logits = logits_within(result, axis, functions)
    scaled = logits is not None and is_scaled(logits, functions)
    if fused:
        # Of 16 bits, as with a sum of squares behind softmax, XLA:GPU makes up to five kernels.
        again = narrow and is_made_of(tangent, result) and not scaled
        if logits is None or again:
            return None
        return "narrowed" if narrow and is_narrowed(logits, functions) else "fused"
    if scaled and not picked:
        return "scaled"
    # On an automatic mesh the kernel would gather an axis that may be sharded.
    return "apart" if alone and None not in (fused, scaled) else None


def may_load(
    x: Any, here: str, *, backend: str | None, strategy: str, dtype: Any, **params: Any
) -> bool:
    """Whether kernels may have `x` in place of float32: where it converts, and none is forced."""
    del params
    asked = backend in (None, here) and strategy == "auto"
    return asked and _native.has_kernels(here, x.dtype, dtype)


def _choose(
    operands: Sequence[Any],
    *,
    here: str,
    alone: bool,
    op: str,
    per_row: bool,
    backend: str | None,
    batch_invariant: bool | None,
    widened: bool,
    around: str | None = None,
    multiplied: bool = False,
    biased: bool = False,
    zeros_are_masked: bool = False,
    selected: bool = False,
    differentiated: bool = False,
    read: str | None = None,
    scale: float = 1.0,
    **params: Any,
) -> _choice.Choice:
    """What runs an op on operands of these types, `alone` where no devices share the work."""
    del scale
    loaded = operands[:2] if op in DERIVATIVES else operands
    x, axis = operands[0], params["axis"]
    if here == "cuda" and x.shape[axis] == 0:
        backend = "xla"  # rows without columns may still have a value each
    if backend is None and (
        (is_sharded(x, axis) and not batch_invariant)
        # On an automatic mesh nobody knows whether the axis is sharded.
        or (per_row and not alone)
    ):
        backend = "xla"  # exchanges one value for each row, where a call would gather the axis
    if backend:
        return _choice.Choice(backend, "it was asked for")
    from_result = op in OF_OPERAND and len(operands) == 2
    by_xla = around in ("fused", "narrowed", "scaled")  # made the result, and knows it
    case = f"masked_{op}" if zeros_are_masked or (from_result and not by_xla) else op
    case = f"selected_{op}" if selected else case
    seen = {"widened": widened, "differentiated": differentiated, "around": around}
    seen |= {"multiplied": multiplied, "biased": biased, "read": read, "alone": alone}
    choice = fastest(case, loaded, here, batch_invariant, **seen, **params)
    if batch_invariant is None and not choice.batch_invariant and not alone:
        # Few rows: if the axis is sharded after all, to gather it costs more than they do.
        choice = choice._replace(implementation="xla")
    return choice


def _lower(
    ctx: Any,
    *operands: Any,
    op: str,
    per_row: bool,
    call_p: Primitive,
    reference: Reference,
    here: str,
    seen: Seen,
    backend: str | None,
    batch_invariant: bool | None,
    **params: Any,
) -> Any:
    if seen.made == "pairs":
        request = {"axis": params["axis"], "dtype": params["dtype"], "scale": seen.scale}
        ctx = ctx.replace(avals_in=ctx.avals_in[-1:])  # what kernels read
        return _lower_by_pairs(ctx, operands[-1], op=op, **request)
    if seen.made == "of pairs":
        forms = {} if op == "softmax_tangent" else {"stored": False}

        def once_more(y: jax.Array, t: jax.Array, *others: jax.Array, **request: Any) -> Any:
            *_, again_y, again_t = others  # after what the result is of, if that is an operand
            return untold(reference)(y, t, anew=(again_y, again_t), **forms, **request)

        return _lower_reference(ctx, *operands, reference=once_more, backend="xla", **params)
    (ctx, operands), loaded = bound_and_loaded(ctx, operands, seen)
    if seen.biased or seen.fill is not None:
        request = {k: params[k] for k in ("axis", "dtype", "strategy")}
        request |= {"batch_invariant": batch_invariant is not False, "fill": seen.fill}
        names = MASK * (seen.fill is not None) + BIAS * seen.biased
        request |= {"names": names, "scale": seen.scale}
        return _lower_with_terms(loaded[0], *loaded[1], op=op, **request)
    backend, alone = "xla" if seen.made == "xla" else backend, one_device(ctx)
    request = {"op": op, "per_row": per_row, "here": here, "alone": alone, "backend": backend}
    request |= {"batch_invariant": batch_invariant, "around": seen.made}
    request |= {"multiplied": seen.multiplied, "read": seen.read}
    request |= {"widened": seen.made not in (None, *_choice.AROUND)}
    choice = _choose(loaded[0].avals_in, **request, **params)
    if choice.implementation != here:
        if op == "logsumexp":
            reference = partial(reference, one_by_one=alone)
        elif op == "log_softmax" and here == "cuda":
            forward_alone = not params.get("differentiated", False)
            forms = {"forward_alone": forward_alone, "narrowed": seen.made == "narrowed"}
            reference = partial(reference, in_pairs=alone, **forms)
        elif op in OF_OPERAND:
            if seen.made == "stored again":  # and not what it was made of
                ctx, operands = ctx.replace(avals_in=ctx.avals_in[:2]), operands[:2]
            reference = partial(reference, stored=seen.made != "xla")
        elif op == "softmax_tangent":
            forms = {"stored apart": "in_one_kernel", "stored again": "again"}
            forms |= {"fused": "fused", "narrowed": "fused"}
            if seen.made in forms:
                reference = partial(reference, **{forms[seen.made]: True})
        backend = "xla" if choice.implementation == "xla" else backend
        return _lower_reference(ctx, *operands, reference=reference, backend=backend, **params)
    in_place = here == "cpu" and alone
    differentiated = params.get("differentiated", False)
    reads = 2 if op in DERIVATIVES else len(operands)
    for unknown in OF_CHOICE_ALONE:  # to handlers
        params.pop(unknown, None)
    params["batch_invariant"] = choice.is_batch_invariant(batch_invariant)
    request = {k: params[k] for k in ("axis", "dtype", "strategy", "batch_invariant")}
    types = loaded[0].avals_in[:reads]
    workspace = _workspace(op, types, **request) if here == "cuda" else 0
    params = ATTRIBUTES.get(op, {}) | params
    if here == "cuda" and op in _choice.FORWARD:
        params["scale"] = seen.scale
    call = partial(_call, call_p, axis_last=not in_place, workspace=workspace, **params)
    function = mlir.lower_fun(lambda *v: call(*v[:reads]), multiple_results=True)
    results = function(loaded[0], *loaded[1])
    problem = types[0].shape, params["axis"], types[0].dtype, params["dtype"], here
    free = op in _choice.FORWARD and backend is None and not batch_invariant and alone
    of_kernel = partial(_choice.makes_together, differentiated=differentiated, by_kernel=True)
    return [stand_in(results[0])] if free and of_kernel(*problem) else results


def _lower_by_pairs(
    ctx: Any, operand: Any, *, op: str, axis: int, dtype: Any, scale: float = 1.0
) -> Any:
    """Softmax or log-softmax in float32, of which a call makes two values for each row.

    XLA computes the elements with what reads them: of 16 bits, they would be twice their logits in
    memory. A difference from a product it may round once, where the call has rounded the product:
    hence the smaller one of it and the largest, which it is.
    """
    log = op == "log_softmax"
    request = {"axis": axis, "dtype": dtype, "scale": scale, "log_sums": log}

    def lowered(x: jax.Array) -> jax.Array:
        shifted, second = _of_rows(row_pairs_p, x, **request)
        return shifted - second if log else jnp.exp(shifted) * second

    return mlir.lower_fun(lowered, multiple_results=False)(ctx, operand)


def _of_rows(
    call_p: Primitive, x: jax.Array, *, axis: int, dtype: Any, scale: float, log_sums: bool
) -> list[jax.Array]:
    """`scale * x` less its rows' maxima, and the other values for each row that a call makes."""
    request = {"axis": axis, "dtype": dtype, "strategy": "auto", "batch_invariant": True}
    request |= {"logical_axis": x.ndim - 1, "workspace": 0, "log_sums": log_sums, "scale": scale}
    of_rows = call_p.bind(jnp.moveaxis(x, axis, -1), **request)
    largest, *others = (jnp.expand_dims(values, axis) for values in of_rows)
    x = x.astype(dtype)
    return [(x if scale == 1 else jnp.minimum(scale * x, largest)) - largest, *others]


def _made_together(
    ctx: Any,
    operand: Any,
    *,
    op: str,
    axis: int,
    dtype: Any,
    backend: str | None,
    strategy: str,
    batch_invariant: bool | None,
    differentiated: bool = False,
) -> Any | None:
    """Softmax or log-softmax, if the program has the other one of the same logits before it.

    Both are made of three values for each row then, which one kernel makes, in place of what made
    the other one: XLA's code, which computes their elements where it reads them, would have neither
    with the other's reductions.
    """
    (here, *others), (aval,) = ctx.module_context.platforms, ctx.avals_in
    asked = backend or batch_invariant or strategy != "auto"
    explicit = aval.sharding.mesh.are_all_axes_explicit
    if here not in _choice.RULES or others or asked or explicit or not one_device(ctx):
        return None  # which a CPU's is, before anything is looked at
    functions = ctx.module_context.symbol_table
    source, scale = source_of(operand, aval, axis, functions)
    found = other_of(op, operand, aval, axis, dtype, functions)
    if found is None or is_fused(source, functions) is not False:
        return None
    other, logits = found
    by_kernel = is_call(other)
    # What a kernel read it reads again; XLA's code may have made a copy of that.
    cast = None if by_kernel else cast_before(logits, aval)
    read = logits if by_kernel else source
    narrow = dtype_among(NARROW, read) or aval.dtype
    way, by_rows = None, are_rows_kept(operand, axis)
    if not differentiated:
        way = likely_read(operand, axis, dtype, functions, [other])
        way = "returned" if are_returned(operand, dtype) else way
    problem = aval.shape, axis, narrow, dtype, here
    is_faster = _choice.makes_together(
        *problem,
        differentiated=differentiated,
        by_kernel=by_kernel,
        by_rows=by_rows,
        read=way,
    )
    if not is_faster or (narrow.itemsize == 2 and scale != 1):
        return None
    divides = name_of(other.owner) == "stablehlo.divide"

    def both(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        x = as_stored(x) if cast is None else x
        wide = {"dtype": jnp.dtype("float32"), "log_sums": True}
        shifted, log_sum, factor = _of_rows(row_triples_p, x, axis=axis, scale=scale, **wide)
        y, log = jnp.exp(shifted) * factor, shifted - log_sum
        y = _unchanged(y, op="softmax") if divides else y
        return y.astype(dtype), log.astype(dtype)

    with mlir.ir.InsertionPoint(other.owner):
        read = read if cast is None else rounded(cast[0], logits)
        like = aval.update(dtype=dtype)
        ctx = ctx.replace(avals_in=[aval.update(dtype=narrow)], avals_out=[like, like])
        made = mlir.lower_fun(both, multiple_results=True)(ctx, read)
        this, that = made if op == "softmax" else reversed(made)
        _make_like(other, stand_in(that) if by_kernel else that)
    return this


def _lower_last(ctx: Any, logits: Any, *, op: str, **request: Any) -> Any:
    """`op` of logits of its dtype along the last axis, by a kernel that multiplies them."""
    call = partial(_call, call_primitive(op, per_row=False), axis_last=True, **request)
    return mlir.lower_fun(call, multiple_results=True)(ctx, logits)


def _lower_with_terms(
    ctx: Any, logits: Any, *terms: Any, op: str, names: str, scale: float, **request: Any
) -> Any:
    """The same, by a kernel that adds a bias of their rank, or puts in what a mask does."""
    call = call_with_terms(WITH_TERMS[op], names, factor=scale, **request)
    return mlir.lower_fun(call, multiple_results=False)(ctx, logits, *terms)


def _lower_plain(
    ctx: Any, logits: Any, *bias: Any, op: str, scale: float, narrowed: bool, **request: Any
) -> Any:
    """The same, maybe without a bias, in plain JAX: of logits as a program makes them."""
    reference: Reference = softmax
    if op == "log_softmax":
        reference = partial(log_softmax, narrowed=narrowed)

    def plain(x: jax.Array, *bias: jax.Array) -> jax.Array:
        z = x if scale == 1 else (scale * x.astype(compute_dtype(x.dtype))).astype(x.dtype)
        return reference(sum(bias, z), **request)

    return mlir.lower_fun(plain, multiple_results=False)(ctx, logits, *bias)


def _made_as_read(
    ctx: Any,
    operands: Sequence[Any],
    *,
    op: str,
    axis: int,
    dtype: Any,
    backend: str | None,
    strategy: str,
    batch_invariant: bool | None,
    zeros_are_masked: bool = False,
    selected: bool = False,
    is_another: bool = False,
    **params: Any,
) -> Sequence[Any]:
    """The operands of `op`'s derivative; the first, its result, may be made otherwise.

    What has read the result before is seen by now. Where that is XLA's code alone, which computes
    elements as it needs them, it may read one that is made of pairs, and no other from here on, nor
    does what later reads one that XLA's code made; or one by XLA's code. A kernel that wrote it is
    in the program only for what later reads it, as its caller. Or a kernel writes in place of XLA's
    code what is reduced; what later reads the result as it was has that, too.

    What the tangent is made of beside the result may be made of pairs where that is, such as a
    teacher's log-softmax, which `is_another`, of no derivative.
    """
    del params
    (here, *others), (aval, *_) = ctx.module_context.platforms, ctx.avals_in
    functions, result = ctx.module_context.symbol_table, operands[0]
    asked = backend or batch_invariant or strategy != "auto"
    if others or asked or zeros_are_masked or selected or not one_device(ctx):
        return operands
    found = affine_of(result, axis, functions) if here in _choice.RULES else None
    if found is None:
        return operands
    how = how_read(result, axis, functions)
    # As before another derivative.
    again = how in (set(), {"unread"}, {"picked"}) and op == "log_softmax"
    again = again and found.scale == 1 and found.bias is None
    made = of_pairs(found.logits, result.type, axis, functions) if again else None
    if made is not None:
        return [made if v == result else v for v in operands]
    if not how:
        return operands
    by_kernel, before = is_call(result), None
    plain = found.scale == 1 and found.bias is None and found.fill is None
    cast, narrow = (plain and cast_before(found.logits, aval)) or (None, None)
    source = found.logits if cast is None else cast.operands[0]
    converts = found.logits.type != result.type  # a kernel that wrote it
    if converts:
        narrow = aval.update(dtype=dtype_among(NARROW, source))
    if narrow is not None and is_fused(source, functions) is False:
        before = "widened"
    elif converts:
        return operands
    elif is_fused(found.logits, functions) is False:
        before = "apart" if found.bias is None else "biased"
    teachers, by_rows = beside(operands[1], result, axis)
    maker = _choice.made_as_read(
        op,
        aval.shape,
        axis,
        aval.dtype,
        dtype,
        here,
        how=how,
        by_kernel=by_kernel,
        before=before,
        multiplied=found.scale != 1 and not is_of_product(found.logits, functions),
        comes_back=is_made_of(operands[1], result, unknown=False),
        fused=bool(is_fused(operands[1], functions)),
        by_rows=by_rows and not is_another,
    )
    if is_another and (maker != "pairs" or by_kernel):
        return operands
    request = {"op": op, "axis": axis, "dtype": dtype, "scale": found.scale}
    by_call = {"strategy": "auto", "batch_invariant": True}
    types = [aval, *_types_of_terms(found, aval)]
    adds = maker == "kernel" and found.bias is not None
    if maker is None or (adds and not _takes_bias(types, here=here, **by_call, **request)):
        return operands
    of_terms = ctx.replace(avals_in=types, avals_out=[aval])
    with mlir.ir.InsertionPoint(result.owner):
        terms = [found.logits, *_terms_of(found)]
        if before == "widened":
            of_terms = ctx.replace(avals_in=[narrow], avals_out=[aval])
            terms = [source if cast is None else rounded(cast, found.logits)]
        if maker == "pairs":
            (made,) = _lower_by_pairs(of_terms, *terms, **request)
        elif maker == "xla":
            narrowed = is_narrowed(found.logits, functions)
            (made,) = _lower_plain(of_terms, *terms, narrowed=narrowed, **request)
        else:
            lower = partial(_lower_with_terms, names=BIAS) if adds else _lower_last
            (made,) = lower(of_terms, *terms, **by_call, **request)
    if maker == "pairs" and not by_kernel:
        _make_like(result, made)
        asked = {"backend": backend, "strategy": strategy, "batch_invariant": batch_invariant}
        request = {"op": "log_softmax", "axis": axis, "dtype": dtype, "is_another": True} | asked
        for other in [] if is_another else teachers:
            _made_as_read(ctx, [other, *operands[1:]], **request)
        return operands
    result.replace_all_uses_with(made)
    if maker == "kernel":
        with mlir.ir.InsertionPoint(result.owner):
            unchanged = mlir.lower_fun(partial(_unchanged, op=op), multiple_results=False)
            _make_like(result, *unchanged(ctx.replace(avals_in=[aval], avals_out=[aval]), made))
    return [made if v == result else v for v in operands]


def _make_like(result: Any, other: Any) -> None:
    """Has what made an array read what an operation of its kind, which is erased, does."""
    assert name_of(result.owner) == name_of(other.owner) and result.type == other.type
    for number, operand in enumerate(other.owner.operands):
        result.owner.operands[number] = operand
    other.owner.erase()


def _unchanged(y: jax.Array, *, op: str) -> jax.Array:
    """By the last operation of that in plain JAX, of what kernels write of what is reduced."""
    if y.dtype.itemsize == 2:
        return y.astype("float32").astype(y.dtype)
    return y / jnp.ones((), y.dtype) if op == "softmax" else y - jnp.zeros((), y.dtype)


def fastest(
    op: str,
    operands: Sequence[Any],
    here: str,
    batch_invariant: bool | None,
    *,
    axis: int,
    dtype: Any,
    strategy: str,
    **seen: Any,
) -> _choice.Choice:
    """What `implementation=None` stands for; `seen` is what `_choice.choose` is told beside."""
    assert strategy == "auto"
    if not all(_native.has_kernels(here, x.dtype, dtype) for x in operands):
        return _choice.Choice("xla", "there are no kernels for these dtypes")
    shape, wide = operands[0].shape, _widest(operands)
    return _choice.choose(
        op,
        shape,
        axis,
        wide,
        dtype,
        here,
        batch_invariant=batch_invariant,
        **seen,
    )


def may_be_fused(
    op: str,
    x: jax.Array,
    *,
    axis: int,
    dtype: Any,
    backend: str | None,
    strategy: str,
    batch_invariant: bool | None,
) -> bool:
    """Whether `op` along the last axis may become a single kernel of XLA's: by a rule, or asked."""
    columns = x.shape[axis]
    if isinstance(columns, int) and columns > ONE_KERNEL:
        return False
    if backend not in (None, "xla") or strategy != "auto":
        return False
    problem = op, x.shape, axis, max(x.dtype, dtype, key=lambda d: d.itemsize), dtype
    by_xla = _choice.reads_operand(*problem, batch_invariant=batch_invariant)
    return by_xla and math.prod(x.shape[axis + 1 :]) == 1


def _workspace(op: str, operands: Sequence[Any], *, axis: int, dtype: Any, **request: Any) -> int:
    """The bytes of scratch memory that the call is given for each row."""
    shape = operands[0].shape
    if not _is_static(shape):
        return 0
    return _native.workspace(op, shape, _widest(operands), output_dtype=dtype, axis=axis, **request)


def _widest(operands: Sequence[Any]) -> Any:
    """The dtype that a call's operands, arrays or abstract values, are brought to."""
    return max((x.dtype for x in operands), key=lambda d: d.itemsize)


def one_device(ctx: Any) -> bool:
    """Whether operands are all on one device: in a program for one, or inside `shard_map`."""
    context = ctx.module_context.axis_context
    if hasattr(context, "mesh"):
        return set(context.mesh.axis_names) == set(context.manual_axes)
    return getattr(context, "num_devices", None) == 1


def _call(
    call_p: Primitive,
    *operands: jax.Array,
    axis: int,
    axis_last: bool,
    workspace: int = 0,
    **params: Any,
) -> list[jax.Array]:
    """The custom call's results; with `axis_last`, between two transposes that XLA:GPU elides.

    With the softmax axis logically last, every other dimension is a batch dimension that can be
    sharded. XLA:CPU would carry the transposes out, so one device gets the axis where it is.
    Where a result and a tangent differ in dtype, the narrower gets that of the wider.
    """
    wide = _widest(operands)
    operands = tuple(x.astype(wide) for x in operands)
    if not axis_last:
        return call_p.bind(*operands, axis=axis, logical_axis=axis, workspace=0, **params)
    last = operands[0].ndim - 1
    moved = [jnp.moveaxis(x, axis, last) for x in operands]
    results = call_p.bind(*moved, axis=axis, logical_axis=last, workspace=workspace, **params)
    if workspace:
        results = results[:-1]
    return [y if y.ndim == last else jnp.moveaxis(y, last, axis) for y in results]


def call_with_terms(
    op: str,
    terms: str,
    *,
    axis: int,
    softcap: float = 0.0,
    causal: bool = False,
    fill: float | None = None,
    **params: Any,
) -> Callable[..., jax.Array]:
    """The custom call of an op whose other operands, `terms`, are broadcast against the first.

    Masked logits are `fill`, and take part, if that is not None.
    """
    call_p = call_primitive(op, per_row=False)
    params |= {"terms": terms, "softcap": softcap, "causal": causal}
    params |= {"fills": fill is not None, "fill": 0.0 if fill is None else fill}

    def call(*operands: jax.Array) -> jax.Array:
        last = operands[0].ndim - 1
        moved = [jnp.moveaxis(operand, axis, last) for operand in operands]
        y = call_p.bind(*moved, axis=axis, logical_axis=last, workspace=0, **params)[0]
        return jnp.moveaxis(y, last, axis)

    return call


def has_kernel_with_terms(
    avals: Sequence[Any],
    *,
    name: str,
    here: str,
    axis: int,
    dtype: Any,
    causal: bool,
    strategy: str,
    batch_invariant: bool | None,
    **params: Any,
) -> bool:
    """Whether there is one for logits and terms of these types."""
    del params
    x, *terms = avals
    return (
        _is_static(x.shape)
        and 0 < math.prod(x.shape) < 2**31 * x.shape[axis]
        and _native.has_kernels(here, x.dtype, dtype)
        and not (causal and axis != x.ndim - 1)
        and _native.takes_terms(
            here,
            name,
            x.shape,
            x.dtype,
            output_dtype=dtype,
            axis=axis,
            strategy=strategy,
            batch_invariant=batch_invariant is not False,
            terms=[term.shape for term in terms],
        )
    )


@functools.cache
def call_primitive(
    op: str, per_row: bool, *, values: int = 1, platform: str | None = None
) -> Primitive:
    """The custom call as a primitive of its own, which exists only inside a lowering.

    `logical_axis` is the softmax axis of its operands, `axis` where that axis lies in memory. It
    has so many `values`, and with `workspace` one result more, of as many bytes for each row.
    """
    primitive = Primitive(f"{op}_call")
    primitive.multiple_results = True
    primitive.def_abstract_eval(partial(call_results, per_row=per_row, values=values))
    rule = partial(_lower_call, target=_native.target(op))
    mlir.register_lowering(primitive, rule, platform=platform)
    return primitive


def call_results(
    x: Any,
    *others: Any,
    per_row: bool,
    logical_axis: int,
    dtype: Any,
    workspace: int,
    values: int = 1,
    **params: Any,
) -> list[Any]:
    del others, params
    y = without_axis(x, logical_axis) if per_row else x
    results = [y.update(dtype=dtype)] * values
    if workspace == 0:
        return results
    rows = without_axis(x, logical_axis)  # the last one
    spec = jax.sharding.PartitionSpec(*rows.sharding.spec, None)
    shape = (*rows.shape, workspace // 4)
    scratch = {"dtype": jnp.dtype("float32"), "sharding": x.sharding.update(spec=spec)}
    return [*results, x.update(shape=shape, **scratch)]


def aligned_spec(other: Any, x: Any, axis: int) -> jax.sharding.PartitionSpec:
    """How `other` is sharded that goes with `x`: of its shape, of its rows', or broadcast to it."""
    like = x if other.ndim == x.ndim else without_axis(x, axis)
    pairs = zip(other.shape, like.sharding.spec, strict=True)
    return jax.sharding.PartitionSpec(*(None if d == 1 else s for d, s in pairs))


def without_axis(x: Any, axis: int) -> Any:
    """The abstract value `x` without that dimension, otherwise sharded as before."""
    spec = [*x.sharding.spec, *[None] * (x.ndim - len(x.sharding.spec))]
    kept = [i for i in range(x.ndim) if i != axis]
    sharding = x.sharding.update(spec=jax.sharding.PartitionSpec(*(spec[i] for i in kept)))
    return x.update(shape=tuple(x.shape[i] for i in kept), sharding=sharding)


def _lower_call(
    ctx: Any,
    *operands: Any,
    target: str,
    axis: int,
    logical_axis: int,
    dtype: Any,
    workspace: int,
    **attributes: Any,
) -> Any:
    del dtype, workspace  # the results' types say it
    shape = ctx.avals_in[0].shape
    ndim = len(shape)
    major_to_minor = [d for d in range(ndim) if d != logical_axis]
    major_to_minor.insert(axis, logical_axis)
    layout = tuple(reversed(major_to_minor))
    shapes = [aval.shape for aval in (*ctx.avals_in, *ctx.avals_out)]
    # A result with the operands' dimensions lies as they do, any other one row-major.
    first, *others = (tuple(reversed(range(aval.ndim))) for aval in ctx.avals_out)
    # Terms that are broadcast have none of the rows' dimensions to be partitioned by.
    alike = logical_axis == ndim - 1 and "terms" not in attributes
    rule = jax.ffi.ffi_lowering(
        target,
        operand_layouts=[layout] * len(operands),
        result_layouts=[layout if len(first) == ndim else first, *others],
        extra_attributes=_partitioning(shapes, len(operands)) if alike else {},
    )
    return rule(ctx, *operands, axis=axis, logical_axis=logical_axis, **attributes)


def _lower_row_pairs(ctx: Any, x: Any, *, log_sums: bool, scale: float, **params: Any) -> Any:
    del params
    function = partial(row_pairs, log_sums=log_sums, scale=scale, values=len(ctx.avals_out))
    return mlir.lower_fun(function, multiple_results=True)(ctx, x)


def _partitioning(shapes: Sequence[tuple[Any, ...]], operands: int) -> dict[str, Any]:
    """Tells both of XLA's partitioners that all but the last dimension may be sharded.

    `shapes` are those of the operands and of the results, which agree in all but the last one, or
    lack it.
    """
    if not all(map(_is_static, shapes)):
        return {}  # symbolic, in export: sizes are unknown, and the rule wants numbers
    *batch, last = range(len(shapes[0]))
    sizes = {_factor(i): shapes[0][i] for i in batch}
    last_sizes = dict.fromkeys(size for shape in shapes for size in shape[last:])
    lasts = {size: _factor(last + i) for i, size in enumerate(last_sizes)}
    sizes |= {factor: size for size, factor in lasts.items()}
    dims = [
        f"[{', '.join((*map(_factor, batch), *(lasts[size] for size in shape[last:])))}]"
        for shape in shapes
    ]
    rule = (
        f"#sdy.op_sharding_rule<({', '.join(dims[:operands])})->({', '.join(dims[operands:])}) "
        f"{{{', '.join(f'{f}={size}' for f, size in sizes.items())}}} "
        f"need_replication={{{', '.join(lasts.values())}}}>"
    )
    return {
        "mhlo.frontend_attributes": mlir.ir_attribute({"num_batch_dims": str(last)}),
        "sdy.sharding_rule": mlir.ir.Attribute.parse(rule),
    }


def _is_static(shape: tuple[Any, ...]) -> bool:
    return all(isinstance(d, int) for d in shape)


def _factor(i: int) -> str:
    """The i-th factor's name in Shardy's grammar: i … z, then z_1, z_2, …"""
    letters = "ijklmnopqrstuvwxyz"
    return letters[i] if i < len(letters) else f"z_{i - len(letters) + 1}"


# Calls on a GPU. Elsewhere, where only tests have the rule that asks for them, plain JAX.
row_pairs_p, row_triples_p = (
    call_primitive("row_pairs", per_row=True, values=n, platform="cuda") for n in (2, 3)
)
for _call_p in (row_pairs_p, row_triples_p):
    mlir.register_lowering(_call_p, _lower_row_pairs)
