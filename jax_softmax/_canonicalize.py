"""Turns what users write into what primitives take; every user mistake ends here."""

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from . import _native

Axis = int | Sequence[int] | None

# How `jit` is to inline public functions: as the caller is traced, so that a primitive's lowering
# sees what made its operands. From jax 0.11 on, True means later.
EARLY: Any = getattr(getattr(jax, "Inline", None), "JAX_EARLY", True)
# Numbers by which float32 can be multiplied and divided.
SMALLEST, LARGEST = 1e-37, 1e37


def hashable(axis: Axis) -> Axis:
    """`axis` for `jit`, whose static arguments are hashable: lists as tuples, scalars as ints."""
    if axis is None:
        return None
    if isinstance(axis, Sequence) or (isinstance(axis, np.ndarray) and axis.ndim):
        return tuple(_index(a, axis) for a in axis)
    return _index(axis, axis)


def _index(one: Any, axis: Any, wanted: str = "an int, a tuple of ints or None") -> int:
    try:
        return operator.index(one)
    except TypeError:
        named = "; jax.nn's functions reduce named axes" if isinstance(one, str) else ""
        raise TypeError(f"axis wants {wanted}, got {axis!r}{named}") from None


def flag(name: str, value: Any) -> bool:
    """A Boolean that is part of the program."""
    try:
        return bool(value)
    except (ValueError, jax.errors.TracerBoolConversionError):
        message = f"{name} wants True or False, known at compile time, got {value!r}"
        raise TypeError(message) from None


def _array(name: str, value: ArrayLike) -> jax.Array:
    try:
        return jnp.asarray(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} wants an array, got {type(value).__name__}") from error


def floating(x: ArrayLike, op: str) -> jax.Array:
    """`x` as a strongly typed floating or complex array."""
    if not _is_array_like(x, int | float | complex):
        raise TypeError(
            f"{op} wants an array or a number, got {type(x).__name__}; "
            "convert it with jax.numpy.asarray"
        )
    x = jnp.asarray(x)
    if jnp.issubdtype(x.dtype, jax.dtypes.extended):
        raise TypeError(f"{op} wants numbers, got {x.dtype}")
    if x.dtype == jnp.bool_:
        raise TypeError(f"{op} does not take a boolean array; convert it with x.astype(float)")
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return x.astype(jnp.float64 if x.dtype.itemsize == 8 else jnp.float32)
    return jax.lax.convert_element_type(x, x.dtype)  # drops the weak type of a Python number


def _is_array_like(x: Any, numbers: Any) -> bool:
    """Whether JAX's own functions take it; parameters of some layers are pytrees that they take."""
    arrays = jax.Array | np.ndarray | np.generic
    return isinstance(x, arrays | numbers) or hasattr(x, "__jax_array__")


def hashable_dtype(dtype: Any) -> Any:
    """`dtype=` as one object, whatever its spelling."""
    if dtype is None:
        return None
    try:
        if isinstance(dtype, jax.Array | np.ndarray):
            raise TypeError  # whose own dtype jnp.dtype takes
        return jnp.dtype(dtype)
    except TypeError:
        raise TypeError(f"dtype wants a floating dtype or None, got {dtype!r}") from None


def result_dtype(x: jax.Array, dtype: Any) -> Any:
    """The dtype that `dtype=` asks for, None being that of `x`."""
    if dtype is None:
        return x.dtype
    if not jnp.issubdtype(dtype, jnp.inexact):
        raise TypeError(f"dtype wants a floating dtype, got {dtype}")
    if jnp.issubdtype(x.dtype, jnp.complexfloating) != jnp.issubdtype(dtype, jnp.complexfloating):
        raise TypeError(
            f"dtype={dtype} does not fit x of {x.dtype}: real and complex stay what they are; "
            "convert the result with .astype"
        )
    # JAX's own word on 64 bits where they are off.
    return jax.eval_shape(lambda: jnp.zeros((), dtype)).dtype


def quantized_dtype(dtype: Any) -> Any:
    """The 8-bit dtype that `absmax_quantize` is asked for."""
    wanted = ("float8_e4m3fn", "float8_e5m2", "int8")
    try:
        named = None if dtype is None else jnp.dtype(dtype)
    except TypeError:
        named = None
    if named is None or named.name not in wanted:
        raise TypeError(f"dtype wants {', '.join(wanted[:-1])} or {wanted[-1]}, got {dtype!r}")
    return named


def real_rows(x: ArrayLike, axis: Axis, op: str) -> tuple[jax.Array, tuple[int, ...]]:
    """`x` as a strongly typed real floating array, and its axes to reduce."""
    x = floating(x, op)
    if jnp.iscomplexobj(x):
        raise TypeError(f"{op} wants real x, got {x.dtype}; scale abs(x)")
    return x, canonical_axes(axis, x.ndim)


def boolean(name: str, mask: ArrayLike) -> jax.Array:
    if not _is_array_like(mask, bool):
        raise TypeError(f"{name} wants a boolean array, got {type(mask).__name__}")
    mask = jnp.asarray(mask)
    if mask.dtype != jnp.bool_:
        raise TypeError(f"{name} wants a boolean array, got {mask.dtype}; write `{name} != 0`")
    return mask


def broadcast_mask(x: jax.Array, where: ArrayLike) -> tuple[jax.Array, jax.Array]:
    """`x` at its common shape with the boolean mask, in a dtype that has infinities."""
    where = boolean("where", where)
    try:
        shape = jnp.broadcast_shapes(x.shape, where.shape)  # symbolic ones too
    except ValueError:
        raise ValueError(
            f"where of shape {where.shape} does not broadcast against x of shape {x.shape}"
        ) from None
    if x.dtype.itemsize == 1:
        x = x.astype(jnp.float32)
    return (x if x.shape == shape else jnp.broadcast_to(x, shape)), where


def masked(
    x: ArrayLike,
    axis: Any,
    mask: ArrayLike | None,
    causal: bool,
    bias: ArrayLike | None,
    scale: ArrayLike,
    softcap: float | None,
    sink: ArrayLike | None,
) -> tuple[jax.Array, int, dict[str, jax.Array], float]:
    """What `masked_softmax` takes: real `x`, one axis, the terms that there are, a constant scale.

    The terms have the rank of `x`; a scale that may be traced is one of them.
    """
    x = _real("x", floating(x, "masked_softmax"))
    x = x.astype(jnp.float32) if x.dtype.itemsize == 1 else x  # a dtype that has infinities
    axis = canonical_axes(_index(axis, axis, "an int"), x.ndim)[0]
    if mask is not None:
        mask = boolean("mask", mask)
        _broadcasts("mask", mask.shape, "x", x.shape)
    if causal and (x.ndim < 2 or axis != x.ndim - 1):
        raise ValueError(
            f"causal wants the last of at least two axes, got axis {axis} of shape {x.shape}"
        )
    if softcap is not None and not SMALLEST <= _number("softcap", softcap) <= LARGEST:
        raise ValueError(
            f"softcap wants a positive number, {SMALLEST} to {LARGEST}, or None, got {softcap}"
        )
    terms: dict[str, jax.Array] = {}

    def rank_of_x(operand: jax.Array) -> jax.Array:
        return jnp.expand_dims(operand, range(x.ndim - operand.ndim))

    if mask is not None:
        terms["mask"] = rank_of_x(mask)
    if bias is not None:
        bias = _real("bias", _array("bias", bias))
        _broadcasts("bias", bias.shape, "x", x.shape)
        terms["bias"] = rank_of_x(bias)
    factor = 1.0
    if isinstance(scale, int | float):
        factor = float(scale)
    else:
        scale = _real("scale", _array("scale", scale))
        _broadcasts("scale", scale.shape, "a scalar", ())
        terms["scale"] = rank_of_x(scale)
    if sink is not None:
        sink = _real("sink", _array("sink", sink))
        rows = x.shape[:axis] + x.shape[axis + 1 :]
        _broadcasts("sink", sink.shape, "x without its axis", rows)
        sink = jnp.expand_dims(sink, range(len(rows) - sink.ndim))
        terms["sink"] = jnp.expand_dims(sink, axis)
    return x, axis, terms, factor


def _real(name: str, x: jax.Array) -> jax.Array:
    if not jnp.issubdtype(x.dtype, jnp.floating) and not jnp.issubdtype(x.dtype, jnp.integer):
        raise TypeError(f"{name} wants real numbers, got {x.dtype}")
    return x


def _fits(shape: tuple[Any, ...], target: tuple[Any, ...]) -> bool:
    """Whether an array of `shape` broadcasts to `target`; both may be symbolic."""
    try:
        return jnp.broadcast_shapes(shape, target) == target
    except ValueError:
        return False


def _broadcasts(
    name: str, shape: tuple[int, ...], target: str, target_shape: tuple[int, ...]
) -> None:
    if not _fits(shape, target_shape):
        raise ValueError(
            f"{name} of shape {shape} does not broadcast against {target} of shape {target_shape}"
        )


class LossOptions(NamedTuple):
    """Checked, and constants of the program."""

    label_smoothing: float
    z_loss: float
    ignore_index: int | None


def loss_options(label_smoothing: Any, z_loss: Any, ignore_index: Any) -> LossOptions:
    smoothing, z_loss = _number("label_smoothing", label_smoothing), _number("z_loss", z_loss)
    if not 0 <= smoothing <= 1:
        raise ValueError(f"label_smoothing wants a number within [0, 1], got {smoothing}")
    if not 0 <= z_loss < math.inf:
        raise ValueError(f"z_loss wants a finite number that is not negative, got {z_loss}")
    if ignore_index is None:
        return LossOptions(smoothing, z_loss, None)
    try:
        return LossOptions(smoothing, z_loss, operator.index(ignore_index))
    except TypeError:
        raise TypeError(f"ignore_index wants an int or None, got {ignore_index!r}") from None


def _number(name: str, value: Any) -> float:
    try:
        if isinstance(value, str):
            raise TypeError
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} wants a number, known at compile time, got {value!r}") from None


def logits(logits: ArrayLike) -> jax.Array:
    """Floating logits, of a dtype that has infinities."""
    logits = _array("logits", logits)
    if not jnp.issubdtype(logits.dtype, jnp.floating):
        raise TypeError(f"logits want a floating dtype, got {logits.dtype}")
    return logits.astype(jnp.float32) if logits.dtype.itemsize == 1 else logits


def integer_labels(labels: ArrayLike, shape: tuple[Any, ...], axis: Axis) -> jax.Array:
    """Integer labels for logits of `shape`."""
    labels = _array("labels", labels)
    if not jnp.issubdtype(labels.dtype, jnp.integer):
        raise TypeError(f"labels want an integer dtype, got {labels.dtype}")
    # Before the axis is looked at, so that 0-d logits are told what they lack.
    rows = _shape_of_rows(shape, axis) if shape else None
    if labels.shape != rows:
        which = "its last axis" if axis == -1 else f"axis {axis}"
        raise ValueError(
            f"labels of shape {labels.shape} do not match logits of shape {shape}: "
            f"labels want the shape of logits without {which}"
        )
    # In fewer bits a negative label plus the number of classes could overflow.
    return labels.astype(jnp.int32) if labels.dtype.itemsize < 4 else labels


def probabilities(labels: ArrayLike, shape: tuple[Any, ...]) -> jax.Array:
    """Target probabilities at the `shape` of the logits, in a floating dtype."""
    labels = _array("labels", labels)
    if jnp.issubdtype(labels.dtype, jnp.complexfloating):
        raise TypeError(f"labels want a real dtype, got {labels.dtype}")
    if not jnp.issubdtype(labels.dtype, jnp.floating) or labels.dtype.itemsize == 1:
        labels = labels.astype(jnp.float32)
    try:
        return labels if labels.shape == shape else jnp.broadcast_to(labels, shape)
    except ValueError:
        raise ValueError(
            f"labels of shape {labels.shape} do not broadcast against logits of shape {shape}; "
            "class indices go to softmax_cross_entropy_with_integer_labels"
        ) from None


def mask_of_rows_or_elements(
    where: ArrayLike | None, shape: tuple[Any, ...], axis: Axis
) -> jax.Array | None:
    """The boolean mask for logits of `shape`, with as many dimensions as they have."""
    if where is None:
        return None
    where = boolean("where", where)
    axes = canonical_axes(axis, len(shape))
    rows = where.ndim == len(shape) - len(axes)
    full = jnp.expand_dims(where, axes) if rows else where
    if full.ndim != len(shape) or not _fits(full.shape, shape):
        raise ValueError(
            f"where of shape {where.shape} does not fit logits of shape {shape}: it wants as many "
            "dimensions as these, broadcast against them, or the shape of the result"
        )
    return full


def _shape_of_rows(shape: tuple[Any, ...], axis: Axis) -> tuple[Any, ...]:
    axes = canonical_axes(axis, len(shape))
    return tuple(d for i, d in enumerate(shape) if i not in axes)


def axes_in_order(
    x: jax.Array, where: jax.Array | None, axis: Axis
) -> tuple[jax.Array, jax.Array | None, tuple[int, ...]]:
    """`x` and `where` transposed so that the axes of `axis` lie in the order given there."""
    slots = canonical_axes(axis, x.ndim)
    given = axis if isinstance(axis, Sequence) else slots
    order = list(range(x.ndim))
    for slot, a in zip(slots, given, strict=True):
        order[slot] = a % x.ndim
    if order == sorted(order):
        return x, where, slots
    return x.transpose(order), None if where is None else where.transpose(order), slots


def single_axis(
    x: jax.Array, axis: Axis
) -> tuple[jax.Array, int, Callable[[jax.Array], jax.Array]]:
    """`x` with the softmax axes merged into one, that axis, and the way back."""
    axes = canonical_axes(axis, x.ndim)
    if len(axes) == 1:
        return x, axes[0], lambda y: y
    if not axes:
        return x[..., None], x.ndim, lambda y: y[..., 0]
    # Axes that others part are moved behind these: along the last one, kernels are the fastest.
    adjacent = axes[-1] - axes[0] < len(axes)
    start = axes[0] if adjacent else x.ndim - len(axes)
    stop = start + len(axes)
    together = tuple(range(start, stop))
    x, unreplicate = _replicated(x, axes)
    gathered = jnp.moveaxis(x, axes, together)
    merged = math.prod(gathered.shape[start:stop])
    rows = gathered.reshape(*gathered.shape[:start], merged, *gathered.shape[stop:])
    return (
        rows,
        start,
        lambda y: unreplicate(jnp.moveaxis(y.reshape(gathered.shape), together, axes)),
    )


def _replicated(
    x: jax.Array, axes: tuple[int, ...]
) -> tuple[jax.Array, Callable[[jax.Array], jax.Array]]:
    """`x` with `axes` unsharded, where an explicit mesh shards them, and the way back.

    Only unsharded axes can be merged by a reshape.
    """
    sharding = jax.typeof(x).sharding
    spec = [*sharding.spec, *[None] * (x.ndim - len(sharding.spec))]
    if all(spec[a] is None for a in axes):
        return x, lambda y: y
    merged = jax.sharding.PartitionSpec(*(None if i in axes else s for i, s in enumerate(spec)))
    return jax.sharding.reshard(x, merged), lambda y: jax.sharding.reshard(y, sharding.spec)


def canonical_axes(axis: Axis, ndim: int) -> tuple[int, ...]:
    """Sorted non-negative axes; None is all of them."""
    if axis is None:
        return tuple(range(ndim))
    given = tuple(_index(a, axis) for a in (axis if isinstance(axis, Sequence) else (axis,)))
    for a in given:
        if not -ndim <= a < ndim:
            raise ValueError(f"axis {a} is out of bounds for array of dimension {ndim}")
    axes = tuple(sorted(a % ndim for a in given))
    if len(set(axes)) != len(axes):
        raise ValueError(f"duplicate value in 'axis': {axis}")
    return axes


def three_state(batch_invariant: bool | None) -> bool | None:
    if batch_invariant is None:
        return None
    if not isinstance(batch_invariant, bool | np.bool_):
        raise TypeError(f"batch_invariant wants True, False or None, got {batch_invariant!r}")
    return bool(batch_invariant)


def name_or_none(implementation: str | None) -> str | None:
    if implementation is not None and not isinstance(implementation, str):
        raise TypeError(f"implementation wants a string or None, got {implementation!r}")
    return implementation


def request(
    op: str,
    x: jax.Array,
    *,
    axis: int,
    dtype: Any,
    implementation: str | None,
    batch_invariant: bool | None,
) -> dict[str, Any]:
    """The primitive's parameters for `implementation`, once it is known that it can run.

    `implementation` is None or `"backend"` or `"backend:strategy"`.
    """
    params = {"axis": axis, "dtype": dtype, "batch_invariant": batch_invariant}
    if implementation is None:
        return params | {"backend": None, "strategy": "auto"}
    backend, _, strategy = implementation.partition(":")
    if backend not in ("cuda", "cpu", "xla"):
        raise ValueError(
            f"implementation={implementation!r} is unknown: use None, 'cuda', 'cpu' or 'xla', "
            "or 'cuda:STRATEGY' / 'cpu:STRATEGY'"
        )
    if backend == "xla":
        if strategy:
            raise ValueError(f"implementation={implementation!r}: 'xla' has no strategies")
        return params | {"backend": backend, "strategy": "auto"}
    reason = _native.why_unavailable(backend, x.dtype, dtype)
    if reason:
        raise ValueError(f"implementation={implementation!r} is not available: {reason}")
    strategy = strategy or "auto"
    if strategy != "auto":
        _native.check_strategy(
            backend,
            op,
            x.shape,
            x.dtype,
            output_dtype=dtype,
            axis=axis,
            strategy=strategy,
            batch_invariant=batch_invariant is not False,
        )
    return params | {"backend": backend, "strategy": strategy}
