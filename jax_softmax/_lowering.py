"""Lowering: one custom call on cuda and cpu, the pure-JAX reference everywhere else."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import mlir

from . import _native

Reference = Callable[..., jax.Array]


def register(primitive: Primitive, reference: Reference) -> None:
    """Gives `primitive` its default lowering and that of each loaded backend."""
    default = partial(_lower_reference, reference=reference)
    mlir.register_lowering(primitive, default)
    call_p = _call_primitive(primitive.name)
    for backend in _native.BACKENDS:
        if _native.module(backend) is not None:
            rule = partial(_lower, call_p=call_p, reference=reference, here=backend)
            mlir.register_lowering(primitive, rule, platform=backend)


def _lower_reference(
    ctx: Any,
    *operands: Any,
    reference: Reference,
    axis: int,
    dtype: Any,
    backend: str | None,
    **request: Any,
) -> Any:
    del request
    if backend not in (None, "xla"):
        raise ValueError(
            f"implementation='{backend}' was asked for in a computation compiled for "
            f"{'/'.join(ctx.module_context.platforms)}; put the operands on a {backend} device, "
            "or leave implementation=None"
        )
    function = partial(reference, axis=axis, dtype=dtype)
    return mlir.lower_fun(function, multiple_results=False)(ctx, *operands)


def _lower(
    ctx: Any,
    *operands: Any,
    call_p: Primitive,
    reference: Reference,
    here: str,
    backend: str | None,
    **params: Any,
) -> Any:
    pairs = [(x.dtype, params["dtype"]) for x in ctx.avals_in]
    has_kernels = all(_native.has_kernels(here, *pair) for pair in pairs)
    if backend != here and (backend is not None or not has_kernels):
        return _lower_reference(ctx, *operands, reference=reference, backend=backend, **params)
    in_place = here == "cpu" and _one_device(ctx)
    call = partial(_call, call_p, axis_last=not in_place, **params)
    return mlir.lower_fun(call, multiple_results=False)(ctx, *operands)


def _one_device(ctx: Any) -> bool:
    return getattr(ctx.module_context.axis_context, "num_devices", None) == 1


def _call(
    call_p: Primitive, *operands: jax.Array, axis: int, axis_last: bool, **params: Any
) -> jax.Array:
    """The custom call; with `axis_last`, between two transposes that XLA:GPU elides.

    With the softmax axis logically last, every other dimension is a batch dimension that can be
    sharded. XLA:CPU would carry the transposes out, so one device gets the axis where it is.
    Where a result and a tangent differ in dtype, the narrower gets that of the wider.
    """
    wide = max((x.dtype for x in operands), key=lambda d: d.itemsize)
    operands = tuple(x.astype(wide) for x in operands)
    if not axis_last:
        return call_p.bind(*operands, axis=axis, logical_axis=axis, **params)
    last = operands[0].ndim - 1
    moved = [jnp.moveaxis(x, axis, last) for x in operands]
    y = call_p.bind(*moved, axis=axis, logical_axis=last, **params)
    return jnp.moveaxis(y, last, axis)


def _call_primitive(op: str) -> Primitive:
    """The custom call as a primitive of its own, which exists only inside a lowering.

    `logical_axis` is the softmax axis of its operands, `axis` where that axis lies in memory.
    """
    primitive = Primitive(f"{op}_call")
    primitive.def_abstract_eval(lambda x, *others, dtype, **params: x.update(dtype=dtype))
    mlir.register_lowering(primitive, partial(_lower_call, target=_native.target(op)))
    return primitive


def _lower_call(
    ctx: Any,
    *operands: Any,
    target: str,
    axis: int,
    logical_axis: int,
    dtype: Any,
    **attributes: Any,
) -> Any:
    del dtype  # the result's type says it
    shape = ctx.avals_in[0].shape
    ndim = len(shape)
    major_to_minor = [d for d in range(ndim) if d != logical_axis]
    major_to_minor.insert(axis, logical_axis)
    layout = tuple(reversed(major_to_minor))
    rule = jax.ffi.ffi_lowering(
        target,
        operand_layouts=[layout] * len(operands),
        result_layouts=[layout],
        extra_attributes=_partitioning(shape, len(operands)) if logical_axis == ndim - 1 else {},
    )
    return rule(ctx, *operands, axis=axis, logical_axis=logical_axis, **attributes)


def _partitioning(shape: tuple[Any, ...], operands: int) -> dict[str, Any]:
    """Tells both of XLA's partitioners that all but the last dimension may be sharded."""
    if not all(isinstance(d, int) for d in shape):
        return {}  # symbolic, in export: sizes are unknown, and the rule wants numbers
    factors = [_factor(i) for i in range(len(shape))]
    dims = f"[{', '.join(factors)}]"
    sizes = ", ".join(f"{f}={d}" for f, d in zip(factors, shape, strict=True))
    rule = (
        f"#sdy.op_sharding_rule<({', '.join([dims] * operands)})->({dims}) "
        f"{{{sizes}}} need_replication={{{factors[-1]}}}>"
    )
    return {
        "mhlo.frontend_attributes": mlir.ir_attribute({"num_batch_dims": str(len(shape) - 1)}),
        "sdy.sharding_rule": mlir.ir.Attribute.parse(rule),
    }


def _factor(i: int) -> str:
    """The i-th factor's name in Shardy's grammar: i … z, then z_1, z_2, …"""
    letters = "ijklmnopqrstuvwxyz"
    return letters[i] if i < len(letters) else f"z_{i - len(letters) + 1}"
