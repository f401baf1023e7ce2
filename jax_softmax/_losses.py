"""Losses: `jax.custom_jvp` of logits and their logsumexp, with a linear primitive for the tangent.

Its transpose is the gradient, one expression of the operands and of logsumexp's two terms per row:
these are the residuals. So forward mode, reverse mode and their nestings work.
"""

from collections.abc import Sequence
from functools import partial, reduce
from typing import Any, Literal, NamedTuple, overload

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir, xla
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, Real

from . import _canonicalize
from ._canonicalize import Axis
from ._primitives import RESIDUAL
from ._reductions import (
    align,
    align_batch,
    bind_logsumexp_parts,
    bind_logsumexp_tangent,
    cross_entropy_gradient_p,
)
from ._reference import NO_GRADIENT, as_stored, columns, compute_dtype, kept, softmax_of_parts

Pair = tuple[Float[Array, "*rows"], Float[Array, "*rows"]]


@overload
def softmax_cross_entropy_with_integer_labels(
    logits: Float[ArrayLike, "*shape"],
    labels: Int[ArrayLike, "*rows"],
    axis: Axis = -1,
    where: Bool[ArrayLike, "..."] | None = None,
    *,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    ignore_index: int | None = None,
    return_lse: Literal[False] = False,
) -> Float[Array, "*rows"]: ...


@overload
def softmax_cross_entropy_with_integer_labels(
    logits: Float[ArrayLike, "*shape"],
    labels: Int[ArrayLike, "*rows"],
    axis: Axis = -1,
    where: Bool[ArrayLike, "..."] | None = None,
    *,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    ignore_index: int | None = None,
    return_lse: Literal[True],
) -> Pair: ...


def softmax_cross_entropy_with_integer_labels(
    logits: Float[ArrayLike, "*shape"],
    labels: Int[ArrayLike, "*rows"],
    axis: Axis = -1,
    where: Bool[ArrayLike, "..."] | None = None,
    *,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    ignore_index: int | None = None,
    return_lse: bool = False,
) -> Float[Array, "*rows"] | Pair:
    """Computes `logsumexp(logits) - logits[labels]` along `axis`, one loss per row.

    Values, gradients and label semantics are those of optax's function of this name: a negative
    label counts from the end, one out of range gives NaN, and `where` does not hide the label's own
    logit. The differences: the loss of logits of 16 bits or fewer is computed and returned in
    float32, and neither logits nor labels are broadcast to the other's rows.
    Reverse mode saves `logits`, `labels`, `where` and per row the largest logit and the logarithm
    of the exponentials' sum, and computes the gradient from these element by element.

    Args:
      logits: unnormalised log-probabilities.
      labels: the index of the right class per row, any integer dtype.
      axis: the classes' axis; or a tuple of axes, in whose order the label is a flat index.
      where: boolean, of `labels`' shape or of as many dimensions as `logits` and broadcast against
        these; classes where it is False take no part, whatever they hold. A row masked as a whole
        has loss 0 and no gradient.
      label_smoothing: how much of the target goes to all (unmasked) classes alike: `a` makes the
        loss `(1 - a) * (lse - logits[labels]) + a * (lse - mean(logits))`.
      z_loss: how much of `lse ** 2` is added.
      ignore_index: a label whose rows have loss 0, `lse` 0 and no gradient, whatever they hold; it
        is compared before negative labels count from the end.
      return_lse: whether to return `(losses, lse)`, both differentiable, `lse` being
        `logsumexp(logits, axis, where)`.

    Returns:
      The losses, float32 or float64.

    Raises:
      TypeError: `logits` is no floating array, `labels` no integer array or `where` not boolean; an
        option is no number, or traced.
      ValueError: `labels` does not have the shape of `logits` without `axis`, `where` does not fit,
        `axis` is out of range or repeated, `label_smoothing` is not within [0, 1] or `z_loss`
        negative.

    Differentiable in both modes and to any order.

    Source: the loss from a saved logsumexp is as in Liger-Kernel, which saves no terms of it;
      `z_loss` as in PaLM.
    """
    options = _canonicalize.loss_options(label_smoothing, z_loss, ignore_index)
    axis = _canonicalize.hashable(axis)
    return_lse = _canonicalize.flag("return_lse", return_lse)
    loss, lse = _with_integer_labels(logits, labels, where, axis, options, return_lse)
    return (loss, lse) if return_lse else loss


@overload
def softmax_cross_entropy(
    logits: Float[ArrayLike, "*shape"],
    labels: Real[ArrayLike, "..."],
    axis: Axis = -1,
    where: Bool[ArrayLike, "..."] | None = None,
    *,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    return_lse: Literal[False] = False,
) -> Float[Array, "*rows"]: ...


@overload
def softmax_cross_entropy(
    logits: Float[ArrayLike, "*shape"],
    labels: Real[ArrayLike, "..."],
    axis: Axis = -1,
    where: Bool[ArrayLike, "..."] | None = None,
    *,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    return_lse: Literal[True],
) -> Pair: ...


def softmax_cross_entropy(
    logits: Float[ArrayLike, "*shape"],
    labels: Real[ArrayLike, "..."],
    axis: Axis = -1,
    where: Bool[ArrayLike, "..."] | None = None,
    *,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    return_lse: bool = False,
) -> Float[Array, "*rows"] | Pair:
    """Computes `sum(labels * (logsumexp(logits) - logits))` along `axis`, one loss per row.

    Values and gradients, to both operands, are those of `optax.softmax_cross_entropy`, but the loss
    of operands of 16 bits or fewer is computed and returned in float32. Reverse mode saves both
    operands, `where`, and per row the two terms of its logsumexp and one sum of `labels`.

    Args:
      labels: the target probabilities, broadcast to the shape of `logits` (these are not broadcast
        to theirs); they need not sum to 1.
      axis: the classes' axis, a tuple of axes taken jointly, or None for all.
      where: boolean, of the result's shape or of as many dimensions as `logits` and broadcast
        against these; classes where it is False take no part, whatever both operands hold.

    `logits`, the other options, and the errors are those of
    `softmax_cross_entropy_with_integer_labels`.
    """
    options = _canonicalize.loss_options(label_smoothing, z_loss, None)
    axis = _canonicalize.hashable(axis)
    return_lse = _canonicalize.flag("return_lse", return_lse)
    loss, lse = _with_probabilities(logits, labels, where, axis, options, return_lse)
    return (loss, lse) if return_lse else loss


class _Static(NamedTuple):
    axis: int
    label_smoothing: float
    z_loss: float
    ignore_index: int | None
    lse_is_used: bool


@partial(jax.jit, static_argnums=(3, 4, 5), inline=_canonicalize.EARLY)
def _with_integer_labels(
    logits: ArrayLike,
    labels: ArrayLike,
    where: ArrayLike | None,
    axis: Axis,
    options: _canonicalize.LossOptions,
    lse_is_used: bool,
) -> tuple[jax.Array, jax.Array]:
    logits = _canonicalize.logits(logits)
    labels = _canonicalize.integer_labels(labels, logits.shape, axis)
    where = _canonicalize.mask_of_rows_or_elements(where, logits.shape, axis)
    logits, where, axis = _canonicalize.axes_in_order(logits, where, axis)
    rows, where, row_axis = _rows(logits, where, axis)
    return _aligned(_Static(row_axis, *options, lse_is_used), rows, labels, where)


@partial(jax.jit, static_argnums=(3, 4, 5), inline=_canonicalize.EARLY)
def _with_probabilities(
    logits: ArrayLike,
    labels: ArrayLike,
    where: ArrayLike | None,
    axis: Axis,
    options: _canonicalize.LossOptions,
    lse_is_used: bool,
) -> tuple[jax.Array, jax.Array]:
    logits = _canonicalize.logits(logits)
    labels = _canonicalize.probabilities(labels, logits.shape)
    where = _canonicalize.mask_of_rows_or_elements(where, logits.shape, axis)
    targets, _, _ = _canonicalize.single_axis(labels, axis)
    rows, where, row_axis = _rows(logits, where, axis)
    return _aligned(_Static(row_axis, *options, lse_is_used), rows, targets, where)


def _rows(
    logits: jax.Array, where: jax.Array | None, axis: Axis
) -> tuple[jax.Array, jax.Array | None, int]:
    """Logits and mask with the softmax axes merged into one, and that axis."""
    rows, row_axis, _ = _canonicalize.single_axis(logits, axis)
    if where is not None and rows is not logits:
        where, _, _ = _canonicalize.single_axis(jnp.broadcast_to(where, logits.shape), axis)
    return rows, where, row_axis


def _aligned(
    static: _Static, logits: jax.Array, targets: jax.Array, where: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    """A custom rule's gradients must have its operands' types, so those agree before it."""
    logits = as_stored(logits)
    if where is None:
        logits, targets = align(logits, targets, axis=static.axis)
    else:
        logits, targets, where = align(logits, targets, where, axis=static.axis)
    unmasked = logits if where is None else jnp.where(where, logits, -jnp.inf)
    largest, log_sum = bind_logsumexp_parts(unmasked, static.axis, _wide(logits, targets))
    ignored = _ignored(static, targets)
    if ignored is not None:
        log_sum = _log_sum_of_others(static.axis, unmasked, ignored, largest, log_sum)
    saved = (checkpoint_name(part, RESIDUAL) for part in (largest, log_sum))
    return _cross_entropy(static, logits, targets, where, *saved)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _log_sum_of_others(
    axis: int, x: jax.Array, ignored: jax.Array, largest: jax.Array, log_sum: jax.Array
) -> jax.Array:
    """`log_sum`, of the logsumexp of `x`, without a derivative in rows that may hold NaN."""
    del axis, x, ignored, largest
    return log_sum


@_log_sum_of_others.defjvp
def _log_sum_of_others_jvp(axis: int, primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    x, ignored, largest, _ = primals
    log_sum = _log_sum_of_others(axis, *primals)
    x, t = (jnp.where(jnp.expand_dims(ignored, axis), 0, v) for v in (x, tangents[0]))
    largest, of_others = (jnp.where(ignored, 0, part) for part in (largest, log_sum))
    return log_sum, bind_logsumexp_tangent(x, largest, of_others, t, axis)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _cross_entropy(
    static: _Static,
    logits: jax.Array,
    targets: jax.Array,
    where: jax.Array | None,
    largest: jax.Array,
    log_sum: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Loss and logsumexp per row; `targets` are integer labels [*rows] or probabilities.

    `largest` and `log_sum` are the logsumexp's terms, whose lowering would not see here what its
    operand was converted from. The rule knows their first derivative, and leaves that out; the next
    ones are of `log_sum` too.
    """
    return _forward(static, logits, targets, where, largest, log_sum)[0]


def _cross_entropy_jvp(static: _Static, primals: Any, tangents: Any) -> Any:
    out, residuals = _forward(static, *primals)
    # A zero is not made: it would be saved, as large as the logits.
    moves = tuple(not isinstance(t, SymbolicZero) for t in tangents[:2])
    if not any(moves):
        return out, tuple(map(jnp.zeros_like, out))
    moved = [t for t, moving in zip(tangents[:2], moves, strict=True) if moving]
    operands = [v for v in (*residuals, *moved) if v is not None]
    aligned = align(*operands, axis=static.axis)
    masked = primals[2] is not None
    return out, tuple(_tangent_p.bind(*aligned, static=static, masked=masked, moves=moves))


_cross_entropy.defjvp(_cross_entropy_jvp, symbolic_zeros=True)


def _forward(
    static: _Static,
    logits: jax.Array,
    targets: jax.Array,
    where: jax.Array | None,
    largest: jax.Array,
    log_sum: jax.Array,
) -> tuple[tuple[jax.Array, jax.Array], tuple[Any, ...]]:
    axis, smoothing, z_loss, *_ = static
    wide = log_sum.dtype
    if _are_labels(targets):
        loss, total = largest - _at_labels(logits, targets, axis).astype(wide) + log_sum, None
    else:
        probabilities = kept(where, targets.astype(wide))
        distance = kept(where, _distance(logits, largest, log_sum, axis))
        loss = jnp.sum(probabilities * distance, axis)
        total = jnp.sum(probabilities, axis)
    if smoothing:
        distance = kept(where, _distance(logits, largest, log_sum, axis))
        mean = jnp.sum(distance, axis) / _count(logits, where, axis, wide)
        loss = (1 - smoothing) * loss + smoothing * mean
    if z_loss:
        loss = loss + z_loss * (largest + log_sum) ** 2
    ignored = _ignored(static, targets)
    if ignored is not None:
        loss, largest, log_sum = (jnp.where(ignored, 0, v) for v in (loss, largest, log_sum))
    if where is not None:
        loss = jnp.where(jnp.any(where, axis), loss, 0)
    return (loss, largest + log_sum), (logits, targets, where, largest, log_sum, total)


def _distance(x: jax.Array, largest: jax.Array, log_sum: jax.Array, axis: int) -> jax.Array:
    """`logsumexp(x) - x`."""
    largest, log_sum = (jnp.expand_dims(part, axis) for part in (largest, log_sum))
    return largest - x.astype(log_sum.dtype) + log_sum


def _gradients(
    static: _Static,
    residuals: tuple[Any, ...],
    cotangents: tuple[jax.Array, jax.Array],
    dtype: Any = None,
) -> tuple[jax.Array, jax.Array | None]:
    """Those of logits and probabilities, in `dtype` or else their own."""
    logits, targets, where, largest, log_sum, total = residuals
    dtype, dtype_of_targets = dtype or logits.dtype, dtype or targets.dtype
    if where is None and total is None:
        parts = largest, log_sum
        return _gradient_of_labels(static, logits, targets, *parts, *cotangents, dtype), None
    axis, smoothing, z_loss, *_ = static
    wide = log_sum.dtype
    g, g_lse = cotangents
    x, keep = logits.astype(wide), where
    if where is not None:
        dead, ignored = ~jnp.any(where, axis), _ignored(static, targets)
        dead = dead if ignored is None else dead | ignored
        # Selected before they are used: 0 times the NaN of such a row would be NaN.
        g, g_lse, largest, log_sum = (jnp.where(dead, 0, v) for v in (g, g_lse, largest, log_sum))
        keep = where & ~jnp.expand_dims(dead, axis)
        x = jnp.where(keep, x, -jnp.inf)
    p = softmax_of_parts(x, largest, log_sum, axis)
    factor = 1 if total is None else (1 - smoothing) * total + smoothing
    if z_loss:
        factor = factor + 2 * z_loss * (largest + log_sum)
    d = p if isinstance(factor, int) else p * jnp.expand_dims(factor, axis)
    if _are_labels(targets):
        d = d - jnp.where(_is_label(targets, logits, axis), 1 - smoothing, 0).astype(wide)
    else:
        d = d - (1 - smoothing) * kept(keep, targets.astype(wide))
    if smoothing:
        share = smoothing / jnp.expand_dims(_count(logits, where, axis, wide), axis)
        d = d - kept(keep, share)
    g = jnp.expand_dims(g, axis)
    d = d * g
    if static.lse_is_used:
        d = d + p * jnp.expand_dims(g_lse, axis)
    if _are_labels(targets):
        return d.astype(dtype), None
    distance = kept(keep, _distance(x, largest, log_sum, axis))
    return d.astype(dtype), ((1 - smoothing) * distance * g).astype(dtype_of_targets)


def _gradient_of_labels(
    static: _Static,
    logits: jax.Array,
    labels: jax.Array,
    largest: jax.Array,
    log_sum: jax.Array,
    g: jax.Array,
    g_lse: jax.Array,
    dtype: Any,
) -> jax.Array:
    """Without a mask all but the softmax depends on the row alone: one primitive.

    The softmax is `exp(x - largest) / sum`.
    """
    axis, smoothing, z_loss, *_ = static
    n = logits.shape[axis]
    factor = g * (1 + 2 * z_loss * (largest + log_sum)) if z_loss else g
    if static.lse_is_used:
        factor = factor + g_lse
    factor = factor * jnp.exp(-log_sum)
    at = _positions(labels, n)
    ignored = _ignored(static, labels)
    if ignored is not None:
        at = jnp.where(ignored, NO_GRADIENT, at)
    per_row = (largest, factor, (-smoothing / max(n, 1)) * g, (smoothing - 1) * g, at)
    operands = align(logits, *per_row, axis=axis)
    return cross_entropy_gradient_p.bind(*operands, axis=axis, dtype=dtype)


def _are_labels(targets: jax.Array) -> bool:
    return jnp.issubdtype(targets.dtype, jnp.integer)


def _wide(logits: jax.Array, targets: jax.Array) -> Any:
    """At least float32: a 16-bit softmax near 1 has no digits left for `p - 1`."""
    return compute_dtype(logits.dtype, *(() if _are_labels(targets) else (targets.dtype,)))


def _count(x: jax.Array, where: jax.Array | None, axis: int, dtype: Any) -> jax.Array:
    """How many elements of each row take part, at least 1."""
    n = jnp.asarray(x.shape[axis], dtype)
    if where is None:
        count = jnp.broadcast_to(n, (1,) * (x.ndim - 1))
    elif where.shape[axis] == 1:
        count = jnp.squeeze(where, axis).astype(dtype) * n
    else:
        count = jnp.sum(where, axis, dtype=dtype)
    return jnp.maximum(count, 1)


def _ignored(static: _Static, targets: jax.Array) -> jax.Array | None:
    """The rows that `ignore_index` takes out."""
    index = static.ignore_index
    if index is None or not jnp.iinfo(targets.dtype).min <= index <= jnp.iinfo(targets.dtype).max:
        return None
    return targets == index


def _at_labels(x: jax.Array, labels: jax.Array, axis: int) -> jax.Array:
    """`x` at its row's label; NaN where there is no such element."""
    n = x.shape[axis]
    position = _positions(labels, n)
    if jax.typeof(x).sharding.spec[axis] is None:
        # Past the end there is NaN.
        position = jnp.expand_dims(jnp.where(position < 0, n, position), axis)
        return jnp.squeeze(jnp.take_along_axis(x, position, axis), axis)
    # On an explicit mesh that shards the axis: as a sum, of which only the rows travel.
    at = jnp.sum(jnp.where(_is_label(labels, x, axis), x, 0), axis)
    return jnp.where(position < 0, jnp.nan, at)


def _is_label(labels: jax.Array, x: jax.Array, axis: int) -> jax.Array:
    position = _positions(labels, x.shape[axis])
    return columns(x, axis, position.dtype) == jnp.expand_dims(position, axis)


def _positions(labels: jax.Array, n: Any) -> jax.Array:
    """Which of a row's `n` elements its label is, in int32; -1 where it is none of them."""
    at = jnp.where(labels < 0, labels + n, labels)
    return jnp.where((at >= 0) & (at < n), at.astype(jnp.int32), -1)


# ---- Tangents of loss and logsumexp, linear in those of logits and probabilities ----------------


def _split(masked: bool, operands: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The residuals, with None for those that there are not, and the tangents."""
    logits, targets, *rest = operands
    where = rest.pop(0) if masked else None
    largest, log_sum, *rest = rest
    total = None if _are_labels(targets) else rest.pop(0)
    return (logits, targets, where, largest, log_sum, total), tuple(rest)


def _moving(moves: tuple[bool, bool], gradients: tuple[Any, Any]) -> list[Any]:
    """Those of the operands whose tangents there are."""
    return [d for d, moving in zip(gradients, moves, strict=True) if moving]


def _tangent(
    *operands: jax.Array, static: _Static, masked: bool, moves: tuple[bool, bool]
) -> list[jax.Array]:
    residuals, moved = _split(masked, operands)
    logits, targets, where, _, log_sum, _ = residuals
    axis, ignored, keep = static.axis, _ignored(static, targets), where
    if where is not None and _are_labels(targets):  # which no mask hides, but one of the whole row
        alive = jnp.any(where, axis, keepdims=True)
        keep = alive & (where | _is_label(targets, logits, axis))

    def along(t: jax.Array) -> jax.Array:
        t = kept(keep, t.astype(log_sum.dtype))
        return t if ignored is None else jnp.where(jnp.expand_dims(ignored, axis), 0, t)

    def product(g: jax.Array, g_lse: jax.Array) -> jax.Array:
        gradients = _moving(moves, _gradients(static, residuals, (g, g_lse), log_sum.dtype))
        terms = (d * along(t) for d, t in zip(gradients, moved, strict=True))
        return jnp.sum(reduce(jnp.add, terms), axis)

    one, none = jnp.ones_like(log_sum), jnp.zeros_like(log_sum)
    return [product(one, none), product(none, one)]


def _tangent_abstract_eval(*operands: Any, masked: bool, **params: Any) -> list[Any]:
    del params
    log_sum = _split(masked, operands)[0][4]
    return [log_sum.update(weak_type=False)] * 2


def _tangent_transpose(
    cotangents: Any, *operands: Any, static: _Static, masked: bool, moves: tuple[bool, bool]
) -> list[Any]:
    avals = [v.aval if ad.is_undefined_primal(v) else v for v in operands]
    residuals, moved = _split(masked, avals)
    if all(type(g) is ad.Zero for g in cotangents):
        gradients = list(map(ad.Zero, moved))
    else:
        g, g_lse = map(ad.instantiate_zeros, cotangents)
        gradients = _moving(moves, _gradients(static, residuals, (g, g_lse)))
    results: list[Any] = [None] * len(operands)
    for i, gradient in enumerate(gradients, len(operands) - len(moved)):
        results[i] = gradient if ad.is_undefined_primal(operands[i]) else None
    return results


def _tangent_jvp(primals: Any, tangents: Any, **params: Any) -> Any:
    """In plain JAX: for derivatives beyond the first."""
    moving = [i for i, v in enumerate(primals) if jnp.issubdtype(v.dtype, jnp.inexact)]

    def plain(*values: jax.Array) -> list[jax.Array]:
        operands = list(primals)
        for i, v in zip(moving, values, strict=True):
            operands[i] = v
        return _tangent(*operands, **params)

    moved = [ad.instantiate_zeros(tangents[i]) for i in moving]
    out = _tangent_p.bind(*primals, **params)
    return out, jax.jvp(plain, [primals[i] for i in moving], moved)[1]


def _tangent_batch(operands: Any, dims: Any, *, static: _Static, **params: Any) -> Any:
    aligned, axis, _, at_rows = align_batch(operands, dims, static.axis)
    static = static._replace(axis=axis)
    return _tangent_p.bind(*align(*aligned, axis=axis), static=static, **params), [at_rows] * 2


_tangent_p = Primitive("cross_entropy_tangent")
_tangent_p.multiple_results = True
_tangent_p.def_impl(partial(xla.apply_primitive, _tangent_p))
_tangent_p.def_abstract_eval(_tangent_abstract_eval)
ad.primitive_transposes[_tangent_p] = _tangent_transpose
ad.primitive_jvps[_tangent_p] = _tangent_jvp
batching.primitive_batchers[_tangent_p] = _tangent_batch
mlir.register_lowering(_tangent_p, mlir.lower_fun(_tangent, multiple_results=True))
