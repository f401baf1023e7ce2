"""Which implementation runs an op: what was asked for, has kernels, or is the fastest one."""

from collections.abc import Sequence
from typing import Any

import jax

from . import _choice, _native, _revision
from ._calls import WITH_TERMS, has_kernel_with_terms, one_device, widest
from ._choice import UNKNOWN, Choice, Context, Problem
from ._reference import ONE_KERNEL, is_sharded

# Derivatives whose third operand, which may be left out, is for XLA's code alone.
OF_OPERAND = ("log_softmax_tangent", "log_softmax_cotangent")
# Those of a result and a tangent or cotangent, and what made that result.
DIFFERENTIATED = {"softmax_tangent": "softmax"} | dict.fromkeys(OF_OPERAND, "log_softmax")
DERIVATIVES = tuple(DIFFERENTIATED)


def fastest(
    op: str,
    operands: Sequence[Any],
    here: str,
    seen: Context = UNKNOWN,
    *,
    axis: int,
    dtype: Any,
    strategy: str,
) -> Choice:
    """What `implementation=None` stands for, of operands of these types."""
    assert strategy == "auto"
    if not all(_native.has_kernels(here, x.dtype, dtype) for x in operands):
        return Choice("xla", "there are no kernels for these dtypes")
    problem = Problem(op, operands[0].shape, axis, widest(operands), dtype, here)
    return _choice.choose(problem, seen)


def chosen(
    operands: Sequence[Any],
    seen: Context,
    *,
    op: str,
    here: str,
    per_row: bool = False,
    backend: str | None,
    batch_invariant: bool | None,
    zeros_are_masked: bool = False,
    selected: bool = False,
    differentiated: bool = False,
    scale: float = 1.0,
    axis: int,
    **request: Any,
) -> Choice:
    """What runs `op`, of operands of these types, by the parameters of its primitive.

    `seen` is what `_choice.choose` is told, but for what is a parameter. With `per_row` the result
    lacks `axis`.
    """
    del scale
    x = operands[0]
    if here == "cuda" and x.shape[axis] == 0:
        backend = "xla"  # rows without columns may still have a value each
    if backend is None and (
        (is_sharded(x, axis) and not batch_invariant)
        # On an automatic mesh nobody knows whether the axis is sharded.
        or (per_row and not seen.alone)
    ):
        backend = "xla"  # exchanges one value for each row, where a call would gather the axis
    if backend:
        return Choice(backend, "it was asked for")
    from_result = op in OF_OPERAND and len(operands) == 2
    by_xla = seen.around in ("fused", "narrowed", "scaled")  # made the result, and knows it
    case = f"masked_{op}" if zeros_are_masked or (from_result and not by_xla) else op
    case = f"selected_{op}" if selected else case
    seen = seen._replace(batch_invariant=batch_invariant, differentiated=differentiated)
    loaded = operands[:2] if op in DERIVATIVES else operands
    choice = fastest(case, loaded, here, seen, axis=axis, **request)
    if batch_invariant is None and not choice.batch_invariant and not seen.alone:
        # Few rows: if the axis is sharded after all, to gather it costs more than they do.
        choice = choice._replace(implementation="xla")
    return choice


def is_free(
    ctx: Any, *, backend: str | None, strategy: str, batch_invariant: bool | None, **params: Any
) -> bool:
    """Whether nothing is asked for, in a program for one device of a platform with a rule."""
    del params
    here, *others = ctx.module_context.platforms
    asked = backend or batch_invariant or strategy != "auto"
    # The rule first: a CPU's program is none, before anything is looked at.
    return here in _choice.RULES and not (others or asked) and one_device(ctx)


def may_load(
    x: Any, here: str, *, backend: str | None, strategy: str, dtype: Any, **params: Any
) -> bool:
    """Whether kernels may have `x` in place of float32: where it converts, and none is forced."""
    del params
    asked = backend in (None, here) and strategy == "auto"
    return asked and _native.has_kernels(here, x.dtype, dtype)


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
    wide = max(x.dtype, dtype, key=lambda d: d.itemsize)
    problem = Problem(op, x.shape, axis, wide, dtype, platform="any")
    return problem.is_last and _revision.reads_operand(problem, batch_invariant)


def puts_in_terms(
    avals: Sequence[Any],
    *,
    masked: bool,
    tiled: bool,
    product: bool,
    read: str | None,
    op: str,
    here: str,
    axis: int,
    batch_invariant: bool | None,
    backend: str | None,
    differentiated: bool = False,
    **request: Any,
) -> bool:
    """Whether a kernel does what `_revision.prefers_terms` says: where there is one.

    And it is the faster one, or is asked for.
    """
    x, name = avals[0], WITH_TERMS[op]
    by_call = {"here": here, "axis": axis, "batch_invariant": batch_invariant} | request
    if not has_kernel_with_terms(avals, name=name, causal=False, **by_call):
        return False
    if backend:
        return backend == here
    seen = Context(batch_invariant=batch_invariant)
    if fastest(name, [x], here, seen, axis=axis, **request).implementation != here:
        return False
    problem = Problem(op, x.shape, axis, x.dtype, x.dtype, here)
    about = {"masked": masked, "tiled": tiled, "product": product, "read": read}
    return _revision.prefers_terms(problem, differentiated=differentiated, **about)


def adds_bias(
    avals: Sequence[Any],
    seen: Context,
    without: Context,
    *,
    op: str,
    here: str,
    backend: str | None,
    **params: Any,
) -> bool:
    """Whether a kernel adds a bias to logits of these types.

    It does where it is the faster one, or a kernel would have the sum `without` that. `seen` and
    `without` are what is seen of the logits, and of their sum with the bias.
    """
    if not takes_bias(avals, op=op, here=here, **params):
        return False
    request = {"op": op, "here": here, "backend": backend} | params
    some = [chosen(avals[:1], of, **request) for of in (seen._replace(biased=True), without)]
    if not any(c.implementation == here and c.batch_invariant for c in some):
        return False
    if backend:
        return True
    problem = {k: params[k] for k in ("axis", "dtype", "strategy")}
    alone = Context(batch_invariant=params["batch_invariant"])
    return fastest(f"biased_{op}", avals[:1], here, alone, **problem).implementation == here


def takes_bias(avals: Sequence[Any], *, op: str, **request: Any) -> bool:
    return has_kernel_with_terms(avals, name=WITH_TERMS[op], causal=False, **request)
