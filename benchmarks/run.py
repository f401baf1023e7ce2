"""Times softmax and log_softmax beside jitted jax.nn and a plain copy, in the same run.

    python benchmarks/run.py --output results.json
    python benchmarks/run.py --suite shapes --dtypes bfloat16 --output shapes.json

Speed is *ideal* traffic over time: forward 2 x the operand's bytes (read x, write y), backward
3 x (read y and g, write dx), whatever an implementation really moves. The limit is the fastest
copy of the run. "xla" is jitted jax.nn forward, and backward the textbook formula jitted from
(y, g); "xla_vjp" is jax.nn's own pull-back from its own residuals. Suites: "columns" (rows of large
matrices), "odd" (row lengths that no vector divides), "shapes" (few rows, other axes). --peers adds
torch, triton and quack where they are installed (peers.py). Exits with 1 if a case failed.
"""

import argparse
import functools
import os
import statistics
import sys
from collections.abc import Iterator

import jax
from cases import OURS, compare, random_normal
from options import add_list, add_timing, basic_parser, start_jax
from peers import PEERS, peer_timers
from report import Entry, attempt, environment, exit_code, record, shape_label
from shapes import (
    COLUMNS,
    ODD_COLUMNS,
    OTHER_SHAPES,
    Case,
    column_cases,
    default_elements,
    ideal_bytes,
)
from timing import TIMERS, Timing, time_calls

DIRECTIONS = ("forward", "backward")
SUITES = {"columns": COLUMNS, "odd": ODD_COLUMNS, "shapes": None}


def parse_arguments() -> argparse.Namespace:
    parser = basic_parser(__doc__, ("bfloat16", "float16", "float32"), DIRECTIONS)
    add_timing(parser, columns=())
    parser.add_argument("--suite", choices=tuple(SUITES), default="columns")
    add_list(parser, "--peers", PEERS, ())
    args = parser.parse_args()
    if args.peers:  # PyTorch needs memory on the GPU too
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    return args


def select_cases(args: argparse.Namespace, platform: str, dtype: str) -> list[Case]:
    """Those of the suite; --elements leaves out larger ones among its fixed shapes."""
    columns = args.columns or SUITES[args.suite]
    if columns:
        return column_cases(args.elements or default_elements(platform, dtype), columns)
    return [c for c in OTHER_SHAPES if args.elements is None or c.elements <= args.elements]


def operands(cases: list[Case], dtype: str) -> Iterator[tuple[Case, jax.Array]]:
    """Random arrays, cut from one draw: compiling a draw for every shape would take longer."""
    draw = random_normal(max(case.elements for case in cases), dtype)
    for case in cases:
        yield case, jax.jit(lambda d, c=case: d[: c.elements].reshape(c.shape))(draw)


def describe(timing: Timing, size: int) -> Entry:
    return {
        "microseconds": timing.microseconds,
        "tb_per_s": size / timing.microseconds / 1e6,
        "kernels": None if timing.kernels is None else len(timing.kernels),
        "kernel_names": timing.kernels,
    }


def measure(
    op: str, case: Case, direction: str, x: jax.Array, platform: str, args: argparse.Namespace
) -> Entry:
    """Checks and times one case; raises rather than time a wrong result."""
    calls, residual_bytes = compare(op, case, direction, x, platform)
    timers, errors = peer_timers(args.peers, op, case, direction, x)
    timings = time_calls(calls, platform, args.rounds, args.iterations, timers)
    size = ideal_bytes(direction, case.elements, str(x.dtype))
    copied = 2 * calls["copy"].args[0].nbytes
    return {
        "bytes": size,
        "residual_bytes": residual_bytes,
        "results": {
            name: describe(timing, copied if name == "copy" else size)
            for name, timing in timings.items()
        },
        "speedup": timings["xla"].microseconds / timings[OURS].microseconds,
        "peer_errors": errors,
    }


def sweep(args: argparse.Namespace, platform: str) -> Iterator[Entry]:
    """Measures every case in turn. One that fails is reported and does not cost the others."""
    for dtype in args.dtypes:
        for case, x in operands(select_cases(args, platform, dtype), dtype):
            for op in args.ops:
                for direction in args.directions:
                    entry = {"op": op, "direction": direction, "dtype": dtype, **case._asdict()}
                    timed = functools.partial(measure, op, case, direction, x, platform, args)
                    yield attempt(entry, timed)


def summarise(cases: list[Entry]) -> Entry:
    """The copy limit of the run and the geometric-mean speedups over XLA."""
    timed = [entry for entry in cases if "error" not in entry]
    speedups: dict[str, list[float]] = {}
    for entry in timed:
        for group in ("all", f"{entry['op']} {entry['direction']} {entry['dtype']}"):
            speedups.setdefault(group, []).append(entry["speedup"])
    return {
        "limit_tb_per_s": max((e["results"]["copy"]["tb_per_s"] for e in timed), default=0.0),
        "speedup": {name: statistics.geometric_mean(each) for name, each in speedups.items()},
    }


def row(entry: Entry, report: Entry) -> str:
    """A row of the table: TB/s, fraction of the limit, kernels, microseconds; ours over XLA."""
    shape = shape_label(entry)
    label = f"{entry['op']:11} {entry['direction']:8} {entry['dtype']:8} {shape:>15}"
    if "error" in entry:
        return f"{label} | {entry['error']}"
    cells = [label]
    for name, got in entry["results"].items():
        speed = f"{got['tb_per_s']:#6.3g} {got['tb_per_s'] / report['limit_tb_per_s']:4.2f}"
        kernels = "" if got["kernels"] is None else f" {got['kernels']}k"
        cells.append(f"{name} {speed}{kernels} {got['microseconds']:.1f}us")
    # A pull-back that keeps more than y reads more than the ideal traffic counts.
    kept = 3 * entry["residual_bytes"].get(OURS, 0) / entry["bytes"]
    note = f"  keeps {kept:.2f} of y" if kept > 1.01 else ""
    errors = "".join(f" | {name}: {error}" for name, error in entry["peer_errors"].items())
    return f"{' | '.join(cells)} | x{entry['speedup']:.2f}{note}{errors}"


def main() -> int:
    args = parse_arguments()
    platform = start_jax(args)
    header = environment(platform) | {"timer": TIMERS[platform].__name__}
    header |= {name: getattr(args, name) for name in ("suite", "elements", "rounds", "iterations")}
    report = record(sweep(args, platform), header, summarise, row, args.output, args.budget)
    print(f"limit {report['limit_tb_per_s']:.4g} TB/s")
    for group, speedup in report["speedup"].items():
        print(f"x{speedup:.2f} over XLA: {group}")
    return exit_code(report)


if __name__ == "__main__":
    sys.exit(main())
