"""The custom calls, as primitives of their own that exist only inside a lowering."""

import functools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import mlir

from . import _native
from ._reference import is_static
from ._rule import FORWARD

# Of a call that adds a bias to logits: its op, by that without any, and the letters of terms.
WITH_TERMS = {op: f"masked_{op}" for op in FORWARD}
BIAS, MASK = "b", "m"
TOLD = "mhlo.backend_config"  # the attribute of a call that has its handler's


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


def without_axis(x: Any, axis: int) -> Any:
    """The abstract value `x` without that dimension, otherwise sharded as before."""
    spec = [*x.sharding.spec, *[None] * (x.ndim - len(x.sharding.spec))]
    kept = [i for i in range(x.ndim) if i != axis]
    sharding = x.sharding.update(spec=jax.sharding.PartitionSpec(*(spec[i] for i in kept)))
    return x.update(shape=tuple(x.shape[i] for i in kept), sharding=sharding)


def aligned_spec(other: Any, x: Any, axis: int) -> jax.sharding.PartitionSpec:
    """How `other` is sharded that goes with `x`: of its shape, of its rows', or broadcast to it."""
    like = x if other.ndim == x.ndim else without_axis(x, axis)
    pairs = zip(other.shape, like.sharding.spec, strict=True)
    return jax.sharding.PartitionSpec(*(None if d == 1 else s for d, s in pairs))


def call(
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
    wide = widest(operands)
    operands = tuple(x.astype(wide) for x in operands)
    if not axis_last:
        return call_p.bind(*operands, axis=axis, logical_axis=axis, workspace=0, **params)
    last = operands[0].ndim - 1
    moved = [jnp.moveaxis(x, axis, last) for x in operands]
    results = call_p.bind(*moved, axis=axis, logical_axis=last, workspace=workspace, **params)
    if workspace:
        results = results[:-1]
    return [y if y.ndim == last else jnp.moveaxis(y, last, axis) for y in results]


def widest(operands: Sequence[Any]) -> Any:
    """The dtype that a call's operands, arrays or abstract values, are brought to."""
    return max((x.dtype for x in operands), key=lambda d: d.itemsize)


def workspace(op: str, operands: Sequence[Any], *, axis: int, dtype: Any, **request: Any) -> int:
    """The bytes of scratch memory that the call is given for each row."""
    shape = operands[0].shape
    if not is_static(shape):
        return 0
    return _native.workspace(op, shape, widest(operands), output_dtype=dtype, axis=axis, **request)


def lower_last(ctx: Any, logits: Any, *, op: str, **request: Any) -> Any:
    """`op` of logits of its dtype along the last axis, by a kernel that multiplies them."""
    bind = partial(call, call_primitive(op, per_row=False), axis_last=True, **request)
    return mlir.lower_fun(bind, multiple_results=True)(ctx, logits)


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

    def bound(*operands: jax.Array) -> jax.Array:
        last = operands[0].ndim - 1
        moved = [jnp.moveaxis(operand, axis, last) for operand in operands]
        y = call_p.bind(*moved, axis=axis, logical_axis=last, workspace=0, **params)[0]
        return jnp.moveaxis(y, last, axis)

    return bound


def lower_with_terms(
    ctx: Any, logits: Any, *terms: Any, op: str, names: str, scale: float, **request: Any
) -> Any:
    """`op` of logits that a kernel multiplies, adds a bias to, or masks, by terms of their rank."""
    bind = call_with_terms(WITH_TERMS[op], names, factor=scale, **request)
    return mlir.lower_fun(bind, multiple_results=False)(ctx, logits, *terms)


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
        is_static(x.shape)
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


def one_device(ctx: Any) -> bool:
    """Whether operands are all on one device: in a program for one, or inside `shard_map`."""
    context = ctx.module_context.axis_context
    if hasattr(context, "mesh"):
        return set(context.mesh.axis_names) == set(context.manual_axes)
    return getattr(context, "num_devices", None) == 1


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


def _partitioning(shapes: Sequence[tuple[Any, ...]], operands: int) -> dict[str, Any]:
    """Tells both of XLA's partitioners that all but the last dimension may be sharded.

    `shapes` are those of the operands and of the results, which agree in all but the last one, or
    lack it.
    """
    if not all(map(is_static, shapes)):
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


def _factor(i: int) -> str:
    """The i-th factor's name in Shardy's grammar: i … z, then z_1, z_2, …"""
    letters = "ijklmnopqrstuvwxyz"
    return letters[i] if i < len(letters) else f"z_{i - len(letters) + 1}"
