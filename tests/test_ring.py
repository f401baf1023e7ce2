"""What "ring" alone does: parts of a row, in any blocks, wait for each other's results."""

import jax
import numpy as np
import pytest
from _support import bind, precision
from _truth import DTYPES, assert_right

pytestmark = pytest.mark.gpu

each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
OPS = ("softmax", "log_softmax", "softmax_tangent", "log_softmax_cotangent")
each_op = pytest.mark.parametrize("op", OPS)


def run(op, *operands):
    @jax.jit
    def ring(*operands):
        return bind(op, *operands, axis=1, implementation="cuda:ring")

    with precision(operands[0].dtype):
        return jax.device_get(ring(*operands))


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


@pytest.mark.parametrize("op", OPS[:2])
@each_dtype
def test_parts_without_a_finite_logit(op, dtype):
    """One finite logit, at either end or inside; and none at all."""
    columns = 60_001
    places = (0, 1, columns // 2, columns - 1)
    x = np.full((len(places) + 1, columns), -np.inf, dtype)
    for row, place in enumerate(places):
        x[row, place] = -3
    got = run(op, x)
    for row, place in enumerate(places):
        assert got[row, place] == (1 if op == "softmax" else 0)
        others = np.delete(got[row], place)
        assert (others == (0 if op == "softmax" else -np.inf)).all()
    assert np.isnan(got[-1]).all()


@pytest.mark.parametrize("op", OPS[:2])
@pytest.mark.parametrize("rows, columns", [(1, 1_000_003), (2, 3_000_000)])
def test_rows_that_all_blocks_share(op, rows, columns):
    x = operands(op, (rows, columns), np.dtype("float32"))
    assert_right(op, run(op, *x), *x, axis=1, flat=None, context="cuda:ring")
