"""Softmax and its logarithm of scaled, capped, biased and masked logits: one primitive each.

Operands are the logits and their terms, each of the logits' rank and broadcast against them. One
kernel reads them all; where there is none, and on several devices of an automatic mesh, plain JAX
surrounds softmax.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir, xla

from . import _lowering, _reference
from ._calls import BIAS, call_with_terms, has_kernel_with_terms, one_device
from ._canonicalize import request as canonical_request
from ._choice import Context
from ._implementation import fastest, may_load
from ._looking import Seen, bound_and_loaded
from ._primitives import (
    RESIDUAL,
    batch_to,
    def_series,
    log_softmax_p,
    log_softmax_tangent_p,
    softmax_p,
    softmax_tangent_p,
)
from ._reductions import align, bind_logsumexp_parts
from ._reference import kept

# The terms that are operands, in their order, by the letters that the handler knows them by.
NAMES = {"mask": "m", "bias": BIAS, "scale": "f", "sink": "s"}
Arrays = dict[str, jax.Array]


def bind(
    x: jax.Array,
    operands: Arrays,
    *,
    log: bool,
    axis: int,
    dtype: Any,
    factor: float = 1.0,
    softcap: float = 0.0,
    causal: bool = False,
    **request: Any,
) -> jax.Array:
    """`operands` are some of `NAMES`, of the rank of `x`; `softcap=0` is none."""
    base = log_softmax_p if log else softmax_p
    params = canonical_request(base.name, x, axis=axis, dtype=dtype, **request)
    params |= {"factor": factor, "softcap": softcap, "causal": causal}
    names = tuple(name for name in NAMES if name in operands)
    primitive = masked_log_softmax_p if log else masked_softmax_p
    aligned = align(x, *(operands[name] for name in names), axis=axis)
    return primitive.bind(*aligned, names=names, **params)


def _abstract_eval(x: Any, *operands: Any, axis: int, dtype: Any, **params: Any) -> Any:
    assert 0 <= axis < x.ndim and len(operands) == len(params["names"])
    for operand in operands:
        assert operand.ndim == x.ndim
        assert all(d in (1, full) for d, full in zip(operand.shape, x.shape, strict=True))
    return x.update(dtype=dtype, weak_type=False)


def _batch(
    primitive: Primitive,
    operands: Sequence[jax.Array],
    dims: Sequence[int | None],
    *,
    axis: int,
    **params: Any,
) -> tuple[jax.Array, int]:
    """Moves no logits, unless a batch would come between the two dimensions of a causal mask."""
    (x, *terms), (dim, *term_dims) = operands, dims
    size = next(v.shape[d] for v, d in zip(operands, dims, strict=True) if d is not None)
    at = 0 if dim is None or params["causal"] else dim
    x = batch_to(x, dim, at, size)
    terms = [
        jnp.expand_dims(v, at) if d is None else jnp.moveaxis(v, d, at)
        for v, d in zip(terms, term_dims, strict=True)
    ]
    aligned = align(x, *terms, axis=axis + (at <= axis))
    return primitive.bind(*aligned, axis=axis + (at <= axis), **params), at


def logits(
    x: jax.Array, operands: Arrays, *, factor: float, softcap: float, causal: bool, wide: Any
) -> tuple[jax.Array, jax.Array | None]:
    """What the softmax is taken of, and the mask of those that take part."""
    z, keep = x.astype(wide), _mask(x, operands, causal)
    if factor != 1:
        z = z * factor
    if "scale" in operands:
        z = z * operands["scale"].astype(wide)
    if softcap:
        z = softcap * jnp.tanh(z / softcap)
    if "bias" in operands:
        z = z + operands["bias"].astype(wide)
    return z if keep is None else jnp.where(keep, z, -jnp.inf), keep


def _mask(x: jax.Array, operands: Arrays, causal: bool) -> jax.Array | None:
    keep = operands.get("mask")
    if causal:
        seen = _causal(*x.shape[-2:])
        keep = seen if keep is None else keep & jnp.expand_dims(seen, range(keep.ndim - 2))
    return keep


def _causal(rows: int, columns: int) -> jax.Array:
    """[rows, columns], of which the last row and the last column meet on the diagonal."""
    row = jax.lax.broadcasted_iota(jnp.int32, (rows, columns), 0)
    column = jax.lax.broadcasted_iota(jnp.int32, (rows, columns), 1)
    return column <= row + (columns - rows)


def _composed(
    x: jax.Array,
    *terms: jax.Array,
    log: bool,
    names: tuple[str, ...],
    axis: int,
    dtype: Any,
    factor: float,
    softcap: float,
    causal: bool,
    **request: Any,
) -> jax.Array:
    operands = dict(zip(names, terms, strict=True))
    # A mask alone leaves the logits as they are.
    plain = factor == 1 and not softcap and not operands.keys() - {"mask"}
    wide = x.dtype if plain else _reference.compute_dtype(x.dtype, dtype)
    z, keep = logits(x, operands, factor=factor, softcap=softcap, causal=causal, wide=wide)
    y = (log_softmax_p if log else softmax_p).bind(z, axis=axis, dtype=dtype, **request)
    if "sink" in operands:
        left = _log_of_rest(z, operands["sink"], axis, request)
        wide = _reference.compute_dtype(dtype)
        y = y.astype(wide)
        y = y + left if log else y * jnp.exp(left)
        # The softmax of a row of -inf is NaN.
        y = jnp.where(left == -jnp.inf, -jnp.inf if log else 0, y).astype(dtype)
    if keep is None:
        return y
    # No jnp.where, a function of its own: see `_results.logits_of`.
    masked = jnp.asarray(-jnp.inf if log else 0, dtype)
    return jax.lax.select(_spread(keep, y), y, _spread(masked, y))


def _log_of_rest(z: jax.Array, sink: jax.Array, axis: int, request: dict[str, Any]) -> jax.Array:
    """The logarithm of what the sink leaves of each row's sum.

    On several devices forced kernels would gather a sharded axis: only plain JAX is handed on.
    """
    backend = "xla" if request["backend"] == "xla" else None
    wide = _reference.compute_dtype(z.dtype)
    request = {"backend": backend, "batch_invariant": request["batch_invariant"]}
    parts = bind_logsumexp_parts(z, axis, wide, **request)
    largest, log_sum = (jnp.expand_dims(part, axis) for part in parts)
    return jax.nn.log_sigmoid(largest - sink.astype(wide) + log_sum)


def _jvp(
    log: bool,
    primals: Sequence[jax.Array],
    tangents: Sequence[Any],
    *,
    names: tuple[str, ...],
    axis: int,
    dtype: Any,
    factor: float,
    softcap: float,
    causal: bool,
    **request: Any,
) -> Any:
    x, *terms = primals
    operands = dict(zip(names, terms, strict=True))
    static = {"factor": factor, "softcap": softcap, "causal": causal}
    primitive = masked_log_softmax_p if log else masked_softmax_p
    params = {"axis": axis, "dtype": dtype, **request}
    y = checkpoint_name(primitive.bind(*primals, names=names, **static, **params), RESIDUAL)

    moved = dict(zip(("x", *names), tangents, strict=True))
    moved = {name: t for name, t in moved.items() if name != "mask" and type(t) is not ad.Zero}
    sink_t = moved.pop("sink", None)
    out = None
    if moved:
        number, t = _logits_tangent(x, operands, moved, static, dtype)
        if log:
            if number != 1:  # in float32 for float16, whose cotangents would overflow first
                t = number * (t.astype(jnp.float32) if t.dtype == jnp.float16 else t)
            out = _log_tangent(y, t, operands, causal, params)
        else:
            aligned = align(y, _spread(t, y), axis=axis)
            out = softmax_tangent_p.bind(*aligned, scale=number, zeros_are_masked=True, **params)
    if sink_t is not None:
        x = kept(_mask(x, operands, causal), x)
        z, keep = logits(x, operands, **static, wide=_reference.compute_dtype(x.dtype, dtype))
        if keep is not None:
            # A row that is masked as a whole is any finite one: its result is 0 all the same.
            z = jnp.where(keep.any(axis - x.ndim, keepdims=True), z, 0)
        share = -jnp.expm1(_log_of_rest(z, operands["sink"], axis, request)) * sink_t
        d = -share if log else -y.astype(share.dtype) * share
        d = _spread(d, y) if keep is None else jnp.where(keep, d, 0)
        out = d.astype(dtype) if out is None else out + d.astype(dtype)
    return y, ad.Zero(jax.typeof(y).to_tangent_aval()) if out is None else out


def _spread(t: jax.Array, y: jax.Array) -> jax.Array:
    """`t` in the shape of `y`, on an explicit mesh also in its sharding.

    Resharded only afterwards, `t` would have a cotangent that is gathered before it is summed.
    """
    sharding = jax.typeof(y).sharding
    return jnp.broadcast_to(t, y.shape, out_sharding=None if sharding.mesh.empty else sharding)


def _logits_tangent(
    x: jax.Array, operands: Arrays, moved: Arrays, static: dict[str, Any], dtype: Any
) -> tuple[float, jax.Array]:
    """A number, and what it times is the tangent of the logits; masked ones hold anything."""
    factor, softcap = static["factor"], static["softcap"]
    if moved.keys() == {"x"} and not softcap and "scale" not in operands:
        return factor, moved["x"]
    wide = _reference.compute_dtype(x.dtype, dtype)
    # The cotangent is rounded to the dtype of what this returns: to that of `x` but where it is
    # multiplied by a traced scale, added up for a wider bias, or could overflow before.
    exact = x.dtype == jnp.float16 or ("scale" in operands and moved.keys() != {"bias"})
    if "bias" in moved:
        exact |= moved["bias"].dtype != x.dtype
    rounded = wide if exact else x.dtype
    if moved.keys() == {"bias"}:
        return 1.0, moved["bias"].astype(rounded)
    scale = factor * operands["scale"].astype(wide) if "scale" in operands else factor
    t = 0
    if "x" in moved:
        t = moved["x"].astype(wide) * scale
    if "scale" in moved or softcap:
        z = kept(_mask(x, operands, static["causal"]), x.astype(wide))
        if "scale" in moved:
            t = t + z * (factor * moved["scale"].astype(wide))
        if softcap:
            t = t * (1 - jnp.tanh(z * scale / softcap) ** 2)
    if "bias" in moved:
        t = t + moved["bias"].astype(wide)
    return 1.0, jnp.asarray(t).astype(rounded)


def _log_tangent(
    y: jax.Array, t: jax.Array, operands: Arrays, causal: bool, params: dict[str, Any]
) -> jax.Array:
    """Of a tangent that is selected by the mask, and selected again, which kernels do not do.

    They know no mask from a result of `-inf`, which may be that of a logit that takes part.
    """
    keep = _mask(y, operands, causal)
    y, t = align(y, kept(keep, _spread(t, y)), axis=params["axis"])
    return kept(keep, log_softmax_tangent_p.bind(y, t, selected=keep is not None, **params))


def _primitive(name: str, *, log: bool) -> Primitive:
    primitive = Primitive(name)
    primitive.def_impl(partial(xla.apply_primitive, primitive))
    primitive.def_abstract_eval(_abstract_eval)
    batching.primitive_batchers[primitive] = partial(_batch, primitive)
    ad.primitive_jvps[primitive] = partial(_jvp, log)
    composed = partial(_composed, log=log)
    default = mlir.lower_fun(composed, multiple_results=False)
    rule = partial(_lower, name=name, composed=composed)
    def_series(primitive, partial(composed, backend=None))
    _lowering.register_seeing(primitive, default, rule, partial(_decide, name=name))
    return primitive


def _decide(
    avals: Sequence[Any],
    *,
    name: str,
    here: str,
    alone: bool,
    names: tuple[str, ...],
    **params: Any,
) -> str | None:
    """See `_looking.Seen.made`."""
    # Kernels for a bias alone convert nothing.
    if "bias" in names or not may_load(avals[0], here, **params):
        return None
    implementation = _choose(avals, name=name, here=here, names=names, widened=True, **params)
    if implementation == "xla":
        return "xla"
    has_kernel = alone and has_kernel_with_terms(avals, name=name, here=here, **params)
    return "loads" if has_kernel else None


def _choose(
    avals: Sequence[Any],
    *,
    name: str,
    here: str,
    names: tuple[str, ...],
    backend: str | None,
    batch_invariant: bool | None,
    axis: int,
    dtype: Any,
    strategy: str,
    softcap: float,
    causal: bool,
    widened: bool,
    factor: float,
) -> str:
    """`"xla"`, or a platform, whose kernels run if there is one for these terms."""
    del factor
    if backend:
        return backend
    alone = "bias" in names and not (softcap or causal or set(names) - {"bias", "scale"})
    case = name.replace("masked", "biased") if alone else name
    request = {"axis": axis, "dtype": dtype, "strategy": strategy}
    seen = Context(batch_invariant=batch_invariant, widened=widened)
    return fastest(case, avals[:1], here, seen, **request).implementation


def _lower(
    ctx: Any,
    *operands: Any,
    name: str,
    composed: Any,
    here: str,
    seen: Seen,
    **params: Any,
) -> Any:
    function = composed
    (ctx, operands), loaded = bound_and_loaded(ctx, operands, seen)
    if seen.made == "xla":
        params["backend"] = "xla"
    avals = loaded[0].avals_in
    wanted = _choose(avals, name=name, here=here, widened=seen.made is not None, **params)
    alone = one_device(ctx)
    if wanted == here and alone and has_kernel_with_terms(avals, name=name, here=here, **params):
        ctx, operands = loaded
        names = ("axis", "dtype", "strategy", "factor", "softcap", "causal")
        attributes = {k: params[k] for k in names}
        attributes["batch_invariant"] = params["batch_invariant"] is not False
        terms = "".join(NAMES[n] for n in params["names"])
        function = call_with_terms(name, terms, **attributes)
        params = {}
    elif wanted == "xla":
        # Where XLA fuses the terms it fuses the softmax with them, whatever that alone would be.
        params["backend"] = "xla"
    return mlir.lower_fun(partial(function, **params), multiple_results=False)(ctx, *operands)


masked_softmax_p = _primitive("masked_softmax", log=False)
masked_log_softmax_p = _primitive("masked_log_softmax", log=True)
