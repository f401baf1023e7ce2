"""Draws a run of run.py against row length, one line per implementation.

    python benchmarks/plot.py columns.json summary.png
    python benchmarks/plot.py columns.json some-again.json summary.png
    python benchmarks/plot.py columns.json everything.png --all

Of several runs, a later one's cases stand in place of the same of the earlier ones.

Results of a GPU are throughputs in ideal traffic, with the copy limit dashed; those of a CPU are
speedups over XLA, since its wall clock says little by itself. The summary has three panels of
one dtype; --all has a panel for every op, direction and dtype.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

# Colour and legend by the name of an implementation; the first ones are drawn on top.
LINES = {
    "jax_softmax": ("tab:blue", "jax_softmax"),
    "xla": ("tab:orange", "XLA (jax.nn; backward: the formula)"),
    "xla_vjp": ("tab:red", "XLA (jax.nn's own pull-back)"),
    "torch": ("tab:green", "PyTorch"),
    "triton": ("tab:purple", "Triton, a simple kernel"),
    "quack": ("tab:brown", "quack"),
}
SUMMARY = (("softmax", "forward"), ("softmax", "backward"), ("log_softmax", "forward"))
Panel = tuple[str, str, str]  # op, direction, dtype


def value(case: dict[str, Any], name: str, platform: str) -> float:
    results = case["results"]
    if platform == "gpu":
        return results[name]["tb_per_s"]
    return results["xla"]["microseconds"] / results[name]["microseconds"]


def draw(panel: Axes, kind: Panel, cases: list[dict[str, Any]], report: dict[str, Any]) -> None:
    chosen = [c for c in cases if (c["op"], c["direction"], c["dtype"]) == kind]
    chosen.sort(key=lambda case: case["shape"][-1])
    platform = report["platform"]
    for order, (name, (colour, legend)) in enumerate(LINES.items()):
        points = [
            (case["shape"][-1], value(case, name, platform))
            for case in chosen
            if name in case["results"]
        ]
        # On a CPU, XLA is the line at one.
        if points and not (platform == "cpu" and name == "xla"):
            drawn = panel.plot(*zip(*points, strict=True), ".-", color=colour, label=legend)
            drawn[0].set_zorder(10 - order)
    level, legend = (
        (report["limit_tb_per_s"], "copy") if platform == "gpu" else (1, LINES["xla"][1])
    )
    panel.axhline(level, color="grey", linestyle="--", label=legend)
    panel.set_title(f"{kind[0]} {kind[1]}, {kind[2]}")
    panel.set_xscale("log", base=2)
    panel.grid(alpha=0.3)


def merged(reports: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The cases of all, of which the last ones of a kind and row length stand for the others."""
    cases = [case for report in reports for case in report["cases"] if "error" not in case]
    kinds = ("op", "direction", "dtype")
    return list({(*(c[k] for k in kinds), c["shape"][-1]): c for c in cases}.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("sources", type=Path, nargs="+")
    parser.add_argument("target", type=Path)
    parser.add_argument("--all", action="store_true", help="every op, direction and dtype")
    parser.add_argument("--dtype", help="of the summary; default: the first of the run")
    args = parser.parse_args()
    reports = [json.loads(source.read_text()) for source in args.sources]
    report, cases = reports[-1], merged(reports)
    if any(r["suite"] not in ("columns", "odd") for r in reports) or not cases:
        sys.exit(f"{', '.join(map(str, args.sources))}: nothing to draw against row length")
    have = list(dict.fromkeys((c["op"], c["direction"], c["dtype"]) for c in cases))
    dtypes = list(dict.fromkeys(dtype for _, _, dtype in have)) if args.all else [args.dtype]
    if dtypes == [None]:
        dtypes = [cases[0]["dtype"]]
    pairs = list(dict.fromkeys((op, direction) for op, direction, _ in have))
    kinds = [pair for pair in pairs if args.all or pair in SUMMARY]
    # The summary lies in a row; the whole has a row for each op and direction.
    grid = [[(*pair, dtype) for dtype in dtypes] for pair in kinds]
    if not args.all:
        grid = [[kind for (kind,) in grid]]
    size = (4.6 * len(grid[0]), 2.8 * len(grid) + 1.1)
    figure, axes = plt.subplots(
        len(grid), len(grid[0]), figsize=size, squeeze=False, sharex=True, sharey=True
    )
    for panels, row in zip(axes, grid, strict=True):
        for panel, kind in zip(panels, row, strict=True):
            draw(panel, kind, cases, report)
        panels[0].set_ylabel("ideal TB/s" if report["platform"] == "gpu" else "speedup over XLA")
    for panel in axes[-1]:
        panel.set_xlabel("columns")
    axes[0, 0].set_ylim(bottom=0)  # of all: they share it
    legends = {}
    for panel in axes.flat:
        handles, labels = panel.get_legend_handles_labels()
        legends |= dict(zip(labels, handles, strict=True))
    figure.suptitle(f"{report['device']}, jax {report['versions']['jax']}, {report['date'][:10]}")
    figure.legend(legends.values(), legends.keys(), loc="lower center", ncols=4, fontsize="small")
    figure.tight_layout(rect=(0, 0.4 / size[1], 1, 1))
    figure.savefig(args.target, dpi=120)


if __name__ == "__main__":
    main()
