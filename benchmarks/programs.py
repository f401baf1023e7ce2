"""Times programs of models, jitted as a whole, by this package's functions and by jax.nn's.

    python benchmarks/programs.py --output programs.json

recipes.py has the programs. "forward" is a program's value; "gradient" that and its gradient by
what a model would train, with a cotangent for each result that is no scalar. They are the same but
for softmax and log-softmax, which are

    native   ours, `implementation="cuda"` or `"cpu"`, with `batch_invariant=False`, so that it
             takes biases in
    xla      the reference in plain JAX, float32 inside, which XLA may fuse
    default  what `implementation=None` makes of it
    jax_nn   jax.nn

Time is that of all kernels. Programs of the same text are compiled and timed once. How far each
result is from jax.nn's is reported, not judged: what is picked or sorted may differ. --lengths has
attention of as many queries and keys each, and as many scores in all, --columns losses of logits of
as many columns, and as many elements in all; with --widened these functions are given a float32
copy, and return one. Exits with 1 if a case failed.
"""

import argparse
import functools
import os
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
from cases import NATIVE
from graph import FIXED_PRODUCTS
from graph_report import mean_speedup
from options import OPS, add_list, add_rounds, numbers, run_parser, start_jax
from recipes import RECIPES, Recipe, draw, drawn, shapes
from report import Entry, attempt, environment, exit_code, record
from timing import TIMERS, time_calls

import jax_softmax

DIRECTIONS = ("forward", "gradient")
SMALL = 8  # the most of any dimension that --small leaves
ELEMENTS = 2**25  # of the logits that --columns has
UNIT = 1024  # of their rows


def _of_float32(f: Callable[..., jax.Array], x: jax.Array, *args: Any, **kw: Any) -> jax.Array:
    return f(x.astype(jnp.float32), *args, **kw)


def implementations(platform: str, widened: bool) -> dict[str, Any]:
    """What a recipe takes as `nn`, by name."""

    def functions(library: Any, **request: Any) -> Any:
        made = {}
        for op in OPS:
            f = functools.partial(getattr(library, op), **request)
            made[op] = functools.partial(_of_float32, f) if widened else f
        return types.SimpleNamespace(**made)

    ours = functools.partial(functions, jax_softmax)
    return {
        "native": ours(implementation=NATIVE[platform], batch_invariant=False),
        "xla": ours(implementation="xla"),
        "default": ours(),
        "jax_nn": functions(jax.nn),
    }


def program(recipe: Recipe, nn: Any, direction: str) -> Callable[..., Any]:
    """A function of the operands that are not differentiated, those that are, and cotangents."""

    def forward(fixed: Any, given: Any) -> Any:
        return recipe.function(nn, **fixed, **given)

    def gradient(fixed: Any, given: Any, cotangents: Any) -> Any:
        value, pull_back = jax.vjp(functools.partial(forward, fixed), given)
        ones = jax.tree.map(lambda v, g: jnp.ones_like(v) if v.ndim == 0 else g, value, cotangents)
        return value, pull_back(ones)[0]

    return forward if direction == "forward" else gradient


def scores_of(sizes: Mapping[str, int]) -> int:
    """How many there are, of attention of as many queries as keys; 0 of other programs."""
    heads = {"B", "H", "T", "D"} == set(sizes)
    return sizes["B"] * sizes["H"] * sizes["T"] ** 2 if heads else 0


def of_length(recipe: Recipe, length: int) -> Recipe:
    """Attention of about as many scores, in rows of that length."""
    sizes = recipe.sizes
    batch = max(scores_of(sizes) // (sizes["H"] * length**2), 1)
    return recipe._replace(sizes={**sizes, "T": length, "B": batch})


def of_columns(recipe: Recipe, columns: int) -> Recipe:
    """A loss of logits of so many columns."""
    rows = max(ELEMENTS // columns // UNIT, 1) * UNIT
    return recipe._replace(sizes={"B": rows, "V": columns})


def distance(got: Any, want: Any) -> float:
    """The largest difference of any float in a result, relative to the largest value there."""

    def far(got: jax.Array, want: jax.Array) -> float:
        if not jnp.issubdtype(want.dtype, jnp.floating):
            return 0.0
        got, want = got.astype(jnp.float32), want.astype(jnp.float32)
        return float(jnp.max(jnp.abs(got - want)) / jnp.maximum(jnp.max(jnp.abs(want)), 1e-6))

    return max(jax.tree.leaves(jax.tree.map(far, got, want)))


def _arguments(recipe: Recipe, operands: dict[str, Any], direction: str) -> list[Any]:
    """What `program` takes, of arrays or of their types; the cotangents are types."""
    fixed = {k: v for k, v in operands.items() if k not in recipe.differentiated}
    arguments: list[Any] = [fixed, {k: operands[k] for k in recipe.differentiated}]
    if direction == "gradient":
        value = jax.eval_shape(program(recipe, jax.nn, "forward"), *arguments)
        arguments.append(value)
    return arguments


class Bench:
    """Compiles and times recipes with one set of options."""

    def __init__(self, args: argparse.Namespace, platform: str):
        self.args, self.platform = args, platform
        # XLA runs kernels to tune products: one program at a time.
        tunes = platform == "gpu" and not args.fixed
        self.pool = ThreadPoolExecutor(1 if tunes else os.cpu_count())

    def lower(self, recipe: Recipe, direction: str, dtype: str) -> Entry:
        """Starts compiling what "programs" of the entry has."""
        arguments = _arguments(recipe, shapes(recipe, self.sizes(recipe), dtype), direction)
        options = FIXED_PRODUCTS if self.platform == "gpu" and self.args.fixed else None
        by_text: dict[str, Future[jax.stages.Compiled]] = {}
        programs = {}
        for name, nn in implementations(self.platform, self.args.widened).items():
            lowered = jax.jit(program(recipe, nn, direction)).lower(*arguments)
            text = lowered.as_text()
            if text not in by_text:
                by_text[text] = self.pool.submit(lowered.compile, compiler_options=options)
            programs[name] = by_text[text]
        return {"programs": programs}

    def recipes(self) -> list[Recipe]:
        """Those that are asked for."""
        names, lengths, columns = self.args.names, self.args.lengths, self.args.columns
        asked = [recipe for recipe in RECIPES if not names or recipe.name in names]
        if lengths:
            of_scores = {recipe.name: recipe for recipe in asked if scores_of(recipe.sizes)}
            asked = [of_length(recipe, n) for recipe in of_scores.values() for n in lengths]
        if columns:
            of_rows = {recipe.name: recipe for recipe in asked if set(recipe.sizes) == {"B", "V"}}
            asked = [of_columns(recipe, n) for recipe in of_rows.values() for n in columns]
        return asked

    def sizes(self, recipe: Recipe) -> dict[str, int]:
        return {k: min(n, SMALL) if self.args.small else n for k, n in recipe.sizes.items()}

    def measure(self, recipe: Recipe, direction: str, dtype: str, programs: Any) -> Entry:
        arguments = _arguments(recipe, draw(recipe, self.sizes(recipe), dtype), direction)
        arguments[2:] = jax.tree.map(lambda spec: drawn(spec, 9), arguments[2:])
        names: dict[Any, list[str]] = {}
        for name, future in programs.items():
            names.setdefault(future, []).append(name)
        calls = {
            same[0]: functools.partial(future.result(), *arguments)
            for future, same in names.items()
        }
        first = {name: same[0] for same in names.values() for name in same}
        want = calls[first["jax_nn"]]()
        far = {name: distance(call(), want) for name, call in calls.items()}
        timings = time_calls(calls, self.platform, self.args.rounds, self.args.iterations)
        got = {name: timings[first[name]] for name in programs}
        kernels = {n: None if t.kernels is None else len(t.kernels) for n, t in got.items()}
        base = got["jax_nn"].microseconds
        return {
            "microseconds": {name: timing.microseconds for name, timing in got.items()},
            "kernels": kernels,
            "speedup": {name: base / timing.microseconds for name, timing in got.items()},
            "distance": {name: far[first[name]] for name in programs},
        }

    def cases(self) -> Iterator[Entry]:
        """Every case; those of one type are compiled side by side, then timed one by one."""
        for dtype in self.args.dtypes:
            batch = []
            for recipe in self.recipes():
                for direction in DIRECTIONS[: 2 if recipe.differentiated else 1]:
                    entry = {"name": recipe.name, "sizes": self.sizes(recipe), "dtype": dtype}
                    entry |= {"direction": direction}
                    lower = functools.partial(self.lower, recipe, direction, dtype)
                    batch.append((recipe, attempt(entry, lower)))
            for _, entry in batch:
                for future in entry.get("programs", {}).values():
                    future.exception()
            for recipe, entry in batch:
                programs = entry.pop("programs", None)
                key = recipe, entry["direction"], dtype, programs
                timed = functools.partial(self.measure, *key)
                yield attempt(entry, timed) if programs else entry


def row(entry: Entry, report: Entry) -> str:
    del report
    sizes = " ".join(f"{k}={n}" for k, n in entry["sizes"].items())
    label = f"{entry['name']:22} {entry['direction']:8} {entry['dtype']:8} {sizes:34}"
    if "error" in entry:
        return f"{label} | {entry['error']}"
    cells = (
        f"{name} {us:.1f}us x{entry['speedup'][name]:.2f} {entry['distance'][name]:.0e}"
        for name, us in entry["microseconds"].items()
    )
    return " | ".join([label, *cells])


def summarise(cases: list[Entry]) -> Entry:
    """Geometric means of the speedups over jax.nn, by direction and dtype."""
    timed = [entry for entry in cases if "error" not in entry]
    groups: dict[str, list[Entry]] = {"all": timed}
    for entry in timed:
        groups.setdefault(f"{entry['direction']} {entry['dtype']}", []).append(entry)
    return {"speedup": {name: mean_speedup(group) for name, group in groups.items()}}


def main() -> int:
    parser = run_parser(__doc__)
    add_list(parser, "--dtypes", ("bfloat16", "float32"), ("bfloat16", "float32"))
    add_list(parser, "--names", tuple(sorted({recipe.name for recipe in RECIPES})), ())
    add_rounds(parser)
    parser.add_argument("--lengths", type=numbers, default=(), help="of rows of attention's scores")
    parser.add_argument("--columns", type=numbers, default=(), help="of the logits of losses")
    parser.add_argument("--widened", action="store_true", help="softmax of a float32 copy")
    parser.add_argument("--fixed", action="store_true", help="no tuning of matrix products")
    parser.add_argument("--small", action="store_true", help="small arrays")
    args = parser.parse_args()
    platform = start_jax(args)
    header = environment(platform) | {"suite": "programs", "timer": TIMERS[platform].__name__}
    entries = Bench(args, platform).cases()
    return exit_code(record(entries, header, summarise, row, args.output, args.budget))


if __name__ == "__main__":
    sys.exit(main())
