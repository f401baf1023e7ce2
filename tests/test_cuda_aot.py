"""Programs for one and two H200s, compiled without one: nothing but the calls runs."""

import fcntl
import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys

import pytest
from _cuda_programs import (
    ABSMAX,
    ALONE,
    ANEW,
    ATTENTION,
    BIASES,
    CASES,
    CHOSEN,
    DEVICES,
    DIFFERENTIATED,
    FEW_LONG_ROWS,
    FREE,
    FUSED,
    FUSED_ON,
    MADE_BEFORE,
    MASKS,
    MIXED,
    NAMES,
    READ,
    REDUCED,
    REREAD,
    SCALED,
    STORED,
    TOGETHER,
    UNREAD,
    UNWRITTEN,
    WAYS,
)
from _support import COLLECTIVES

from jax_softmax import _native

SCRIPT = pathlib.Path(__file__).parent / "_cuda_programs.py"
# Seconds to compile all, which takes two cores four minutes that nothing else keeps busy.
MOST = 1200
pytestmark = pytest.mark.timeout(MOST + 60)


def missing() -> str | None:
    """What a machine that only builds for the CPU lacks. CI sets the variable: there it fails."""
    if os.environ.get("JAX_SOFTMAX_TEST_CUDA_AOT"):
        return None
    if isinstance(_native.load("cuda"), str):
        return "needs the CUDA extension"
    installed = {d.name for d in importlib.metadata.distributions()}
    needed = {"jax-cuda13-plugin", "jax-cuda13-pjrt"}
    return None if needed <= installed else f"needs {needed}"


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """Compiled by the first process that asks, where several share the tests."""
    if reason := missing():
        pytest.skip(reason)
    root = tmp_path_factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
    with (root / "programs.json").open("a+") as shared:
        fcntl.flock(shared, fcntl.LOCK_EX)
        shared.seek(0)
        if not (made := shared.read()):
            made = _compiled()
            shared.write(made)
    return json.loads(made)


def _compiled() -> str:
    # What a program is made of is known before LLVM and the assembler have it.
    quickly = " --xla_backend_optimization_level=0 --xla_gpu_disable_gpuasm_optimizations=true"
    done = subprocess.run(
        [sys.executable, SCRIPT],
        capture_output=True,
        text=True,
        timeout=MOST,
        env=os.environ
        | {"JAX_PLATFORMS": "cpu", "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"}
        | {"XLA_FLAGS": os.environ.get("XLA_FLAGS", "") + quickly},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_program_is_its_custom_calls(case, programs):
    mode, (dtype, output_dtype) = case[2:4]
    made = programs[str(case)]
    assert made["calls"] == (1 if mode == "forward" else 2)
    if FEW_LONG_ROWS in case:
        assert "get-tuple-element" in made["operations"]  # of result and workspace
    # Forward mode hands the tangent to the kernel in the result's dtype.
    conversion = {"convert", "fusion"} if mode == "jvp" and dtype != output_dtype else set()
    assert set(made["operations"]) - FREE == {"custom-call"} | conversion


# With nothing before them and the kernel's derivative.
FORWARD_TOO = [("softmax", "bfloat16", columns) for columns in (512, 640, 4096)]
FORWARD_TOO += [("log_softmax", "bfloat16", 640)]


@pytest.mark.parametrize("case", CHOSEN, ids=str)
def test_short_rows_are_one_kernel_with_their_neighbours(case, programs):
    made = programs[str(case)]
    name, dtype, columns = case
    # Or our kernel multiplies and reduces float32 rows, which are weighed.
    by_kernel = (name, dtype) == ("log_softmax", "float32") and columns in (512, 640)
    # XLA of jaxlib 0.10 makes five kernels of rows that it pads so much.
    kernels = {1, 5} if case == ("log_softmax", "bfloat16", 640) else {1 + by_kernel}
    assert made["forward"] == by_kernel and made["kernels"] in kernels
    assert made["of jax.nn"] == made["batch invariant"] == 1
    # So is the backward pass, with the forward one, where it has neighbours that are fused with it.
    forward = case in FORWARD_TOO
    assert made["gradient"] == 1 + forward
    assert made["weighted"] == 0
    assert made["both passes"] == 2
    if dtype == "bfloat16":
        assert made["mixed"] == 2
        assert name == "softmax" or made["in float32"] == 2 or forward
    # What a scatter wrote is no such thing: the derivative is a kernel, which wants the result, so
    # that XLA makes that in one kernel too, or ours does where XLA pads rows.
    assert made["picked"] == [1 + forward, 1]
    ours, others = made["kernels of picked"]
    assert ours < others


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("way", MADE_BEFORE)
def test_rows_that_something_made_go_by_what_it_is(name, way, programs):
    made = programs[f"{name}, {way}"]
    ours = way == "padded product" or (name == "softmax" and way in ("product", "scaled product"))
    assert made["calls"] == ours
    assert "product" in way or made["kernels"] == 1


@pytest.mark.parametrize("case", ALONE, ids=str)
def test_what_a_program_returns_is_one_kernel_of_ours(case, programs):
    ways = "nothing", "a scale", "a bias", "a conversion"
    assert programs[f"alone, {case}"] == {way: [1, 1] for way in ways}


@pytest.mark.parametrize("case", READ, ids=str)
def test_what_a_program_reads_without_a_derivative_goes_by_how(case, programs):
    made = programs[f"read, {case}"]
    expected = {"kernel": [1, 0], "pairs": [0, 1], "xla": [0, 0]}
    assert made["calls"] == expected[case[-1]]
    # What XLA has in no memory is one kernel, or pairs and one; sums of all are two, or three, and
    # of long weighed rows two.
    after = {"picked": 2, "reduced": 1, "summed": 2, "across": 3, "elements": 1, "converted": 1}
    after |= {"weighed": 2, "weighed sum": 2}
    assert made["kernels"] == (1 if case[-1] == "xla" else 1 + after[case[0]])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("devices", DEVICES)
def test_few_long_rows_are_split_on_one_device(name, devices, programs):
    alone = int(devices == 1)
    # XLA has the derivative of the result.
    assert programs[f"few, {name} on {devices}"] == {"split": alone, "gradient": [alone] * 2}


LOSSES = {name for name in FUSED if name.startswith("cross entropy")}
FUSED_ALONE = set(FUSED) - {"another axis", "sink", "log in float32"} - LOSSES


@pytest.mark.parametrize("name, devices", FUSED_ON)
def test_terms_and_losses_are_in_the_kernels(name, devices, programs):
    made = programs[f"{name} on {devices}"]
    assert not set(made["operations"]) & COLLECTIVES
    by_xla = {
        "where log": (1, 1),  # whose derivative has selects around it
        "another axis": (0, 1),  # which fuses the terms, and the softmax with them
        "where in float32": (0, 0),  # and conversions
        "log in float32": (1, 1),  # of two values for each row: and what is made of these
        "cross entropy in float32": (1, 1),  # and both with the derivative
        "cross entropy of rows in float32": (1, 1),
    }
    assert (made["forward"], made["gradient"]) == by_xla.get(name, (1, 2))
    if name in FUSED_ALONE:
        assert made["kernels"] == 1
    # The residual between the two calls, and what is of the rows' size.
    most = {
        "another axis": 1.2,
        "where in float32": 0.1,
        "log in float32": 0.1,
        "cross entropy in float32": 0.1,
        "cross entropy of rows in float32": 0.1,
    }.get(name, 1.1)
    assert made["temporaries"] < most * made["bytes"]


@pytest.mark.parametrize("devices", DEVICES)
@pytest.mark.parametrize("case", MIXED, ids=str)
def test_what_is_made_of_two_values_for_each_row_is_fused(case, devices, programs):
    made = programs[f"{case} on {devices}"]
    assert made["pairs"] == made["calls"] == [1, 1]
    assert not set(made["operations"]) & COLLECTIVES
    # Beside the call the elements, and the derivative's sum, of long rows in two steps.
    ours, others = made["kernels"], made["of jax.nn"]
    assert ours[0] == 2 and ours[1] <= 4
    assert ours[0] < others[0] and ours[1] < others[1]


def test_log_softmax_along_another_axis_sums_pairs_on_one_device(programs):
    assert programs["sums of pairs"] == {"1": True, "2": False}


def test_forward_alone_log_softmax_to_bfloat16_is_of_few_digits(programs):
    without = {"last": False, "batched": False}
    assert programs["few digits"] == without | {"across": True, "with gradient": True}


@pytest.mark.parametrize("columns, fused", REDUCED.items())
def test_what_xla_fuses_with_its_tangent_needs_no_sum_of_1(columns, fused, programs):
    assert programs["reductions"][str(columns)] == {"alone": 4, "multiplied": fused}


@pytest.mark.parametrize("case", REREAD, ids=str)
def test_a_result_that_is_reduced_is_written_once_and_read_again(case, programs):
    expected = {"once": [True, True], "calls": 1, "others": [0, 0]}
    assert programs[f"reread, {case}"] == expected


@pytest.mark.parametrize("case", UNWRITTEN, ids=str)
def test_a_result_that_is_read_by_element_is_made_where_it_is_read(case, programs):
    assert programs[f"unwritten, {case}"] == [2, 0]


@pytest.mark.parametrize("case", UNREAD, ids=str)
def test_a_result_that_nothing_reads_is_made_within_its_derivative(case, programs):
    assert programs[f"unread, {case}"] == [1, 0]


@pytest.mark.parametrize("case", STORED, ids=str)
def test_xlas_derivative_of_what_a_kernel_wrote_has_its_tangent_in_no_memory(case, programs):
    made = programs[f"stored, {case}"]
    # The softmax is where the gradient will be.
    assert made["calls"] == 1 and made["kept"] < 0.05


@pytest.mark.parametrize("columns", DIFFERENTIATED)
def test_a_log_softmax_that_is_reduced_is_in_no_memory(columns, programs):
    made = programs["differentiated"][str(columns)]
    assert made["calls"] == [1, 1]
    ours, others = made["kernels"]
    # The call; what both passes reduce by rows; the elements of the gradient; the loss, in two.
    assert ours <= 6 and ours <= others + 2
    assert made["temporaries"] < 0.25  # two values for each row, and sums


@pytest.mark.parametrize("case", ANEW, ids=str)
def test_exponentials_of_a_log_softmax_that_is_reduced_are_in_no_memory(case, programs):
    made = programs[f"anew, {case}"]
    assert made["calls"] == [2, 2]
    assert made["temporaries"] < 0.25


@pytest.mark.parametrize("case", TOGETHER, ids=str)
def test_softmax_and_log_softmax_of_the_same_logits_are_of_one_call(case, programs):
    made, (_, dtype, by_pairs) = programs[f"together, {case}"], case
    if by_pairs:
        assert made["calls"] == [1, 1]
        ours, others = made["kernels"]
        assert ours <= 6 and ours <= others + 2
        # Of 16 bits XLA may store the exponentials, as the loss has a sum of its own.
        assert dtype != "float32" or made["temporaries"] < 0.25
    else:
        assert made["calls"][1] == 0


def test_a_product_in_float32_is_multiplied_by_the_kernel_of_both(programs):
    assert programs["temperature"] == [1, 1]


def test_what_a_kernel_made_of_16_bits_is_read_by_xlas_derivative(programs):
    assert programs["loaded"] == [1, 1]


def test_a_result_that_is_returned_too_is_of_the_same_pairs(programs):
    assert programs["returned"] == [1, 1, False]


def test_masked_logits_along_another_axis_are_in_no_memory(programs):
    assert programs["writers"] == 1


@pytest.mark.parametrize("way, dtype, devices", SCALED)
def test_kernels_multiply_by_a_positive_number(way, dtype, devices, programs):
    _, number = WAYS[way]
    for made in programs[f"{way} of {dtype} on {devices}"].values():
        want = 1 if number is None else number
        assert made["calls"] == 1 and made["scales"] == [pytest.approx(want, rel=4e-3)]
        made_before = ("of a sum", "of a matrix product", "of that and a sum")
        alone = number is not None and way not in made_before
        assert (made["kernels"] == 1) == alone


@pytest.mark.parametrize("way", BIASES)
def test_kernels_add_a_bias_on_one_device(way, programs):
    _, _, factor = BIASES[way]
    made, on_two = (programs[f"bias {way} on {n}"] for n in DEVICES)
    assert made["calls"] == [1, factor is not None]
    assert made["factors"] == [pytest.approx(v, rel=4e-3) for v in [factor] if v is not None]
    alone = factor is not None and way not in ("after a bias", "made of another")
    assert (made["kernels"] == 1) == alone
    assert on_two["calls"] == [1, 0]


@pytest.mark.parametrize("way", MASKS)
def test_kernels_put_in_what_a_mask_does_on_one_device(way, programs):
    _, _, factor, fill = MASKS[way]
    made, on_two = (programs[f"mask {way} on {n}"] for n in DEVICES)
    by_kernel = fill is not None
    assert made["calls"][1] == by_kernel and on_two["calls"][1] == 0
    assert made["fills"] == ([fill] if by_kernel else [])
    assert made["factors"] == ([factor] if by_kernel else [])
    assert made["read before"] == made["by xla"] == 0
    # A mask that is no operand as it is XLA makes, and the bias of one.
    alone = by_kernel and way not in ("causal", "negated", "after a bias", "transposed")
    assert not by_kernel or (made["kernels"] == 1) == alone


@pytest.mark.parametrize("way", ATTENTION)
def test_what_attention_does_to_its_scores_kernels_do(way, programs):
    *_, factor, term, calls = ATTENTION[way]
    forward, both = (programs[f"scores {way}"][name] for name in ("forward", "gradients"))
    assert [forward["calls"], both["calls"]] == calls
    assert forward["terms"] == both["terms"] == [term] * (term is not None)
    # The derivative is of the product, which XLA multiplies within another one.
    assert forward["by"] == [[factor] * (factor is not None), []]
    assert both["by"] == [forward["by"][0], [1] * (calls[1] - calls[0])]


def test_other_scores_are_as_without_what_kernels_do(programs):
    made = programs["scores otherwise"]
    assert made["along another axis"] == {"calls": 2, "by": [[0.125], [1]], "pairs": 0}
    assert made["capped"] == {"calls": 2, "by": [[50], [1]], "pairs": 0}
    assert made["entropy"] == {"calls": 1, "by": [[1], []], "pairs": 1}


def test_the_derivative_behind_a_mask_goes_by_what_that_is(programs):
    """With one that is tiled XLA's takes longer than a kernel's and a pass by the mask."""
    for name in ("softmax", "log_softmax"):
        assert programs["masked gradients"][f"{name} of keys"] == [1, 0]
        assert programs["masked gradients"][f"{name} causal"][0] == 2


OTHER_BIASES = {  # calls, those of them that add a bias, and what they multiply by before
    "sum read before": ([1, 0], []),
    "product read before": ([1, 1], [1]),
    "short": ([1, 1], [1]),
    "short and fused": ([0, 0], []),
    # Whether a kernel adds it would go by how many rows share the bias.
    "invariant": ([1, 0], []),
    "few rows": ([1, 0], []),  # by a kernel that devices may share, or may not
}


@pytest.mark.parametrize("case", OTHER_BIASES)
def test_kernels_add_a_bias_where_they_are_faster_and_may(case, programs):
    made, on_two = (programs["biases"][str(n)][case] for n in DEVICES)
    assert on_two["calls"][1] == 0 and (on_two["calls"][0] == 1 or case.startswith("short"))
    assert (made["calls"], made["factors"]) == OTHER_BIASES[case]
    assert (made["kernels"] == 1) == (case.startswith("short") or case == "few rows")


def test_a_product_with_another_reader_or_sharding_is_left_alone(programs):
    assert programs["constrained"] == {"1": [1, 1], "2": [1, 1]}


@pytest.mark.parametrize("devices", DEVICES)
@pytest.mark.parametrize("name", NAMES)
def test_the_derivative_of_a_product_is_xlas(name, devices, programs):
    """In two kernels, of rows so long."""
    assert programs[f"gradient of {name} after a scale on {devices}"] == [1, 1, 3]


def test_kernels_multiply_on_an_explicit_mesh(programs):
    for made in programs["product on an explicit mesh"].values():
        assert made == {"calls": 1, "scales": [0.125], "kernels": 1}


@pytest.mark.parametrize("case", ABSMAX, ids=str)
def test_absmax_is_one_kernel(case, programs):
    """And a copy, where the operand is donated: a call's result takes no buffer of its operand."""
    donated = case[0] == "absmax_scale"
    assert programs[str(case)] == {"kernels": 1 + donated, "in place": donated}
