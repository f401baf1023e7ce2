"""Time on the device of one call: kernel time through CUPTI on a GPU, the wall clock on a CPU."""

import functools
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax

# A jitted or compiled function and its arguments, all on the device.
Call = functools.partial[Any]


class Timing(NamedTuple):
    """One run of a call, or the median of several."""

    microseconds: float
    # Names in order of launch; None where no kernels are seen (the wall clock).
    kernels: tuple[str, ...] | None
    # Of each of these kernels, in the last run.
    kernel_microseconds: tuple[float, ...] = ()


# A timer of its own: so many runs, timed one by one.
Runs = Callable[[int], list[Timing]]


def kernel_time(call: Call, iterations: int) -> list[Timing]:
    """Sums the time of every kernel of each run. Copies by the copy engine are not seen.

    Each measurement makes one warm-up run before the ones it reports.
    """
    from jax.experimental.mosaic.gpu import profiler  # needs jaxlib's CUDA plugin

    # With a single iteration `measure` returns a list that is one level shallower.
    measured = profiler.measure(call.func, aggregate=False, iterations=max(2, iterations))
    _, runs = measured(*call.args)
    if runs is None:
        raise RuntimeError("CUPTI saw no kernel in this call")
    timings = []
    for run in runs:
        names, milliseconds = zip(*run, strict=True)
        microseconds = tuple(1e3 * each for each in milliseconds)
        timings.append(Timing(sum(microseconds), names, microseconds))
    return timings


def wall_time(call: Call, iterations: int) -> list[Timing]:
    """Times each run from its dispatch until its result is ready, after one warm-up run."""

    def run() -> Timing:
        start = time.perf_counter()
        jax.block_until_ready(call())
        return Timing(1e6 * (time.perf_counter() - start), None)

    run()
    return [run() for _ in range(iterations)]


TIMERS: dict[str, Callable[[Call, int], list[Timing]]] = {"gpu": kernel_time, "cpu": wall_time}


def time_calls(
    calls: Mapping[str, Call],
    platform: str,
    rounds: int,
    iterations: int,
    others: Mapping[str, Runs] | None = None,
) -> dict[str, Timing]:
    """Times `calls` in turn, `rounds` times over, so that drift of the clocks meets all alike.

    `others` are not JAX's and bring their timers along.
    """
    timer = TIMERS[platform]
    timers: dict[str, Runs] = {name: functools.partial(timer, c) for name, c in calls.items()}
    timers.update(others or {})
    runs: dict[str, list[Timing]] = {name: [] for name in timers}
    for _ in range(rounds):
        for name, timed in timers.items():
            runs[name] += timed(iterations)
    return {
        name: timed[-1]._replace(microseconds=statistics.median(run.microseconds for run in timed))
        for name, timed in runs.items()
    }
