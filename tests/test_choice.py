"""`implementation=None`: the rule as a table, and what programs and plans make of it."""

import functools
import itertools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _support import bind, choice_of, compiled, count_calls
from _truth import BACKWARD, FORWARD, GRADIENT
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_softmax
from jax_softmax import _as_read, _choice, _looking, _native, _readers, _revision, plan

pytestmark = pytest.mark.usefixtures("quickly_compiled")

MANY = 2**20
RULE = [  # shape, axis, dtype, output dtype; then softmax, log_softmax, softmax's tangent, others
    ((256, 512), 1, "float32", "float32", "xla", "xla", "xla", "xla"),
    ((4, 5, 6), 1, "float64", "float64", "xla", "xla", "xla", "xla"),
    ((0, 5), 1, "float32", "float32", "xla", "xla", "xla", "xla"),
    ((257, 512), 1, "float32", "float32", "xla", "xla", "xla", "xla"),
    ((MANY, 16), 1, "float32", "float32", "xla", "xla", "xla", "xla"),
    ((MANY, 16), 1, "bfloat16", "float32", "xla", "xla", "xla", "xla"),
    ((MANY, 16), 1, "bfloat16", "bfloat16", "xla", "xla", "xla", "xla"),
    ((MANY, 256), 1, "float16", "float16", "xla", "xla", "xla", "xla"),
    ((MANY, 264), 1, "float16", "float16", "xla", "cuda", "cuda", "cuda"),
    ((MANY, 280), 1, "float16", "float16", "xla", "cuda", "cuda", "cuda"),
    ((MANY, 288), 1, "float16", "float16", "xla", "xla", "cuda", "xla"),
    ((MANY, 136), 1, "bfloat16", "bfloat16", "xla", "cuda", "cuda", "cuda"),
    ((MANY, 200), 1, "bfloat16", "bfloat16", "xla", "xla", "cuda", "xla"),
    ((MANY, 208), 1, "bfloat16", "bfloat16", "xla", "xla", "xla", "xla"),
    ((MANY, 257), 1, "float16", "float16", "cuda", "cuda", "cuda", "cuda"),
    ((MANY, 33), 1, "bfloat16", "bfloat16", "cuda", "cuda", "cuda", "cuda"),
    ((1025, 1025), 1, "bfloat16", "bfloat16", "cuda", "cuda", "cuda", "cuda"),
    ((1025, 513), 1, "float16", "float16", "cuda", "cuda", "cuda", "cuda"),
    ((2049, 511), 1, "float16", "float16", "cuda", "cuda", "cuda", "cuda"),
    ((MANY, 33), 1, "bfloat16", "float32", "xla", "cuda", "xla", "cuda"),
    ((MANY, 33), 1, "float32", "float32", "xla", "cuda", "xla", "cuda"),
    ((MANY, 45), 1, "float32", "float32", "xla", "cuda", "xla", "cuda"),
    ((MANY, 383), 1, "float32", "float32", "xla", "cuda", "cuda", "cuda"),
    ((MANY, 385), 1, "float32", "float32", "xla", "xla", "cuda", "cuda"),
    ((MANY, 513), 1, "float32", "float32", "xla", "xla", "cuda", "cuda"),
    ((MANY, 3), 1, "float32", "float32", "xla", "xla", "xla", "xla"),
    ((MANY, 5), 1, "float32", "float32", "xla", "cuda", "xla", "cuda"),
    ((MANY, 9), 1, "float32", "float32", "xla", "cuda", "xla", "cuda"),
    ((MANY, 6), 1, "float32", "float32", "xla", "xla", "xla", "xla"),
    ((MANY, 68), 1, "float32", "float32", "xla", "xla", "xla", "xla"),
    ((MANY, 4), 1, "bfloat16", "bfloat16", "xla", "xla", "xla", "cuda"),
    ((MANY, 2048), 1, "bfloat16", "bfloat16", "xla", "xla", "cuda", "xla"),
    ((MANY, 2049), 1, "bfloat16", "bfloat16", "xla", "xla", "cuda", "cuda"),
    ((MANY, 2056), 1, "bfloat16", "bfloat16", "xla", "cuda", "cuda", "cuda"),
    ((MANY, 3000), 1, "bfloat16", "bfloat16", "xla", "xla", "cuda", "cuda"),
    ((MANY, 4096), 1, "bfloat16", "bfloat16", "xla", "xla", "cuda", "cuda"),
    ((MANY, 1001), 1, "float32", "float32", "xla", "xla", "cuda", "cuda"),
    ((MANY, 1004), 1, "float32", "float32", "xla", "xla", "xla", "xla"),
    ((MANY, 4097), 1, "bfloat16", "bfloat16", "cuda", "cuda", "cuda", "cuda"),
    ((MANY, 4096), 1, "float32", "float32", "xla", "xla", "xla", "xla"),
    ((MANY, 4097), 1, "float32", "float32", "cuda", "cuda", "cuda", "cuda"),
    ((MANY, 16), 1, "float64", "float64", "xla", "xla", "cuda", "cuda"),
    ((MANY, 17), 1, "float64", "float64", "cuda", "cuda", "cuda", "cuda"),
    ((16, MANY), 0, "float32", "float32", "cuda", "cuda", "cuda", "cuda"),
    ((1024, 16, 64), 1, "bfloat16", "bfloat16", "cuda", "cuda", "cuda", "cuda"),
    ((256, 8, 512), 1, "float32", "float32", "cuda", "cuda", "xla", "xla"),
    ((257, 8, 512), 1, "float32", "float32", "cuda", "cuda", "cuda", "cuda"),
    ((128, 9, 512), 1, "float32", "float32", "cuda", "cuda", "cuda", "cuda"),
    ((1024, 64, 33), 1, "float32", "float32", "cuda", "cuda", "cuda", "cuda"),
    ((1024, 64, 33), 1, "bfloat16", "float32", "xla", "xla", "xla", "xla"),
    ((64, 1024, 32), 1, "bfloat16", "bfloat16", "cuda", "cuda", "cuda", "cuda"),
    ((300, 1024, 15), 1, "float32", "float32", "cuda", "cuda", "cuda", "cuda"),
    ((128, 1024, 15), 1, "float32", "float32", "cuda", "cuda", "cuda", "cuda"),
    ((90, 1024, 15), 1, "float32", "float32", "cuda", "cuda", "xla", "xla"),
    ((24, 1024, 15), 1, "float32", "float32", "xla", "cuda", "xla", "xla"),
    ((3, 10_240, 15), 1, "float32", "float32", "xla", "xla", "xla", "xla"),
    ((5, 24_000, 15), 1, "float32", "float32", "cuda", "cuda", "xla", "xla"),
    ((64, 40_000, 15), 1, "float32", "float32", "xla", "xla", "xla", "xla"),
    ((256, 90, 33), 1, "bfloat16", "bfloat16", "xla", "xla", "xla", "xla"),
    ((512, 90, 33), 1, "bfloat16", "bfloat16", "cuda", "cuda", "cuda", "cuda"),
    ((1, MANY), 0, "float32", "float32", "xla", "xla", "xla", "xla"),
    ((2, MANY), 0, "float32", "float32", "cuda", "cuda", "cuda", "cuda"),
    ((4, MANY), 0, "bfloat16", "bfloat16", "cuda", "cuda", "cuda", "cuda"),
    ((4, MANY + 4), 0, "bfloat16", "bfloat16", "xla", "xla", "xla", "xla"),
    ((4, MANY), 0, "float64", "float64", "xla", "xla", "xla", "xla"),
    ((5, MANY + 4), 0, "float32", "float32", "cuda", "cuda", "cuda", "cuda"),
    ((8, MANY), 0, "float16", "float32", "xla", "xla", "xla", "xla"),
    ((9, MANY), 0, "float16", "float32", "cuda", "cuda", "cuda", "cuda"),
    ((64, 1024, 17), 1, "float32", "float32", "cuda", "cuda", "xla", "xla"),
    ((128, 1024, 33), 1, "float32", "float32", "cuda", "cuda", "xla", "xla"),
    ((256, 1024, 33), 1, "float32", "float32", "cuda", "cuda", "cuda", "cuda"),
    ((64, 1025, 9), 1, "float32", "float32", "cuda", "cuda", "xla", "xla"),
    ((64, 257, 9), 1, "float32", "float32", "xla", "xla", "xla", "xla"),
    ((64, 4096, 33), 1, "bfloat16", "bfloat16", "cuda", "cuda", "cuda", "cuda"),
    ((64, 4096, 129), 1, "bfloat16", "bfloat16", "cuda", "cuda", "xla", "xla"),
    ((64, 300, 129), 1, "bfloat16", "bfloat16", "xla", "xla", "xla", "xla"),
    ((64, 4096, 33), 1, "bfloat16", "float32", "xla", "xla", "xla", "xla"),
    ((16, 4096, 32), 1, "bfloat16", "bfloat16", "cuda", "cuda", "cuda", "cuda"),
    ((16, 4096, 24), 1, "bfloat16", "bfloat16", "cuda", "cuda", "xla", "xla"),
    ((32, 4096, 24), 1, "bfloat16", "bfloat16", "cuda", "cuda", "cuda", "cuda"),
    ((32, 8192, 24), 1, "bfloat16", "bfloat16", "cuda", "cuda", "xla", "xla"),
    ((16, 8192, 32), 1, "bfloat16", "bfloat16", "cuda", "cuda", "cuda", "xla"),
    ((16, 16384, 32), 1, "bfloat16", "bfloat16", "cuda", "cuda", "xla", "xla"),
    ((16, 16392, 32), 1, "bfloat16", "bfloat16", "xla", "xla", "xla", "xla"),
    ((512, 16392, 32), 1, "bfloat16", "bfloat16", "cuda", "cuda", "xla", "xla"),
    ((16, 3600, 32), 1, "bfloat16", "bfloat16", "cuda", "cuda", "cuda", "cuda"),
    ((15, 3600, 32), 1, "bfloat16", "bfloat16", "xla", "xla", "xla", "xla"),
    ((2, 2048, 64), 1, "bfloat16", "bfloat16", "cuda", "cuda", "xla", "xla"),
    ((64, 1800, 32), 1, "bfloat16", "bfloat16", "cuda", "cuda", "cuda", "cuda"),
    ((64, 1800, 8), 1, "bfloat16", "bfloat16", "xla", "cuda", "xla", "xla"),
    ((64, 1800, 7), 1, "bfloat16", "bfloat16", "xla", "cuda", "cuda", "cuda"),
    ((MANY, 28, 8), 1, "bfloat16", "bfloat16", "cuda", "cuda", "cuda", "cuda"),
    ((MANY, 28, 8), 1, "bfloat16", "float32", "xla", "xla", "xla", "xla"),
    ((64, 1025, 8), 1, "float32", "float32", "cuda", "cuda", "xla", "xla"),
    ((65, 256, 8), 1, "float32", "float32", "cuda", "cuda", "cuda", "cuda"),
    ((64, 1025, 16), 1, "float32", "float32", "cuda", "cuda", "cuda", "cuda"),
    ((64, 4096, 33), 1, "float64", "float64", "cuda", "cuda", "cuda", "cuda"),
    ((64, 1024, 16, 1, 1), 2, "float32", "float32", "xla", "xla", "xla", "xla"),
    ((16, MANY, 0), 0, "float32", "float32", "xla", "xla", "xla", "xla"),
]


@pytest.mark.parametrize("op", (*FORWARD, *GRADIENT))
@pytest.mark.parametrize("case", RULE, ids=str)
def test_the_rule(op, case):
    shape, axis, dtype, output_dtype, *expected = case
    problem = op, shape, axis, jnp.dtype(dtype), jnp.dtype(output_dtype)
    named = (*FORWARD, "softmax_tangent")
    chosen = expected[named.index(op) if op in named else -1]
    for flag in (None, False):
        assert choice_of(*problem, "cuda", batch_invariant=flag).implementation == chosen
    assert choice_of(*problem, "cuda", batch_invariant=True).implementation == "cuda"
    assert choice_of(*problem, "cpu").implementation == "cpu"


@pytest.mark.parametrize("op", FORWARD)
@pytest.mark.parametrize(
    "shape, dtypes, expected",
    [
        ((8, 16_384), ["bfloat16"], "split"),
        ((16, 16_384), ["float32"], "split"),
        ((17, 16_384), ["float32"], None),
        ((16, 16_380), ["float32"], None),
        ((16, 16_385), ["bfloat16"], None),
        ((16, 16_384), ["float16"], None),
        ((16, 16_384), ["bfloat16", "float32"], None),
        ((16, 32_768), ["float16"], "split"),
    ],
)
def test_few_rows_that_clusters_keep_may_be_split_from_fewer_columns_on(
    op, shape, dtypes, expected
):
    request = {"op": op, "device": "H200", "output_dtype": dtypes[-1]}
    problem = op, shape, 1, *(jnp.dtype(dtypes[i]) for i in (0, -1)), "cuda"
    shared = choice_of(*problem, alone=False)
    assert shared.batch_invariant == (shape[1] < 32_768)  # devices that share rows keep to it
    chosen, kept = (plan(shape, dtypes[0], batch_invariant=f, **request) for f in (None, True))
    assert chosen.strategy == (expected or kept.strategy) and kept.strategy != "split"
    if expected:
        assert chosen.implementation == "cuda"


@pytest.mark.parametrize("columns", [16_384, 50_000])
@pytest.mark.parametrize("op", (*FORWARD, *GRADIENT))
def test_many_rows_that_may_be_split_have_the_rule_of_others(op, columns):
    """As no plan splits them."""
    problem = op, (4096, columns), 1, *[jnp.dtype("float32")] * 2, "cuda"
    for around in (None, *_choice.AROUND):
        kept, free = (
            choice_of(*problem, around=around, batch_invariant=flag) for flag in (None, False)
        )
        assert free == kept
    few = op, (8, columns), *problem[2:]
    split = choice_of(*few, batch_invariant=False)
    assert split.batch_invariant == (columns == 16_384 and op in GRADIENT)


@pytest.mark.parametrize("op, most", [("cross_entropy_gradient", 2), ("absmax", 8)])
def test_on_a_cpu_the_shortest_rows_of_some_ops_are_xlas(op, most):
    def chosen(op, columns, platform):
        return choice_of(op, (MANY, columns), 1, *[jnp.dtype("float64")] * 2, platform)

    why = f"rows of {most}: XLA's vectors go across them"
    assert chosen(op, most, "cpu") == _choice.Choice("xla", why)
    assert chosen(op, most + 1, "cpu").implementation == "cpu"
    assert chosen(op, most, "cuda").implementation == "cuda"
    assert chosen("softmax", 1, "cpu").implementation == "cpu"


def test_few_long_rows_are_the_kernels_where_they_may_be_split():
    def chosen(batch_invariant, rows, op="softmax"):
        shape = (rows, 100_000)
        return plan(shape, "bfloat16", op=op, device="H200", batch_invariant=batch_invariant)

    for rows in (1, 8):
        kept = chosen(True, rows)
        assert (kept.implementation, kept.strategy) == ("cuda", "ring")
        for op in (*FORWARD, *GRADIENT, "logsumexp"):
            flags = (None, False) if op in (*FORWARD, "logsumexp") else (False,)
            for flag in flags:
                split = chosen(flag, rows, op)
                assert (split.implementation, split.strategy) == ("cuda", "split")
        for op in GRADIENT:
            assert chosen(None, rows, op).implementation == "xla"
    # Of more rows the plan is that of any number.
    assert chosen(None, 16).strategy == "split"
    assert chosen(None, 17).strategy == chosen(True, 17).strategy == "ring"
    # Masked rows are never split, nor are those along another axis.
    assert chosen(False, 8, "masked_softmax").implementation == "xla"
    other = plan((1, 40_000, 8), "float32", 1, batch_invariant=False, device="H200")
    assert other.implementation == "xla"
    assert chosen(None, 8, "softmax_tangent").implementation == "xla"
    assert chosen(None, 9, "softmax_tangent").implementation == "cuda"
    # Of a value each, one for 1,024 of their columns.
    assert chosen(None, 97, "logsumexp").strategy == "split"
    assert chosen(None, 98, "logsumexp").strategy == chosen(True, 1, "logsumexp").strategy
    # Of more bytes than so many, the plan does not split them all the same.
    for rows, expected in ((4, "split"), (5, "ring")):
        longer = plan((rows, 10**6), "float32", device="H200")
        assert (longer.implementation, longer.strategy) == ("cuda", expected)
    assert chosen(None, 0).implementation == "xla"
    # Along another axis none is split, and none of them are the kernels'.
    along_another = plan((40_001, 7), "float64", 0, op="logsumexp", device="H200")
    assert along_another.implementation == "xla"


OTHER_OPS = [  # op, shape, axis, expected
    ("logsumexp", (MANY, 4), 1, "xla"),
    ("logsumexp", (MANY, 5), 1, "cuda"),
    ("logsumexp", (64, 8, 4096), 1, "xla"),
    ("logsumexp", (64, 9, 4096), 1, "cuda"),
    ("logsumexp", (64, 2048, 33), 1, "cuda"),
    ("logsumexp", (512, 512, 2), 1, "xla"),
    ("logsumexp", (41, 512, 25), 1, "cuda"),
    ("logsumexp", (31, 511, 33), 1, "cuda"),
    ("logsumexp", (31, 2048, 32), 1, "cuda"),
    ("logsumexp", (64, 1024, 8), 1, "cuda"),
    ("logsumexp", (64, 2049, 33), 1, "xla"),
    ("logsumexp", (2**13, 2049, 2), 1, "cuda"),
    ("logsumexp", (2**13 - 1, 2049, 2), 1, "xla"),
    ("logsumexp", (8, 2**20), 1, "cuda"),
    ("masked_softmax_tangent", (MANY, 256), 1, "cuda"),
    ("masked_log_softmax_tangent", (MANY, 256), 1, "cuda"),
    ("masked_log_softmax_cotangent", (MANY, 256), 1, "cuda"),
    ("masked_log_softmax_cotangent", (8, 9), 1, "xla"),
    ("selected_log_softmax_tangent", (MANY, 1024), 1, "xla"),
    ("selected_log_softmax_cotangent", (64, 5000), 1, "xla"),
    ("selected_log_softmax_cotangent", (64, 1024, 64), 1, "xla"),
    ("masked_softmax", (8, 16, 2048, 2048), 3, "cuda"),
    ("masked_softmax", (8, 16, 2048, 2048), 2, "xla"),
    ("masked_softmax", (MANY, 31), 1, "xla"),
    ("masked_softmax", (MANY, 32), 1, "cuda"),
    ("masked_log_softmax", (1024, 1024), 1, "xla"),
    ("masked_log_softmax", (3073, 1024), 1, "cuda"),
    ("masked_log_softmax", (400, 5000), 1, "cuda"),
    ("masked_softmax", (12, 20_000), 1, "xla"),
    ("masked_softmax", (13, 20_000), 1, "cuda"),
    ("biased_softmax", (MANY, 31), 1, "xla"),
    ("biased_log_softmax", (MANY, 129), 1, "cuda"),
    ("biased_softmax", (MANY, 66), 1, "cuda"),
    ("biased_softmax", (MANY, 50), 1, "cuda"),
    ("biased_softmax", (12, 20_000), 1, "xla"),
    ("biased_softmax", (64, 512, 256), 1, "cuda"),
    ("biased_softmax", (64, 513, 256), 1, "xla"),
    ("biased_softmax", (512, 31, 256), 1, "xla"),
    ("biased_softmax", (1, 512, 33), 1, "xla"),
    ("absmax", (8, 9), 1, "cuda"),
    ("absmax", (4, 131_072), 1, "cuda"),
]


@pytest.mark.parametrize("op, shape, axis, expected", OTHER_OPS, ids=str)
def test_the_rule_of_other_ops(op, shape, axis, expected):
    for dtype in map(jnp.dtype, ("bfloat16", "float32")):
        problem = op, shape, axis, dtype, dtype
        assert choice_of(*problem, "cuda").implementation == expected
        assert choice_of(*problem, "cuda", batch_invariant=True).implementation == "cuda"
        assert choice_of(*problem, "cpu").implementation == "cpu"


@pytest.mark.parametrize("op", FORWARD)
def test_with_what_comes_before_it_float32_is_xlas(op):
    def chosen(shape, axis=1, dtype="float32", output_dtype=None, **seen):
        dtypes = [jnp.dtype(dtype), jnp.dtype(output_dtype or dtype)]
        seen |= {"around": "fused"}
        return choice_of(op, shape, axis, *dtypes, "cuda", **seen).implementation

    across = {"softmax": 128, "log_softmax": 256}[op]
    assert chosen((1000, 50_000)) == chosen((64, across, 1024)) == "xla"
    assert chosen((64, across - 1, 1024)) == chosen((64, 1024, 33)) == "cuda"
    assert chosen((16, 50_000)) == chosen((1000, 50_000), batch_invariant=True) == "cuda"
    for dtypes in (("bfloat16", "bfloat16"), ("float32", "float16"), ("float64", "float64")):
        assert chosen((1000, 50_000), 1, *dtypes) == chosen((64, 1024, 1024), 1, *dtypes) == "cuda"


RETURNED = [  # columns, dtypes, and whose it is
    (3, "float32", "float32", "cuda"),
    (4, "bfloat16", "float32", "xla"),
    (5, "bfloat16", "bfloat16", "cuda"),
    (8, "float32", "bfloat16", "xla"),
    (8, "bfloat16", "bfloat16", "xla"),
    (64, "bfloat16", "float32", "cuda"),
    (144, "float16", "float16", "cuda"),
    (144, "float16", "float32", "xla"),  # which have no tiles
    (144, "float32", "float16", "xla"),
    (512, "float32", "float32", "cuda"),
    (1001, "bfloat16", "float32", "cuda"),
    (4096, "float32", "bfloat16", "cuda"),
    (4096, "bfloat16", "bfloat16", "cuda"),
    (50_257, "bfloat16", "float32", "cuda"),
]


@pytest.mark.parametrize("op", FORWARD)
@pytest.mark.parametrize("case", RETURNED, ids=str)
def test_what_a_program_returns_is_mostly_the_kernels(op, case):
    columns, dtype, output_dtype, expected = case
    problem = op, (2**25 // columns, columns), 1, jnp.dtype(dtype), jnp.dtype(output_dtype), "cuda"
    choose = functools.partial(choice_of, read="returned")
    assert choose(*problem, around="apart").implementation == expected
    if dtype == output_dtype:
        assert choose(*problem, around="apart", biased=True).implementation == expected
    else:
        assert choose(*problem, widened=True).implementation == expected
    # Not after what XLA has within its own code, nor along another axis.
    assert choose(*problem, around="fused") == choice_of(*problem, around="fused")
    across = op, (2**25 // columns, columns, 2), *problem[2:]
    assert choose(*across, around="apart") == choice_of(*across, around="apart")


def test_what_a_program_returns_is_xlas_where_a_launch_is_most_of_it():
    def chosen(op, dtype, rows, columns, **kwargs):
        problem = op, (rows, columns), 1, *[jnp.dtype(dtype)] * 2, "cuda"
        kwargs = {"around": "apart", "read": "returned"} | kwargs
        return choice_of(*problem, **kwargs).implementation

    for op in FORWARD:
        assert chosen(op, "float32", 4096, 1024) == chosen(op, "bfloat16", 64, 1024) == "xla"
        assert chosen(op, "float32", 4097, 1024) == chosen(op, "bfloat16", 65, 1024) == "cuda"
        assert chosen(op, "float32", 2**13, 1002, around="product") == "cuda"
        assert chosen(op, "float64", 2**20, 16) == "xla"


@pytest.mark.parametrize("op", FORWARD)
@pytest.mark.parametrize("dtype, output_dtype", [("bfloat16", "float32"), ("float32", "bfloat16")])
def test_few_long_rows_that_a_program_returns_may_be_split(op, dtype, output_dtype):
    def chosen(rows, columns):
        problem = op, (rows, columns), 1, jnp.dtype(dtype), jnp.dtype(output_dtype), "cuda"
        return choice_of(*problem, around="apart", read="returned")

    for rows, columns in ((1, 2**23), (16, 300_000), (2, 2**15)):
        assert chosen(rows, columns)[::2] == ("cuda", False)
    assert chosen(17, 300_000)[::2] == chosen(2**10, 50_257)[::2] == ("cuda", True)


READ_ALONE = [  # how, op, rows, columns, dtype, and who makes it
    ("picked", "log_softmax", 2**15, 8, "float32", "xla"),
    ("picked", "log_softmax", 2**15, 9, "float32", "pairs"),
    ("picked", "log_softmax", 2**13, 4096, "float32", "pairs"),
    ("picked", "log_softmax", 50, 50_257, "float32", "pairs"),
    ("picked", "log_softmax", 49, 50_257, "float32", "cuda"),  # a block has each row
    ("picked", "log_softmax", 2**12, 128, "bfloat16", "cuda"),
    ("picked", "log_softmax", 2**10, 128, "bfloat16", "xla"),
    ("picked", "softmax", 2**13, 64, "float16", "xla"),
    ("picked", "softmax", 2**13, 128, "float16", "cuda"),
    ("picked", "softmax", 2**7, 1024, "float32", "xla"),
    ("picked", "softmax", 2**13, 1024, "float32", "cuda"),
    ("reduced", "softmax", 2**13, 4096, "float32", "xla"),
    ("reduced", "softmax", 2**13, 16_384, "float32", "xla"),
    ("reduced", "softmax", 2**13, 16_385, "float32", "cuda"),
    ("reduced", "softmax", 2**13, 10_000, "bfloat16", "xla"),
    ("reduced", "log_softmax", 2**13, 4100, "bfloat16", "cuda"),
    ("reduced", "log_softmax", 2**13, 8192, "bfloat16", "xla"),
    ("reduced", "log_softmax", 2**13, 1024, "bfloat16", "cuda"),
    ("reduced", "log_softmax", 2**13, 4096, "bfloat16", "xla"),
    ("reduced", "log_softmax", 2**13, 512, "float32", "xla"),
    ("reduced", "log_softmax", 2**13, 513, "float32", "pairs"),
    ("reduced", "log_softmax", 2**13, 1024, "float32", "pairs"),
    ("reduced", "log_softmax", 2**13, 4096, "float32", "xla"),
    ("reduced", "log_softmax", 2**13, 4097, "float32", "pairs"),
    ("reduced", "log_softmax", 2**12, 8192, "float32", "xla"),
    ("reduced", "log_softmax", 2**12, 2**14, "float32", "xla"),
    ("reduced", "log_softmax", 2**12, 2**14 + 1, "float32", "pairs"),
    ("summed", "log_softmax", 2**18, 15, "float32", "xla"),
    ("summed", "log_softmax", 2**18, 16, "float32", "pairs"),
    ("summed", "log_softmax", 2**15, 64, "float32", "pairs"),
    ("summed", "log_softmax", 2**13, 4096, "float32", "pairs"),
    ("summed", "log_softmax", 2**13, 4097, "float32", "pairs"),
    ("summed", "log_softmax", 2**13, 8192, "float32", "xla"),
    ("summed", "log_softmax", 2**11, 16_384, "float32", "pairs"),
    ("summed", "log_softmax", 2**13, 16_384, "float32", "xla"),  # rows first
    ("summed", "log_softmax", 2**11, 8192, "float32", "pairs"),
    ("sums", "log_softmax", 2**12, 8192, "float32", "pairs"),
    ("summed", "log_softmax", 2**13, 1024, "bfloat16", "cuda"),
    ("summed", "log_softmax", 2**13, 4096, "bfloat16", "xla"),
    ("summed", "softmax", 2**13, 4096, "float32", "xla"),
    ("across", "softmax", 2**13, 512, "bfloat16", "cuda"),
    ("across", "softmax", 2**13, 512, "float32", "xla"),
    ("across", "log_softmax", 2**13, 8192, "float32", "pairs"),
]


GATED = [  # the same where XLA makes something of each element
    ("elements", "softmax", 2**13, 4096, "bfloat16", "xla"),
    ("elements", "softmax", 2**13, 4097, "bfloat16", "xla"),
    ("elements", "softmax", 2**13, 16_383, "float16", "xla"),
    ("elements", "softmax", 2**13, 16_384, "bfloat16", "cuda"),
    ("elements", "softmax", 2**13, 16_384, "float32", "xla"),
    ("elements", "softmax", 2**9, 65_537, "bfloat16", "xla"),
    ("elements", "softmax", 2**9, 65_538, "float32", "xla"),
    ("elements", "softmax", 2**9, 65_540, "float32", "cuda"),
    ("elements", "softmax", 2**9, 8192, "float32", "xla"),
    ("elements", "log_softmax", 2**13, 4100, "bfloat16", "cuda"),
    ("elements", "log_softmax", 2**13, 8192, "bfloat16", "xla"),
    ("elements", "log_softmax", 2**13, 8192, "float32", "xla"),
    ("elements", "log_softmax", 2**9, 65_536, "float32", "pairs"),
    ("elements", "log_softmax", 2**6, 65_536, "float32", "cuda"),
    ("converted", "softmax", 2**13, 8192, "bfloat16", "xla"),
    ("converted", "softmax", 2**9, 65_537, "bfloat16", "cuda"),
    ("converted", "log_softmax", 2**9, 65_537, "float32", "pairs"),
    ("weighed", "softmax", 2**13, 16_384, "bfloat16", "xla"),
    ("weighed", "softmax", 2**9, 65_537, "bfloat16", "cuda"),
    ("weighed", "softmax", 2**9, 65_536, "float32", "xla"),
    ("weighed", "softmax", 2**11, 17_000, "float32", "cuda"),
    ("weighed", "log_softmax", 2**13, 16_384, "bfloat16", "xla"),
    ("weighed", "log_softmax", 2**13, 16_384, "float32", "xla"),
    ("weighed", "log_softmax", 2**9, 65_537, "float32", "pairs"),
    ("weighed", "log_softmax", 2**13, 499, "float32", "xla"),
    ("weighed", "log_softmax", 2**14, 512, "float32", "pairs"),
    ("weighed", "log_softmax", 2**13, 2048, "float32", "xla"),
    ("weighed sum", "log_softmax", 2**18, 16, "float32", "xla"),
    ("weighed sum", "log_softmax", 2**18, 24, "float32", "pairs"),
    ("weighed sum", "log_softmax", 2**18, 32, "float32", "xla"),
    ("weighed sum", "log_softmax", 2**13, 512, "float32", "pairs"),
    ("weighed sum", "log_softmax", 2**15, 1024, "float32", "xla"),
    ("weighed sum", "log_softmax", 2**13, 4096, "float32", "pairs"),
    ("weighed sum", "log_softmax", 2**12, 8192, "float32", "xla"),  # rows first
    ("weighed sum", "log_softmax", 2**14, 8192, "float32", "pairs"),
    ("weighed sum", "log_softmax", 2**9, 65_537, "float32", "pairs"),
]
NARROW = [  # the same of 16 bits that the program has in float32
    ("picked", "log_softmax", 2**15, 8, "xla"),
    ("picked", "log_softmax", 2**15, 10, "pairs"),
    ("picked", "log_softmax", 2**15, 16, "pairs"),
    ("picked", "log_softmax", 2**15, 17, "pairs"),
    ("picked", "log_softmax", 2**12, 1000, "pairs"),
    ("picked", "log_softmax", 2**12, 998, "pairs"),
    ("picked", "log_softmax", 2**12, 1001, "pairs"),
    ("picked", "softmax", 2**12, 31, "xla"),
    ("picked", "softmax", 2**17, 32, "xla"),
    ("picked", "softmax", 2**12, 1001, "xla"),
    ("picked", "softmax", 2**12, 14_001, "xla"),
    ("picked", "softmax", 2**12, 14_002, "pairs"),
    ("summed", "log_softmax", 2**18, 16, "pairs"),
    ("summed", "log_softmax", 2**14, 253, "pairs"),
    ("summed", "log_softmax", 2**14, 250, "pairs"),
    ("summed", "log_softmax", 2**13, 100, "pairs"),
    ("summed", "softmax", 2**15, 72, "xla"),
    ("reduced", "log_softmax", 2**15, 512, "xla"),
    ("reduced", "log_softmax", 2**15, 513, "pairs"),
    ("reduced", "log_softmax", 2**15, 100, "pairs"),
    ("reduced", "log_softmax", 2**15, 1536, "pairs"),
    ("reduced", "log_softmax", 2**15, 2000, "xla"),
    ("reduced", "softmax", 2**15, 512, "xla"),
    ("reduced", "log_softmax", 2**12, 5000, "xla"),
    ("reduced", "log_softmax", 2**12, 4200, "pairs"),
    ("reduced", "log_softmax", 2**12, 2**14, "xla"),
    ("reduced", "log_softmax", 2**12, 2**14 + 1, "pairs"),
    ("reduced", "softmax", 2**12, 2**14, "xla"),
    ("summed", "log_softmax", 2**13, 8192, "xla"),  # rows first
    ("summed", "log_softmax", 2**13, 8200, "pairs"),
    ("summed", "softmax", 2**14, 8192, "xla"),
    ("weighed sums", "log_softmax", 2**12, 8192, "pairs"),
    ("summed", "log_softmax", 2**10, 1024, "xla"),  # rows first, and few
    ("weighed", "log_softmax", 2**15, 1024, "xla"),
    ("weighed", "log_softmax", 2**15, 3000, "pairs"),
    ("weighed", "log_softmax", 2**15, 189, "pairs"),
    ("weighed", "log_softmax", 2**15, 100, "xla"),
    ("weighed sum", "log_softmax", 2**18, 24, "xla"),
    ("weighed sum", "log_softmax", 2**18, 18, "pairs"),
    ("weighed sum", "log_softmax", 2**18, 32, "pairs"),
    ("weighed sum", "softmax", 2**13, 1024, "xla"),
    ("weighed sum", "log_softmax", 2**12, 8192, "xla"),
    ("weighed sum", "log_softmax", 2**14, 8192, "pairs"),
    ("weighed", "log_softmax", 2**12, 14_000, "xla"),
    ("weighed", "log_softmax", 2**12, 14_001, "pairs"),
    ("weighed", "softmax", 2**12, 2**14, "xla"),
    ("elements", "log_softmax", 2**13, 1024, "xla"),
    *((read, "log_softmax", 2**12, 8192, "xla") for read in ("converted", "elements")),
    *((read, "log_softmax", 2**12, 14_001, "xla") for read in ("converted", "elements")),
    *((read, "log_softmax", 2**12, 14_002, "pairs") for read in ("converted", "elements")),
    ("converted", "softmax", 2**12, 14_001, "xla"),
    ("converted", "softmax", 2**12, 14_002, "pairs"),
    ("converted", "softmax", 2**12, 2**14 + 1, "pairs"),
    (None, "softmax", 2**13, 1024, "xla"),
]


def _alone(case):
    """The problem of such a case, with nothing before it, and what is chosen as is expected."""
    read, op, rows, columns, dtype, expected = case
    problem = op, (rows, columns), 1, *[jnp.dtype(dtype)] * 2, "cuda"
    choice = choice_of(*problem, around="apart", read=read)
    assert ("pairs" if choice.pairs else choice.implementation) == expected
    return problem, choice


@pytest.mark.parametrize("case", NARROW, ids=str)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bits_in_float32_go_by_how_they_are_read(case, dtype):
    read, op, rows, columns, expected = case
    problem = (rows, columns), 1, jnp.dtype(dtype), jnp.dtype("float32"), "cuda"
    choice = choice_of(op, *problem, widened=True, read=read)
    assert ("pairs" if choice.pairs else choice.implementation) == expected
    unknown = choice_of(op, *problem, widened=True)
    longest = columns > 14_001 or (op == "log_softmax" and columns > 4096)
    assert unknown.pairs == longest
    if expected == "pairs" and not longest:
        few = choice_of(op, (2**17 // columns, columns), *problem[1:], widened=True, read=read)
        assert not few.pairs


@pytest.mark.parametrize("case", GATED, ids=str)
def test_what_a_program_reads_by_elements_goes_by_how(case):
    read, _, _, columns, *_, expected = case
    problem, _ = _alone(case)
    unknown_product = choice_of(*problem, around="product")
    if expected == "xla":  # with what it has before it, too, but for products
        for seen in ({"around": "fused"}, {"around": "apart", "biased": True}):
            assert choice_of(*problem, read=read, **seen).implementation == "xla"
        product = choice_of(*problem, around="product", read=read)
        # A sum that begins with rows else: no code of XLA's has products within it.
        assert product.pairs if "sum" in read and columns == 8192 else product == unknown_product
    assert choice_of(*problem, read=read) == choice_of(*problem)
    assert choice_of(*problem, around="apart", read=read, batch_invariant=True)[::2] == (
        "cuda",
        True,
    )


CACHED = [  # the same of few elements: alone, and where XLA makes the logits
    ("elements", "softmax", 16, 8192, "float32", "xla", "xla"),
    ("converted", "softmax", 32, 4097, "bfloat16", "xla", "xla"),
    ("elements", "softmax", 2**7, 16_384, "bfloat16", "cuda", "cuda"),
    ("elements", "softmax", 17, 16_384, "float32", "xla", "xla"),
    ("elements", "softmax", 2**3, 16_384, "float32", "xla", "xla"),
    ("elements", "softmax", 2**3, 16_384, "bfloat16", "cuda", "cuda"),  # may be split
    ("elements", "softmax", 2**5, 50_256, "float32", "cuda", "cuda"),
    ("reduced", "softmax", 2**5, 8200, "float64", "cuda", "cuda"),
    ("elements", "softmax", 2**5, 8192, "float64", "cuda", "cuda"),
    ("elements", "softmax", 2**3, 128_256, "bfloat16", "cuda", "cuda"),
    ("converted", "log_softmax", 2**6, 8192, "bfloat16", "xla", "xla"),
    ("weighed", "log_softmax", 900, 4100, "bfloat16", "xla", "xla"),
    ("weighed", "log_softmax", 1100, 4100, "bfloat16", "cuda", "cuda"),
    ("weighed", "log_softmax", 2**6, 9000, "float32", "xla", "xla"),
    ("elements", "log_softmax", 80, 50_256, "bfloat16", "cuda", "cuda"),
]


@pytest.mark.parametrize("case", CACHED, ids=str)
def test_few_elements_that_are_read_go_by_what_makes_the_logits(case):
    *alone, fused = case
    problem, _ = _alone(alone)
    read = {"read": case[0]}
    assert choice_of(*problem, around="apart", biased=True, **read).implementation == fused
    if fused == "xla":
        assert choice_of(*problem, around="fused", **read).implementation == "xla"
    if alone[-1] == "xla":  # but for products, and what is asked for
        for seen in ({"around": "product"}, {"around": None}, {"batch_invariant": True}):
            assert choice_of(*problem, **seen, **read) == choice_of(*problem, **seen)
        splits = choice_of(*problem, around="apart", batch_invariant=False, **read)
        assert splits.implementation == "xla"
        (op, shape, *_), dtype = problem, jnp.dtype("bfloat16" if "32" in case[4] else "float32")
        others = (op, shape[::-1], 0, *problem[3:]), (op, shape, 1, problem[3], dtype, "cuda")
        for other in others:
            alike = choice_of(*other, around="apart", **read)
            assert alike == choice_of(*other, around="apart")


@pytest.mark.parametrize("op", FORWARD)
def test_classes_along_another_axis_that_labels_pick_from_are_xlas_if_it_unrolls_them(op):
    def chosen(classes, dtype="float32", **seen):
        problem = op, (16, classes, 2**18), 1, *[jnp.dtype(dtype)] * 2, "cuda"
        return choice_of(*problem, around="apart", **seen).implementation

    for dtype in ("float32", "bfloat16"):
        assert chosen(2, dtype, read="picked") == chosen(4, dtype, read="picked") == "xla"
        assert chosen(5, dtype, read="picked") == chosen(2, dtype, read="returned") == "cuda"
        assert chosen(2, dtype) == "cuda"
        kept = chosen(2, dtype, read="picked", batch_invariant=True)
        assert kept == "cuda"


@pytest.mark.parametrize("case", READ_ALONE, ids=str)
def test_what_a_program_reads_goes_by_how(case):
    read, op, rows, columns, dtype, expected = case
    problem, choice = _alone(case)
    # After a product a sum may be another product.
    scores = choice_of(*problem, around="product", read=read)
    unknown = choice_of(*problem, around="product")
    long = op == "log_softmax" and dtype == "float32" and 4096 < columns <= 2**14
    if long and expected == "xla":
        assert scores.pairs  # which XLA's code would be faster than, elsewhere
    else:
        assert scores == (unknown if expected == "xla" else choice)
    wide = *problem[:4], jnp.dtype("float64"), "cuda"
    assert choice_of(*wide, around="apart", read=read) == choice_of(*wide, around="apart")
    assert choice_of(*problem, read=read) == choice_of(*problem)
    for seen in ({"around": "fused"}, {"around": "apart", "biased": True}):
        chosen = choice_of(*problem, read=read, **seen)
        sums = read in ("summed", "sums")
        fuses = columns >= 2**13 if sums else columns > 4096 and expected == "xla"
        if (sums or read == "reduced") and fuses:  # what is before it, too
            assert chosen.implementation == "xla"
        else:
            assert chosen == choice_of(*problem, **seen)
    across = op, (rows, columns, 3), *problem[2:]
    assert choice_of(*across, around="apart", read=read) == choice_of(*across, around="apart")


@pytest.mark.parametrize("columns", [15, 17, 33, 34, 45, 67, 257, 260, 513])
def test_with_nothing_before_them_rows_that_xla_reads_singly_are_the_kernels(columns):
    problem = "softmax", (MANY, columns), 1, *[jnp.dtype("float32")] * 2, "cuda"
    kernels = "cuda" if columns in (17, 33, 67, 257) else "xla"
    in_both = "cuda" if columns == 513 else kernels
    for around in ("apart", "product"):
        assert choice_of(*problem, around=around).implementation == kernels
        both = choice_of(*problem, around=around, differentiated=True)
        assert both.implementation == in_both
    assert choice_of(*problem, around="fused").implementation == "xla"
    worst = "cuda" if columns == 67 else "xla"
    wide = *problem[:3], jnp.dtype("bfloat16"), *problem[4:]
    assert choice_of(*wide, around="apart").implementation == "xla"
    derivative = "softmax_tangent", *problem[1:]
    for around in ("fused", "scaled"):
        assert choice_of(*derivative, around=around).implementation == worst


# By what is before them, and whether a kernel adds a bias.
PRECEDED = (("apart", ""), ("product", ""), ("fused", ""), ("fused", "biased"))


@pytest.mark.parametrize(
    "columns, kernels",
    [(65, 4), (79, 4), (82, 0), (83, 2), (111, 2), (197, 2), (305, 2), (1001, 2)],
)
def test_rows_that_xla_reads_singly_are_the_kernels_both_ways(columns, kernels):
    def chosen(around, way, differentiated):
        problem = "softmax", (MANY, columns), 1, *[jnp.dtype("float32")] * 2, "cuda"
        seen = {way: True} if way else {}
        seen |= {"around": around, "differentiated": differentiated}
        return choice_of(*problem, **seen).implementation

    ours = [chosen(*before, True) for before in PRECEDED]
    assert ours == ["cuda"] * kernels + ["xla"] * (4 - kernels)
    if columns != 65:
        assert {chosen(*before, False) for before in PRECEDED} == {"xla"}


TOGETHER = (12, 20, 28, 36, 100, 500, 1020)  # that XLA reads by fours: 8 bytes


@pytest.mark.parametrize("op", FORWARD)
@pytest.mark.parametrize(
    "columns", [6, 8, 9, 10, 15, 22, 50, 66, 68, 132, 516, 1002, 1026, 1028, *TOGETHER]
)
def test_rows_that_xla_reads_some_at_a_time_are_its_own_after_what_it_fuses(op, columns):
    def chosen(around, dtype="bfloat16", **seen):
        problem = op, (MANY, columns), 1, *[jnp.dtype(dtype)] * 2, "cuda"
        return choice_of(*problem, around=around, **seen).implementation

    together = columns in TOGETHER or (op == "softmax" and columns in (10, 22, 50, 1002))
    fused = "xla" if together or columns == 8 else "cuda"
    assert chosen("fused") == chosen("fused", "float16") == fused
    assert chosen("apart") == ("xla" if columns == 8 else "cuda")
    assert chosen("fused", batch_invariant=True) == "cuda"
    # Kernels add a bias to longer ones.
    assert chosen("fused", differentiated=True) == (fused if columns < 32 else "cuda")


ROUNDED = {  # columns of 16 bits that XLA makes of more within its code, and whose each op is
    (6, 14, 50, 68, 250, 1000, 1002): {"softmax": "xla", "log_softmax": "xla"},
    (13, 29, 197, 375): {"softmax": "xla", "log_softmax": "cuda"},
    (577, 1001, 1501): {"softmax": "xla", "log_softmax": "xla"},
    (17, 33, 65, 66, 521, 1026): {"softmax": "cuda", "log_softmax": "cuda"},  # mostly padding
}


@pytest.mark.parametrize("op", FORWARD)
@pytest.mark.parametrize("columns, expected", [(c, e) for all, e in ROUNDED.items() for c in all])
def test_rows_that_are_rounded_to_16_bits_are_xlas_where_it_reads_fast(op, columns, expected):
    problem = op, (MANY, columns), 1, *[jnp.dtype("bfloat16")] * 2, "cuda"
    for differentiated in (False, True):
        seen = {"around": "narrowed", "differentiated": differentiated}
        assert choice_of(*problem, **seen).implementation == expected[op]
    assert choice_of(*problem, **seen, batch_invariant=True).implementation == "cuda"


@pytest.mark.parametrize("columns", [10, 18, 22, 34, 150])
def test_rows_that_are_made_float32_are_xlas_where_it_reads_pairs(columns):
    def chosen(columns, output="float32", **seen):
        problem = "log_softmax", (MANY, columns), 1, *map(jnp.dtype, ("bfloat16", output))
        return choice_of(*problem, "cuda", **seen).implementation

    assert chosen(columns, widened=True) == "xla"
    assert chosen(columns + 1, widened=True) == chosen(columns) == "cuda"
    assert chosen(columns, around="fused") == "cuda"
    # What goes back to 16 bits at once is no such thing.
    assert chosen(columns, "bfloat16", widened=True) == "cuda"


PRODUCTS = [  # an op and columns of 16 bits, and whose they are where a matrix product made them
    ("softmax", 64, "xla"),
    ("softmax", 80, "xla"),
    ("softmax", 144, "cuda"),
    ("softmax", 256, "xla"),
    ("softmax", 512, "cuda"),
    ("softmax", 4096, "cuda"),
    ("log_softmax", 80, "xla"),
    ("log_softmax", 2048, "xla"),
    # Padded to the product.
    ("softmax", 65, "cuda"),
    ("softmax", 100, "cuda"),
    ("softmax", 1001, "cuda"),
    ("log_softmax", 187, "cuda"),
    ("log_softmax", 1500, "cuda"),
]


@pytest.mark.parametrize("op, columns, expected", PRODUCTS)
def test_scores_go_by_what_mostly_reads_them(op, columns, expected):
    problem = op, (MANY, columns), 1, *[jnp.dtype("bfloat16")] * 2, "cuda"
    assert choice_of(*problem, around="product").implementation == expected
    other = *problem[:3], *[jnp.dtype("float32")] * 2, "cuda"
    same = [choice_of(*other, around=around) for around in ("apart", "product")]
    assert same[0] == same[1]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_terms_are_the_kernels_but_for_masks_that_are_not_tiled_of_what_xla_may_read(dtype):
    def kernel(rows, columns, masked=True, **seen):
        problem = _choice.Problem("softmax", (rows, columns), 1, *[jnp.dtype(dtype)] * 2, "cuda")
        request = {"tiled": False, "product": False, "read": None, "differentiated": False}
        return _revision.prefers_terms(problem, masked=masked, **request | seen)

    for rows, columns in ((2**15, 49), (2**10, 1024)):
        assert kernel(rows, columns, tiled=True) and kernel(rows, columns, masked=False)
        assert not kernel(rows, columns)
    assert kernel(2**10, 4097) and kernel(2**9, 4097) == (dtype == "bfloat16")
    assert kernel(2**15, 1024, product=True) and kernel(2**15, 1024, read="returned")
    assert not kernel(2**15, 1024, read="elements")
    assert kernel(2**15, 1024, differentiated=True) == (dtype == "bfloat16")
    assert kernel(2**10, 1024, read="returned") == (dtype == "bfloat16")  # of few elements


def test_the_derivative_behind_a_mask_is_a_kernels_by_its_rows():
    def keeps(columns, dtype, **tiled):
        dtypes = [jnp.dtype(dtype)] * 2
        problem = _choice.Problem("softmax", (MANY, columns), 1, *dtypes, "cuda")
        return _revision.keeps_masked(problem, **tiled)

    for tiled in (False, True):
        assert keeps(200, "bfloat16", tiled=tiled) == tiled
        assert keeps(1024, "bfloat16", tiled=tiled) == keeps(256, "float32", tiled=tiled) == tiled
        assert not keeps(197, "bfloat16", tiled=tiled) and not keeps(200, "float32", tiled=tiled)
        assert not keeps(576, "bfloat16", tiled=tiled)
        assert not keeps(jax.export.symbolic_shape("n")[0], "bfloat16", tiled=tiled)


IN_BOTH = [  # columns, dtype, and who has softmax's forward pass where there is a derivative
    (120, "bfloat16", "xla"),
    (136, "bfloat16", "cuda"),
    (192, "bfloat16", "xla"),
    (256, "float16", "xla"),
    (512, "float16", "cuda"),
    (4096, "bfloat16", "cuda"),
    (1024, "float32", "xla"),
]


@pytest.mark.parametrize("columns, dtype, expected", IN_BOTH)
def test_with_a_kernels_derivative_softmax_of_16_bits_is_the_kernels(columns, dtype, expected):
    problem = "softmax", (MANY // 1000, columns), 1, *[jnp.dtype(dtype)] * 2, "cuda"
    chosen = functools.partial(choice_of, *problem, differentiated=True)
    assert chosen(around="apart").implementation == expected
    assert chosen().implementation == chosen(around="fused").implementation == "xla"
    # So it is where it is not likely how the result is read: by a matrix product, say.
    assert choice_of(*problem, around="apart").implementation == expected
    assert choice_of(*problem, around="apart", read="reduced").implementation == "xla"
    # Log-softmax's but for a power of two, which these are.
    log = choice_of("log_softmax", *problem[1:], around="apart")
    assert log == choice_of("log_softmax", *problem[1:], around="apart", differentiated=True)
    padded = "log_softmax", (MANY // 1000, 1000), 1, *[jnp.dtype(dtype)] * 2, "cuda"
    log = choice_of(*padded, around="apart", differentiated=True)
    assert log.implementation == ("xla" if dtype == "float32" else "cuda")


@pytest.mark.parametrize("op", FORWARD)
@pytest.mark.parametrize("columns", [136, 1024, 50_257])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_derivative_of_what_a_kernel_multiplied_is_xlas(op, columns, dtype):
    for derivative in (BACKWARD[op], f"masked_{BACKWARD[op]}"):
        for shape in ((MANY // 1000, columns), (8, MANY // 1000, columns)):
            problem = derivative, shape, len(shape) - 1, *[jnp.dtype(dtype)] * 2, "cuda"
            assert choice_of(*problem, around="stored").implementation == "xla"


ADDED = [  # op, columns, dtype, and who adds a bias
    ("softmax", 256, "bfloat16", "xla"),
    ("softmax", 4096, "float32", "xla"),
    ("softmax", 8192, "bfloat16", "cuda"),
    ("log_softmax", 4096, "float16", "xla"),
    ("log_softmax", 50_257, "float32", "cuda"),
]


@pytest.mark.parametrize("case", ADDED, ids=str)
def test_a_bias_that_kernels_add_has_a_rule(case):
    op, columns, dtype, expected = case
    problem = op, (MANY // 1000, columns), 1, *[jnp.dtype(dtype)] * 2, "cuda"
    forward = functools.partial(choice_of, *problem, around="apart", biased=True)
    assert {forward(differentiated=flag).implementation for flag in (False, True)} == {expected}
    for around in ("fused", None):  # XLA may have what made the logits within its own code
        alike = choice_of(*problem, biased=True, differentiated=True, around=around)
        short = columns <= 4096
        assert alike.implementation == "xla" if short or (around and "32" in dtype) else "cuda"
    assert forward(batch_invariant=True).implementation == "cuda"
    for read in ("picked", "across"):
        assert forward(read=read) == forward()
    if 4096 < columns <= 2**14:  # one kernel of XLA's
        assert forward(read="reduced").implementation == "xla"
    else:
        assert forward(read="reduced") == forward()


BIASED_AND_REDUCED = [  # rows, columns, dtype, and what is chosen of softmax and log-softmax
    (2**12, 8192, "bfloat16", "xla", "xla"),
    (2**12, 8192, "float32", "xla", "xla"),
    (2**11, 16_384, "float16", "xla", "xla"),
    (2**11, 16_385, "bfloat16", "cuda", "cuda"),
    (3728, 9000, "bfloat16", "xla", "cuda"),
    (3728, 9000, "float32", "xla", "xla"),
    (8184, 4100, "float32", "xla", "cuda"),
]


@pytest.mark.parametrize("case", BIASED_AND_REDUCED, ids=str)
def test_what_is_reduced_behind_a_bias_is_xlas_where_it_has_one_kernel(case):
    rows, columns, dtype, *expected = case
    problems = [(op, (rows, columns), 1, *[jnp.dtype(dtype)] * 2, "cuda") for op in FORWARD]
    choose = functools.partial(choice_of, around="apart", biased=True)
    assert [choose(*p, read="reduced").implementation for p in problems] == expected
    for problem in problems:
        assert choose(*problem, read="across") == choose(*problem)
        assert choose(*problem, read="reduced", batch_invariant=True).implementation == "cuda"


PADDED = {  # by op, dtype and how much of a power of two rows fill: what a derivative is of
    ("softmax_tangent", "bfloat16", 0.52): ("xla", ("cuda", "xla", "cuda")),
    ("softmax_tangent", "bfloat16", 0.7): ("xla", ("cuda", "xla", "cuda")),
    ("softmax_tangent", "bfloat16", 1): ("cuda", ("cuda", "xla", "xla")),
    ("softmax_tangent", "float32", 0.52): ("xla", ("cuda", "xla", "xla")),
    ("log_softmax_cotangent", "bfloat16", 0.52): ("cuda", ("cuda", "xla", "cuda")),
    ("log_softmax_tangent", "float32", 1): ("xla", ("cuda", "xla", "xla")),
}


@pytest.mark.parametrize("case", PADDED, ids=str)
def test_a_derivative_is_chosen_for_its_neighbours(case):
    op, dtype, filled = case
    columns = int(2**10 * filled) // 8 * 8
    problem = op, (MANY // 1000, columns), 1, *[jnp.dtype(dtype)] * 2, "cuda"
    expected = PADDED[case][1]
    for around, implementation in zip(("apart", "fused", "scaled"), expected, strict=True):
        assert choice_of(*problem, around=around).implementation == implementation
        kept = choice_of(*problem, around=around, batch_invariant=True)
        assert kept.implementation == "cuda"


@pytest.mark.parametrize("op", GRADIENT)
def test_apart_from_neighbours_the_derivative_is_the_kernels_along_the_last_axis(op):
    def chosen(shape, axis=1, dtype="float32", **kwargs):
        return choice_of(op, shape, axis, *[jnp.dtype(dtype)] * 2, "cuda", **kwargs)

    for shape in ((MANY, 16), (4096, 1000), (MANY, 256)):
        assert chosen(shape).implementation == "xla"
        assert chosen(shape, around="apart").implementation == "cuda"
    # As of any other: few elements, few long rows, two columns along another axis.
    for shape, axis in (((100, 1000), 1), ((8, 50_000), 1), ((MANY, 2, 3), 1)):
        assert chosen(shape, axis, around="apart") == chosen(shape, axis)


@pytest.mark.parametrize("op", ["masked_softmax", "biased_log_softmax"])
def test_the_rule_of_terms_in_16_and_32_bits(op):
    def chosen(shape, dtype, output_dtype=None):
        dtypes = [jnp.dtype(dtype), jnp.dtype(output_dtype or dtype)]
        return choice_of(op, shape, 1, *dtypes, "cuda").implementation

    for shape in ((1025, 1024), (3072, 1024)):
        assert chosen(shape, "float32") == "xla"
        assert chosen(shape, "float16") == chosen(shape, "float64") == "cuda"
        assert chosen(shape, "float32", "float16") == "cuda"
    for shape, expected in (((64, 16_384), "xla"), ((65, 16_384), "cuda"), ((50, 20_000), "cuda")):
        assert chosen(shape, "float32") == expected
        assert chosen(shape, "bfloat16") == "cuda"
    narrow = "xla" if op.startswith("biased") else "cuda"
    assert chosen((MANY, 64), "float32") == narrow
    assert chosen((MANY, 64), "float16") == chosen((MANY, 32), "bfloat16") == "cuda"


WIDENED = {  # the most columns that are XLA's, and those if the operand was 16 bits
    "softmax": (4096, 14_000),
    "log_softmax": (4096, 4096),
    "masked_softmax": (31, 8192),
    "masked_log_softmax": (31, 4096),
    **dict.fromkeys(GRADIENT, (4096, 200_000)),
}


@pytest.mark.parametrize("op", WIDENED)
def test_what_was_16_bits_is_xlas_where_it_fuses_the_conversion(op):
    def chosen(columns, dtype="float32", output_dtype="float32", **flags):
        dtypes = [jnp.dtype(dtype), jnp.dtype(output_dtype)]
        return choice_of(op, (MANY, columns), 1, *dtypes, "cuda", **flags).implementation

    plain, widened = WIDENED[op]
    operand = "float32" if op in GRADIENT else "bfloat16"
    assert chosen(plain) == chosen(widened, operand, widened=True) == "xla"
    assert chosen(plain, operand, widened=True, batch_invariant=True) == "cuda"
    assert chosen(plain + 8) == "cuda"
    if widened < 200_000:
        assert chosen(widened + 8, operand, widened=True) == "cuda"
        # Results of 16 bits are the kernels' without a cast.
        assert (
            chosen(widened, operand, "bfloat16", widened=True) == ("cuda", "xla")[plain == widened]
        )


@pytest.mark.parametrize("op", FORWARD)
def test_what_was_16_bits_is_xlas_along_another_axis(op):
    def chosen(columns, dtype, **flags):
        dtypes = [jnp.dtype("bfloat16"), jnp.dtype(dtype)]
        return choice_of(op, (64, columns, 512), 1, *dtypes, "cuda", **flags).implementation

    assert chosen(128, "float32", widened=True) == "xla"
    assert chosen(127, "float32", widened=True) == ("cuda" if op == "log_softmax" else "xla")
    assert chosen(128, "bfloat16", widened=True) == chosen(128, "float32") == "cuda"


READ = [  # shape, and whether two values of each row are made where that is reduced, or is not
    ((100_000, 8),),
    ((100_000, 9), "reduced", "by a kernel"),
    ((132, 1000), "reduced", "by a kernel", "picked", "by elements"),
    ((131, 1000),),  # a launch costs more than so few elements
    ((1000, 511), "reduced", "by a kernel"),
    ((2, 1000, 512), "reduced", "by a kernel", "picked", "by elements"),
    ((1000, 999), "reduced", "by a kernel"),
    ((1000, 1999), "reduced", "by a kernel"),
    ((65, 65_536), "reduced", "by a kernel", "picked", "by elements"),
    ((64, 65_536),),  # a block has each row
]


@pytest.mark.parametrize("case", READ, ids=str)
def test_what_reads_a_log_softmax_may_be_made_of_two_values(case):
    shape, *expected = case

    def made(op="log_softmax", axis=-1, dtypes="float32 float32", platform="cuda", **seen):
        problem = op, shape, axis % len(shape), *map(jnp.dtype, dtypes.split()), platform
        request = {"how": {"reduced"}, "by_kernel": False, "before": "apart"} | seen
        request |= {"multiplied": False, "comes_back": False, "fused": False}
        made = _revision.maker_as_read(_choice.Problem(*problem), **request)
        assert made in ("pairs", None)
        return made == "pairs"

    assert made() == made(how={"reduced", "picked"}) == ("reduced" in expected)
    assert made(how={"elements"}, by_kernel=True) == ("by a kernel" in expected)
    assert made(how={"reduced", "picked"}, by_kernel=True) == ("picked" in expected)
    assert made(how={"elements"}) == made(how={"converted"}) == ("by elements" in expected)
    assert not made(before="biased") and not made(before=None)
    assert not made(op="softmax") and not made(axis=0) and not made(platform="cpu")
    assert not made(dtypes="bfloat16 bfloat16") and not made(dtypes="float32 bfloat16")
    assert not made(dtypes="float64 float64")


# Columns, and the ops and dtypes that a kernel writes for what reduces them.
WRITTEN = {
    64: set(),
    72: {"softmax bfloat16", "log_softmax float16", "softmax float32", "softmax float16"},
    132: {"softmax float32"},
    1001: {"softmax float32"},
    4096: {"softmax bfloat16", "log_softmax float16", "softmax float32", "softmax float16"},
    4104: set(),
}


@pytest.mark.parametrize("columns, expected", WRITTEN.items())
def test_what_is_reduced_may_be_written_by_a_kernel(columns, expected):
    def written(op, dtype, rows=MANY, axis=1, output=None, platform="cuda", how="reduced", **seen):
        shape = (rows, columns) if axis == 1 else (columns, rows)
        dtypes = jnp.dtype(dtype), jnp.dtype(output or dtype)
        request = {"how": {how, "elements"}, "comes_back": True, "fused": True} | seen
        request = {"by_kernel": False, "before": "apart", "multiplied": False} | request
        problem = _choice.Problem(op, shape, axis, *dtypes, platform)
        made = _revision.maker_as_read(problem, **request)
        return made == "kernel"

    seen = {f"{op} {d}" for op in FORWARD for d in ("float16", "float32", "float64")}
    seen = {case for case in seen if written(*case.split())}
    assert seen == {case for case in expected if "bfloat16" not in case}
    assert written("softmax", "bfloat16") == ("softmax bfloat16" in expected)
    assert written("softmax", "bfloat16", before="biased") == ("softmax bfloat16" in expected)
    # Otherwise that is made of two values of each row.
    assert written("log_softmax", "float32", before="biased") == (64 < columns <= 4096)
    for otherwise in ({"rows": 8}, {"axis": 0}, {"platform": "cpu"}, {"how": "picked"}):
        assert not written("softmax", "bfloat16", **otherwise)
    for otherwise in ({"by_kernel": True}, {"before": None}, {"comes_back": False}):
        assert not written("softmax", "bfloat16", **otherwise)
    assert not written("softmax", "bfloat16", output="float32")


# Op, dtype and columns of what XLA's code makes in place of a kernel: what may be before it, of a
# result that is read element by element, and of one that is converted.
UNWRITTEN = [
    ("softmax", "bfloat16", 50, "", ""),
    ("softmax", "bfloat16", 51, "", ""),
    ("softmax", "bfloat16", 52, "apart fused", ""),
    ("softmax", "float16", 516, "", ""),
    ("softmax", "float16", 664, "apart fused", ""),
    ("softmax", "float16", 1002, "apart fused", ""),
    ("softmax", "float16", 4096, "apart fused", ""),
    ("softmax", "float16", 4098, "", ""),
    ("softmax", "float16", 5999, "", ""),
    ("softmax", "float16", 6001, "apart fused", ""),
    ("softmax", "float16", 6002, "", ""),
    ("softmax", "float16", 12_001, "apart fused", ""),
    ("softmax", "float32", 83, "apart", ""),
    ("softmax", "float32", 84, "", ""),
    ("softmax", "float32", 129, "apart", ""),
    ("softmax", "float32", 257, "", ""),
    ("softmax", "float32", 301, "apart", ""),
    ("softmax", "float32", 512, "", ""),
    ("softmax", "float32", 4100, "apart fused", ""),
    ("softmax", "float32", 8192, "", ""),
    ("softmax", "float32", 9000, "", ""),
    ("softmax", "float32", 9001, "apart fused", ""),
    ("softmax", "float32", 16_385, "", ""),
    ("log_softmax", "float16", 100, "", ""),
    ("log_softmax", "float16", 512, "apart fused", "apart"),
    ("log_softmax", "float16", 520, "", ""),
    ("log_softmax", "float16", 2504, "apart fused", ""),
    ("log_softmax", "float16", 4096, "apart fused", "apart"),
    ("log_softmax", "float32", 7, "", ""),
    ("log_softmax", "float32", 13, "apart", "apart"),
    ("log_softmax", "float32", 333, "", ""),
    ("log_softmax", "float32", 513, "apart", "apart"),
    ("log_softmax", "float32", 512, "", ""),
]
BEFORE_UNWRITTEN = {
    "apart": {"before": "apart", "multiplied": False},
    "fused": {"before": None, "multiplied": False},
}


@pytest.mark.parametrize("case", UNWRITTEN, ids=str)
def test_what_a_kernel_would_write_may_be_made_where_it_is_read(case):
    op, dtype, columns, *expected = case

    def unwritten(how, *, by_kernel=True, fused=True, platform="cuda", **seen):
        problem = op, (MANY, columns), 1, *[jnp.dtype(dtype)] * 2, platform
        request = {"by_kernel": by_kernel, "fused": fused, "comes_back": False} | seen
        return _revision.maker_as_read(_choice.Problem(*problem), how=how, **request) == "xla"

    def before(how):
        return {b for b, seen in BEFORE_UNWRITTEN.items() if unwritten(how, **seen)}

    assert [before({"elements"}), before({"converted"})] == [set(e.split()) for e in expected]
    assert not before({"elements", "reduced"})
    assert before({"elements", "converted"}) == before({"elements"}) & before({"converted"})
    # What a number multiplies, XLA has within its code; after a bias that was not measured.
    multiplied = unwritten({"elements"}, before="apart", multiplied=True)
    assert multiplied == ("fused" in expected[0])
    assert unwritten({"elements"}, before="biased", multiplied=False) == ("fused" in expected[0])
    assert not unwritten({"elements"}, before="biased", multiplied=True)
    for otherwise in ({"by_kernel": False}, {"fused": False}, {"platform": "cpu"}):
        assert not any(unwritten({"elements"}, **otherwise, **b) for b in BEFORE_UNWRITTEN.values())


# The same of what nothing reads but its derivative.
UNREAD = [
    ("softmax", "float16", 50, ""),
    ("softmax", "float16", 264, ""),
    ("softmax", "float16", 664, "apart fused"),
    ("softmax", "float16", 1001, ""),
    ("softmax", "float16", 8192, "apart fused"),
    ("softmax", "float16", 8194, ""),
    ("softmax", "float16", 12_001, "apart"),
    ("softmax", "float32", 81, ""),
    ("softmax", "float32", 129, "apart"),
    ("softmax", "float32", 512, "fused"),
    ("softmax", "float32", 577, "apart fused"),
    ("softmax", "float32", 8192, "apart fused"),
    ("softmax", "float32", 9000, ""),
    ("softmax", "float32", 9001, "apart"),
    ("log_softmax", "float16", 1000, ""),
    ("log_softmax", "float32", 333, ""),
    ("log_softmax", "float32", 1001, "apart"),
    ("log_softmax", "float32", 5001, ""),
]


@pytest.mark.parametrize("case", UNREAD, ids=str)
def test_what_nothing_reads_may_be_made_within_its_derivative(case):
    op, dtype, columns, expected = case

    def made(*, fused=True, by_kernel=True, **seen):
        problem = op, (MANY, columns), 1, *[jnp.dtype(dtype)] * 2, "cuda"
        request = {"by_kernel": by_kernel, "fused": fused, "comes_back": False} | seen
        return _revision.maker_as_read(_choice.Problem(*problem), how={"unread"}, **request)

    by_xla = {b for b, seen in BEFORE_UNWRITTEN.items() if made(**seen) == "xla"}
    assert by_xla == set(expected.split())
    for seen in BEFORE_UNWRITTEN.values():
        assert made(**seen, fused=False) is made(**seen, by_kernel=False) is None


# Columns, and the ops that a kernel writes where XLA's code would, for a sum across rows.
ACROSS = {8: (), 16: FORWARD, 513: FORWARD, 4096: FORWARD, 4098: ()}


@pytest.mark.parametrize("columns, expected", ACROSS.items())
def test_what_is_reduced_across_rows_may_be_written_by_a_kernel(columns, expected):
    def written(op, dtype="float16", *, how="across", before="apart", by_kernel=False):
        problem = op, (MANY, columns), 1, *[jnp.dtype(dtype)] * 2, "cuda"
        request = {"multiplied": False, "comes_back": False, "fused": True}
        request |= {"how": {how, "reduced"}, "before": before, "by_kernel": by_kernel}
        return _revision.maker_as_read(_choice.Problem(*problem), **request) == "kernel"

    assert tuple(op for op in FORWARD if written(op)) == expected
    assert tuple(op for op in FORWARD if written(op, before="biased")) == expected
    for op in FORWARD:
        assert not written(op, "float32") and not written(op, how="elements")
        assert not written(op, before=None) and not written(op, by_kernel=True)


# How a result that a kernel wrote is read, by op and bytes: whose derivative is XLA's, by columns.
STORED = {
    "": {},
    "converted": {},
    "elements converted": {},
    "elements": {"softmax 2": {65, 66, 257, 258, 512, 1001, 4096}},
    "elements converted reduced": {f"{op} 2": {66, 258, 512, 4096} for op in FORWARD},
    "reduced across": {f"{op} 2": {66, 258, 512, 4096} for op in FORWARD},
}


@pytest.mark.parametrize("how", STORED)
def test_xlas_derivative_may_read_what_a_kernel_wrote(how):
    def read(op, columns, size, axis=1):
        shape = (MANY, columns) if axis == 1 else (columns, MANY)
        dtypes = [jnp.dtype(f"float{8 * size}")] * 2
        problem = _choice.Problem(op, shape, axis, *dtypes, "cuda")
        return _revision.reads_stored(problem, how=how.split())

    lengths = {15, 64, 65, 66, 257, 258, 512, 1001, 4096, 4097, 8192}
    for op, size in itertools.product(FORWARD, (2, 4)):
        seen = {n for n in lengths if read(op, n, size)}
        assert seen == STORED[how].get(f"{op} {size}", set()) | {4097, 8192}
        assert not read(op, 8192, size, axis=0)


@pytest.mark.parametrize("op", FORWARD)
@pytest.mark.parametrize("columns", [20, 50, 100, 128, 1001, 1024, 50_257])
def test_a_result_that_a_kernel_wrote_may_be_read_again(op, columns):
    def reread(dtype, axis=1, **seen):
        shape = (MANY, columns) if axis == 1 else (columns, MANY)
        request = {"multiplied": False} | seen
        problem = _choice.Problem(op, shape, axis, *[jnp.dtype(dtype)] * 2, "cuda")
        return _revision.rereads(problem, **request)

    assert reread("bfloat16") == (columns % 8 == 0 or columns >= 129)
    assert reread("float32") == (columns % 4 == 0 or columns >= 129)
    assert reread("float16", multiplied=True) and reread("float32", multiplied=True)
    assert not reread("float64") and not reread("bfloat16", axis=0)


MADE_OF_PAIRS = [  # op, shape, axis, and who has that of 16 bits in float32
    ("softmax", (1000, 14_000), 1, "xla"),
    ("softmax", (1000, 14_001), 1, "xla"),
    ("softmax", (1000, 14_002), 1, "pairs"),
    ("softmax", (1000, 2**14 - 1), 1, "xla"),
    ("softmax", (1000, 2**14 + 1), 1, "pairs"),
    ("softmax", (8, 16_384), 1, "xla"),  # a launch costs more than so few elements
    ("softmax", (128, 16_384), 1, "xla"),
    ("softmax", (129, 16_384), 1, "pairs"),
    ("softmax", (16, 32_768), 1, "split"),
    ("softmax", (17, 32_768), 1, "xla"),
    ("softmax", (128, 32_768), 1, "xla"),
    ("softmax", (129, 32_768), 1, "pairs"),
    ("softmax", (256, 262_144), 1, "xla"),
    ("softmax", (257, 1, 262_144, 1), 2, "pairs"),
    ("log_softmax", (1000, 4096), 1, "xla"),
    ("log_softmax", (1000, 4097), 1, "pairs"),
    ("log_softmax", (4, 32_768), 1, "split"),
    ("log_softmax", (32, 32_768), 1, "cuda"),
    ("log_softmax", (33, 32_768), 1, "pairs"),
    ("softmax", (1000, 100, 64), 1, "xla"),
    ("softmax", (1000, 16_384, 64), 1, "xla"),
    ("log_softmax", (1000, 100, 64), 1, "cuda"),
    ("masked_softmax", (1000, 16_384), 1, "cuda"),
]


@pytest.mark.parametrize("case", MADE_OF_PAIRS, ids=str)
def test_rows_of_16_bits_in_float32_may_be_two_values(case):
    op, shape, axis, expected = case
    dtypes = [jnp.dtype(d) for d in ("float16", "float32")]

    def chosen(**flags):
        return choice_of(op, shape, axis, *dtypes, "cuda", **flags)

    made = chosen(widened=True)
    kernels = "pairs" if made.pairs else "cuda" if made.batch_invariant else "split"
    assert (kernels if made.implementation == "cuda" else "xla") == expected
    invariant = chosen(widened=True, batch_invariant=True)
    assert (invariant.implementation, invariant.pairs) == ("cuda", False)
    assert not chosen().pairs


@pytest.mark.usefixtures("cpu_has_the_rule")
@pytest.mark.parametrize("name", FORWARD)
def test_a_derivative_whose_cotangent_was_16_bits_is_xlas(name):
    x = np.ones((40, 2**13), "float32")

    def gradient(x, dtype):
        f = getattr(jax_softmax, name)
        return jax.vjp(lambda x: f(x, batch_invariant=False).astype(dtype), x)[1](x.astype(dtype))

    for dtype, calls in (("float32", 1), ("bfloat16", 0)):
        hlo = compiled(functools.partial(gradient, dtype=dtype), x)
        assert count_calls(hlo, BACKWARD[name]) == calls


CONVERTED = [  # columns, neighbours, dtypes, and who has softmax along them and its derivative
    (12, 32, "float16", "float32", "xla", "xla"),
    (16, 32, "float16", "float32", "cuda", "cuda"),
    (256, 16, "float16", "float32", "xla", "xla"),
    (256, 24, "float16", "float32", "cuda", "cuda"),
    (16, 8, "float32", "bfloat16", "xla", "xla"),
    (24, 8, "float32", "bfloat16", "cuda", "xla"),
    (16, 12, "float32", "bfloat16", "cuda", "cuda"),
    (256, 16, "float32", "bfloat16", "cuda", "cuda"),
    (16, 8, "float32", "float32", "cuda", "cuda"),
]


@pytest.mark.parametrize("case", CONVERTED, ids=str)
def test_narrow_conversions_along_another_axis_are_xlas(case):
    columns, neighbours, *dtypes, forward, backward = case
    shape = (2**24 // (columns * neighbours), columns, neighbours)
    problem = shape, 1, *map(jnp.dtype, dtypes), "cuda"
    assert choice_of("softmax", *problem).implementation == forward
    assert choice_of("softmax_tangent", *problem).implementation == backward


OF_16_BITS = {  # what makes the float32 that a softmax is of, whether XLA has that, its derivative
    "a copy": (lambda x, f: x.astype("float32"), True, True),
    "scaled": (lambda x, f: 0.3 * x.astype("float32"), True, True),
    "masked": (lambda x, f: jnp.where(x > 0, x, -1e9).astype("float32") + 1, True, True),
    "two of them": (
        lambda x, f: x.astype("float32") + jnp.square((x + 1).astype("float32")),
        True,
        True,
    ),
    "transposed": (lambda x, f: x.T.astype("float32").T, False, True),
    "added in another shape": (
        lambda x, f: (x.reshape(-1).astype("float32") + 1).reshape(x.shape),
        True,
        True,
    ),
    "a sum with float32": (lambda x, f: (f.T + x.T.astype("float32")).T, False, False),
    "a product": (lambda x, f: jnp.eye(len(x)) @ x.astype("float32"), False, False),
    "in memory": (lambda x, f: jax.lax.optimization_barrier(x.astype("float32")), False, False),
}


@pytest.mark.usefixtures("cpu_has_the_rule")
@pytest.mark.parametrize("name", FORWARD)
@pytest.mark.parametrize("kind", OF_16_BITS)
def test_a_derivative_of_float32_that_was_16_bits_is_xlas(name, kind):
    make, forward_by_xla, by_xla = OF_16_BITS[kind]
    x, f = jnp.ones((64, 15_000), "bfloat16"), jnp.ones((64, 15_000))

    def gradient(x, f, g):
        z, back = jax.vjp(lambda x: make(x, f), x)
        y, pull_back = jax.vjp(getattr(jax_softmax, name), z)
        return y, back(pull_back(g)[0])[0]

    hlo = compiled(gradient, x, f, f)
    # Of a copy as it is kernels make two values for each row, plain JAX on a CPU.
    assert count_calls(hlo, name) == (not forward_by_xla)
    assert count_calls(hlo, BACKWARD[name]) == (not by_xla)
    if kind == "scaled":
        # Nor does XLA read the result, from which it derives.
        assert "optimization_barrier" not in jax.jit(gradient).lower(x, f, f).as_text()


@pytest.mark.usefixtures("cpu_has_the_rule")
@pytest.mark.parametrize("name", FORWARD)
def test_a_derivative_of_16_bits_is_not_xlas_for_a_conversion(name):
    """Whose own dtype is 16 bits: the kernel converts."""
    x = jnp.ones((64, 15_000), "bfloat16")

    def gradient(x, g):
        f = getattr(jax_softmax, name)
        return jax.vjp(lambda x: f(x, dtype="float32"), x)[1](g)

    hlo = compiled(gradient, x, jnp.ones(x.shape))
    assert count_calls(hlo, BACKWARD[name]) == 1


@pytest.mark.parametrize("op", (*FORWARD, *GRADIENT))
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_what_the_rule_takes_for_slabs_has_room_in_them(op, dtype):
    rule, dtype = _choice.RULES["cuda"].slabs, jnp.dtype(dtype)
    chosen = []
    for inner in (2, 3, 8, 24, 33, 66, 100, 129, 250, 257, 500, 510, 1022, 1999):
        for columns in (33, 256, 257, 600, 1025, 4097, 8192, 40_000, 200_000):
            for outer in (4, 33, 34, 4000):
                shape = outer, columns, inner
                problem = _choice.Problem(op, shape, 1, dtype, dtype, "cuda")
                choice = _choice.choose(problem)
                if choice.implementation != "cuda" or not _choice.in_slabs(problem, rule):
                    continue
                flag = choice.batch_invariant
                made = plan(shape, dtype, 1, op, device="H200", batch_invariant=flag)
                assert made.strategy == "slab", (problem, made)
                assert flag == (outer > 33)
                chosen.append(problem)
    assert len(chosen) > 40


def test_every_choice_says_why():
    problems = [
        (op, shape, axis, jnp.dtype(dtype), jnp.dtype(output_dtype))
        for shape, axis, dtype, output_dtype, *_ in RULE
        for op in (*FORWARD, *GRADIENT)
    ]
    problems += [(op, s, axis, *[jnp.dtype("float32")] * 2) for op, s, axis, _ in OTHER_OPS]
    reasons = {
        choice_of(*problem, platform).reason for problem in problems for platform in ("cuda", "cpu")
    }
    for why in ("launch", "multiprocessors", "unrolls", "last axis alone", "too long", "fuses"):
        assert any(why in reason for reason in reasons), why
    assert len(reasons) >= 6 and all(reasons)


@pytest.mark.parametrize("op", (*FORWARD, *GRADIENT))
@pytest.mark.parametrize("device", ["H200", "A100", "cpu"])
def test_a_plan_tells_the_choice(op, device):
    kernels = "cpu" if device == "cpu" else "cuda"
    fused = kernels if device == "cpu" else "xla"
    for columns, expected in ((4096, fused), (4097, kernels)):
        shape = (math.ceil(2**23 / columns), columns)
        made = plan(shape, "float32", op=op, device=device)
        assert made.implementation == expected and made.reason
        # The rest is about the kernels, chosen or not.
        invariant = plan(shape, "float32", op=op, device=device, batch_invariant=True)
        forced = plan(shape, "float32", op=op, device=device, strategy=made.strategy)
        assert invariant.implementation == forced.implementation == kernels
        assert made.strategy == invariant.strategy == forced.strategy
        assert made.strategy in forced.reason
        alone = "where a program is this call alone" in made.reason
        assert alone == (device != "cpu" and columns == 4096 and op in FORWARD)


@pytest.fixture
def cpu_has_the_rule(monkeypatch):
    monkeypatch.setattr(_choice, "RULES", {"cpu": _choice.RULES["cuda"]})
    with jax.default_device(jax.devices("cpu")[0]):
        yield


REQUESTS = {
    "default": ({}, True),
    "may depend on the batch": ({"batch_invariant": False}, True),
    "batch invariant": ({"batch_invariant": True}, False),
    "forced": ({"implementation": "cpu"}, False),
}


@pytest.mark.usefixtures("cpu_has_the_rule")
@pytest.mark.parametrize("name", FORWARD)
@pytest.mark.parametrize("request_", REQUESTS)
def test_a_program_follows_the_rule(name, request_):
    kwargs, by_rule = REQUESTS[request_]
    f = functools.partial(getattr(jax_softmax, name), **kwargs)

    def gradient(x, weigh=lambda g: 2 * g):  # as XLA may within its own code
        return jax.vjp(f, x)[1](weigh(x))[0]

    def counts(function, x):
        hlo = compiled(function, x)
        return count_calls(hlo, name), count_calls(hlo, BACKWARD[name])

    shapes = (1024, 256), (8, 9), (40, 8200)
    short, small, long = (np.ones(shape, np.float32) for shape in shapes)
    assert counts(lambda x: f(x), short) == ((0, 0) if by_rule else (1, 0))
    assert counts(lambda x: gradient(x), short) == ((0, 0) if by_rule else (1, 1))
    assert counts(lambda x: gradient(x, lambda g: g), short) == ((0, 1) if by_rule else (1, 1))
    assert counts(lambda x: gradient(x), small) == ((0, 0) if by_rule else (1, 1))
    assert counts(lambda x: gradient(x), long) == (1, 1)
    # The rule sees the shape under vmap, and the axis along which it reduces.
    assert counts(jax.vmap(lambda x: f(x)), short) == ((0, 0) if by_rule else (1, 0))
    assert counts(lambda x: f(x.T, axis=0), short) == (1, 0)


PICKS = {  # results of labels: by a function that is a program's own, by indices, of other shapes
    "take_along_axis": lambda y, i: jnp.take_along_axis(y, i[:, None], 1),
    "indices": lambda y, i: y[jnp.arange(y.shape[0]), i],
    "reshaped": lambda y, i: jnp.take_along_axis(
        y.reshape(-1, 2, y.shape[1]), i.reshape(-1, 2, 1), 2
    ),
    "in a function": jax.jit(lambda y, i: jnp.take_along_axis(y, i[:, None], 1).reshape(-1)),
}


@pytest.mark.usefixtures("cpu_has_the_rule")
@pytest.mark.parametrize("name", FORWARD)
@pytest.mark.parametrize("pick", PICKS)
def test_in_a_program_the_derivative_of_what_labels_pick_is_the_kernels(name, pick):
    x = np.random.default_rng(0).normal(size=(1024, 256)).astype("float32")
    labels = np.arange(1024) % 256

    def gradient(library, *, more=False):
        def loss(x, labels):
            y = getattr(library, name)(x)
            picked = PICKS[pick](y, labels).sum()
            return picked + y.sum() if more else picked

        return jax.grad(loss)

    hlo = compiled(gradient(jax_softmax), x, labels)
    assert count_calls(hlo, name) == 0 and count_calls(hlo, BACKWARD[name]) == 1
    got, want = (jax.jit(gradient(library))(x, labels) for library in (jax_softmax, jax.nn))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    # Nothing is known of a sum of that and something else, nor whether devices share an axis.
    assert count_calls(compiled(gradient(jax_softmax, more=True), x, labels)) == 0
    mesh = jax.make_mesh((2,), ("a",), (AxisType.Auto,), devices=jax.devices("cpu")[:2])
    sharded = jax.device_put(x, NamedSharding(mesh, P(None, "a")))
    hlo = compiled(gradient(jax_softmax), sharded, labels)
    assert count_calls(hlo) == 0 and "all-gather" not in hlo


BEFORE = {  # what makes the operand, whether XLA has it within the softmax, and the derivative
    "nothing": (lambda x: x, False, False),
    "a sum": (lambda x: x + 1, True, False),
    "a difference of sums": (lambda x: (x + x[0]) - (x + 1), True, False),
    "a product by element": (lambda x: 0.5 * x + 1, True, True),
    "in another shape": (lambda x: (jnp.tanh(x.reshape(-1))).reshape(x.shape), True, True),
    "in a function": (lambda x: jax.jit(lambda x: 3 * x)(x) - 1, True, True),
    "a matrix product": (lambda x: 0.5 * (x @ jnp.ones((x.shape[1], x.shape[1]))), False, False),
    "that to a function": (
        lambda x: jax.jit(jnp.tanh)(x @ jnp.ones((x.shape[1], x.shape[1]))),
        False,
        False,
    ),
    "a function's, twice": (
        lambda x: jnp.where(
            x > 0, jnp.where(x < 1, x @ jnp.ones((x.shape[1], x.shape[1]), x.dtype), -9), -9
        ),
        False,
        False,
    ),
    "a function's, of two": (
        lambda x: (
            jax.nn.relu(jax.lax.optimization_barrier(x)) + jax.nn.relu(x @ jnp.eye(x.shape[1]))
        ),
        False,
        False,
    ),
    "in memory": (lambda x: jax.lax.optimization_barrier(2 * x), False, False),
    "another softmax": (lambda x: jax_softmax.softmax(x, implementation="cpu"), False, False),
}


def _squares(y):
    return jnp.square(y).sum(1)


AFTER = {  # what takes the result, and whether XLA has its transpose within the derivative
    "nothing": (lambda y: y, False),
    "a weight": (lambda y: 3 * y, True),
    "a sum": (lambda y: y + 3, False),
    "rows' sums": (lambda y: y.sum(1), True),
    "rows' sums of squares": (_squares, True),
    "a matrix product": (lambda y: y @ jnp.ones((y.shape[1], 4)), False),
    "a matrix product of some": (
        lambda y: jnp.where(y > 0.1, y, 0) @ jnp.ones((y.shape[1], 4)),
        False,
    ),
    "picks": (lambda y: y[:, 3], None),
    "the other way round": (lambda y: (2 * y).T, True),
}


def _passes(name, before, after):
    def both(x):
        y, pull_back = jax.vjp(lambda x: after(getattr(jax_softmax, name)(before(x))), x)
        return y, pull_back(jax.lax.optimization_barrier(y))[0]

    return both


@pytest.mark.usefixtures("cpu_has_the_rule")
@pytest.mark.parametrize("name", FORWARD)
@pytest.mark.parametrize("kind", BEFORE)
def test_the_rule_sees_what_makes_an_operand(name, kind):
    before, fused, scaled = BEFORE[kind]
    cases = (((1024, 256), "float32", True), ((64, 5000), "float32", fused))
    for shape, dtype, by_xla in (*cases, ((1024, 256), "float16", True)):
        hlo = compiled(_passes(name, before, lambda y: y), np.ones(shape, dtype))
        inner = kind == "another softmax"
        assert count_calls(hlo, name) - (inner and name == "softmax") == (not by_xla)
        # That of the softmax before it is the kernel's, by its name.
        calls = count_calls(hlo, BACKWARD[name]) - (inner and name == "softmax")
        assert calls == (not (by_xla and scaled))


@pytest.mark.usefixtures("cpu_has_the_rule")
def test_the_rule_tells_a_product_and_what_is_rounded_from_others():
    def calls(before, columns, dtype="float16"):
        softmax = functools.partial(_passes, "softmax", before, lambda y: y)
        return count_calls(compiled(softmax(), np.ones((2048, columns), dtype)), "softmax")

    def product(x):
        return x @ jnp.eye(x.shape[1], dtype=x.dtype)

    def calls_between(before):
        def product(x):
            return jax_softmax.softmax(before(x).reshape(x.shape)) @ x.T

        return count_calls(compiled(product, np.ones((2048, 144), "float16")), "softmax")

    assert calls_between(product) == calls_between(lambda x: product(x).reshape(2, -1, 144)) == 1
    assert calls_between(lambda x: x) == 1 and calls_between(jnp.tanh) == 0
    assert calls_between(lambda x: jnp.where(x > 0, product(x), -9)) == 0
    assert calls(lambda x: x, 333) == calls(product, 333) == 1
    assert calls(lambda x: product(x.reshape(-1, 666)).reshape(-1, 333), 333) == 1
    assert calls(jnp.tanh, 333) == 1
    rounded = [
        lambda x: x.astype("float16"),
        lambda x: jnp.tanh(x).astype("float16").reshape(-1, 333),
    ]
    assert [calls(before, 333, "float32") for before in rounded] == [0, 0]
    masked = [lambda x: x.astype("float16") * (x > 0), lambda x: x.astype(int).astype("float16")]
    assert [calls(before, 333, "float32") for before in masked] == [0, 0]
    assert calls(lambda x: (x.astype("float32") / 3).astype("float16"), 333) == 1
    # Complex numbers are wider than all others.
    assert calls(lambda x: abs(x.astype("complex64")).astype("float16"), 333, "float32") == 0


DIFFERENTIATED = {
    "not": (lambda f, x: jnp.square(f(x)).sum(), [0, 0]),
    "for a value alone": (lambda f, x: jax.jvp(f, (x,), (x,))[0], [1, 0]),
    "forward": (lambda f, x: jax.jvp(f, (x,), (x,)), [1, 1]),
    "backward": (lambda f, x: jax.vjp(f, x)[1](x), [1, 1]),
    "of each row": (lambda f, x: jax.vmap(lambda x: jax.vjp(f, x)[1](x)[0])(x), [1, 1]),
    "twice": (lambda f, x: jax.jvp(lambda x: jax.jvp(f, (x,), (x,)), (x,), (x,))[0], [1, 1]),
    "made anew": (lambda f, x: jax.vjp(jax.checkpoint(f), x)[1](x), [1, 1]),
    "after a weight": (lambda f, x: jax.vjp(lambda x: f(2 * x), x)[1](x), [0, 0]),
}


@pytest.mark.usefixtures("cpu_has_the_rule")
@pytest.mark.parametrize("kind", DIFFERENTIATED)
def test_in_a_program_a_forward_pass_knows_of_its_derivative(kind):
    program, expected = DIFFERENTIATED[kind]
    x = np.random.default_rng(0).normal(size=(1024, 1024)).astype("float16")
    hlo = compiled(functools.partial(program, jax_softmax.softmax), x)
    assert [count_calls(hlo, op) for op in ("softmax", BACKWARD["softmax"])] == expected


@pytest.mark.usefixtures("cpu_has_the_rule")
@pytest.mark.parametrize("name", FORWARD)
@pytest.mark.parametrize("kind", AFTER)
def test_the_rule_sees_what_makes_a_cotangent(name, kind):
    after, fused = AFTER[kind]
    x = np.random.default_rng(0).normal(size=(1024, 256)).astype("float32")
    hlo = compiled(_passes(name, lambda x: x, after), x)
    # A kernel writes what is reduced and comes back, but for two values of each row.
    assert count_calls(hlo, name) == (after is _squares and name == "softmax")
    assert fused is None or count_calls(hlo, BACKWARD[name]) == (not fused)


@pytest.mark.usefixtures("cpu_has_the_rule")
@pytest.mark.parametrize(
    "name, dtype, biased",
    [
        ("softmax", "float32", False),
        ("softmax", "float32", True),
        ("softmax", "float16", False),
        ("softmax", "float16", True),
        ("log_softmax", "float32", True),
        ("log_softmax", "float16", False),
        ("log_softmax", "float16", True),
    ],
)
def test_what_reads_a_result_after_its_derivative_has_what_was_written(
    name, dtype, biased, monkeypatch
):
    lower_last = _as_read.lower_last

    def lowered(*args, scale, **request):
        assert scale == 1  # by which no kernel of a CPU multiplies
        return lower_last(*args, **request)

    monkeypatch.setattr(_as_read, "lower_last", lowered)

    def reads(f, x, b):
        y, pull_back = jax.vjp(lambda x: f(x + b if biased else x), x)
        of_squares = jnp.square(y).mean(1), pull_back(2 * y)[0]
        return y, y.argmax(1), *of_squares, pull_back(3 * y)[0]

    rng = np.random.default_rng(0)
    operands = [rng.normal(size=shape).astype(dtype) for shape in ((1024, 256), (256,))]
    program = functools.partial(reads, getattr(jax_softmax, name))
    assert count_calls(compiled(program, *operands), f"masked_{name}" if biased else name) == 1
    y, largest, *got = jax.jit(program)(*operands)
    np.testing.assert_array_equal(largest, np.argmax(y, 1))
    wide = [v.astype("float32") for v in operands]
    of_wide, *want = jax.jit(functools.partial(reads, getattr(jax.nn, name)))(*wide)
    _assert_alike((y, *got), (of_wide, *want[1:]), dtype)


def _assert_alike(got, want, dtype):
    eps = float(jnp.finfo(dtype).eps)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=20 * eps, atol=20 * eps * abs(b).max())


def _read_by_element(f, x, b, w, *, read):
    """What is made of a result, and a gradient; then what reads the result again."""
    y, pull_back = jax.vjp(lambda x: f(x, b), x)
    return read(y, w), pull_back(jnp.sin(w))[0], y, pull_back(2 * y)[0]


MADE_WHERE_IT_IS_READ = [
    ("softmax", "float16", 1002, "nothing"),
    ("softmax", "float16", 1002, "a bias"),
    ("softmax", "float32", 301, "nothing"),
    ("log_softmax", "float32", 301, "nothing"),
    ("log_softmax", "float16", 1000, "a term"),
]


@pytest.mark.usefixtures("cpu_has_the_rule")
@pytest.mark.parametrize("case", MADE_WHERE_IT_IS_READ, ids=str)
def test_what_is_read_by_element_is_made_where_it_is_read(case):
    """A kernel would have written it, and does for what reads it otherwise."""
    name, dtype, columns, before = case

    def ours(x, b):
        if before == "a term":
            return jax_softmax.masked_softmax(x, bias=b, log=name == "log_softmax")
        return getattr(jax_softmax, name)(x if before == "nothing" else x + b)

    def theirs(x, b):
        return getattr(jax.nn, name)(x if before == "nothing" else x + b)

    rng = np.random.default_rng(0)
    x, w = (rng.normal(size=(2048, columns)).astype(dtype) for _ in range(2))
    operands = x, rng.normal(size=columns).astype(dtype), w
    kernel = f"masked_{name}" if before == "a term" else name
    by_element = functools.partial(_read_by_element, read=lambda y, w: y * w)
    by_product = functools.partial(_read_by_element, read=lambda y, w: y @ w.T)
    for program, calls in ((by_element, 0), (by_product, 1)):
        hlo = compiled(lambda *args, p=program: p(ours, *args)[:2], *operands)
        assert count_calls(hlo, kernel) == calls
    got = jax.jit(functools.partial(by_element, ours))(*operands)
    wide = [v.astype("float32") for v in operands]
    want = jax.jit(functools.partial(by_element, theirs))(*wide)
    _assert_alike(got, want, dtype)


def _shared(f, x):
    cpu = jax.devices("cpu")[:1]
    mesh = jax.make_mesh((1,), ("a",), (AxisType.Auto,), devices=cpu)
    return jax.shard_map(f, mesh=mesh, in_specs=P("a"), out_specs=P("a"))(x)


PROGRAMS = {  # of an op, an array of float32 and another, and whether the op is the kernels'
    "returns it": (lambda f, x, w: f(x), True),
    "returns it in another shape": (lambda f, x, w: f(x).reshape(-1), False),
    "returns it and more": (lambda f, x, w: (f(x), jnp.sum(w)), False),
    "has read the rest": (lambda f, x, w: (jnp.sum(w), f(x)), True),
    "has rows of a batch": (lambda f, x, w: jax.vmap(f)(x), True),
    "has it multiplied": (lambda f, x, w: f(x) * w, False),
    "makes the logits": (lambda f, x, w: f(jnp.tanh(x)), False),
    "makes a product": (lambda f, x, w: f(x @ w), True),
    "adds to a product": (lambda f, x, w: f(x @ w + 1), False),
    "has it in a product": (lambda f, x, w: f(x) @ w, False),
    "converts it": (lambda f, x, w: f(x).astype("bfloat16"), False),
    "reduces it": (lambda f, x, w: f(x).sum(1), False),
    "differentiates": (lambda f, x, w: jax.jvp(f, (x,), (2 * w,)), False),
    "is a loop": (lambda f, x, w: jax.lax.fori_loop(0, 3, lambda _, x: f(x), x), False),
    "calls a function": (lambda f, x, w: jax.jit(f)(x), False),
    "shares rows": (lambda f, x, w: _shared(f, x), False),
}


@pytest.mark.usefixtures("cpu_has_the_rule")
@pytest.mark.parametrize("name", FORWARD)
@pytest.mark.parametrize("kind", PROGRAMS)
def test_the_rule_sees_what_a_program_returns(name, kind):
    program, by_kernel = PROGRAMS[kind]
    f = functools.partial(getattr(jax_softmax, name), axis=-1)
    x = np.random.default_rng(0).normal(size=(4097, 1, 1024)).astype("float32")
    x, w = (x, x) if "batch" in kind else (x[:, 0], x[:1024, 0])
    w = w if "product" in kind else x
    hlo = compiled(functools.partial(program, f), x, w)
    assert count_calls(hlo, name) == by_kernel


@pytest.fixture
def reads(monkeypatch):
    """How results seem to be read of what is lowered from here on."""
    seen = []

    def look(*args):
        seen.append(_readers.likely_read(*args))
        return seen[-1]

    monkeypatch.setattr(_looking, "likely_read", look)
    return seen


def _printed(x):
    jax.debug.print("{}", x[0], ordered=True)
    return x


READERS = {  # of an op, an array, another and labels, and how the op's result seems to be read
    "returns it": (lambda f, x, w, labels: (jnp.sum(w) + labels[0], f(x)), "returned"),
    "returns it first": (lambda f, x, w, labels: f(x) + jnp.sum(w) + labels[0], "elements"),
    "multiplies": (lambda f, x, w, labels: f(x) * w + labels, "elements"),
    "converts": (lambda f, x, w, labels: (w.sum(), labels[0], f(x).astype("float16")), "converted"),
    "converts first": (lambda f, x, w, labels: (f(x).astype("float16"), w[0]), "converted"),
    "sorts": (lambda f, x, w, labels: (w.sum(), labels[0], f(x).argsort()), None),
    "converts to more": (
        lambda f, x, w, labels: (f(x).astype("float16"), w + labels[0]),
        None,
    ),
    "multiplies and converts": (
        lambda f, x, w, labels: (f(x) * w + labels).astype("bfloat16"),
        "converted",
    ),
    "multiplies a square and converts": (
        lambda f, x, w, labels: (f(x) @ w + labels).astype("bfloat16"),
        None,
    ),
    "converts a square": (
        lambda f, x, w, labels: (w.sum() + labels[0], f(x).astype("bfloat16")),
        "converted",
    ),
    "compares": (lambda f, x, w, labels: (w.sum(), labels[0], f(x) > 0.5), None),
    "adds a vector": (lambda f, x, w, v: f(x) * w + v[:, 0], "elements"),
    "multiplies a matrix": (lambda f, x, w, m: f(x) @ m + w, None),
    "multiplies another": (lambda f, x, w, labels: (f(x), labels * w), None),
    "picks": (lambda f, x, w, labels: jnp.take_along_axis(f(x), labels, 1).mean(), "picked"),
    "picks, and reads more": (
        lambda f, x, w, labels: jnp.take_along_axis(f(x), labels, 1).mean() + w.sum(),
        None,
    ),
    "reduces": (lambda f, x, w, labels: (w.sum() + labels).sum() + f(x).max(1), "reduced"),
    "reduces across": (lambda f, x, w, labels: (w.sum() + labels).sum() + f(x).max(0), "across"),
    "reduces few across": (
        lambda f, x, w, labels: (w.sum() + labels).sum() + f(x).reshape(8, 12, -1).sum(0),
        None,
    ),
    "reduces in parts": (
        lambda f, x, w, labels: (w.sum() + labels).sum() + f(x).reshape(8, -1).sum(1),
        "sums",
    ),
    "weighs in parts": (
        lambda f, x, w, labels: (labels.sum() + f(x) * w).reshape(8, -1).sum(1),
        "weighed sums",
    ),
    "reduces both": (lambda f, x, w, labels: (w.sum() + labels).sum() + f(x).max(), "summed"),
    "prints, too": (
        lambda f, x, w, labels: _printed(f(_printed(x))) + w.sum() + labels[0],
        "elements",
    ),
    "prints alone": (lambda f, x, w, labels: _printed(f(_printed(x))), "returned"),
    "prints what it reduces": (lambda f, x, w, labels: _printed(f(_printed(x)).sum(1)), "reduced"),
    "multiplies a square": (lambda f, x, w, labels: f(x) @ w, None),
    "reduces a square": (lambda f, x, w, labels: (w.sum() + labels).sum() + f(x).max(), "summed"),
    "reduces rows of a square": (
        lambda f, x, w, labels: (w.sum() + labels).sum() + f(x).max(1),
        None,
    ),
    "weighs a square": (lambda f, x, w, labels: (labels.sum() + f(x) * w).sum(), None),
    "weighs": (lambda f, x, w, labels: (labels.sum() + f(x) * w).sum(), "weighed sum"),
    "weighs rows": (lambda f, x, w, labels: (labels.sum() + f(x) * w).sum(1), "weighed"),
    "reduces across, beside a softmax": (
        lambda f, x, w, labels: (jax.nn.softmax(x) * (w.sum() + labels)).sum(0) + f(x).max(0),
        "across",
    ),
    "picks, and returns others": (
        lambda f, x, w, labels: (
            jnp.take_along_axis(f(x), labels, 1).mean(),
            jnp.argmax(x, 1, keepdims=True).astype("int32"),
        ),
        "picked",
    ),
    "weighs by powers": (
        lambda f, x, w, labels: (labels.sum() + jnp.square(w) * f(x)).sum(),
        "weighed sum",
    ),
    "weighs by others' softmax": (
        lambda f, x, w, labels: (jax.nn.softmax(w + labels) * f(x)).sum(),
        None,
    ),
    "weighs by others' softmax of other dimensions": (
        lambda f, x, w, labels: (
            jax.nn.softmax((w + labels).reshape(8, 12, -1)).reshape(w.shape) * f(x)
        ).sum(),
        None,
    ),
    "weighs by others' softmax across": (
        lambda f, x, w, labels: (jax.nn.softmax(w + labels, 0) * f(x)).sum(),
        None,
    ),
    "weighs by its own": (
        lambda f, x, w, labels: (jax.nn.softmax(x) * f(x)).sum() + (w + labels)[0, 0],
        None,
    ),
    "gates": (lambda f, x, w, labels: jnp.tanh(w + labels) * f(x), "elements"),
    "returns a gate, too": (lambda f, x, w, labels: (jnp.tanh(w + labels), f(x)), "returned"),
    "weighs, and has labels": (lambda f, x, w, labels: (f(x) * w).sum() + labels[0, 0], None),
    "weighs across": (lambda f, x, w, labels: (labels.sum() + f(x) * w).sum(0), None),
    "returns others": (lambda f, x, w, labels: (f(x).sum(), w[:48] + labels[0]), None),
    # Taken for what it is not.
    "returns another": (lambda f, x, w, labels: (f(x).sum(), w + labels[0]), "elements"),
    "returns as many": (lambda f, x, w, labels: (f(x).sum(), x.astype("int32")), None),
}


@pytest.mark.usefixtures("cpu_has_the_rule")
@pytest.mark.parametrize("kind", READERS)
def test_how_a_program_seems_to_read(kind, reads):
    program, expected = READERS[kind]
    rows = 64 if "square" in kind else 96
    shape = {"adds a vector": (64, 1), "multiplies a matrix": (64, 64)}.get(kind, (rows, 1))
    x, labels = np.ones((rows, 64), np.float32), np.zeros(shape, np.int32)
    jax.jit(functools.partial(program, jax_softmax.softmax)).lower(x, x, labels)
    assert reads == [expected]


# As the factors of its rows and columns let XLA:GPU split a sum of all elements: by kernels of
# [rows, columns] float32 elements, of which it adds up rows first, in the kernel of their softmax.
@pytest.mark.parametrize(
    "rows, columns, expected",
    [
        (4096, 8192, True),
        (8192, 8192, True),
        (8192, 4096, False),
        (2048, 16_384, False),
        (8192, 16_384, True),
        (5591, 6001, True),
        (5592, 6001, False),
        (3355, 10_000, False),
        (2795, 12_001, False),
        (1, 8192, False),
        (0, 8192, False),
    ],
)
def test_where_rows_are_added_up_first(rows, columns, expected):
    assert _choice.adds_rows_first(rows, columns) == expected


LEFT = {  # what is left, and how a sum of the result seems to be read
    "labels": (np.zeros(96, np.int32), "picked"),
    "labels of 8 bits": (np.zeros((8, 12), np.uint8), "picked"),
    "flags": (np.zeros(96, bool), "reduced"),
    "weights": (np.zeros(96, np.float32), "reduced"),
    "a step": (np.int32(3), "summed"),
    "a key": (np.zeros(2, np.uint32), "summed"),
    "weights of columns": (np.zeros(64, np.float32), None),
}


@pytest.mark.usefixtures("cpu_has_the_rule")
@pytest.mark.parametrize("kind", LEFT)
def test_labels_are_integers_of_each_row(kind, reads):
    left, expected = LEFT[kind]
    x = np.ones((8, 12, 64), np.float32)
    jax.jit(lambda x, left: jax_softmax.softmax(x).sum() + left.sum()).lower(x, left)
    assert reads == [expected]


MADE = {  # of labels before the softmax, and how what picks by that from the result seems to read
    "reshaped": (lambda x, labels: (labels[:, :-1].reshape(-1), 0), "picked"),
    "cut": (lambda x, labels: (labels[:, 1:], 0), "picked"),
    "a mask, too": (lambda x, labels: (labels[:, 1:], labels[:, 1:] < 0), "picked"),
    "compared": (lambda x, labels: (labels[:, 1:], x.argmax(-1) == labels[:, 1:]), "picked"),
    "spread": (lambda x, labels: (labels[:, 1:, None] == jnp.arange(64), 0), "summed"),
}


@pytest.mark.usefixtures("cpu_has_the_rule")
@pytest.mark.parametrize("kind", MADE)
def test_labels_may_have_been_made_before(kind, reads):
    make, expected = MADE[kind]

    def program(x, labels):
        of_labels, others = make(x, labels)
        y = jax_softmax.softmax(x)
        if jnp.issubdtype(of_labels.dtype, jnp.integer):
            return jnp.take_along_axis(y, of_labels.reshape(8, 12, 1), -1).mean() + others
        return (y * of_labels).mean() + others

    x, labels = np.ones((8, 12, 64), np.float32), np.zeros((8, 13), np.int32)
    jax.jit(lambda *args: jnp.sum(program(*args))).lower(x, labels)
    assert reads == [expected]


def _again(x, steps):
    for _ in range(steps):
        x = jnp.tanh(x) * 1.5 + 0.25
    return x


LONGER = {  # programs of more values than are looked at
    "of the logits": (lambda f, x, labels, m: f(_again(x, 10)), "returned"),
    "of the logits, reduced": (lambda f, x, labels, m: f(_again(x, 10)).sum(), "summed"),
    "of each row": (
        lambda f, x, labels, m: (m := _again(m, 16)).sum() + f(x)[jnp.arange(96), labels].sum(),
        "picked",
    ),
    "of a step": (lambda f, x, labels, m: f(x).sum() + jnp.full(96, labels[0]).sum(), "summed"),
}


@pytest.mark.usefixtures("cpu_has_the_rule")
@pytest.mark.parametrize("kind", LONGER)
def test_a_search_of_what_is_left_ends(kind, reads):
    program, expected = LONGER[kind]
    x, m = np.ones((96, 64), np.float32), np.ones(96, np.float32)
    labels = np.zeros(1 if kind == "of a step" else 96, np.int32)
    jax.jit(functools.partial(program, jax_softmax.softmax)).lower(x, labels, m)
    assert reads == [expected]


@pytest.mark.usefixtures("cpu_has_the_rule")
def test_what_is_printed_in_an_order_is_no_row(reads):
    def program(x, step):
        jax.debug.print("{}", step, ordered=True)
        return jax_softmax.softmax(x).sum()

    jax.jit(program).lower(np.ones((1, 4096), np.float32), np.float32(1))
    assert reads == ["reduced"]


@pytest.mark.usefixtures("cpu_has_the_rule")
@pytest.mark.parametrize("name", FORWARD)
def test_the_rule_sees_what_a_program_returns_of_16_bits_in_float32(name):
    f = getattr(jax_softmax, name)
    x = np.random.default_rng(0).normal(size=(4097, 1335)).astype("bfloat16")
    assert count_calls(compiled(lambda x: f(x.astype("float32")), x), name) == 1
    assert count_calls(compiled(lambda x: f(x, dtype="float32"), x), name) == 1
    assert count_calls(compiled(lambda x: f((2 * x).astype("float32")), x), name) == 0
    assert count_calls(compiled(lambda x: f(x.astype("float32")).astype(x.dtype), x), name) == 0


@pytest.mark.usefixtures("cpu_has_the_rule")
@pytest.mark.parametrize("name", FORWARD)
def test_the_rule_sees_little_of_what_calls_a_function(name):
    """It goes by the shape alone then; a loop's body is given what is in memory."""
    f = getattr(jax_softmax, name)

    def gradient(f):
        return jax.grad(lambda x: jnp.square(f(x * 0.5)).sum())

    def looped(x):
        return jax.lax.scan(lambda x, _: (f(x), None), x, length=2)[0]

    x = np.ones((1024, 256), np.float32)
    assert count_calls(compiled(gradient(jax.jit(lambda x: f(x))), x)) == 0
    assert count_calls(compiled(gradient(looped), x), name) == 0
    x = np.ones((64, 5000), np.float32)
    assert count_calls(compiled(lambda x: jax.jit(lambda x: f(x))(x * 0.5), x)) == 1
    for devices in (1, 2):
        cpus = jax.devices("cpu")[:devices]
        mesh = jax.make_mesh((devices,), ("a",), (AxisType.Auto,), devices=cpus)
        mapped = functools.partial(jax.shard_map, mesh=mesh, in_specs=P("a"), out_specs=P("a"))
        inside, outside = mapped(lambda x: f(x * 0.5)), mapped(lambda x: f(x))
        x = jax.device_put(np.ones((128, 5000), np.float32), NamedSharding(mesh, P("a")))
        assert count_calls(compiled(lambda x, g=inside: g(x), x)) == 0
        assert count_calls(compiled(lambda x, g=outside: g(x * 0.5), x)) == 1
        assert count_calls(compiled(lambda x, g=outside: g(x), x)) == 1


@pytest.mark.usefixtures("cpu_has_the_rule")
@pytest.mark.parametrize("name", FORWARD)
@pytest.mark.parametrize("devices", [1, 2])
def test_the_rule_sees_through_the_constraints_of_an_explicit_mesh(name, devices):
    cpus = jax.devices("cpu")[:devices]
    mesh = jax.make_mesh((devices,), ("a",), (AxisType.Explicit,), devices=cpus)
    with jax.set_mesh(mesh):
        x = jax.device_put(np.ones((4096, 256), np.float32), NamedSharding(mesh, P("a")))
        for before, calls in ((lambda x: x, 1), (lambda x: 0.5 * x, 0)):
            both = _passes(name, before, lambda y: y)
            assert count_calls(compiled(both, x), BACKWARD[name]) == calls


@pytest.mark.usefixtures("cpu_has_the_rule")
@pytest.mark.parametrize("name", FORWARD)
def test_a_conversion_scales_where_what_comes_back_is_narrower(name):
    for make, dtype, calls in (
        (lambda x: x.astype("float16"), "float32", 1),
        (lambda x: (x.astype("float32") + 1).astype("float16"), "float16", 0),
    ):
        both = _passes(name, make, lambda y: y)
        assert count_calls(compiled(both, np.ones((1024, 256), dtype)), BACKWARD[name]) == calls


@pytest.mark.usefixtures("cpu_has_the_rule")
@pytest.mark.parametrize("scale", [1, 0.5])
def test_a_cotangent_made_of_the_result_in_16_bits_is_not_fused(scale):
    """Where the logits are scaled it is, as in float32."""
    for dtype, calls in (("float16", scale == 1), ("float32", False)):
        both = _passes("softmax", lambda x: x * x.dtype.type(scale) if scale != 1 else x, _squares)
        x = np.random.default_rng(0).normal(size=(1024, 328)).astype(dtype)
        assert count_calls(compiled(both, x), BACKWARD["softmax"]) == calls


@pytest.mark.usefixtures("cpu_has_the_rule")
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_on_an_automatic_mesh_nothing_is_apart(dtype):
    x = np.ones((4097, 1336), "bfloat16")
    assert count_calls(compiled(lambda x: jax_softmax.log_softmax(x.astype(dtype)), x)) == 1
    mesh = jax.make_mesh((2,), ("a",), (AxisType.Auto,), devices=jax.devices("cpu")[:2])
    x = jax.device_put(x, NamedSharding(mesh, P(None, "a")))
    hlo = compiled(lambda x: jax_softmax.log_softmax(x.astype(dtype)), x)
    assert count_calls(hlo) == 0 and "all-gather" not in hlo


@pytest.mark.usefixtures("cpu_has_the_rule")
@pytest.mark.parametrize("name", FORWARD)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_after_a_scale_what_labels_pick_of_log_softmax_is_the_kernels_in_float32(name, dtype):
    def loss(x, labels):
        return PICKS["take_along_axis"](getattr(jax_softmax, name)(x * x.dtype.type(0.7)), labels)

    x, labels = np.ones((1024, 256), dtype), np.arange(1024) % 256
    hlo = compiled(jax.grad(lambda x, labels: loss(x, labels).astype("float32").sum()), x, labels)
    calls = (name, dtype) == ("log_softmax", "float32")
    assert count_calls(hlo, BACKWARD[name]) == calls


@pytest.mark.usefixtures("cpu_has_the_rule")
@pytest.mark.parametrize("name", FORWARD)
def test_in_a_program_few_long_rows_may_be_split(name):
    for rows, flag, expected in ((16, None, "false"), (16, True, "true"), (17, None, "true")):
        x = np.ones((rows, 40_000), np.float32)
        f = functools.partial(getattr(jax_softmax, name), batch_invariant=flag)
        lowered = jax.jit(f).trace(x).lower(lowering_platforms=("cpu",))
        assert f"batch_invariant = {expected}" in lowered.as_text()


@pytest.mark.usefixtures("cpu_has_the_rule")
@pytest.mark.parametrize("name", FORWARD)
@pytest.mark.parametrize("rows, flag, calls", [(16, None, 0), (16, False, 1), (17, None, 1)])
def test_on_an_automatic_mesh_few_long_rows_are_xlas(name, rows, flag, calls):
    mesh = jax.make_mesh((2,), ("a",), (AxisType.Auto,), devices=jax.devices("cpu")[:2])
    x = jax.device_put(np.ones((rows, 40_000), np.float32), NamedSharding(mesh, P()))
    f = functools.partial(getattr(jax_softmax, name), batch_invariant=flag)
    assert count_calls(compiled(f, x)) == calls


@pytest.mark.usefixtures("cpu_has_the_rule")
@pytest.mark.parametrize("op", (*FORWARD, *GRADIENT))
def test_dtypes_without_kernels_need_no_rule(op):
    with pytest.raises(ValueError, match="complex64"):
        plan((4, 5), "complex64", op=op, device="cpu")
    x = np.ones((4, 5), np.complex64)
    assert count_calls(compiled(lambda x: jax_softmax.softmax(x), x)) == 0


@pytest.mark.parametrize("op", ["log_softmax_tangent", "log_softmax_cotangent"])
@pytest.mark.parametrize("rows, expected", [(2**17 // 64, 0), (2**17 // 64 + 1, 1)])
def test_plain_jax_reads_a_large_residual_from_memory(op, rows, expected):
    """XLA would make it anew of what it was made of: see _reference.py."""
    x = jax.ShapeDtypeStruct((rows, 64), jnp.dtype("bfloat16"))
    lowered = jax.jit(functools.partial(bind, op, axis=1, implementation="xla")).lower(x, x)
    assert lowered.as_text().count("optimization_barrier") == expected


@pytest.mark.usefixtures("cpu_has_the_rule")
@pytest.mark.parametrize("name", FORWARD)
def test_softmaxs_derivative_under_masks_is_the_kernels(name):
    x = np.ones((2**10, 256), "float16")
    mask = np.arange(256) > 3

    def gradient(x, **where):
        return jax.vjp(lambda x: getattr(jax_softmax, name)(x, **where), x)[1](2 * x)[0]

    # Log-softmax's has selects around it, which XLA fuses.
    for where, calls in (({}, 0), ({"where": mask}, name == "softmax")):
        hlo = compiled(lambda x, where=where: gradient(x, **where), x)
        assert count_calls(hlo, BACKWARD[name]) == calls


OPERAND_READ = [  # shape, axis, dtype, request, whether the derivative may read the operand
    ((1024, 256), 1, "float32", {}, True),
    ((1024, 256), 1, "float32", {"implementation": "xla"}, True),
    ((1024, 256), 1, "float32", {"implementation": "cpu"}, False),
    ((1024, 256), 1, "float32", {"batch_invariant": True}, False),
    ((1024, 256, 1), 1, "float32", {}, True),
    ((1024, 256), 0, "float32", {}, False),
    ((1024, 136), 1, "float16", {}, False),
    ((1024, 256), 1, "float16", {}, True),
    ((1024, 264), 1, "float16", {}, False),
    ((1024, 268), 1, "float16", {}, False),
    ((1024, 268), 1, "float16", {"dtype": "float32"}, True),
    ((1024, 257), 1, "float32", {}, False),
    ((1024, 513), 1, "float32", {}, True),
    ((64, 5000), 1, "float32", {}, False),
    ((8, 5000), 1, "float32", {}, False),  # XLA's code, but of the result: it makes two kernels
    ((64, 5000), 1, "float32", {"implementation": "xla"}, False),
    ((8, 9), 1, "float16", {}, True),
    ((4, 4096, 3), 1, "float32", {}, False),  # XLA's code, but of the result
]


@pytest.mark.parametrize("case", OPERAND_READ, ids=str)
def test_log_softmax_keeps_its_operand_only_where_xla_may_read_it(case):
    shape, axis, dtype, request_, expected = case
    f = functools.partial(jax_softmax.log_softmax, axis=axis, **request_)
    x = jax.ShapeDtypeStruct(shape, dtype)
    for derivative in (lambda x: jax.jvp(f, (x,), (x,)), lambda x: jax.vjp(f, x)[1](f(x))):
        text = str(jax.make_jaxpr(derivative)(x))
        (operands,) = re.findall(r"log_softmax_(?:co)?tangent\[.*?\] ([a-z ]+)", text, re.S)
        assert len(operands.split()) == (3 if expected else 2), text


@pytest.mark.usefixtures("cpu_has_the_rule")
@pytest.mark.parametrize("shape", [(600, 256), (40, 5000)])
@pytest.mark.parametrize("request_", [{}, {"implementation": "xla"}], ids=str)
def test_derivatives_from_the_operand(request_, shape):
    """To second order in both modes, and where what was small becomes large under vmap."""
    f = functools.partial(jax_softmax.log_softmax, **request_)
    x, t = 10 * np.random.default_rng(0).standard_normal((2, *shape))
    with jax.enable_x64(True):
        truth = functools.partial(jax.nn.log_softmax, axis=-1)
        for derive in (
            lambda f: lambda x, t: jax.jvp(f, (x,), (t,))[1],
            lambda f: lambda x, t: jax.vjp(f, x)[1](t)[0],
            lambda f: lambda x, t: jax.jvp(lambda x: jax.vjp(f, x)[1](t)[0], (x,), (t,))[1],
            lambda f: lambda x, t: jax.vjp(lambda x: jax.jvp(f, (x,), (t,))[1], x)[1](t)[0],
        ):
            for dtype, tolerance in (("float32", 1e-5), ("bfloat16", 1e-2)):
                narrow = [jnp.asarray(v, dtype) for v in (x, t)]
                want = derive(truth)(*(v.astype("float64") for v in narrow))
                for g in (derive(f), jax.vmap(derive(f))):
                    error = np.abs(np.asarray(jax.jit(g)(*narrow), np.float64) - want)
                    assert error.max() <= tolerance * np.abs(want).max()


@pytest.mark.usefixtures("cpu_has_the_rule")
@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("columns", [128, 200, 5000])
@pytest.mark.parametrize("name", FORWARD)
def test_derivatives_in_mixed_precision(name, columns, x64):
    x, t = np.random.default_rng(0).standard_normal((2, 1024, columns))

    def derivatives(f, x, t):
        def mixed(x):
            return f(x.astype("float32")).astype(x.dtype)

        return jax.jvp(mixed, (x,), (t,)), jax.vjp(mixed, x)[1](t)

    with jax.enable_x64(x64):
        narrow = [jnp.asarray(10 * v, "bfloat16") for v in (x, t)]
        got, want = (
            jax.jit(functools.partial(derivatives, f))(*narrow)
            for f in (getattr(jax_softmax, name), getattr(jax.nn, name))
        )
        for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            assert g.dtype == w.dtype
            g, w = (v.astype("float32") for v in (g, w))
            np.testing.assert_allclose(g, w, rtol=0.02, atol=0.05 * np.abs(w).max())


def _back(y):
    return y.astype("bfloat16")


@pytest.mark.usefixtures("cpu_has_the_rule")
@pytest.mark.parametrize(
    "consumer, from_parts",
    [(_back, True), (lambda y: y, True), (lambda y: jnp.sum(y**2, 1), False)],
)
@pytest.mark.parametrize("shape, axis", [((64, 300, 24), 1), ((700, 200), 0), ((4, 128, 5, 99), 1)])
def test_along_another_axis_softmaxs_derivative_in_mixed_precision_is_of_its_exponentials(
    shape, axis, consumer, from_parts
):
    def forward(library):
        return lambda x: consumer(library.softmax(x.astype("float32"), axis))

    def both_passes(library):
        def of(x, t):
            y, pull_back = jax.vjp(forward(library), x)
            return y, *pull_back(t)

        return jax.jit(of)

    x = jnp.asarray(3 * np.random.default_rng(0).normal(size=shape), "bfloat16")
    out = jax.eval_shape(forward(jax.nn), x)
    t = jnp.cos(jnp.arange(math.prod(out.shape))).reshape(out.shape).astype(out.dtype)
    lowered = both_passes(jax_softmax).lower(x, t)
    assert count_calls(lowered.compile().as_text()) == 0
    # The rows' factor is a quotient more.
    assert lowered.as_text().count("stablehlo.divide") == 1 + from_parts
    results = (both_passes(library)(x, t) for library in (jax_softmax, jax.nn))
    for got, want in zip(*results, strict=True):
        got, want = np.float32(got), np.float32(want)
        np.testing.assert_allclose(got, want, atol=2**-8 * np.abs(want).max(), rtol=2**-7)


@pytest.mark.usefixtures("cpu_has_the_rule")
@pytest.mark.parametrize(
    "shape, axis, consumer, expected",
    [
        ((2048, 128), 1, _back, 1),
        ((2048, 128), 1, lambda y: y, 1),
        ((256, 3, 300), 2, lambda y: 3 * _back(y), 1),
        ((64, 14_000), 1, _back, 1),
        ((64, 14_008), 1, _back, 1),  # few rows
        ((129, 14_008), 1, _back, 0),
        ((2, 2**14), 1, _back, 1),
        ((2, 2**14 + 1), 1, _back, 0),
        ((64, 3, 1024), 1, _back, 0),  # XLA makes several kernels
        ((2048, 128), 1, lambda y: jnp.sum(y**2, 1), 0),  # of the result: read once
        ((2048, 128), 1, lambda y: jnp.sum(_back(y) ** 2, 1), 0),
        ((2048, 128), 1, lambda y: jnp.sum(y.reshape(64, 32, 128) ** 2, 2), 0),
        ((2048, 128), 1, lambda y: jnp.sum(y.T**2, 0), 0),
        ((2048, 128), 1, lambda y: jnp.sum(y[:, :64] ** 2, 1), 0),
    ],
)
def test_softmaxs_derivative_in_mixed_precision_is_of_its_logits(shape, axis, consumer, expected):
    def mixed(x, **where):
        return consumer(jax_softmax.softmax(x.astype("float32"), axis, **where))

    def both_passes(x, t, **where):
        y, pull_back = jax.vjp(functools.partial(mixed, **where), x)
        return y, pull_back(t)

    x = jax.ShapeDtypeStruct(shape, jnp.dtype("bfloat16"))
    t = jax.eval_shape(mixed, x)
    assert jax.jit(both_passes).lower(x, t).as_text().count("stablehlo.clamp") == expected
    # Under a mask too, where XLA's code runs.
    expected &= shape[axis] <= 8192 or math.prod(shape) <= 2**17
    masked = jax.jit(both_passes).lower(x, t, where=np.arange(shape[-1]) > 3)
    assert masked.as_text().count("stablehlo.clamp") == expected


@pytest.mark.usefixtures("cpu_has_the_rule")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_masked_derivatives_in_mixed_precision_are_those_of_the_result(scale, causal, monkeypatch):
    x, t = 5 * np.random.default_rng(0).standard_normal((2, 8, 300, 256))
    x[0, 0] = -np.inf
    x[:, 1, 7] = np.nan
    x[0, 2, 200] = np.inf
    mask = np.random.default_rng(1).random((8, 300, 256)) > 0.4
    mask[:, 3] = False
    mask[:4, 1, 7] = mask[0, 2, 200] = mask[:, 4, 9] = False
    t[:, 4, 9] = np.nan
    x, t = (jnp.asarray(v, "bfloat16") for v in (x, t))

    def mixed(x):
        f = functools.partial(jax_softmax.masked_softmax, mask=mask, scale=scale, causal=causal)
        return f(x.astype("float32")).astype(x.dtype)

    def derivatives(x, t):
        y, pull_back = jax.vjp(mixed, x)
        return y, pull_back(t)[0], jax.jvp(mixed, (x,), (t,))[1]

    lowered = jax.jit(derivatives).lower(x, t)
    assert lowered.as_text().count("stablehlo.clamp") == 2
    got = lowered.compile()(x, t)
    monkeypatch.setattr(_looking, "logits_of", lambda *_: ())
    jax.clear_caches()
    lowered = jax.jit(derivatives).lower(x, t)
    assert "stablehlo.clamp" not in lowered.as_text()
    for g, w in zip(got, lowered.compile()(x, t), strict=True):
        g, w = (np.asarray(v, "float32") for v in (g, w))
        np.testing.assert_allclose(g, w, rtol=0.02, atol=1e-3)
        assert not np.isnan(g[:, 4]).any()


def _linearized_by_cond(f, p, x1, x2, t):
    def leaves(x):
        return jax.tree.leaves(jax.vjp(f, x)[1])

    pull_back = jax.lax.cond(p, lambda: leaves(x1), lambda: leaves(x2))
    return jax.tree.unflatten(jax.tree.structure(jax.vjp(f, x1)[1]), pull_back)(t)[0]


@pytest.mark.usefixtures("cpu_has_the_rule")
def test_a_result_that_is_one_of_two_is_no_masked_one():
    """Under vmap the condition selects one of the two residuals."""
    x1, x2, t = jnp.asarray(np.random.default_rng(0).standard_normal((3, 16, 512, 128)), "bfloat16")

    def derivative(softmax):
        def mixed(x):
            return softmax(x.astype("float32")).astype(x.dtype)

        return jax.vmap(functools.partial(_linearized_by_cond, mixed))

    p = jnp.arange(16) % 2 == 0
    got, want = (
        np.asarray(jax.jit(derivative(f))(p, x1, x2, t), "float32")
        for f in (jax_softmax.softmax, jax.nn.softmax)
    )
    np.testing.assert_allclose(got, want, rtol=0.02, atol=1e-3)


@pytest.mark.usefixtures("cpu_has_the_rule")
@pytest.mark.parametrize("mode", [jax.jvp, jax.vjp], ids=lambda mode: mode.__name__)
def test_kernels_do_not_read_an_operand_that_is_there(mode):
    """A row alone is XLA's, many are the kernels'."""
    f = jax_softmax.log_softmax

    def derivative(x, t):
        return jax.jvp(f, (x,), (t,))[1] if mode is jax.jvp else jax.vjp(f, x)[1](t)[0]

    x = np.ones((40, 5000), np.float32)
    assert count_calls(compiled(derivative, x[0], x[0])) == 0
    assert count_calls(compiled(jax.vmap(derivative), x, x)) == 2


@pytest.mark.usefixtures("cpu_has_the_rule")
def test_few_rows_of_absmax_are_the_kernels():
    x = np.ones((4, 2**14), np.float32)
    assert count_calls(compiled(lambda x: jax_softmax.absmax_scale(x), x), "absmax") == 1


@pytest.mark.usefixtures("cpu_has_the_rule")
@pytest.mark.parametrize("log", [False, True], ids=["softmax", "log_softmax"])
def test_a_bias_along_another_axis_leaves_the_softmax_to_its_rule(log):
    def calls(shape, **terms):
        f = functools.partial(jax_softmax.masked_softmax, log=log, axis=1, **terms)
        return count_calls(compiled(f, np.ones(shape, np.float32)), FORWARD[log])

    bias = np.ones(64, np.float32)
    assert calls((64, 100, 64), bias=bias) == calls((64, 100, 64), bias=bias, scale=0.5) == 1
    assert calls((64, 16, 64), bias=bias) == calls((64, 100, 64), bias=bias, softcap=2.0) == 0
    assert calls((64, 100, 64), bias=bias, mask=bias > 0) == 0
    # Which takes account of what makes its operand.
    assert calls((64, 256, 64), bias=bias) == 0


def test_terms_along_another_axis_have_a_kernel_for_those_who_name_it():
    def takes(axis, strategy, shape=(4, 5, 6)):
        problem = "cuda", "masked_softmax", shape, jnp.dtype("float32")
        request = {"output_dtype": "float32", "batch_invariant": True, "terms": [shape]}
        return _native.takes_terms(*problem, axis=axis, strategy=strategy, **request)

    assert takes(2, "auto") and takes(2, "warp") and takes(1, "strided")
    assert not takes(1, "auto") and not takes(2, "split")
    assert takes(1, "tile", (64, 33)) and takes(1, "tile", (64, 640))
    # What softmax's own tiles take, and these don't, is plain JAX around them.
    assert not any(takes(1, "tile", shape) for shape in ((64, 28), (64, 641), (4, 40, 5)))
