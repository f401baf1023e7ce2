"""Times softmax and log_softmax beside jitted jax.nn and a plain copy, in the same run.

    python benchmarks/run.py --output results.json
    python benchmarks/run.py --suite shapes --dtypes bfloat16 --output shapes.json

Speed is *ideal* traffic over time: forward 2 x the operand's bytes (read x, write y), backward
3 x (read y and g, write dx), whatever an implementation really moves. The limit is the fastest
copy of the run. "xla" is jitted jax.nn forward, and backward the textbook formula jitted from
(y, g); "xla_vjp" is jax.nn's own pull-back from its own residuals. Exits with 1 if a case failed.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import jax
from cases import OURS, compare, random_normal
from report import Entry, environment, row, summarise
from shapes import COLUMNS, DTYPES, OTHER_SHAPES, Case, column_cases, default_elements, ideal_bytes
from timing import TIMERS, Timing, time_calls

OPS = ("softmax", "log_softmax")
DIRECTIONS = ("forward", "backward")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])

    def add_list(name: str, known: tuple[str, ...], default: tuple[str, ...]) -> None:
        def parse(text: str) -> tuple[str, ...]:
            if unknown := set(text.split(",")) - set(known):
                raise argparse.ArgumentTypeError(f"{unknown} not among {','.join(known)}")
            return tuple(text.split(","))

        parser.add_argument(name, type=parse, default=default, help=",".join(known))

    parser.add_argument("--device", choices=("auto", "cpu", "gpu"), default="auto")
    parser.add_argument("--suite", choices=("columns", "shapes"), default="columns")
    add_list("--dtypes", tuple(DTYPES), ("bfloat16", "float32"))
    add_list("--ops", OPS, OPS)
    add_list("--directions", DIRECTIONS, DIRECTIONS)
    parser.add_argument("--columns", type=lambda s: tuple(map(int, s.split(","))), default=COLUMNS)
    parser.add_argument("--elements", type=int, help="of an operand; shapes: leave out larger ones")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=5, help="timed runs in a round")
    parser.add_argument("--budget", type=float, default=math.inf, help="seconds; then stop cleanly")
    parser.add_argument("--output", type=Path, help="JSON, rewritten after every case")
    return parser.parse_args()


def select_cases(args: argparse.Namespace, platform: str, dtype: str) -> list[Case]:
    if args.suite == "columns":
        return column_cases(args.elements or default_elements(platform, dtype), args.columns)
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
    timings = time_calls(calls, platform, args.rounds, args.iterations)
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
    }


def sweep(args: argparse.Namespace, platform: str) -> Iterator[Entry]:
    """Measures every case in turn. One that fails is reported and does not cost the others."""
    for dtype in args.dtypes:
        for case, x in operands(select_cases(args, platform, dtype), dtype):
            for op in args.ops:
                for direction in args.directions:
                    entry = {"op": op, "direction": direction, "dtype": dtype, **case._asdict()}
                    try:
                        entry |= measure(op, case, direction, x, platform, args)
                    except Exception as error:
                        message = str(error).partition("\n")[0]
                        entry["error"] = f"{type(error).__name__}: {message[:200]}"
                    yield entry


def main() -> int:
    start = time.monotonic()
    args = parse_arguments()
    if args.device != "auto":
        jax.config.update("jax_platforms", {"cpu": "cpu", "gpu": "cuda"}[args.device])
    platform = jax.default_backend()
    settings = {name: getattr(args, name) for name in ("suite", "elements", "rounds", "iterations")}
    cases: list[Entry] = []
    report = environment(platform) | {"timer": TIMERS[platform].__name__, **settings}

    def write(complete: bool) -> None:
        seconds = round(time.monotonic() - start, 1)
        report.update(summarise(cases), complete=complete, seconds=seconds, cases=cases)
        if args.output:
            unfinished = args.output.with_suffix(".partial")
            unfinished.write_text(json.dumps(report, indent=1))
            unfinished.replace(args.output)

    complete = True
    for entry in sweep(args, platform):
        cases.append(entry)
        write(complete=False)
        print(row(entry, report["limit_tb_per_s"]), flush=True)
        if time.monotonic() - start > args.budget:
            complete = False
            break
    write(complete)
    print(f"limit {report['limit_tb_per_s']:.4g} TB/s, {report['seconds']} s, {complete=}")
    for group, speedup in report["speedup"].items():
        print(f"x{speedup:.2f} over XLA: {group}")
    return int(any("error" in entry for entry in cases))


if __name__ == "__main__":
    sys.exit(main())
