"""What `make` would run."""

import os
import re
import runpy
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def make(*arguments, **environment):
    """What it would run; nothing is inherited from a `make gpu-test` around the tests."""
    inherited = {name: value for name, value in os.environ.items() if "MAKE" not in name}
    return subprocess.run(
        ["make", "-n", *arguments],
        cwd=ROOT,
        env=inherited | environment,
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def test_every_strategy_runs_under_both_sanitizers():
    smoke = runpy.run_path(str(ROOT / "tools/smoke.py"))
    parts = [*smoke["STRATEGIES"], "others"]
    runs = re.findall(r"--tool (\w+) \S+ tools/smoke.py (\w+)", make("sanitize"))
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
    dry = make(
        "-B",
        ".venv/installed",
        PATH=f"{tmp_path}:{os.environ['PATH']}",
        JAX_SOFTMAX_CUDA=setting,
        SETTINGS="",
    )
    assert ("JAX_SOFTMAX_CUDA=off" in dry) == without
