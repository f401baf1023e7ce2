"""Programs for one and two H200s, compiled without one: nothing but the calls runs."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
from _cuda_programs import CASES

SCRIPT = pathlib.Path(__file__).parent / "_cuda_programs.py"
# What costs nothing at run time. A fusion, copy, transpose or collective is none of it.
FREE = {"parameter", "bitcast", "tuple", "get-tuple-element"}


@pytest.fixture(scope="module")
def programs():
    done = subprocess.run(
        [sys.executable, SCRIPT],
        capture_output=True,
        text=True,
        timeout=280,
        env=os.environ | {"JAX_PLATFORMS": "cpu", "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_program_is_its_custom_calls(case, programs):
    mode = case[2]
    made = programs[str(case)]
    assert made["calls"] == (1 if mode == "forward" else 2)
    assert set(made["operations"]) - FREE == {"custom-call"}
