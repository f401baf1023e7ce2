"""What `make sanitize` would run."""

import re
import runpy
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_strategy_runs_under_both_sanitizers():
    smoke = runpy.run_path(str(ROOT / "tools/smoke.py"))
    parts = [*smoke["STRATEGIES"], "others"]
    dry = subprocess.run(
        ["make", "-n", "sanitize"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    runs = re.findall(r"--tool (\w+) \S+ tools/smoke.py (\w+)", dry.stdout)
    assert sorted(runs) == sorted((t, p) for t in ("memcheck", "racecheck") for p in parts)
