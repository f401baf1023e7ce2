"""`plan`: which kernel a call would run, and how, as the kernels' own code decides it."""

import dataclasses
import math
import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from . import _canonicalize, _choice, _native
from ._reference import dtype_of_rows


@dataclasses.dataclass(frozen=True)
class Plan:
    """What runs one call, and how the kernels spread it, or would spread it, over a device."""

    device: str
    implementation: str  # "cuda", "cpu" or "xla"; all below is of the kernels in any case
    reason: str  # why that implementation
    strategy: str
    threads: int  # per block; on the CPU, rows are handed to XLA's thread pool instead: 1
    blocks: int  # in the grid; on the CPU, chunks of work
    cluster_blocks: int  # that share a row
    abreast: int  # blocks of neighbouring rows that start together
    turns: int  # that a multiprocessor's first blocks start by, one after the other
    lanes_per_row: int  # threads (CPU: SIMD lanes) that share a row
    rows_per_block: int  # at a time
    vector_bytes: int  # per memory access
    shared_bytes: int  # dynamic shared memory per block
    bytes_moved: int  # the least a call must read and write

    def __str__(self) -> str:
        facts = ", ".join(f"{k}={v}" for k, v in dataclasses.asdict(self).items())
        return f"Plan({facts})"


def plan(
    shape: Sequence[int],
    dtype: Any,
    axis: int = -1,
    op: str = "softmax",
    *,
    device: str | _native.Device | None = None,
    strategy: str = "auto",
    output_dtype: Any = None,
    batch_invariant: bool | None = None,
) -> Plan:
    """Returns the plan of `op` over `axis` of an array of `shape` and `dtype`.

    `implementation` and `reason` are those of a call with `implementation=None` of whose neighbours
    nothing is known; where that is XLA's code, the reason says whether the kernels run in a program
    that is this call alone (of an `output_dtype`, with `dtype=`). The rest is what the kernels do
    if they run.

    Args:
      op: the primitive: `"softmax"`, `"log_softmax"`, `"logsumexp"`, one of the derivatives that
        have kernels, `"softmax_tangent"`, `"log_softmax_tangent"`, `"log_softmax_cotangent"`, or
        `"masked_softmax"` and `"masked_log_softmax"`, which `where=` is too (masks and a scale:
        other terms have other blocks, and masks alone leave long rows of 16 bits half as large in a
        GPU's shared memory, so that it may be another strategy or a smaller cluster; a bias alone
        has a rule of its own, and registers for rows of up to 8,192 columns; along another
        axis than the last a GPU's plan is that of `"cuda:strided"`, and any other request puts
        plain JAX around a softmax). Under masks softmax's derivative is the kernels' also where it
        is not without, and on a GPU log-softmax's is XLA's.
      device: `"cpu"`, the name of a known GPU (`"H200"`, `"RTX 5090"`, `"A100"`, `"GTX 1080"`: none
        needs to be there), a `jax.Device`, or None for JAX's default device.
      strategy: `"auto"`, or the name of one to force, which takes the kernels.
      output_dtype: the result's dtype, or None for `dtype`. Of `"logsumexp"` kernels round to no
        fewer bits than `dtype` has; what reads their values does.
      batch_invariant: as in `softmax`.

    Raises:
      ValueError: the shape, axis, op, dtypes, device or strategy are none, or the strategy cannot
        run this problem; the message says why.
      TypeError: `shape`, `axis` or `device` is of no type listed here.
    """
    try:
        shape = tuple(map(operator.index, shape))
    except TypeError:
        raise TypeError(f"shape wants a sequence of ints, got {shape!r}") from None
    if any(d < 0 for d in shape) or math.prod(shape) >= 2**56:
        raise ValueError(f"shape {shape} is none an array can have")
    axes = _canonicalize.canonical_axes(axis, len(shape))
    if len(axes) != 1:
        raise ValueError(f"plan takes a single axis, got {axis}; reshape several into one")
    dtype = _named(dtype)
    output_dtype = dtype if output_dtype is None else _named(output_dtype)
    if op == "logsumexp":
        output_dtype = dtype_of_rows(dtype, output_dtype)
    batch_invariant = _canonicalize.three_state(batch_invariant)
    name, limits = _resolve(device)
    platform = "cpu" if limits == "cpu" else "cuda"
    if strategy == "auto":
        problem = _choice.Problem(op, shape, axes[0], dtype, output_dtype, platform)
        choice = _choice.choose(problem, _choice.Context(batch_invariant=batch_invariant))
        if op in _choice.FORWARD and choice.implementation != platform:
            by_itself = _choice.Context(
                batch_invariant=batch_invariant, around="apart", read="returned"
            )
            if _choice.choose(problem, by_itself).implementation == platform:
                reason = f"{choice.reason}; {platform!r} where a program is this call alone"
                choice = choice._replace(reason=reason)
    else:
        choice = _choice.Choice(platform, f"strategy={strategy!r} is one of its kernels")
    geometry = _native.plan(
        op,
        shape,
        dtype,
        output_dtype=output_dtype,
        axis=axes[0],
        strategy=strategy,
        batch_invariant=choice.is_batch_invariant(batch_invariant),
        device=limits,
    )
    return Plan(device=name, implementation=choice.implementation, reason=choice.reason, **geometry)


def _named(dtype: Any) -> Any:
    try:
        return jnp.dtype(dtype)
    except TypeError:
        raise ValueError(f"dtype {dtype!r} is unknown") from None


def _resolve(device: str | _native.Device | None) -> tuple[str, Any]:
    if isinstance(device, str):
        return device, device.removeprefix("NVIDIA ")  # as in jax.Device.device_kind
    chosen: Any = jax.devices()[0] if device is None else device
    if not hasattr(chosen, "platform"):
        raise TypeError(f"device wants a name, a jax.Device or None, got {device!r}")
    if chosen.platform == "gpu":
        return chosen.device_kind, _native.cuda_device(chosen)
    if chosen.platform == "cpu":
        return "cpu", "cpu"
    raise ValueError(f"there are no kernels for {chosen.platform}, only for cpu and gpu")
