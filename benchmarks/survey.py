"""Times random problems beside jax.nn: what `implementation=None` runs, and the kernels if forced.

    python benchmarks/survey.py --seed 1 --budget 120 --output survey.json

The other benchmarks time row lengths and shapes that people name; this one draws op, dtype, shape,
axis and mask, from arrays that a launch costs as much as to some that fit no cache, with powers of
two as often as not. "mixed" is of 16 bits, of float32 in between and of 16 bits again. Gradients
come with the value, which somebody takes. It is where thresholds of jax_softmax/_h200.py are
checked. Exits with 1 if a case failed.
"""

import concurrent.futures
import functools
import itertools
import math
import random
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from cases import random_normal
from fused import by_log_softmax, by_xla
from options import add_list, add_rounds, run_parser, start_jax
from report import Entry, attempt, environment, exit_code, record, shape_label
from timing import time_calls

import jax_softmax

# Compiled side by side, then timed one by one.
BATCH = 32
DTYPES = ("bfloat16", "float32", "float16")
NARROW = ("bfloat16", "float16")
# Before the name of an op: of float32 made of 16 bits, which its result becomes.
MIXED = "mixed "
Operands = tuple[jax.Array, ...]
Function = Callable[..., Any]


class Problem(NamedTuple):
    op: str
    dtype: str
    shape: tuple[int, ...]
    axis: int

    def entry(self) -> Entry:
        last = self.axis == len(self.shape) - 1
        return self._asdict() | {"axis": -1 if last else self.axis}

    @property
    def rows(self) -> tuple[int, ...]:
        return tuple(d for i, d in enumerate(self.shape) if i != self.axis)

    def make(self, shape: tuple[int, ...] | None = None) -> jax.Array:
        shape = self.shape if shape is None else shape
        return random_normal(math.prod(shape), self.dtype).reshape(shape)

    def mask(self, dims: str) -> jax.Array:
        """Random, of the size of `x` in "all" dimensions, all "but the first", or the "axis"."""
        every = range(len(self.shape))
        kept = {"all": every, "but the first": every[1:], "axis": (self.axis,)}[dims]
        shape = tuple(d if i in kept else 1 for i, d in enumerate(self.shape))
        return jax.random.bernoulli(jax.random.key(1), 0.7, shape)


def draw(op: str, rng: random.Random, most: float) -> Problem:
    """Sizes are uniform in the logarithm: up to 2**`most` elements."""

    def size(low: float, high: float) -> int:
        n = math.exp(rng.uniform(math.log(low), math.log(max(high, low))))
        kind = rng.random()
        if kind < 0.4:
            n = 2 ** round(math.log2(n))
        elif kind < 0.6:
            n = n // 8 * 8
        return max(2, int(n))

    dtype = rng.choice(NARROW if op.startswith(MIXED) else DTYPES)
    elements = 2 ** rng.uniform(min(18, most - 2), most)
    if op == "causal":
        n = size(32, min(4096, elements**0.5))
        return Problem(op, dtype, (max(1, int(elements / n**2)), n, n), 2)
    columns = size(4, min(200_000, elements / 4))
    if rng.random() < 0.5:
        return Problem(op, dtype, (max(1, int(elements / columns)), columns), 1)
    inner = size(2, max(3, min(4096, elements / columns)))
    return Problem(op, dtype, (max(1, int(elements / columns / inner)), columns, inner), 1)


def operands_of(problem: Problem) -> Operands:
    """x and what comes with it; before them the cotangent of a gradient, but of no loss's."""
    op, x = problem.op.removesuffix(", gradient").removeprefix(MIXED), problem.make()
    rest: Operands = ()
    if op.startswith("where "):
        rest = (problem.mask(op.removeprefix("where ")),)
    elif op == "scale and bias":
        rest = (problem.make((1, *problem.shape[1:])),)
    elif op == "cross-entropy":
        classes = problem.shape[problem.axis]
        rest = (jax.random.randint(jax.random.key(2), problem.rows, 0, classes),)
    elif op == "cross-entropy of probabilities":
        rest = (jax.nn.softmax(problem.make(), problem.axis),)
    if not problem.op.endswith(", gradient") or op.startswith("cross-entropy"):
        return (x, *rest)
    return (problem.make(problem.rows if op == "logsumexp" else problem.shape), x, *rest)


def function_of(problem: Problem, implementation: str | None) -> Function:
    """`"jax_nn"` is what a user without this package writes."""
    f = forward(problem.op.removesuffix(", gradient"), problem, implementation)
    if not problem.op.endswith(", gradient"):
        return f
    if "cross-entropy" in problem.op:
        return jax.value_and_grad(lambda *operands: f(*operands).mean())

    def with_gradient(g: jax.Array, x: jax.Array, *rest: jax.Array) -> tuple[jax.Array, jax.Array]:
        value, pull_back = jax.vjp(lambda x: f(x, *rest), x)
        return value, pull_back(g)[0]

    return with_gradient


def forward(op: str, problem: Problem, implementation: str | None) -> Function:
    axis, theirs = problem.axis, implementation == "jax_nn"
    chosen = {} if theirs else {"implementation": implementation}
    library: Any = jax.nn if theirs else jax_softmax
    if op.startswith(MIXED):
        of_float32 = forward(op.removeprefix(MIXED), problem, implementation)
        return lambda x, *rest: of_float32(x.astype("float32"), *rest).astype(problem.dtype)
    if op in ("softmax", "log_softmax"):
        return functools.partial(getattr(library, op), axis=axis, **chosen)
    if op == "logsumexp":
        return functools.partial(library.logsumexp, axis=axis)
    if op == "softmax to another dtype":
        dtype = "bfloat16" if problem.dtype == "float32" else "float32"
        if theirs:
            return lambda x: jax.nn.softmax(x.astype("float32"), axis).astype(dtype)
        return functools.partial(jax_softmax.softmax, axis=axis, dtype=dtype, **chosen)
    if op.startswith("where "):
        softmax = functools.partial(library.softmax, axis=axis, **chosen)
        return lambda x, m: softmax(x, where=m)
    if op == "causal":
        if not theirs:
            return functools.partial(jax_softmax.masked_softmax, causal=True, **chosen)
        n = problem.shape[-1]
        return lambda x: jax.nn.softmax(jnp.where(jnp.tri(n, dtype=bool), x, -jnp.inf))
    if op == "scale and bias":
        if theirs:
            return lambda x, b: jax.nn.softmax(0.125 * x + b, axis)
        masked = functools.partial(jax_softmax.masked_softmax, scale=0.125, axis=axis, **chosen)
        return lambda x, b: masked(x, bias=b)
    ours, by_hand = {
        "absmax": (jax_softmax.absmax_scale, by_xla),
        "cross-entropy": (
            jax_softmax.softmax_cross_entropy_with_integer_labels,
            by_log_softmax,
        ),
        "cross-entropy of probabilities": (jax_softmax.softmax_cross_entropy, by_sum),
    }[op]
    return functools.partial(by_hand if theirs else ours, axis=axis)


def by_sum(x: jax.Array, targets: jax.Array, axis: int) -> jax.Array:
    return -(targets * jax.nn.log_softmax(x.astype("float32"), axis)).sum(axis)


# Those that take `implementation=`.
FORCEABLE = (
    *("softmax", "softmax, gradient", "log_softmax", "log_softmax, gradient"),
    *("softmax to another dtype", "causal", "scale and bias"),
    *("where all", "where all, gradient", "where but the first", "where axis"),
    *("mixed softmax", "mixed softmax, gradient", "mixed log_softmax, gradient"),
    *("mixed where axis", "mixed where all, gradient"),
)
OTHERS = (
    *("logsumexp", "logsumexp, gradient", "absmax"),
    *("cross-entropy", "cross-entropy, gradient", "cross-entropy of probabilities, gradient"),
    "mixed cross-entropy, gradient",
)
OPS = FORCEABLE + OTHERS


def compile_all(problem: Problem, native: str) -> dict[str, Any]:
    named = {"default": None, "jax_nn": "jax_nn"}
    if problem.op in FORCEABLE:
        named["native"] = native
    operands = operands_of(problem)
    functions = {name: function_of(problem, chosen) for name, chosen in named.items()}
    return {
        name: functools.partial(jax.jit(f).lower(*operands).compile(), *operands)
        for name, f in functions.items()
    }


def measure(compiled: Any, platform: str, rounds: int, iterations: int) -> Entry:
    timings = time_calls(compiled.result(), platform, rounds, iterations)
    microseconds = {name: timing.microseconds for name, timing in timings.items()}
    return {
        "microseconds": microseconds,
        "kernels": {n: len(t.kernels) for n, t in timings.items() if t.kernels is not None},
        "speedup": microseconds["jax_nn"] / microseconds["default"],
    }


def row(entry: Entry, report: Entry) -> str:
    del report
    label = f"{entry['op']:40} {entry['dtype']:8} {shape_label(entry):>20}"
    if "error" in entry:
        return f"{label} | {entry['error']}"
    cells = (f"{name} {us:.1f}us" for name, us in entry["microseconds"].items())
    return " | ".join([label, f"x{entry['speedup']:.2f}", *cells])


def summarise(cases: list[Entry]) -> Entry:
    """By op and kind of axis, how often and how much the default is the faster one."""
    groups: defaultdict[str, list[float]] = defaultdict(list)
    for entry in cases:
        if "speedup" in entry:
            axis = "last axis" if entry["axis"] == -1 else "other axis"
            for group in ("all", f"{entry['op']}, {axis}"):
                groups[group].append(entry["speedup"])
    return {
        "speedup": {
            group: {
                "cases": len(ratios),
                "geometric_mean": statistics.geometric_mean(ratios),
                "least": min(ratios),
                "over_2_percent_slower": sum(ratio < 0.98 for ratio in ratios),
            }
            for group, ratios in sorted(groups.items())
        }
    }


def main() -> int:
    parser = run_parser(__doc__)
    add_list(parser, "--ops", OPS, OPS)
    add_rounds(parser)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--threads", type=int, default=12, help="that compile")
    parser.add_argument("--largest", type=float, default=26.5, help="log2 of elements")
    args = parser.parse_args()
    platform = start_jax(args)
    native = "cuda" if platform == "gpu" else platform
    rng = random.Random(args.seed)
    ops = itertools.islice(itertools.cycle(args.ops), args.cases)

    def entries() -> Iterator[Entry]:
        with concurrent.futures.ThreadPoolExecutor(args.threads) as pool:
            for batch in iter(lambda: list(itertools.islice(ops, BATCH)), []):
                problems = [draw(op, rng, args.largest) for op in batch]
                compiled = [pool.submit(compile_all, p, native) for p in problems]
                concurrent.futures.wait(compiled)
                for problem in problems:
                    timed = functools.partial(
                        measure, compiled.pop(0), platform, args.rounds, args.iterations
                    )
                    yield attempt(problem.entry(), timed)

    header = environment(platform) | {"suite": "survey", "seed": args.seed, "timer": platform}
    return exit_code(record(entries(), header, summarise, row, args.output, args.budget))


if __name__ == "__main__":
    sys.exit(main())
