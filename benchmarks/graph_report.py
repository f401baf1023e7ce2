"""What graph.py reports: a row of its table, and which implementation wins where."""

import statistics
from collections.abc import Iterable

from report import Entry, shape_label

# What a rule may choose from, of the variants that are timed.
CHOICES = ("native", "split", "xla", "xla_forward")


def columns_of(entry: Entry) -> int:
    """The length of a row."""
    return entry["shape"][entry["axis"]]


def label(entry: Entry) -> str:
    graph = f"{entry['producer']}>{entry['op']}>{entry['consumer']}"
    return f"{graph:33} {entry['direction']:9} {entry['dtype']:8} {shape_label(entry):>15}"


def row(entry: Entry, report: Entry) -> str:
    """Microseconds and kernels of each variant, and its speedup over jax.nn."""
    del report
    if "error" in entry:
        return f"{label(entry)} | {entry['error']}"
    cells = [label(entry)]
    for name, got in entry["results"].items():
        kernels = "" if got["kernels"] is None else f" {got['kernels']}k"
        speedup = "" if name == "jax_nn" else f" x{entry['speedup'][name]:.2f}"
        cells.append(f"{name} {got['microseconds']:.1f}us{kernels}{speedup}")
    return " | ".join(cells)


def mean_speedup(cases: Iterable[Entry]) -> dict[str, float]:
    """The geometric mean over `cases` of each variant's speedup over jax.nn."""
    speedups: dict[str, list[float]] = {}
    for entry in cases:
        for name, speedup in entry["speedup"].items():
            speedups.setdefault(name, []).append(speedup)
    return {name: statistics.geometric_mean(each) for name, each in speedups.items()}


def group_by(cases: Iterable[Entry], *fields: str) -> dict[tuple[object, ...], list[Entry]]:
    """Cases that agree in `fields`, of which "columns" is the length of a row."""
    groups: dict[tuple[object, ...], list[Entry]] = {}
    for entry in cases:
        known = entry | {"columns": columns_of(entry)}
        groups.setdefault(tuple(known[field] for field in fields), []).append(entry)
    return groups


def summarise(cases: list[Entry]) -> Entry:
    """Mean and worst speedups over jax.nn of each variant, and who wins at each row length."""
    timed = [entry for entry in cases if "error" not in entry]
    groups = {"all": mean_speedup(timed)}
    for key, group in group_by(timed, "op", "direction", "dtype", "kind").items():
        groups[" ".join(map(str, key))] = mean_speedup(group)
    worst = {}
    for name in (name for name in groups["all"] if name != "jax_nn"):
        having = [entry for entry in timed if name in entry["speedup"]]
        slowest = sorted(having, key=lambda entry: entry["speedup"][name])[:5]
        worst[name] = [f"x{e['speedup'][name]:.2f} {' '.join(label(e).split())}" for e in slowest]
    fastest = {}
    for key, group in group_by(timed, "op", "direction", "dtype", "kind", "columns").items():
        mean = {name: x for name, x in mean_speedup(group).items() if name in CHOICES}
        fastest[" ".join(map(str, key))] = max(mean, key=mean.__getitem__)
    return {"speedup": groups, "worst": worst, "fastest": fastest}
