"""Every benchmark runs, on tiny operands, and what reads its results can."""

import json
import os
import pathlib
import subprocess
import sys

import jax
import pytest

BENCHMARKS = pathlib.Path(__file__).parents[1] / "benchmarks"
FEW = ("--device", "cpu", "--ops", "softmax", "--dtypes", "float32")
QUICK = ("--elements", "4096", "--rounds", "1", "--iterations", "2")


def run(script: str, *arguments) -> str:
    # What a script writes is tested, not how fast what it times is; compiling takes it the longest.
    quickly = {"XLA_FLAGS": "", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    done = subprocess.run(
        [sys.executable, BENCHMARKS / script, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=280,
        env=os.environ | quickly,
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
    chosen = ("--kinds", "last", "--columns", "64", "--producers", "none,scale")
    chosen += ("--consumers", "none,reduction,weighted,mean")
    run("graph.py", *FEW, *QUICK, *chosen, "--output", out)
    report = report_of(out)
    assert set(report["fastest"].values()) <= {"native", "xla", "xla_forward"}
    assert {case["producer"] for case in report["cases"]} == {"none", "scale"}
    consumers = {case["consumer"] for case in report["cases"]}
    assert consumers == {"none", "reduction", "weighted", "mean"}
    printed = run("choose.py", out)
    for direction in ("forward", "gradient", "either", "pull-back"):
        assert f"last softmax float32 {direction}" in printed
    assert "rule: 64 " in printed
    printed = run("choose.py", "--around", out)
    for seen in ("after apart forward", "between scaled and fused gradient"):
        assert f"last softmax float32 {seen}" in printed


@pytest.mark.parametrize("suite", ["columns", "odd", "shapes"])
def test_the_suites_of_rows_run_and_draw(tmp_path, suite):
    out, picture = tmp_path / "rows.json", tmp_path / "rows.png"
    columns = () if suite == "shapes" else ("--columns", "16,33")
    run("run.py", "--suite", suite, *FEW, *QUICK, *columns, "--output", out)
    assert report_of(out)["limit_tb_per_s"] > 0
    if suite != "shapes":
        for sources, more in (((out,), ()), ((out, out), ()), ((out,), ("--all",))):
            run("plot.py", *sources, picture, *more)
            assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_budget_ends_a_run_cleanly(tmp_path):
    out = tmp_path / "rows.json"
    run("run.py", *FEW, *QUICK, "--columns", "16,33", "--budget", "0", "--output", out)
    report = json.loads(out.read_text())
    assert not report["complete"] and len(report["cases"]) == 1
    assert out.read_text().count("\n  {") == 1  # a line for each case


def test_fused_counts_what_must_move(tmp_path):
    out = tmp_path / "fused.json"
    run(
        "fused.py",
        "--device",
        "cpu",
        "--small",
        "--rounds",
        "1",
        "--iterations",
        "2",
        "--output",
        out,
    )
    cases = json.loads(out.read_text())["cases"]
    assert {case["name"] for case in cases} >= {"where", "causal", "bias", "logsumexp"}
    for case in cases:
        assert "error" not in case, case
        assert case["microseconds"]["jax_softmax"] > 0 and case["of_limit"]["jax_softmax"] > 0


@pytest.mark.parametrize(
    "names, options",
    [
        ("layers_by_scan,router", ()),
        ("causal_attention", ("--lengths", "3,5")),
        ("picked,masked_targets", ("--columns", "3,5", "--widened")),
    ],
)
def test_programs_agree_and_are_timed(tmp_path, names, options):
    out = tmp_path / "programs.json"
    dtype = "bfloat16" if "--widened" in options else "float32"
    few = ("--device", "cpu", "--small", "--dtypes", dtype, "--names", names, *options)
    run("programs.py", *few, "--rounds", "1", "--iterations", "2", "--output", out)
    cases = report_of(out)["cases"]
    assert {case["name"] for case in cases} == set(names.split(","))
    assert {case["direction"] for case in cases} == {"forward", "gradient"}
    varied = {case["sizes"].get("T", case["sizes"].get("V")) for case in cases}
    assert not options or varied == {3, 5}
    for case in cases:
        assert case["microseconds"].keys() == {"native", "xla", "default", "jax_nn"}
        assert 0 <= max(case["distance"].values()) < (1e-4 if dtype == "float32" else 1e-2)


def test_the_survey_draws_what_its_seed_says(tmp_path):
    drawn = []
    for seed, cases in (("1", 17), ("1", 3), ("2", 3)):
        out = tmp_path / "survey.json"
        tiny = ("--device", "cpu", "--cases", cases, "--largest", "10", "--seed", seed)
        run("survey.py", *tiny, "--rounds", "1", "--iterations", "2", "--output", out)
        report = report_of(out)
        drawn.append([(c["op"], c["dtype"], c["shape"], c["axis"]) for c in report["cases"]])
        assert len({op for op, *_ in drawn[-1]}) == cases
        assert all(case["microseconds"]["default"] > 0 for case in report["cases"])
        assert report["speedup"]["all"]["cases"] == cases
    assert drawn[0][:3] == drawn[1] != drawn[2]


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
    run("sweep.py", *FEW, *QUICK, "--columns", "64", "--xla", "--output", out)
    strategies = {"row", "slices", "lanes", "strided"}
    for case in report_of(out)["cases"]:
        assert set(case["tb_per_s"]) == strategies | {"xla"}
        assert {case["chosen"], case["best"]} <= strategies


def test_training_agrees_with_jax_nn(tmp_path):
    out = tmp_path / "train.json"
    few = ("--device", "cpu", "--variants", "jax_softmax", "--steps", "10")
    run("train.py", *few, "--rounds", "1", "--iterations", "2", "--output", out)
    gpt2, classifier = report_of(out)["cases"]
    assert (gpt2["model"], classifier["model"]) == ("gpt2 bfloat16 scores", "classifier")
    for case in (gpt2, classifier):
        results = case["results"]
        assert set(results) == set(case["speedup"]) == {"jax_nn", "jax_softmax"}
        assert results["jax_softmax"]["loss_difference"] < 1e-2
        assert all(got["memory"]["temporaries"] > 0 for got in results.values())
        # A step in place: what it returns beside the loss takes no room of its own.
        assert all(got["memory"]["results"] < 1000 for got in results.values())
    losses = gpt2["results"]["jax_softmax"]["losses"]
    assert len(losses) == 10 and losses[-1] < losses[0]


def test_losses_that_part_are_an_error(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    from train_report import difference, verdict

    nan, base = float("nan"), [2.0, 1.0]
    for curve, parts in (([2.0, 1.009], False), ([2.03, 1.0], True), ([nan, 1.0], True)):
        results = {"jax_softmax": {"loss_difference": difference(curve, base)}}
        assert ("error" in verdict(results)) == parts


def test_kernel_time_is_told_by_part(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    from breakdown import Launch, breakdown, scopes_of

    @jax.jit
    def program(x):
        with jax.named_scope("norm"):
            x = x - x.mean()
        return x @ x

    compiled = program.lower(jax.ShapeDtypeStruct((8, 8), "float32")).compile()
    scopes = scopes_of(compiled.as_text(), ("norm",))
    assert set(scopes.values()) == {"norm", "other"}
    mean = next(kernel for kernel, scope in scopes.items() if scope == "norm")
    launches = [
        Launch(mean, 1.0),
        Launch("nvjet_tst_128x256", 5.0),
        Launch("gemm_fusion_dot_3", 4.0),
        Launch("loop_add_fusion_2", 1.5),
        Launch("loop_add_fusion_12", 1.5),
        Launch("_ZN11jax_softmax6device10WarpKernelE", 2.0),
    ]
    got = breakdown(launches, scopes)
    times = {part: total["microseconds"] for part, total in got["parts"].items()}
    assert times == {"matrix_products": 9, "other": 3, "jax_softmax": 2, "norm": 1}
    assert list(times) == ["matrix_products", "other", "jax_softmax", "norm"]
    assert {"kernel": "loop_add_fusion", "part": "other", "launches": 2, "microseconds": 3} in got[
        "top"
    ]
