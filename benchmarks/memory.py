"""Counts the memory of softmax's gradient, as XLA's compiler plans it; nothing is run.

    python benchmarks/memory.py --output memory.json

In units of one operand: the arguments (x and the cotangent g), the results and the temporaries of
a compiled pull-back, and what a pull-back keeps from a forward pass that was compiled apart.
"gradient" returns dx, "value_and_gradient" y and dx. Either needs x, g, y and dx: 4 units. The
aim is nothing else of that size, that is, less than 0.01 beyond. Exits with 1 if a case failed.
"""

import functools
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
from cases import NATIVE
from options import basic_parser, start_jax
from report import Entry, attempt, environment, exit_code, record, shape_label
from shapes import Case

import jax_softmax

CASES = (Case((8192, 4096)), Case((4096, 50257)), Case((64, 1024, 512), axis=1))
PROGRAMS = ("gradient", "value_and_gradient")
NEEDED = 4


def pull_back(f: Callable[..., jax.Array], direction: str, x: jax.Array, g: jax.Array) -> Any:
    y, vjp = jax.vjp(f, x)
    return vjp(g)[0] if direction == "gradient" else (y, vjp(g)[0])


def units(f: Callable[..., jax.Array], direction: str, x: jax.ShapeDtypeStruct) -> Entry:
    """The memory of one implementation's program, in operands."""
    compiled = jax.jit(functools.partial(pull_back, f, direction)).lower(x, x).compile()
    analysis = compiled.memory_analysis()
    if analysis is None:
        raise RuntimeError("this platform's compiler does not tell its memory")
    size = math.prod(x.shape) * x.dtype.itemsize
    _, kept = jax.eval_shape(functools.partial(jax.vjp, f), x)
    parts = {
        "arguments": analysis.argument_size_in_bytes / size,
        "results": analysis.output_size_in_bytes / size,
        "temporaries": analysis.temp_size_in_bytes / size,
    }
    residuals = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(kept)) / size
    return parts | {"beyond": sum(parts.values()) - NEEDED, "residuals": residuals}


def measure(op: str, direction: str, case: Case, dtype: str, platform: str) -> Entry:
    x = jax.ShapeDtypeStruct(case.shape, dtype)
    ours = functools.partial(getattr(jax_softmax, op), axis=case.axis)
    functions = {
        "native": functools.partial(ours, implementation=NATIVE[platform]),
        "default": ours,
        "jax_nn": functools.partial(getattr(jax.nn, op), axis=case.axis),
    }
    return {"operands": {name: units(f, direction, x) for name, f in functions.items()}}


def row(entry: Entry, report: Entry) -> str:
    del report
    shape = shape_label(entry)
    label = f"{entry['op']:11} {entry['direction']:18} {entry['dtype']:8} {shape:>13}"
    if "error" in entry:
        return f"{label} | {entry['error']}"
    cells = [label]
    for name, got in entry["operands"].items():
        sum_of = " + ".join(f"{got[part]:.2f}" for part in ("arguments", "results", "temporaries"))
        cells.append(f"{name} {sum_of}, beyond {got['beyond']:.2f}, keeps {got['residuals']:.2f}")
    return " | ".join(cells)


def summarise(cases: list[Entry]) -> Entry:
    most: dict[str, float] = {}
    for entry in cases:
        for name, got in entry.get("operands", {}).items():
            most[name] = max(most.get(name, -math.inf), got["beyond"])
    return {"most_beyond": most}


def main() -> int:
    args = basic_parser(__doc__, ("bfloat16", "float32"), PROGRAMS).parse_args()
    platform = start_jax(args)

    def entries() -> Iterator[Entry]:
        for case in CASES:
            for op in args.ops:
                for direction in args.directions:
                    for dtype in args.dtypes:
                        entry = {"op": op, "direction": direction, "dtype": dtype}
                        entry |= case._asdict()
                        timed = functools.partial(measure, op, direction, case, dtype, platform)
                        yield attempt(entry, timed)

    header = environment(platform) | {"suite": "memory"}
    return exit_code(record(entries(), header, summarise, row, args.output, args.budget))


if __name__ == "__main__":
    sys.exit(main())
