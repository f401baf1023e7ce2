"""Lowering: a custom call on cuda and cpu, and the pure-JAX reference elsewhere or where faster."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import mlir

from . import _choice, _native, _revision
from ._as_read import made_as_read
from ._calls import (
    BIAS,
    MASK,
    aligned_spec,
    call,
    call_primitive,
    lower_with_terms,
    one_device,
    workspace,
)
from ._choice import Context, Problem
from ._implementation import DERIVATIVES, DIFFERENTIATED, OF_OPERAND, chosen, fastest, may_load
from ._looking import Decide, Seen, bound_and_loaded, look
from ._pairs import lower_by_pairs
from ._reference import is_sharded, tangent_of_parts
from ._results import mark_asked, stand_in
from ._together import made_together

Reference = Callable[..., jax.Array]
Rule = Callable[..., Any]

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


def register_seeing(primitive: Primitive, default: Rule, rule: Rule, decide: Decide) -> None:
    """Makes `rule`, which is told `here`, the lowering where there is a handler, else `default`.

    The rule is told what is `seen` of the operands, see `_looking.Seen`, for which `decide` says
    what is done about conversions to float32.

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

    def lower(ctx: Any, *operands: Any, **params: Any) -> Any:
        op, (here, *others), seen = primitive.name, ctx.module_context.platforms, Seen()
        if op in DERIVATIVES and here in rules:
            operands = tuple(made_as_read(ctx, operands, op=DIFFERENTIATED[op], **params))
        elif op in _choice.FORWARD:
            made = made_together(ctx, *operands, op=op, **params)
            if made is not None:
                return [made]
        if here in rules and not others:
            alone = one_device(ctx) or _have_rows(ctx.avals_in, **params)
            seen, more = look(ctx, operands, decide, op=op, alone=alone, **params)
            ctx = ctx.replace(avals_in=[*ctx.avals_in, *(aval for aval, _ in more)])
            operands = (*operands, *(operand for _, operand in more))
        bind = partial(seeing.bind, seen=seen, **params)
        if seen.made == "parts":
            bind = partial(tangent_of_parts, axis=params["axis"], dtype=params["dtype"])
        results = mlir.lower_fun(bind, multiple_results=seeing.multiple_results)(ctx, *operands)
        if params.get("backend") == "xla" and op in _choice.FORWARD:
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
        and fastest(name, [x], here, strategy="auto", **params).implementation == here
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


def _decide(
    avals: Sequence[Any],
    *,
    here: str,
    op: str,
    per_row: bool,
    alone: bool,
    read: str | None = None,
    **params: Any,
) -> str | None:
    """See `_looking.Seen.made`; `avals` are as kernels would load them."""
    if op in DERIVATIVES and params["dtype"] != jnp.float32:
        return None  # which most are, and is found before anything is chosen
    # On a CPU a loss's gradient has a kernel, which wants the float32.
    if (here == "cpu" and per_row) or not may_load(avals[0], here, **params):
        return None
    seen = Context(alone=alone, widened=True, read=read)
    choice = chosen(avals, seen, op=op, here=here, per_row=per_row, **params)
    return "xla" if choice.implementation == "xla" else "pairs" if choice.pairs else "loads"


def _form_of(
    op: str, here: str, seen: Seen, *, alone: bool, differentiated: bool
) -> dict[str, bool]:
    """In which of its forms plain JAX is the faster one, as arguments of the reference."""
    if op == "logsumexp":
        return {"one_by_one": alone}
    if op == "log_softmax" and here == "cuda":
        narrowed = seen.around == "narrowed"
        return {"in_pairs": alone, "forward_alone": not differentiated, "narrowed": narrowed}
    if op in OF_OPERAND:
        return {"stored": seen.made != "xla"}
    if op == "softmax_tangent":
        forms = {"stored apart": "in_one_kernel", "stored again": "again"}
        forms |= {"fused": "fused", "narrowed": "fused"}
        return {forms[seen.around]: True} if seen.around in forms else {}
    return {}


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
        return lower_by_pairs(ctx, operands[-1], op=op, **request)
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
        return lower_with_terms(loaded[0], *loaded[1], op=op, **request)
    backend, alone = "xla" if seen.made == "xla" else backend, one_device(ctx)
    request = {"op": op, "per_row": per_row, "here": here, "backend": backend}
    request |= {"batch_invariant": batch_invariant}
    choice = chosen(loaded[0].avals_in, seen.context(alone=alone), **request, **params)
    differentiated = params.get("differentiated", False)
    if choice.implementation != here:
        if op in OF_OPERAND and seen.around == "stored again":  # and not what it was made of
            ctx, operands = ctx.replace(avals_in=ctx.avals_in[:2]), operands[:2]
        form = _form_of(op, here, seen, alone=alone, differentiated=differentiated)
        backend = "xla" if choice.implementation == "xla" else backend
        reference = partial(reference, **form)
        return _lower_reference(ctx, *operands, reference=reference, backend=backend, **params)
    in_place = here == "cpu" and alone
    reads = 2 if op in DERIVATIVES else len(operands)
    for unknown in OF_CHOICE_ALONE:  # to handlers
        params.pop(unknown, None)
    params["batch_invariant"] = choice.is_batch_invariant(batch_invariant)
    request = {k: params[k] for k in ("axis", "dtype", "strategy", "batch_invariant")}
    types = loaded[0].avals_in[:reads]
    scratch = workspace(op, types, **request) if here == "cuda" else 0
    params = ATTRIBUTES.get(op, {}) | params
    if here == "cuda" and op in _choice.FORWARD:
        params["scale"] = seen.scale
    bind = partial(call, call_p, axis_last=not in_place, workspace=scratch, **params)
    function = mlir.lower_fun(lambda *v: bind(*v[:reads]), multiple_results=True)
    results = function(loaded[0], *loaded[1])
    problem = Problem(op, types[0].shape, params["axis"], types[0].dtype, params["dtype"], here)
    free = op in _choice.FORWARD and backend is None and not batch_invariant and alone
    is_shared = free and _revision.makes_together(problem, by_kernel=True)
    return [stand_in(results[0])] if is_shared else results
