"""What a run reports: where it ran, its cases as they come in, and what follows from them."""

import datetime
import importlib.metadata
import json
import os
import platform as host
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax

Entry = dict[str, Any]

# A long run has thousands of cases: seconds between two writings of them.
WRITE_EVERY = 1.0


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


def attempt(entry: Entry, measure: Callable[[], Entry]) -> Entry:
    """`entry` with what `measure` adds to it, or with its error: no case costs the others."""
    try:
        return entry | measure()
    except Exception as error:
        message = str(error).partition("\n")[0]
        return entry | {"error": f"{type(error).__name__}: {message[:200]}"}


def shape_label(entry: Entry) -> str:
    """32x21x512@1: the shape, and the axis if it is not the last one."""
    at = f"@{entry['axis']}" if entry["axis"] != -1 else ""
    return "x".join(map(str, entry["shape"])) + at


def as_text(report: Entry) -> str:
    """JSON of a report, each case on a line of its own."""
    header = json.dumps({k: v for k, v in report.items() if k != "cases"}, indent=1)
    cases = ",\n  ".join(map(json.dumps, report["cases"]))
    return header.removesuffix("\n}") + f',\n "cases": [\n  {cases}\n ]\n}}\n'


def record(
    entries: Iterator[Entry],
    header: Entry,
    summarise: Callable[[list[Entry]], Entry],
    line: Callable[[Entry, Entry], str],
    output: Path | None,
    budget: float,
) -> Entry:
    """Prints and writes cases as they come in, until there are no more or `budget` is spent.

    `summarise` makes a summary of the cases so far, `line` a row of the table of one of them.
    Returns the report. It is complete if all cases were reached, failed ones included.
    """
    start = written = time.monotonic()
    report, cases = dict(header), []

    def update(complete: bool) -> None:
        seconds = round(time.monotonic() - start, 1)
        report.update(summarise(cases), complete=complete, seconds=seconds, cases=cases)

    def write() -> None:
        if output:
            unfinished = output.with_suffix(".partial")
            unfinished.write_text(as_text(report))
            unfinished.replace(output)

    complete = True
    for entry in entries:
        cases.append(entry)
        update(complete=False)
        print(line(entry, report), flush=True)
        if time.monotonic() - written > WRITE_EVERY:
            write()
            written = time.monotonic()
        if time.monotonic() - start > budget:
            complete = False
            break
    update(complete)
    write()
    failed = sum("error" in entry for entry in cases)
    print(f"{len(cases)} cases, {failed} failed, {report['seconds']} s, {complete=}")
    return report


def exit_code(report: Entry) -> int:
    return int(any("error" in entry for entry in report["cases"]))
