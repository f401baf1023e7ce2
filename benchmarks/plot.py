"""Draws the throughput of a run against row length: python benchmarks/plot.py results.json out.png

One panel per op, direction and dtype, one line per implementation, the copy limit dashed.
"""

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

COLOURS = {"jax_softmax": "tab:blue", "xla": "tab:orange", "xla_vjp": "tab:red"}


def main(source: Path, target: Path) -> None:
    report = json.loads(source.read_text())
    cases = [case for case in report["cases"] if "error" not in case]
    if report["suite"] != "columns" or not cases:
        sys.exit(f"{source}: nothing to draw against row length")
    kinds = sorted({(case["op"], case["direction"]) for case in cases}, reverse=True)
    dtypes = sorted({case["dtype"] for case in cases})
    size = (5 * len(dtypes), 2.6 * len(kinds) + 0.8)
    figure, axes = plt.subplots(
        len(kinds), len(dtypes), figsize=size, squeeze=False, sharex=True, sharey=True
    )
    for (op, direction), panels in zip(kinds, axes, strict=True):
        for dtype, panel in zip(dtypes, panels, strict=True):
            wanted = (op, direction, dtype)
            chosen = [c for c in cases if (c["op"], c["direction"], c["dtype"]) == wanted]
            chosen.sort(key=lambda case: case["shape"][-1])
            for name, colour in COLOURS.items():
                points = [
                    (case["shape"][-1], case["results"][name]["tb_per_s"])
                    for case in chosen
                    if name in case["results"]
                ]
                if points:
                    panel.plot(*zip(*points, strict=True), ".-", color=colour, label=name)
            panel.axhline(report["limit_tb_per_s"], color="grey", linestyle="--", label="copy")
            panel.set(title=f"{op} {direction}, {dtype}", ylim=(0, None))
            panel.set_xscale("log", base=2)
            panel.grid(alpha=0.3)
    for panel in axes[:, 0]:
        panel.set_ylabel("ideal TB/s")
    for panel in axes[-1]:
        panel.set_xlabel("columns")
    for panels in axes:
        panels[0].legend(fontsize="small")
    versions = report["versions"]
    figure.suptitle(f"{report['device']}, jax {versions['jax']}, {report['date'][:10]}")
    figure.tight_layout()
    figure.savefig(target, dpi=120)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
