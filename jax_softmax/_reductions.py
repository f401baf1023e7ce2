"""The primitives with one value per row: logsumexp along `axis`, and its derivatives.

`logsumexp_p` takes x[..., n, ...] to rows[...], `logsumexp_parts_p` to the two terms of these, the
largest element and the logarithm of `sum(exp(x - largest))`. Of their sum, rounded, the softmax of
a row far from 0 would have few digits or none. The JVP rules of both bind a third primitive,
`sum(p * t)` with `p = exp(x - largest - log_sum)`, whose transpose is a fourth, `p * g`. So only x
and the rows are saved, every mode and nesting works, and reverse mode reduces nothing.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, xla
from jax.sharding import NamedSharding, PartitionSpec

from . import _lowering, _reference
from ._calls import aligned_spec, without_axis
from ._primitives import RESIDUAL, batch_to, def_series, is_explicit, vary_alike


def _primitive(
    name: str,
    reference: Callable[..., Any],
    *,
    reduces: bool,
    register: Callable[..., None],
    values: int = 1,
) -> Primitive:
    """A primitive of x and of operands like x or like its rows, to a result like either.

    Or to so many `values`, each such a result.
    """
    primitive = Primitive(name)
    primitive.multiple_results = values > 1
    primitive.def_impl(partial(xla.apply_primitive, primitive))
    primitive.def_abstract_eval(partial(_abstract_eval, reduces=reduces, values=values))
    batching.primitive_batchers[primitive] = partial(_batch, primitive, reduces)
    register(primitive, reference)
    return primitive


def _abstract_eval(
    x: Any, *others: Any, axis: int, dtype: Any, reduces: bool, values: int, **request: Any
) -> Any:
    del request
    assert 0 <= axis < x.ndim
    rows = (*x.shape[:axis], *x.shape[axis + 1 :])
    assert all(o.shape in (x.shape, rows) for o in others)
    # Of logsumexp: see `_reference.dtype_of_rows`.
    assert others or jnp.dtype(dtype).itemsize >= x.dtype.itemsize
    # Not ShapedArray(shape, dtype), which would drop the explicit sharding and the varying axes.
    result = without_axis(x, axis) if reduces else x
    result = result.update(dtype=dtype, weak_type=False)
    return result if values == 1 else [result] * values


def _batch(
    primitive: Primitive,
    reduces: bool,
    operands: Sequence[jax.Array],
    dims: Sequence[int | None],
    *,
    axis: int,
    **request: Any,
) -> tuple[Any, Any]:
    aligned, axis, at, at_rows = align_batch(operands, dims, axis)
    result = _bind(primitive, *aligned, axis=axis, **request)
    at = at_rows if reduces else at
    return (result, [at] * len(result)) if primitive.multiple_results else (result, at)


def align_batch(
    operands: Sequence[jax.Array], dims: Sequence[int | None], axis: int
) -> tuple[list[jax.Array], int, int, int]:
    """All operands with a batch dimension, the axis, and where x and its rows have that dimension.

    Leaves the first batched operand where it is and shifts `axis`: no data moves.
    """
    pairs = list(zip(operands, dims, strict=True))
    rank = operands[0].ndim - (dims[0] is not None)
    are_rows = [x.ndim - (d is not None) < rank for x, d in pairs]
    # `at` is the batch dimension in x; behind `axis`, which they lack, rows have it one earlier.
    at, size = next(
        (d + (rows and d > axis), x.shape[d])
        for (x, d), rows in zip(pairs, are_rows, strict=True)
        if d is not None
    )
    at_rows = at - (at > axis)
    aligned = [
        batch_to(x, d, at_rows if rows else at, size)
        for (x, d), rows in zip(pairs, are_rows, strict=True)
    ]
    return aligned, axis + (at <= axis), at, at_rows


def align(first: jax.Array, *others: jax.Array, axis: int) -> list[jax.Array]:
    """The operands varying alike, and on an explicit mesh sharded like the first.

    The others have its shape, that of its rows, or dimensions of size 1 to be broadcast to it.
    """
    first, *rest = operands = vary_alike(first, *others)
    meshes = [jax.typeof(o).sharding.mesh for o in operands if is_explicit(o)]
    if not meshes:
        return operands
    if not is_explicit(first):
        first = jax.sharding.reshard(first, NamedSharding(meshes[0], PartitionSpec()))
    x = jax.typeof(first)
    aligned = [first]
    for other in rest:
        wanted = NamedSharding(x.sharding.mesh, aligned_spec(other, x, axis))
        same = jax.typeof(other).sharding == wanted
        aligned.append(other if same else jax.sharding.reshard(other, wanted))
    return aligned


def _bind(primitive: Primitive, *operands: jax.Array, axis: int, **request: Any) -> Any:
    return primitive.bind(*align(*operands, axis=axis), axis=axis, **request)


def _jvp(primals: Sequence[jax.Array], tangents: Sequence[Any], **params: Any) -> Any:
    """The derivative is of the value before it is rounded to a narrower dtype."""
    (x,), (t,) = primals, tangents
    x, dtype = _reference.as_stored(x), params["dtype"]
    params |= {"dtype": _reference.compute_dtype(x.dtype, dtype)}
    (largest, log_sum), (_, d) = _parts_jvp((x,), (t,), **params)
    return (largest + log_sum).astype(dtype), d.astype(dtype)


def _parts_jvp(primals: Sequence[jax.Array], tangents: Sequence[Any], **params: Any) -> Any:
    """All of the derivative is the second term's: the first one is a constant in the other."""
    (x,), (t,) = primals, tangents
    parts = [checkpoint_name(v, RESIDUAL) for v in logsumexp_parts_p.bind(x, **params)]
    d = _bind(logsumexp_tangent_p, x, *parts, ad.instantiate_zeros(t), **params)
    return parts, [ad.Zero(jax.typeof(parts[0]).to_tangent_aval()), d]


def _tangent_jvp(primals: Sequence[jax.Array], tangents: Sequence[Any], **params: Any) -> Any:
    """`sum(p * t)` to `sum(p * (dt + (dx - dlse) * t))`: the same primitive."""
    (x, *parts, t), (dx, *dparts, dt) = primals, map(ad.instantiate_zeros, tangents)
    wide = _reference.compute_dtype(x.dtype, t.dtype, params["dtype"])
    d = _d_exponent(dx, dparts, params["axis"], wide) * t.astype(wide)
    out, moved = (
        _bind(logsumexp_tangent_p, x, *parts, t, **params) for t in (t, dt.astype(wide) + d)
    )
    return out, moved


def _cotangent_jvp(primals: Sequence[jax.Array], tangents: Sequence[Any], **params: Any) -> Any:
    """`p * g` to `p * dg + p * g * (dx - dlse)`."""
    (x, *parts, g), (dx, *dparts, dg) = primals, map(ad.instantiate_zeros, tangents)
    wide = _reference.compute_dtype(x.dtype, g.dtype, params["dtype"])
    d = _d_exponent(dx, dparts, params["axis"], wide)
    out, in_g = (
        _bind(logsumexp_cotangent_p, x, *parts, g, **params | {"dtype": wide}) for g in (g, dg)
    )
    return out.astype(params["dtype"]), (in_g + out * d).astype(params["dtype"])


def _gradient_jvp(primals: Sequence[jax.Array], tangents: Sequence[Any], **params: Any) -> Any:
    """In plain JAX: for derivatives of a loss beyond the first."""
    labels = primals[-1]
    ignored = labels == _reference.NO_GRADIENT
    moved = [ad.instantiate_zeros(t) for t in tangents[:-1]]

    def reference(*values: jax.Array) -> jax.Array:
        x, shift, factor, everywhere, at_label = values
        # 0 times the derivative at NaN, which such a row may hold, would be NaN.
        x = jnp.where(jnp.expand_dims(ignored, params["axis"]), 0, x)
        operands = (x, jnp.where(ignored, 0, shift), factor, everywhere, at_label, labels)
        return _reference.cross_entropy_gradient(*operands, **params)

    out = cross_entropy_gradient_p.bind(*primals, **params)
    return out, jax.jvp(reference, tuple(primals[:-1]), tuple(moved))[1]


def _d_exponent(dx: jax.Array, dparts: Sequence[jax.Array], axis: int, wide: Any) -> jax.Array:
    dlargest, dlog_sum = (d.astype(wide) for d in dparts)
    return dx.astype(wide) - jnp.expand_dims(dlargest + dlog_sum, axis)


def _transpose_to(primitive: Primitive) -> Callable[..., Any]:
    def rule(g: Any, *operands: Any, **params: Any) -> tuple[Any, ...]:
        *residuals, t = operands
        assert ad.is_undefined_primal(t) and not any(map(ad.is_undefined_primal, residuals))
        nothing = [None] * len(residuals)
        if type(g) is ad.Zero:
            return *nothing, ad.Zero(t.aval)
        return *nothing, _bind(primitive, *residuals, g, **params | {"dtype": t.aval.dtype})

    return rule


def _logsumexp_of_jax(x: jax.Array, *, axis: int, dtype: Any, **request: Any) -> jax.Array:
    del request
    wide = x.astype(_reference.compute_dtype(x.dtype, dtype))
    return jax.nn.logsumexp(wide, axis).astype(dtype)


_register_reducing = partial(_lowering.register, per_row=True)
logsumexp_p = _primitive(
    "logsumexp", _reference.logsumexp, reduces=True, register=_register_reducing
)
logsumexp_parts_p = _primitive(
    "logsumexp_parts",
    _reference.logsumexp_parts,
    reduces=True,
    register=partial(_register_reducing, op="logsumexp", values=2),
    values=2,
)
logsumexp_tangent_p = _primitive(
    "logsumexp_tangent", _reference.logsumexp_tangent, reduces=True, register=_register_reducing
)
logsumexp_cotangent_p = _primitive(
    "logsumexp_cotangent",
    _reference.logsumexp_cotangent,
    reduces=False,
    register=_lowering.register,
)
cross_entropy_gradient_p = _primitive(
    "cross_entropy_gradient",
    _reference.cross_entropy_gradient,
    reduces=False,
    register=_lowering.register_map,
)
# The reference's clamp has bounds that are numbers, which jet takes for arrays of its shape.
def_series(logsumexp_p, _logsumexp_of_jax)
ad.primitive_jvps[logsumexp_p] = _jvp
ad.primitive_jvps[logsumexp_parts_p] = _parts_jvp
ad.primitive_jvps[logsumexp_tangent_p] = _tangent_jvp
ad.primitive_jvps[logsumexp_cotangent_p] = _cotangent_jvp
ad.primitive_jvps[cross_entropy_gradient_p] = _gradient_jvp
ad.primitive_transposes[logsumexp_tangent_p] = _transpose_to(logsumexp_cotangent_p)
ad.primitive_transposes[logsumexp_cotangent_p] = _transpose_to(logsumexp_tangent_p)


# As `implementation=None` has it.
AUTO = {"backend": None, "batch_invariant": None, "strategy": "auto"}


def bind_logsumexp(x: jax.Array, axis: int, dtype: Any) -> jax.Array:
    return logsumexp_p.bind(x, axis=axis, dtype=dtype, **AUTO)


def bind_logsumexp_parts(
    x: jax.Array, axis: int, dtype: Any, **request: Any
) -> tuple[jax.Array, jax.Array]:
    """In `dtype`, what is computed in: the largest elements, and the logarithms of the sums."""
    largest, log_sum = logsumexp_parts_p.bind(x, axis=axis, dtype=dtype, **AUTO | request)
    return largest, log_sum


def bind_logsumexp_tangent(
    x: jax.Array, largest: jax.Array, log_sum: jax.Array, t: jax.Array, axis: int
) -> jax.Array:
    params = {"axis": axis, "dtype": log_sum.dtype, **AUTO}
    return _bind(logsumexp_tangent_p, x, largest, log_sum, t, **params)
