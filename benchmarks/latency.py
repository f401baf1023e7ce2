"""Times the host's side of a call: jitted softmax of a tiny array, ours beside jax.nn.

    python benchmarks/latency.py --output latency.json

Microseconds from one dispatch to the next: the wall clock over batches of calls, the last of which
is waited for, with implementations in turn from batch to batch; the median of the batches' means.
"native" forces our kernels, "default" is `implementation=None`. "gradient" is a pull-back with
its forward pass. The aim is a ratio to jax.nn of at most 1.1. Exits with 1 if a case failed.
"""

import functools
import statistics
import sys
import time
from collections.abc import Iterator, Mapping

import jax
from cases import NATIVE, random_normal
from options import basic_parser, start_jax
from report import Entry, attempt, environment, exit_code, record
from timing import Call

import jax_softmax

SHAPE = (8, 128)
CALLS = 100
DIRECTIONS = ("forward", "gradient")


def calls(op: str, direction: str, dtype: str, platform: str) -> dict[str, Call]:
    x = random_normal(SHAPE[0] * SHAPE[1], dtype).reshape(SHAPE)
    ours = getattr(jax_softmax, op)
    functions = {
        "native": functools.partial(ours, implementation=NATIVE[platform]),
        "default": ours,
        "jax_nn": getattr(jax.nn, op),
    }
    if direction == "forward":
        return {name: functools.partial(jax.jit(f), x) for name, f in functions.items()}
    return {
        name: functools.partial(jax.jit(lambda x, g, f=f: jax.vjp(f, x)[1](g)[0]), x, x)
        for name, f in functions.items()
    }


def mean_microseconds(call: Call) -> float:
    start = time.perf_counter()
    for _ in range(CALLS - 1):
        call()
    jax.block_until_ready(call())
    return 1e6 * (time.perf_counter() - start) / CALLS


def measure(calls: Mapping[str, Call], batches: int) -> Entry:
    for call in calls.values():  # compiles
        jax.block_until_ready(call())
    means: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(batches):
        for name, call in calls.items():
            means[name].append(mean_microseconds(call))
    results = {name: statistics.median(each) for name, each in means.items()}
    ratio = {name: results[name] / results["jax_nn"] for name in ("native", "default")}
    return {"microseconds": results, "ratio": ratio}


def row(entry: Entry, report: Entry) -> str:
    del report
    label = f"{entry['op']:11} {entry['direction']:8} {entry['dtype']:8}"
    if "error" in entry:
        return f"{label} | {entry['error']}"
    times = (f"{name} {us:.2f}us" for name, us in entry["microseconds"].items())
    ratios = (f"{name} / jax_nn {ratio:.2f}" for name, ratio in entry["ratio"].items())
    return " | ".join([label, *times, *ratios])


def summarise(cases: list[Entry]) -> Entry:
    ratios = [ratio for entry in cases for ratio in entry.get("ratio", {}).values()]
    return {"worst_ratio": max(ratios, default=None)}


def main() -> int:
    parser = basic_parser(__doc__, ("bfloat16", "float32"), DIRECTIONS)
    parser.add_argument("--batches", type=int, default=20, help=f"of {CALLS} calls")
    args = parser.parse_args()
    platform = start_jax(args)

    def entries() -> Iterator[Entry]:
        for op in args.ops:
            for direction in args.directions:
                for dtype in args.dtypes:
                    entry = {"op": op, "direction": direction, "dtype": dtype, "shape": SHAPE}
                    programs = functools.partial(calls, op, direction, dtype, platform)
                    yield attempt(entry, lambda p=programs: measure(p(), args.batches))

    header = environment(platform) | {"suite": "latency", "timer": "wall_time"}
    header |= {"calls": CALLS * args.batches}
    report = record(entries(), header, summarise, row, args.output, args.budget)
    return exit_code(report)


if __name__ == "__main__":
    sys.exit(main())
