"""What `make` would run."""

import os
import re
import runpy
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_every_strategy_runs_under_both_sanitizers():
    smoke = runpy.run_path(str(ROOT / "tools/smoke.py"))
    parts = [*smoke["STRATEGIES"], "others"]
    dry = subprocess.run(
        ["make", "-n", "sanitize"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    runs = re.findall(r"--tool (\w+) \S+ tools/smoke.py (\w+)", dry.stdout)
    assert sorted(runs) == sorted((t, p) for t in ("memcheck", "racecheck") for p in parts)


@pytest.mark.parametrize(
    "gpu, setting, without",
    [("", "", True), ("GPU 0: H200", "", False), ("", "on", False), ("", "wheels", False)],
)
def test_a_machine_without_gpu_builds_no_cuda_kernels_unasked(gpu, setting, without, tmp_path):
    """Those for every architecture take longer than all else."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\necho '{gpu}'\n" if gpu else "#!/bin/sh\nexit 9\n")
    tool.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "JAX_SOFTMAX_CUDA": setting,
        "SETTINGS": "",
    }
    dry = subprocess.run(
        ["make", "-n", "-B", ".venv/installed"],
        cwd=ROOT,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    assert ("JAX_SOFTMAX_CUDA=off" in dry.stdout) == without
