"""The example runs, and its two runs agree."""

import os
import pathlib
import subprocess
import sys

SCRIPT = pathlib.Path(__file__).parents[1] / "examples/train_lm.py"


def test_the_language_model_trains_like_with_jax_nn(tmp_path):
    picture = tmp_path / "loss.png"
    done = subprocess.run(
        [sys.executable, "-P", SCRIPT, "--steps", "30", "--batch", "2", "--out", picture],
        capture_output=True,
        text=True,
        timeout=280,
        env=os.environ | {"XLA_FLAGS": ""},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Plan(" in done.stdout and "the two runs agree" in done.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
