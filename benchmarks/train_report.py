"""What train.py reports: speedups, whether losses agree, and a table."""

from collections.abc import Mapping

import numpy as np
from breakdown import OURS, lines
from report import Entry

BASE = "jax_nn"
CLOCKS = ("wall", "kernel")
# Of the loss at each step, relative: between roundings of one model, not between models.
TOLERANCE = 1e-2
HELD_TO_TOLERANCE = (OURS, "native")


def difference(curve: list[float], base: list[float]) -> float:
    """The largest relative difference of two curves; NaN if either has one."""
    return float(np.max(np.abs(np.subtract(curve, base)) / np.abs(base)))


def speedups(results: Mapping[str, Entry]) -> Entry:
    """Over jax_nn, by the wall clock and, where it is known, by kernel time."""
    base = results[BASE]
    return {
        name: {
            clock: base[f"{clock}_microseconds"] / got[f"{clock}_microseconds"]
            for clock in CLOCKS
            if f"{clock}_microseconds" in got
        }
        for name, got in results.items()
    }


def verdict(results: Mapping[str, Entry]) -> Entry:
    differences = {n: results[n]["loss_difference"] for n in HELD_TO_TOLERANCE if n in results}
    parted = [f"{n} by {d:.2g}" for n, d in differences.items() if not d <= TOLERANCE]
    return {"error": f"losses part from {BASE}'s: {', '.join(parted)}"} if parted else {}


def row(entry: Entry, report: Entry) -> str:
    """Time, speedup, memory and losses of each variant, and its breakdown."""
    del report
    text = [f"{entry['model']} {entry['sizes']}"]
    if "error" in entry:
        text.append(f"  {entry['error']}")
    for name, got in entry.get("results", {}).items():
        times = (
            f"{clock} {got[f'{clock}_microseconds'] / 1e3:.2f} ms x{speedup:.3f}"
            for clock, speedup in entry["speedup"][name].items()
        )
        losses = f"loss {got['losses'][0]:.3f} to {got['losses'][-1]:.3f}"
        peak = f"peak {got['memory']['peak'] / 2**20:.1f} MiB"
        apart = f"within {got['loss_difference']:.1e}"
        text.append(f"  {name:13} | {' | '.join([*times, peak, losses, apart])}")
    for name, got in entry.get("results", {}).items():
        text += lines(name, got) if "parts" in got else []
    return "\n".join(text)


def summarise(cases: list[Entry]) -> Entry:
    return {
        "speedup": {entry["model"]: entry["speedup"] for entry in cases if "speedup" in entry},
    }
