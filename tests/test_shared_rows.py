"""Rows that blocks share, who wait for each other: "ring", and clusters of "panel" and "slab"."""

import jax
import numpy as np
import pytest
from _cases import skip_refused
from _support import axis_of, bind, precision
from _truth import DTYPES, FLAT_ULPS, RESIDUAL, TRUTH, assert_right, wide

import jax_softmax

pytestmark = pytest.mark.gpu

each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
OPS = ("softmax", "log_softmax", "softmax_tangent", "log_softmax_cotangent")
each_op = pytest.mark.parametrize("op", OPS)
each_strategy = pytest.mark.parametrize("strategy", ["ring", "panel", "slab"])
# Of a panel's or a slab's rows side by side: few of them, that are no whole vectors.
NEIGHBOURS = {"panel": 304, "slab": 21}


def run(op, *operands, strategy="ring"):
    """Of operands and a result whose rows are along axis 1."""
    implementation = f"cuda:{strategy}"
    axis = axis_of(implementation)

    @jax.jit
    def reduce(*operands):
        return bind(op, *operands, axis=axis, implementation=implementation)

    with precision(operands[0].dtype):
        moved = [np.ascontiguousarray(np.moveaxis(x, 1, axis)) for x in operands]
        return np.moveaxis(jax.device_get(reduce(*moved)), axis, 1)


def operands(op, shape, dtype):
    """Logits, or what is as good as a result and a tangent."""
    rng = np.random.default_rng(shape)
    return [rng.standard_normal(shape).astype(dtype) for _ in range(2 if op in OPS[2:] else 1)]


@each_op
@each_dtype
def test_no_value_looks_like_a_result_that_has_not_come(op, dtype):
    """Results are awaited where all bits are set at first, as they are in one of the NaNs."""
    x = operands(op, (5, 100_003), dtype)
    expected = run(op, *x)
    unset = np.frombuffer(b"\xff" * 8, dtype)[0]
    for row, columns in ((1, slice(None)), (3, slice(70_000, 70_001))):
        for operand in x:
            operand[row, columns] = unset
    got = run(op, *x)
    assert np.isnan(got[[1, 3]]).all()
    np.testing.assert_array_equal(got[[0, 2, 4]], expected[[0, 2, 4]])


@each_op
@each_dtype
def test_bits_depend_neither_on_other_rows_nor_on_which_block_is_first(op, dtype):
    x = operands(op, (300, 30_040), dtype)  # whole vectors, but no whole lines of the cache
    first = run(op, *x)
    for _ in range(10):
        np.testing.assert_array_equal(run(op, *x), first)
    for row in (0, 151, 299):
        alone = run(op, *(operand[row : row + 1] for operand in x))
        np.testing.assert_array_equal(alone[0], first[row])


@each_op
@each_dtype
@pytest.mark.parametrize("strategy", NEIGHBOURS)
@pytest.mark.parametrize("columns", [257, 1481, 3001, 16_400])
def test_blocks_do_not_look_at_neighbouring_rows(op, dtype, columns, strategy):
    skip_refused(op, dtype, f"cuda:{strategy}")
    rows = NEIGHBOURS[strategy]
    plan = jax_softmax.plan((columns, rows), dtype, 0, op, device="H200", strategy=strategy)
    if columns in (257, 16_400):
        assert (plan.cluster_blocks > 1) == (columns > 1000)
    x = operands(op, (rows, columns), dtype)
    first = run(op, *x, strategy=strategy)
    np.testing.assert_array_equal(run(op, *x, strategy=strategy), first)
    kept = [0, 7, 8, rows // 2, rows - 1]
    others = [i for i in range(rows) if i not in kept]
    for operand in x:
        operand[others] = np.inf
    got = run(op, *x, strategy=strategy)
    np.testing.assert_array_equal(got[kept], first[kept])
    assert np.isnan(got[others]).any(axis=1).all()


@pytest.mark.parametrize("op", OPS[:2])
@each_dtype
@each_strategy
def test_parts_without_a_finite_logit(op, dtype, strategy):
    """One finite logit, at either end or inside; and none at all."""
    skip_refused(op, dtype, f"cuda:{strategy}")
    columns = {"ring": 60_001, "panel": 3001, "slab": 12_001}[strategy]
    places = (0, 1, columns // 2, columns - 1)
    x = np.full((8, columns), -np.inf, dtype)  # the rows that are left have no logit
    for row, place in enumerate(places):
        x[row, place] = -3
    got = run(op, x, strategy=strategy)
    for row, place in enumerate(places):
        assert got[row, place] == (1 if op == "softmax" else 0)
        others = np.delete(got[row], place)
        assert (others == (0 if op == "softmax" else -np.inf)).all()
    assert np.isnan(got[len(places) :]).all()


@pytest.mark.parametrize(
    "op, rows, columns",
    [*((op, 1, 1_000_003) for op in OPS), *((op, 2, 3_000_000) for op in OPS[:2])],
)
def test_rows_that_all_blocks_share(op, rows, columns):
    """All but the forward pass of a million columns have more parts than one warp waits for."""
    x = operands(op, (rows, columns), np.dtype("float32"))
    if op in RESIDUAL:
        x[0] = TRUTH[RESIDUAL[op]](wide(x[0]), 1).astype(x[0].dtype)
    assert_right(op, run(op, *x), *x, axis=1, flat=None, context="cuda:ring")


@pytest.mark.parametrize("op", OPS[:2])
@pytest.mark.parametrize("columns", [7001, 30_001])  # of float32 one part, and five
@each_dtype
def test_warps_that_have_reduced_logits_of_other_sizes(op, columns, dtype):
    """Terms that are kept are shifted by the largest logit of a warp's vectors, not of the row."""
    [x] = operands(op, (12, columns), dtype)
    alike = 2100  # a warp has 1,024 float32 elements, wherever they begin
    rng = np.random.default_rng(0)
    sizes = rng.choice(np.array([0, -9, -40, -80, -np.inf], dtype), (12, columns // alike + 1))
    sizes[:, 1] = 0
    x += sizes.repeat(alike, axis=1)[:, :columns]
    assert_right(op, run(op, x), x, axis=1, flat=FLAT_ULPS + 1, context="cuda:ring")


@pytest.mark.parametrize("magnitude", [1.0, 100.0, 1e6])
@each_strategy
def test_only_finite_logits_of_any_size(strategy, magnitude):
    rows = NEIGHBOURS.get(strategy, 304)
    logits = magnitude * np.random.default_rng(0).standard_normal(rows).astype("float32")
    x = np.full((rows, 3001), -np.inf, "float32")
    x[:, 1700] = logits
    assert (run("softmax", x, strategy=strategy)[:, 1700] == 1).all()
