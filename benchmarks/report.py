"""What a run reports: where it ran, one row per case, and what follows from all of them."""

import datetime
import importlib.metadata
import os
import platform as host
import statistics
import subprocess
from pathlib import Path
from typing import Any

import jax

Entry = dict[str, Any]


def _output_of(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, host.processor())


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def environment(platform: str) -> Entry:
    """What a reader needs to know before comparing these numbers with others."""
    git = ("git", "-C", str(Path(__file__).parent))
    driver = _output_of("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        # The full hash, ending in "-dirty" when tracked files were changed.
        "commit": _output_of(*git, "describe", "--always", "--exclude=*", "--abbrev=40", "--dirty")
        or os.environ.get("GIT_COMMIT"),  # for a copy of the tree without its history
        "platform": platform,
        "device": jax.devices()[0].device_kind,
        "driver": driver.splitlines()[0] if platform == "gpu" and driver else None,
        "cpu": {"model": _cpu_model(), "cores": os.cpu_count()},
        "versions": {"python": host.python_version()}
        | {name: _version(name) for name in ("jax", "jaxlib", "jax-softmax")},
    }


def summarise(cases: list[Entry]) -> Entry:
    """The copy limit of the run and the geometric-mean speedups over XLA."""
    timed = [entry for entry in cases if "error" not in entry]
    speedups: dict[str, list[float]] = {}
    for entry in timed:
        for group in ("all", f"{entry['op']} {entry['direction']} {entry['dtype']}"):
            speedups.setdefault(group, []).append(entry["speedup"])
    return {
        "limit_tb_per_s": max((e["results"]["copy"]["tb_per_s"] for e in timed), default=0.0),
        "speedup": {name: statistics.geometric_mean(each) for name, each in speedups.items()},
    }


def row(entry: Entry, limit: float) -> str:
    """A row of the table: TB/s, fraction of the limit, kernels, microseconds; ours over XLA."""
    shape = "x".join(map(str, entry["shape"])) + (
        f"@{entry['axis']}" if entry["axis"] != -1 else ""
    )
    label = f"{entry['op']:11} {entry['direction']:8} {entry['dtype']:8} {shape:>15}"
    if "error" in entry:
        return f"{label} | {entry['error']}"
    cells = [label]
    for name, got in entry["results"].items():
        speed = f"{got['tb_per_s']:#6.3g} {got['tb_per_s'] / limit:4.2f}"
        kernels = "" if got["kernels"] is None else f" {got['kernels']}k"
        cells.append(f"{name} {speed}{kernels} {got['microseconds']:.1f}us")
    # A pull-back that keeps more than y reads more than the ideal traffic counts.
    kept = 3 * entry["residual_bytes"].get("jax_softmax", 0) / entry["bytes"]
    note = f"  keeps {kept:.2f} of y" if kept > 1.01 else ""
    return f"{' | '.join(cells)} | x{entry['speedup']:.2f}{note}"
