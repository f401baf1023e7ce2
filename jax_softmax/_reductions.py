"""The primitives with one value per row: logsumexp along `axis`, and its derivatives.

`logsumexp_p` takes x[..., n, ...] to rows[...]. Its JVP rule binds a second primitive,
`sum(exp(x - lse) * t)`, whose transpose is a third, `exp(x - lse) * g`. So only x and the rows are
saved, every mode and nesting works, and reverse mode reduces nothing.
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
from ._primitives import RESIDUAL, batch_to, vary_alike


def _primitive(
    name: str, reference: Callable[..., jax.Array], *, reduces: bool, register: Callable[..., None]
) -> Primitive:
    """A primitive of x and of operands like x or like its rows, to a result like either."""
    primitive = Primitive(name)
    primitive.def_impl(partial(xla.apply_primitive, primitive))
    primitive.def_abstract_eval(partial(_abstract_eval, reduces=reduces))
    batching.primitive_batchers[primitive] = partial(_batch, primitive, reduces)
    register(primitive, reference)
    return primitive


def _abstract_eval(
    x: Any, *others: Any, axis: int, dtype: Any, reduces: bool, **request: Any
) -> Any:
    del request
    assert 0 <= axis < x.ndim
    rows = (*x.shape[:axis], *x.shape[axis + 1 :])
    assert all(o.shape in (x.shape, rows) for o in others)
    # Not ShapedArray(shape, dtype), which would drop the explicit sharding and the varying axes.
    result = _lowering.without_axis(x, axis) if reduces else x
    return result.update(dtype=dtype, weak_type=False)


def _batch(
    primitive: Primitive,
    reduces: bool,
    operands: Sequence[jax.Array],
    dims: Sequence[int | None],
    *,
    axis: int,
    **request: Any,
) -> tuple[jax.Array, int]:
    aligned, axis, at, at_rows = align_batch(operands, dims, axis)
    return _bind(primitive, *aligned, axis=axis, **request), at_rows if reduces else at


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
    first, *rest = vary_alike(first, *others)
    meshes = [jax.typeof(o).sharding.mesh for o in (first, *rest)]
    if meshes[0].empty and not all(mesh.empty for mesh in meshes):
        mesh = next(mesh for mesh in meshes if not mesh.empty)
        first = jax.sharding.reshard(first, NamedSharding(mesh, PartitionSpec()))
    x = jax.typeof(first)
    aligned = [first]
    for other in rest:
        wanted = NamedSharding(x.sharding.mesh, _lowering.aligned_spec(other, x, axis))
        same = jax.typeof(other).sharding == wanted
        aligned.append(other if same else jax.sharding.reshard(other, wanted))
    return aligned


def _bind(primitive: Primitive, *operands: jax.Array, axis: int, **request: Any) -> jax.Array:
    return primitive.bind(*align(*operands, axis=axis), axis=axis, **request)


def _jvp(primals: Sequence[jax.Array], tangents: Sequence[Any], **params: Any) -> Any:
    """The derivative is of the value before it is rounded to a narrower dtype."""
    (x,), (t,) = primals, tangents
    x, dtype = _reference.as_stored(x), params["dtype"]
    params |= {"dtype": _reference.compute_dtype(x.dtype, dtype)}
    lse = checkpoint_name(logsumexp_p.bind(x, **params), RESIDUAL)
    dlse = _bind(logsumexp_tangent_p, x, lse, ad.instantiate_zeros(t), **params)
    return lse.astype(dtype), dlse.astype(dtype)


def _tangent_jvp(primals: Sequence[jax.Array], tangents: Sequence[Any], **params: Any) -> Any:
    """`sum(p * t)` to `sum(p * (dt + (dx - dlse) * t))`: the same primitive."""
    (x, lse, t), (dx, dlse, dt) = primals, map(ad.instantiate_zeros, tangents)
    wide = _reference.compute_dtype(x.dtype, t.dtype, params["dtype"])
    d = _d_exponent(dx, dlse, params["axis"], wide)
    out = _bind(logsumexp_tangent_p, x, lse, t, **params)
    return out, _bind(logsumexp_tangent_p, x, lse, dt.astype(wide) + d * t.astype(wide), **params)


def _cotangent_jvp(primals: Sequence[jax.Array], tangents: Sequence[Any], **params: Any) -> Any:
    """`p * g` to `p * dg + p * g * (dx - dlse)`."""
    (x, lse, g), (dx, dlse, dg) = primals, map(ad.instantiate_zeros, tangents)
    wide = _reference.compute_dtype(x.dtype, g.dtype, params["dtype"])
    d = _d_exponent(dx, dlse, params["axis"], wide)
    out, in_g = (
        _bind(logsumexp_cotangent_p, x, lse, g, **params | {"dtype": wide}) for g in (g, dg)
    )
    return out.astype(params["dtype"]), (in_g + out * d).astype(params["dtype"])


def _gradient_jvp(primals: Sequence[jax.Array], tangents: Sequence[Any], **params: Any) -> Any:
    """In plain JAX: for derivatives of a loss beyond the first."""
    labels = primals[-1]
    ignored = labels == _reference.NO_GRADIENT
    moved = [ad.instantiate_zeros(t) for t in tangents[:-1]]

    def reference(*values: jax.Array) -> jax.Array:
        x, lse, factor, everywhere, at_label = values
        # 0 times the derivative at NaN, which such a row may hold, would be NaN.
        x = jnp.where(jnp.expand_dims(ignored, params["axis"]), 0, x)
        operands = (x, jnp.where(ignored, 0, lse), factor, everywhere, at_label, labels)
        return _reference.cross_entropy_gradient(*operands, **params)

    out = cross_entropy_gradient_p.bind(*primals, **params)
    return out, jax.jvp(reference, tuple(primals[:-1]), tuple(moved))[1]


def _d_exponent(dx: jax.Array, dlse: jax.Array, axis: int, wide: Any) -> jax.Array:
    return dx.astype(wide) - jnp.expand_dims(dlse.astype(wide), axis)


def _transpose_to(primitive: Primitive) -> Callable[..., Any]:
    def rule(g: Any, x: jax.Array, lse: jax.Array, t: Any, **params: Any) -> tuple[None, None, Any]:
        assert ad.is_undefined_primal(t)
        assert not ad.is_undefined_primal(x) and not ad.is_undefined_primal(lse)
        if type(g) is ad.Zero:
            return None, None, ad.Zero(t.aval)
        return None, None, _bind(primitive, x, lse, g, **params | {"dtype": t.aval.dtype})

    return rule


_register_reducing = partial(_lowering.register, per_row=True)
logsumexp_p = _primitive(
    "logsumexp", _reference.logsumexp, reduces=True, register=_register_reducing
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
ad.primitive_jvps[logsumexp_p] = _jvp
ad.primitive_jvps[logsumexp_tangent_p] = _tangent_jvp
ad.primitive_jvps[logsumexp_cotangent_p] = _cotangent_jvp
ad.primitive_jvps[cross_entropy_gradient_p] = _gradient_jvp
ad.primitive_transposes[logsumexp_tangent_p] = _transpose_to(logsumexp_cotangent_p)
ad.primitive_transposes[logsumexp_cotangent_p] = _transpose_to(logsumexp_tangent_p)


def bind_logsumexp(
    x: jax.Array,
    axis: int,
    dtype: Any,
    backend: str | None = None,
    batch_invariant: bool | None = None,
) -> jax.Array:
    """The primitive, by default as `implementation=None` has it."""
    params = {"axis": axis, "dtype": dtype, "batch_invariant": batch_invariant}
    return logsumexp_p.bind(x, **params, backend=backend, strategy="auto")


def bind_logsumexp_tangent(x: jax.Array, lse: jax.Array, t: jax.Array, axis: int) -> jax.Array:
    params = {"axis": axis, "dtype": lse.dtype, "batch_invariant": None, "backend": None}
    return _bind(logsumexp_tangent_p, x, lse, t, **params, strategy="auto")
