"""The primitives: one row op each, along `axis` of an N-D operand, with every JAX rule.

`softmax_p` and `log_softmax_p` have a JVP rule that binds a second primitive, linear in the
tangent, which has a transpose rule. So forward mode, reverse mode and all their nestings work,
only the result is saved (or what XLA's code reads in its place), and the fused kernel is what runs
in either mode.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import jet
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, xla
from jax.sharding import AxisType

from . import _lowering, _reference
from ._implementation import may_be_fused

# The name of the one residual, for `jax.checkpoint_policies.save_only_these_names`.
RESIDUAL = "jax_softmax"


def _row_primitive(name: str, reference: Callable[..., jax.Array]) -> Primitive:
    """A primitive that maps operands of one shape to a result of that shape, and of `dtype`.

    The operands of a derivative may differ in dtype: the result of a function that changes it has
    the new one, the tangent the old one.
    """
    primitive = Primitive(name)
    primitive.def_impl(partial(xla.apply_primitive, primitive))
    primitive.def_abstract_eval(_abstract_eval)
    batching.primitive_batchers[primitive] = partial(_batch, primitive)
    _lowering.register(primitive, reference)
    return primitive


def def_series(primitive: Primitive, plain: Callable[..., Any]) -> None:
    """The rule of `jax.experimental.jet`: Taylor series of the plain JAX that computes the same.

    There is none for derivatives, as jet has no rule for the names of residuals.
    """

    def rule(primals: Sequence[jax.Array], series: Sequence[Any], **params: Any) -> Any:
        params.pop("backend", None)
        return jet.jet(partial(plain, **params), primals, series, factorial_scaled=False)

    jet.jet_rules[primitive] = rule


def _abstract_eval(x: Any, *others: Any, axis: int, dtype: Any, **request: Any) -> Any:
    del request
    assert 0 <= axis < x.ndim
    assert all(o.shape == x.shape for o in others)
    # Not ShapedArray(shape, dtype), which would drop the explicit sharding and the varying axes.
    return x.update(dtype=dtype, weak_type=False)


def _batch(
    primitive: Primitive,
    operands: Sequence[jax.Array],
    dims: Sequence[int | None],
    *,
    axis: int,
    **request: Any,
) -> tuple[jax.Array, int]:
    """Leaves the first batched operand where it is and shifts `axis`: no data moves."""
    at, size = next((d, x.shape[d]) for x, d in zip(operands, dims, strict=True) if d is not None)
    aligned = [batch_to(x, d, at, size) for x, d in zip(operands, dims, strict=True)]
    return primitive.bind(*_align(*aligned), axis=axis + (at <= axis), **request), at


def batch_to(x: jax.Array, dim: int | None, at: int, size: int) -> jax.Array:
    if dim is not None:
        return x if dim == at else jnp.moveaxis(x, dim, at)
    return jnp.broadcast_to(jnp.expand_dims(x, at), (*x.shape[:at], size, *x.shape[at:]))


def _align(first: jax.Array, *others: jax.Array) -> list[jax.Array]:
    """The operands with one set of varying axes and, of explicit shardings, that of the first."""
    operands = vary_alike(first, *others)
    explicit = [jax.typeof(x).sharding for x in operands if is_explicit(x)]
    if not explicit:  # an automatic mesh is XLA's affair, and only some may know of it
        return operands
    sharding = explicit[0]
    return [
        x if jax.typeof(x).sharding == sharding else jax.sharding.reshard(x, sharding)
        for x in operands
    ]


def is_explicit(x: jax.Array) -> bool:
    """Whether its type says how it is sharded, along some axis of a mesh at least."""
    return AxisType.Explicit in jax.typeof(x).sharding.mesh.axis_types


def vary_alike(*operands: jax.Array) -> list[jax.Array]:
    """The operands with one set of varying axes."""
    varying = [jax.typeof(x).manual_axis_type.varying for x in operands]
    everything = frozenset().union(*varying)
    return [
        jax.lax.pcast(x, tuple(sorted(everything - v)), to="varying") if everything - v else x
        for x, v in zip(operands, varying, strict=True)
    ]


def _bind(primitive: Primitive, *operands: jax.Array, axis: int, **request: Any) -> jax.Array:
    return primitive.bind(*_align(*operands), axis=axis, **request)


def _tangent(primitive: Primitive, y: jax.Array, t: Any, *x: jax.Array, **params: Any) -> Any:
    return t if type(t) is ad.Zero else _bind(primitive, y, t, *x, **params)


def _def_jvp(primitive: Primitive, tangent: Primitive, *, of_operand: bool = False) -> None:
    """The derivative of `primitive` is `tangent(result, t)`.

    With `of_operand`, that takes the operand too where XLA may make a single kernel of it: see
    `_reference.log_softmax_cotangent`. Kernels do not read it; it has no name to be saved by.
    """

    def rule(primals: Sequence[jax.Array], tangents: Sequence[Any], **params: Any) -> Any:
        params.pop("differentiated", None)  # once is enough
        y = checkpoint_name(primitive.bind(*primals, differentiated=True, **params), RESIDUAL)
        more: Sequence[jax.Array] = ()
        if of_operand and may_be_fused(tangent.name, *primals, **params):
            more = primals
        return y, _tangent(tangent, y, *tangents, *more, **params)

    ad.primitive_jvps[primitive] = rule


def _def_linear(
    primitive: Primitive, transpose: Primitive, d_residual: Callable[..., jax.Array]
) -> None:
    """`primitive(y, t)` is linear in t, with that transpose; `d_residual` is its JVP in y.

    A third operand is what y was made of: what depends on it is accounted for by y.
    """

    def jvp(primals: Sequence[jax.Array], tangents: Sequence[Any], **params: Any) -> Any:
        (y, t, *x), (dy, dt, *_) = primals, tangents
        out = _bind(primitive, y, t, *x, **params)
        in_t = _tangent(primitive, y, dt, *x, **params)
        if type(dy) is ad.Zero:
            return out, in_t
        dtype = params["dtype"]
        wide = _reference.compute_dtype(dtype, y.dtype, t.dtype)
        if params.get("zeros_are_masked"):
            t = jnp.where(y == 0, 0, t)
        in_y = d_residual(y.astype(wide), t.astype(wide), dy.astype(wide), params["axis"])
        in_y = in_y * params.get("scale", 1)
        return out, ad.add_tangents(in_y.astype(dtype), in_t)

    def transposed(g: Any, y: jax.Array, t: Any, *x: jax.Array, **params: Any) -> Any:
        assert ad.is_undefined_primal(t) and not any(map(ad.is_undefined_primal, (y, *x)))
        nothing = [None] * len(x)
        if type(g) is ad.Zero:
            return None, ad.Zero(t.aval), *nothing
        params |= {"dtype": t.aval.dtype}
        return None, _bind(transpose, y, g, *x, **params), *nothing

    ad.primitive_jvps[primitive] = jvp
    ad.primitive_transposes[primitive] = transposed


def _row_sum(x: jax.Array, axis: int) -> jax.Array:
    return jnp.sum(x, axis, keepdims=True)


def _d_softmax_tangent(y: jax.Array, t: jax.Array, dy: jax.Array, axis: int) -> jax.Array:
    return dy * (t - _row_sum(y * t, axis)) - y * _row_sum(dy * t, axis)


def _d_log_softmax_tangent(y: jax.Array, t: jax.Array, dy: jax.Array, axis: int) -> jax.Array:
    return jnp.broadcast_to(-_row_sum(jnp.exp(y) * dy * t, axis), y.shape)


def _d_log_softmax_cotangent(y: jax.Array, g: jax.Array, dy: jax.Array, axis: int) -> jax.Array:
    return -jnp.exp(y) * dy * _row_sum(g, axis)


softmax_p = _row_primitive("softmax", _reference.softmax)
softmax_tangent_p = _row_primitive("softmax_tangent", _reference.softmax_tangent)
_def_jvp(softmax_p, softmax_tangent_p)
def_series(softmax_p, _lowering.untold(_reference.softmax))
# The Jacobian of softmax is symmetric: one kernel serves both modes.
_def_linear(softmax_tangent_p, softmax_tangent_p, _d_softmax_tangent)

log_softmax_p = _row_primitive("log_softmax", _reference.log_softmax)
log_softmax_tangent_p = _row_primitive("log_softmax_tangent", _reference.log_softmax_tangent)
log_softmax_cotangent_p = _row_primitive("log_softmax_cotangent", _reference.log_softmax_cotangent)
_def_jvp(log_softmax_p, log_softmax_tangent_p, of_operand=True)
def_series(log_softmax_p, _lowering.untold(_reference.log_softmax))
_def_linear(log_softmax_tangent_p, log_softmax_cotangent_p, _d_log_softmax_tangent)
_def_linear(log_softmax_cotangent_p, log_softmax_tangent_p, _d_log_softmax_cotangent)
