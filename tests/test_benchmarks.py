"""Every benchmark runs, on tiny operands, and what reads its results can."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

BENCHMARKS = pathlib.Path(__file__).parents[1] / "benchmarks"
FEW = ("--device", "cpu", "--ops", "softmax", "--dtypes", "float32")
QUICK = ("--elements", "4096", "--rounds", "1", "--iterations", "2")


def run(script: str, *arguments) -> str:
    done = subprocess.run(
        [sys.executable, BENCHMARKS / script, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=280,
        env=os.environ | {"XLA_FLAGS": ""},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def report_of(path: pathlib.Path) -> dict:
    report = json.loads(path.read_text())
    assert report["complete"] and report["cases"], report
    assert all("error" not in case for case in report["cases"])
    return report


def test_the_graphs_give_a_rule(tmp_path):
    out = tmp_path / "graph.json"
    run("graph.py", *FEW, *QUICK, "--kinds", "last", "--columns", "64", "--output", out)
    fastest = report_of(out)["fastest"]
    assert set(fastest.values()) <= {"native", "xla", "xla_forward"}
    printed = run("choose.py", out)
    for direction in ("forward", "gradient", "either"):
        assert f"last softmax float32 {direction}" in printed
    assert "rule: 64 " in printed


@pytest.mark.parametrize("suite", ["columns", "odd", "shapes"])
def test_the_suites_of_rows_run_and_draw(tmp_path, suite):
    out, picture = tmp_path / "rows.json", tmp_path / "rows.png"
    columns = () if suite == "shapes" else ("--columns", "16,33")
    run("run.py", "--suite", suite, *FEW, *QUICK, *columns, "--output", out)
    assert report_of(out)["limit_tb_per_s"] > 0
    if suite != "shapes":
        for more in ((), ("--all",)):
            run("plot.py", out, picture, *more)
            assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_budget_ends_a_run_cleanly(tmp_path):
    out = tmp_path / "rows.json"
    run("run.py", *FEW, *QUICK, "--columns", "16,33", "--budget", "0", "--output", out)
    report = json.loads(out.read_text())
    assert not report["complete"] and len(report["cases"]) == 1


def test_latency_is_a_ratio(tmp_path):
    out = tmp_path / "latency.json"
    run("latency.py", *FEW, "--batches", "1", "--output", out)
    assert report_of(out)["worst_ratio"] > 0


def test_a_gradient_needs_x_y_g_and_nothing_else_of_that_size(tmp_path):
    out = tmp_path / "memory.json"
    run("memory.py", "--device", "cpu", "--output", out)
    assert report_of(out)["most_beyond"]["native"] < 0.01


def test_the_sweep_times_every_strategy(tmp_path):
    out = tmp_path / "sweep.json"
    run("sweep.py", *FEW, *QUICK, "--columns", "64", "--output", out)
    for case in report_of(out)["cases"]:
        assert set(case["tb_per_s"]) == {"row", "slices", "lanes", "strided"}
        assert case["chosen"] in case["tb_per_s"]
