"""Times every strategy that can run a row, beside the one the plan chooses: data for its constants.

    python benchmarks/sweep.py --output sweep.json

For each row length, dtype, op and direction, the strategies that `plan` accepts are forced in
turn; a result is checked before it is timed. Fractions are of the run's copy limit, in ideal
traffic (see run.py). At the end: where the plan's choice is more than 3 % slower than the best.
With --inner N, the softmax axis has N neighbours behind it in memory. With --rows, as many rows are
timed in place of as many elements, and the plan is one that may depend on their number. --to
converts the results. --xla adds plain JAX, which a rule may choose instead. --strategies leaves
the others out, but for the plan's. Exits with 1 if a case failed.
"""

import argparse
import functools
import math
import sys
from collections.abc import Iterator

import jax
from cases import NATIVE, PRIMITIVES, bind, check, copy_call, random_normal
from options import add_timing, basic_parser, numbers, start_jax
from report import Entry, attempt, environment, exit_code, record, shape_label
from shapes import COLUMNS, DTYPES, Case, default_elements, ideal_bytes
from timing import TIMERS, time_calls

import jax_softmax

DIRECTIONS = ("forward", "backward")
# A choice within this of the best is as good: medians repeat to no more.
NOISE = 0.03


@functools.cache
def strategies() -> tuple[str, ...]:
    """The names that this platform's plans know, as the package lists them to who errs."""
    try:
        jax_softmax.plan((1, 1), "float32", strategy="?")
    except ValueError as error:
        return tuple(str(error).partition("use auto, ")[2].split(", "))
    raise AssertionError("'?' is a strategy")


def accepts(op: str, case: Case, dtype: str, strategy: str, to: str | None) -> bool:
    try:
        jax_softmax.plan(case.shape, dtype, case.axis, op, strategy=strategy, output_dtype=to)
    except ValueError:
        return False
    return True


def label(entry: Entry) -> str:
    name = f"{entry['op']:11} {entry['direction']:8} {entry['dtype']:8}"
    if "output_dtype" in entry:
        name += f" to {entry['output_dtype']:8}"
    return f"{name} {shape_label(entry):>15}"


def measure(
    op: str, direction: str, case: Case, x: jax.Array, platform: str, args: argparse.Namespace
) -> Entry:
    """Times the strategies; one whose result is wrong is reported and costs the others nothing."""
    native, dtype, to = NATIVE[platform], str(x.dtype), args.to
    invariant = args.rows is None
    primitive = PRIMITIVES[op, direction]

    def forced(
        direction: str, implementation: str, *operands: jax.Array, dtype: str | None = to
    ) -> functools.partial:
        how = op, direction, case.axis, implementation
        f = functools.partial(bind, *how, dtype=dtype, batch_invariant=invariant)
        return functools.partial(jax.jit(f).lower(*operands).compile(), *operands)

    operands = (x,) if direction == "forward" else (forced("forward", native, x, dtype=None)(), x)
    calls, errors = {"copy": copy_call(x.nbytes)}, {}
    request = {"output_dtype": to, "batch_invariant": invariant}
    plan = jax_softmax.plan(case.shape, dtype, case.axis, primitive, **request)
    for strategy in strategies():
        if args.strategies and strategy not in (*args.strategies, plan.strategy):
            continue
        if accepts(primitive, case, dtype, strategy, to):
            try:
                call = forced(direction, f"{native}:{strategy}", *operands)
                check(op, case.axis, direction, x, call())
                calls[strategy] = call
            except Exception as error:
                errors[strategy] = f"{type(error).__name__}: {error}"[:200]
    if args.xla:
        calls["xla"] = forced(direction, "xla", *operands)
    if plan.strategy not in calls:
        raise RuntimeError(f"the plan's choice fails: {errors[plan.strategy]}")
    timings = time_calls(calls, platform, args.rounds, args.iterations)
    size = ideal_bytes(direction, case.elements, dtype, to)
    speeds = {name: size / timing.microseconds / 1e6 for name, timing in timings.items()}
    copied = 2 * calls["copy"].args[0].nbytes / timings["copy"].microseconds / 1e6
    del speeds["copy"]
    best = max((name for name in speeds if name != "xla"), key=speeds.__getitem__)
    entry = {"copy_tb_per_s": copied, "tb_per_s": speeds, "chosen": plan.strategy, "best": best}
    entry["loss"] = speeds[best] / speeds[plan.strategy] - 1
    return entry | ({"errors": errors} if errors else {})


def cases(args: argparse.Namespace, platform: str) -> Iterator[Entry]:
    for dtype in args.dtypes:
        elements = args.elements or default_elements(platform, dtype)
        fitting = {n: max(1, elements // (n * args.inner)) for n in args.columns}
        sizes = [(outer, n) for n in args.columns for outer in args.rows or (fitting[n],)]
        draw = random_normal(args.inner * max(map(math.prod, sizes)), dtype)
        for size in sizes:
            case = Case(size) if args.inner == 1 else Case((*size, args.inner), axis=1)
            x = jax.jit(lambda d, c=case: d[: c.elements].reshape(c.shape))(draw)
            for op in args.ops:
                for direction in args.directions:
                    entry = {"op": op, "direction": direction, "dtype": dtype, **case._asdict()}
                    entry |= {"output_dtype": args.to} if args.to else {}
                    timed = functools.partial(measure, op, direction, case, x, platform, args)
                    yield attempt(entry, timed)


def summarise(cases: list[Entry]) -> Entry:
    """The copy limit, each strategy's fraction of it, and where the plan's choice is slow."""
    timed = [entry for entry in cases if "error" not in entry]
    limit = max((entry["copy_tb_per_s"] for entry in timed), default=0.0)
    fractions = {
        " ".join(label(entry).split()): {
            name: round(speed / limit, 3) for name, speed in entry["tb_per_s"].items()
        }
        | {"chosen": entry["chosen"]}
        for entry in timed
    }
    slow = [
        f"{' '.join(label(e).split())}: {e['best']} over {e['chosen']} x{1 + e['loss']:.2f}"
        for e in timed
        if e["loss"] > NOISE
    ]
    return {"limit_tb_per_s": limit, "fractions": fractions, "plan_is_slow": slow}


def row(entry: Entry, report: Entry) -> str:
    """Fractions of the copy limit so far, the plan's choice with a star."""
    if "error" in entry:
        return f"{label(entry)} | {entry['error']}"
    cells = [label(entry)]
    for name, speed in entry["tb_per_s"].items():
        star = "*" if name == entry["chosen"] else ""
        cells.append(f"{name}{star} {speed / report['limit_tb_per_s']:.2f}")
    slow = [f"choice slower by {100 * entry['loss']:.0f} %"] if entry["loss"] > NOISE else []
    errors = [f"{name}: {error}" for name, error in entry.get("errors", {}).items()]
    return " | ".join(cells + slow + errors)


def main() -> int:
    parser = basic_parser(__doc__, ("bfloat16", "float32"), DIRECTIONS)
    add_timing(parser, COLUMNS)
    parser.add_argument("--rows", type=numbers, help="numbers of rows")
    parser.add_argument("--inner", type=int, default=1, help="neighbours behind the softmax axis")
    parser.add_argument("--to", choices=tuple(DTYPES), help="the results' dtype")
    parser.add_argument("--strategies", type=lambda text: text.split(","), default=())
    parser.add_argument("--xla", action="store_true", help="time plain JAX too")
    args = parser.parse_args()
    platform = start_jax(args)
    if unknown := set(args.strategies) - set(strategies()):
        parser.error(f"{unknown} not among {','.join(strategies())}")
    header = environment(platform) | {"suite": "sweep", "timer": TIMERS[platform].__name__}
    header |= {name: getattr(args, name) for name in ("inner", "rows", "rounds", "iterations")}
    report = record(cases(args, platform), header, summarise, row, args.output, args.budget)
    print("the plan's choice is slower than the best:", *report["plan_is_slow"], sep="\n    ")
    return exit_code(report)


if __name__ == "__main__":
    sys.exit(main())
