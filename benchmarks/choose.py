"""Derives the rule of `implementation=None` (jax_softmax/_rule.py) from graph.py's results.

    python benchmarks/choose.py [--around] graph.json [more.json ...]

For each op, dtype, kind of axis and direction it prints the time of XLA's code over that of our
kernels at each row length, as the geometric mean over all neighbours, and then the rule with at
most two thresholds on the row length that takes least time, as ranges of row lengths. "either" is
the rule that does not ask whether the call is differentiated. With --around each of these is told
apart by what a lowering sees of the neighbours: what makes the operand and, of a gradient, what
takes the result, and so makes the cotangent (BEFORE and AFTER below). A rule's choices are

    native       our kernels in both passes
    xla_forward  XLA's code in the forward pass, ours in the backward pass
    xla          XLA's code in both

Beside a rule: its speedup over jax.nn and over our kernels alone (geometric means), the same of
the best choice at every length (what the thresholds could gain at most), and its worst case.
"""

import argparse
import itertools
import json
import math
import statistics
import sys
from pathlib import Path
from typing import NamedTuple

from graph_report import group_by, label
from report import Entry

# What is timed where a rule makes a choice, by direction.
TIMED = {
    "native": {"forward": "native", "gradient": "native", "pull-back": "native"},
    "xla_forward": {"forward": "xla", "gradient": "xla_forward", "pull-back": "xla_forward"},
    "xla": {"forward": "xla", "gradient": "xla", "pull-back": "xla"},
}
DIRECTIONS = {
    "forward": ("forward",),
    "gradient": ("gradient",),
    "either": ("forward", "gradient"),
    "pull-back": ("pull-back",),
}
# Of a producer and a consumer, by what XLA may have within its own code ("fused"), where what is
# made of the derivative is more than that ("scaled"), and nothing ("apart"): see _choice.choose.
# Kernels multiply by a scale themselves, which leaves nothing before them.
BEFORE = {"none": "apart", "matmul": "apart", "bias": "fused", "scale": "scaled", "cast": "cast"}
AFTER = {"none": "apart", "matmul": "apart"}  # others: "fused"
MOST_THRESHOLDS = 2
# What a threshold must save of the mean time to be worth its line, and more than noise.
LEAST_GAIN = 0.01


def time_of(entry: Entry, choice: str) -> float:
    return entry["results"][TIMED[choice][entry["direction"]]]["microseconds"]


class Bucket(NamedTuple):
    """The cases of one row length."""

    columns: int
    cases: list[Entry]

    def cost(self, choice: str) -> float:
        """The sum of the logarithms of the time, relative to our kernels."""
        return sum(math.log(time_of(e, choice) / time_of(e, "native")) for e in self.cases)

    def ratio(self, choice: str) -> float:
        return math.exp(self.cost(choice) / len(self.cases))


def best_rule(buckets: list[Bucket], choices: tuple[str, ...]) -> list[str]:
    """The choice for every bucket, in few runs of buckets that share theirs."""
    a_threshold = LEAST_GAIN * sum(len(bucket.cases) for bucket in buckets)
    costs = [{choice: bucket.cost(choice) for choice in choices} for bucket in buckets]

    def rules(runs: int) -> list[list[str]]:
        found = []
        for cuts in itertools.combinations(range(1, len(buckets)), runs - 1):
            lengths = [b - a for a, b in itertools.pairwise((0, *cuts, len(buckets)))]
            for names in itertools.product(choices, repeat=runs):
                found.append([n for n, k in zip(names, lengths, strict=True) for _ in range(k)])
        return found

    def total(rule: list[str]) -> float:
        runs = len(list(itertools.groupby(rule)))
        return runs * a_threshold + sum(c[name] for c, name in zip(costs, rule, strict=True))

    return min(itertools.chain(*map(rules, range(1, MOST_THRESHOLDS + 2))), key=total)


def ranges(buckets: list[Bucket], rule: list[str]) -> str:
    """16..512 xla, 1024.. native"""
    parts = []
    for name, run in itertools.groupby(zip(rule, buckets, strict=True), key=lambda pair: pair[0]):
        columns = [bucket.columns for _, bucket in run]
        span = f"{columns[0]}..{columns[-1]}" if len(columns) > 1 else str(columns[0])
        parts.append(f"{span} {name}")
    return ", ".join(parts)


def mean_gain(buckets: list[Bucket], rule: list[str], base: str) -> float:
    """The geometric mean of the speedup of `rule` over the variant `base`."""
    pairs = [(e, name) for b, name in zip(buckets, rule, strict=True) for e in b.cases]
    return statistics.geometric_mean(
        e["results"][base]["microseconds"] / time_of(e, name) for e, name in pairs
    )


def describe(title: str, buckets: list[Bucket], choices: tuple[str, ...]) -> None:
    print(f"\n{title}")
    for choice in choices[1:]:
        cells = (f"{b.columns}: {b.ratio(choice):.2f}" for b in buckets)
        print(f"  {choice} / native    {'  '.join(cells)}")
    rule = best_rule(buckets, choices)
    free = [min(choices, key=bucket.cost) for bucket in buckets]
    print(f"  rule: {ranges(buckets, rule)}")
    over = (f"over {base} x{mean_gain(buckets, rule, base):.3f}" for base in ("jax_nn", "native"))
    print(f"  {', '.join(over)}; best at each length x{mean_gain(buckets, free, 'native'):.3f}")
    pairs = [(e, name) for b, name in zip(buckets, rule, strict=True) for e in b.cases]
    worst, name = min(
        pairs, key=lambda pair: pair[0]["results"]["jax_nn"]["microseconds"] / time_of(*pair)
    )
    speedup = worst["results"]["jax_nn"]["microseconds"] / time_of(worst, name)
    print(f"  worst, over jax.nn: x{speedup:.2f} {' '.join(label(worst).split())}")


def around(entry: Entry) -> str:
    before = BEFORE[entry["producer"]]
    if entry["direction"] == "forward":
        return f"after {'apart' if before == 'scaled' else before}"
    return f"between {before} and {AFTER.get(entry['consumer'], 'fused')}"


def main(sources: list[Path], *, by_neighbours: bool) -> None:
    reports = [json.loads(source.read_text()) for source in sources]
    devices = {report["device"] for report in reports}
    if len(devices) != 1 or {report["suite"] for report in reports} != {"graph"}:
        sys.exit("these are not results of graph.py from one device")
    cases = [e for report in reports for e in report["cases"] if "error" not in e]
    print(f"{devices.pop()}, {len(cases)} cases")
    fields = ("kind", "op", "dtype")
    if by_neighbours:
        cases = [entry | {"around": around(entry)} for entry in cases]
        fields = (*fields, "around")
    groups = group_by(cases, *fields)
    for key, group in groups.items():
        for direction, included in DIRECTIONS.items():
            chosen = [entry for entry in group if entry["direction"] in included]
            by_columns = sorted(group_by(chosen, "columns").items())
            buckets = [Bucket(int(str(columns)), found) for (columns,), found in by_columns]
            # Forward alone, xla_forward is xla.
            choices = ("native", "xla") if direction == "forward" else tuple(TIMED)
            if buckets:
                describe(" ".join(map(str, (*key, direction))), buckets, choices)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--around", action="store_true")
    parser.add_argument("sources", nargs="+", type=Path)
    arguments = parser.parse_args()
    main(arguments.sources, by_neighbours=arguments.around)
