"""What users of PyTorch would run: torch, a row kernel in Triton, quack. Needs them and a GPU.

They get the same arrays as JAX, without a copy, and are timed by CUDA events around a CUDA graph
of several calls: kernel time and the short gap between two kernels of a graph, which counts only
in calls of a few microseconds.
"""

import functools
import importlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from cases import check
from shapes import Case
from timing import Runs, Timing

PEERS = ("torch", "triton", "quack")
# In a graph, so that events' own resolution does not count.
CALLS = 5

Tensor = Any  # torch's, which need not be installed


def _torch(op: str, direction: str, axis: int, x: Tensor, y: Tensor) -> Callable[[], Tensor]:
    torch = importlib.import_module("torch")
    if direction == "forward":
        return functools.partial(getattr(torch, op), x, axis)
    return functools.partial(getattr(torch, f"_{op}_backward_data"), x, y, axis, x.dtype)


def _triton(op: str, direction: str, axis: int, x: Tensor, y: Tensor) -> Callable[[], Tensor]:
    if axis % x.ndim != x.ndim - 1:
        raise ValueError("takes the last axis only")
    rows = importlib.import_module("triton_rows")
    if direction == "forward":
        return functools.partial(rows.forward, op, x)
    return functools.partial(rows.backward, op, y, x)


def _quack(op: str, direction: str, axis: int, x: Tensor, y: Tensor) -> Callable[[], Tensor]:
    if op != "softmax" or x.ndim != 2 or axis % x.ndim != 1:
        raise ValueError("has softmax of matrices along the last axis only")
    quack = importlib.import_module("quack.softmax")
    if direction == "forward":
        return functools.partial(quack.softmax_fwd, x)
    return functools.partial(quack.softmax_bwd, x, y)


CALLS_OF = {"torch": _torch, "triton": _triton, "quack": _quack}


def _graph_timer(call: Callable[[], Tensor]) -> Runs:
    torch = importlib.import_module("torch")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            call()

    def run() -> Timing:
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        return Timing(1e3 * start.elapsed_time(stop) / CALLS, None)

    def runs(iterations: int) -> list[Timing]:
        run()  # a warm-up, as the other timers make
        return [run() for _ in range(iterations)]

    return runs


def peer_timers(
    names: tuple[str, ...], op: str, case: Case, direction: str, x: jax.Array
) -> tuple[dict[str, Runs], dict[str, str]]:
    """A timer for each peer that takes the case, and why the others do not.

    `x` is also the cotangent. A peer's result is checked like ours.
    """
    timers, errors = {}, {}
    for name in names:
        try:
            torch = importlib.import_module("torch")
            tensor = torch.from_dlpack(jax.block_until_ready(x))
            y = getattr(torch, op)(tensor, case.axis) if direction == "backward" else None
            call = CALLS_OF[name](op, direction, case.axis, tensor, y)
            result = call()  # compiles, outside of any graph
            torch.cuda.synchronize()
            check(op, case.axis, direction, x, jnp.from_dlpack(result))
            timers[name] = _graph_timer(call)
        except Exception as error:
            message = str(error).partition("\n")[0]
            errors[name] = f"{type(error).__name__}: {message[:200]}"
    return timers, errors
