"""Times softmax between neighbours, as one jitted program: what a custom call costs in a graph.

    python benchmarks/graph.py --output graph.json

A custom call does not fuse with what surrounds it; XLA's own code may. Each graph (graphs.py) has
a producer, the op and a consumer. "forward" is the value alone; "gradient" the value and its
pull-back to x, the cotangent coming in through the consumer, and "pull-back" that alone. The op is
one of

    native       ours, `implementation="cuda"` or `"cpu"`
    split        only of few rows: the same with `batch_invariant=False`, which splits long ones
    xla          the reference in plain JAX, float32 inside, which XLA may fuse
    xla_forward  only with a pull-back: forward as in "xla", backward as in "native"
    default      what `implementation=None` makes of it
    jax_nn       jax.nn

Time is that of all kernels of a program (copies by the copy engine are not seen); programs of the
same text are compiled and timed once. choose.py reads the result. Matrix products run on cuBLAS,
with its first choice of kernel in all of them, unless --autotune lets XLA try its candidates, which
takes minutes; what is chosen behind them goes by tuned ones, of programs.py. Exits with 1 if a case
failed.
"""

import argparse
import functools
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from cases import NATIVE, TOLERANCE, random_normal
from graph_report import row, summarise
from graphs import (
    CONSUMERS,
    FEATURES,
    PRODUCERS,
    Graph,
    graphs_around,
    implementations,
    operands,
    program,
)
from options import add_list, add_timing, basic_parser, start_jax
from report import Entry, attempt, environment, exit_code, record
from shapes import GRAPH_COLUMNS, GRAPH_ELEMENTS, KINDS, Case, graph_cases
from timing import TIMERS, time_calls

DIRECTIONS = ("forward", "gradient", "pull-back")
# A float32 product rounds its operands to TF32: the next one for results that differ by an ULP.
PRODUCT_TOLERANCE = 1e-2
FIXED_PRODUCTS = {"xla_gpu_enable_triton_gemm": False, "xla_gpu_autotune_level": 0}


class Programs(NamedTuple):
    """What one case compares: compilations under way, and what to call them on."""

    compiled: dict[str, Future[jax.stages.Compiled]]
    arguments: tuple[Any, ...]
    tolerance: float


@functools.partial(jax.jit, static_argnums=(1, 2))
def _cut(draw: jax.Array, shape: tuple[int, ...], scale: float) -> jax.Array:
    """An array of `shape` from the start of `draw`, which saves compiling a draw per shape."""
    return (scale * draw[: math.prod(shape)]).reshape(shape).astype(draw.dtype)


@jax.jit
def _distance(got: jax.Array, want: jax.Array) -> jax.Array:
    """The largest difference, relative to the largest value."""
    got, want = got.astype(jnp.float32), want.astype(jnp.float32)
    distance = jnp.max(jnp.abs(got - want)) / jnp.max(jnp.abs(want))
    return jnp.where(jnp.isfinite(got).all(), distance, jnp.inf)


def _check(got: Any, want: Any, tolerance: float) -> None:
    """Keeps garbage from being timed; accuracy is the tests' affair."""
    # A consumer may have rounded to fewer bits than the operand's.
    tolerance = max(tolerance, *(TOLERANCE[str(leaf.dtype)] for leaf in jax.tree.leaves(want)))
    distances = jax.tree.leaves(jax.tree.map(_distance, got, want))
    worst = max(map(float, distances))
    if not worst <= tolerance:
        raise ValueError(f"native is {worst:.2g} of the largest value off xla: not timed")


class Bench:
    """Compiles and times cases with one set of options."""

    def __init__(self, args: argparse.Namespace, platform: str):
        self.args, self.platform = args, platform
        # Between batches only: XLA may run kernels to choose among them, which would be timed.
        self.pool = ThreadPoolExecutor(os.cpu_count())

    def lower(
        self,
        op: str,
        direction: str,
        graph: Graph,
        kind: str,
        case: Case,
        make: Callable[..., jax.Array],
    ) -> Programs:
        """Starts compiling every distinct program of a case."""
        others = operands(graph, case, make)
        arguments: tuple[Any, ...] = (others.pop("x"), others)
        if direction != "forward":
            baseline = functools.partial(getattr(jax.nn, op), axis=case.axis)
            value = jax.eval_shape(program(graph, baseline, case.axis, "forward"), *arguments)
            arguments += (make("cotangent", value.shape, 1.0).astype(value.dtype),)
        fixed = self.platform == "gpu" and "matmul" in graph and not self.args.autotune
        options = FIXED_PRODUCTS if fixed else None
        by_text: dict[str, Future[jax.stages.Compiled]] = {}
        compiled = {}
        native = NATIVE[self.platform]
        functions = implementations(op, case.axis, direction, native, few=kind == "few")
        for name, softmax in functions.items():
            function = program(graph, softmax, case.axis, direction)
            lowered = jax.jit(function).lower(*arguments)
            text = lowered.as_text()
            if text not in by_text:
                by_text[text] = self.pool.submit(lowered.compile, compiler_options=options)
            compiled[name] = by_text[text]
        tolerance = TOLERANCE[str(arguments[0].dtype)]
        if "matmul" in graph:
            tolerance = max(tolerance, PRODUCT_TOLERANCE)
        if graph.producer == "cast":
            tolerance = max(tolerance, TOLERANCE["bfloat16"])
        return Programs(compiled, arguments, tolerance)

    def measure(self, programs: Programs) -> Entry:
        """Checks the native result and times every distinct program of a case."""
        names: dict[Future[jax.stages.Compiled], list[str]] = {}
        for name, future in programs.compiled.items():
            names.setdefault(future, []).append(name)
        calls = {
            same[0]: functools.partial(future.result(), *programs.arguments)
            for future, same in names.items()
        }
        _check(calls["native"](), calls["xla"](), programs.tolerance)
        timings = time_calls(calls, self.platform, self.args.rounds, self.args.iterations)
        results = {
            name: {
                "microseconds": timings[same[0]].microseconds,
                "kernels": None if (seen := timings[same[0]].kernels) is None else len(seen),
            }
            for same in names.values()
            for name in same
        }
        base = results["jax_nn"]["microseconds"]
        speedup = {name: base / got["microseconds"] for name, got in results.items()}
        return {"results": results, "speedup": speedup}

    def cases(self) -> Iterator[Entry]:
        """Every case; those of one shape are compiled side by side, then timed one by one."""
        args = self.args
        elements = args.elements or GRAPH_ELEMENTS[self.platform]
        chosen = graph_cases(elements, args.columns, args.kinds)
        size = max(max(case.elements, FEATURES * case.shape[-1]) for _, case in chosen)
        for dtype in args.dtypes:
            draw = random_normal(size, dtype)
            for kind, case in chosen:
                start = time.monotonic()
                batch = list(self.batch(kind, case, draw))
                for entry in batch:
                    wait([*entry["programs"].compiled.values()] if "programs" in entry else [])
                compiled = time.monotonic()
                for entry in batch:
                    programs = entry.pop("programs", None)
                    yield attempt(entry, lambda p=programs: self.measure(p)) if programs else entry
                seconds = f"{compiled - start:.1f} s, timed in {time.monotonic() - compiled:.1f} s"
                print(f"compiled {len(batch)} cases in {seconds}", file=sys.stderr)

    def batch(self, kind: str, case: Case, draw: jax.Array) -> Iterator[Entry]:
        """The cases of one operand, each with its programs or the error that there is none."""
        make = functools.cache(lambda name, shape, scale: _cut(draw, shape, scale))
        for op in self.args.ops:
            for direction in self.args.directions:
                for graph in graphs_around(case):
                    asked = self.args.producers, self.args.consumers
                    if any(name not in names for name, names in zip(graph, asked, strict=True)):
                        continue
                    entry = {"op": op, "direction": direction, "dtype": str(draw.dtype)}
                    entry |= {"kind": kind} | case._asdict() | graph._asdict()
                    lower = functools.partial(self.lower, op, direction, graph, kind, case, make)
                    yield attempt(entry, lambda lower=lower: {"programs": lower()})


def main() -> int:
    parser = basic_parser(__doc__, ("bfloat16", "float32"), DIRECTIONS)
    add_timing(parser, GRAPH_COLUMNS)
    add_list(parser, "--kinds", KINDS, KINDS)
    add_list(parser, "--producers", tuple(PRODUCERS), tuple(PRODUCERS))
    add_list(parser, "--consumers", tuple(CONSUMERS), tuple(CONSUMERS))
    parser.add_argument("--autotune", action="store_true", help="of matrix products; slow")
    args = parser.parse_args()
    platform = start_jax(args)
    header = environment(platform) | {"suite": "graph", "timer": TIMERS[platform].__name__}
    header |= {name: getattr(args, name) for name in ("rounds", "iterations", "autotune")}
    entries = Bench(args, platform).cases()
    report = record(entries, header, summarise, row, args.output, args.budget)
    for group, mean in report["speedup"].items():
        print(f"over jax.nn, {group}: {', '.join(f'{n} x{s:.2f}' for n, s in mean.items())}")
    for name, cases in report["worst"].items():
        print(f"worst of {name}:", *cases, sep="\n    ")
    return exit_code(report)


if __name__ == "__main__":
    sys.exit(main())
