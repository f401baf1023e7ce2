"""Few rows whose plan may depend on their number: softmax in clusters that have a row each."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _cases import rows
from _truth import FLAT_ULPS, FORWARD, assert_right, wide
from test_values import special_rows

import jax_softmax

pytestmark = pytest.mark.gpu
each_op = pytest.mark.parametrize("op", FORWARD)
each_dtype = pytest.mark.parametrize(
    "dtype", [jnp.dtype("float32"), jnp.dtype("bfloat16")], ids=str
)
# What clusters of 2 to 16 blocks have: all of them full, or some without any of the row.
COLUMNS = (8, 520, 4096, 8192, 32_768, 40_960, 65_536, 97_000, 131_072)


def run(op, x, factor=1.0):
    split = {"implementation": "cuda:split", "batch_invariant": False}
    f = getattr(jax_softmax, op)
    return jax.jit(lambda x: f(x * jnp.asarray(factor, x.dtype), **split))(x)


def in_cluster(x, device=None):
    """Whether one has each row."""
    request = {"strategy": "split", "batch_invariant": False, "device": device}
    return jax_softmax.plan(x.shape, x.dtype, **request).cluster_blocks > 1


def kept(x):
    """On an H200 all these are, on other devices those that are left are no test of clusters."""
    assert in_cluster(x, "H200")
    if not in_cluster(x):
        pytest.skip("this device's clusters have no room for the row")
    return x


@each_op
@each_dtype
@pytest.mark.parametrize("count", [1, 5, 12, 16])
def test_rows_in_clusters_match_wider_arithmetic(op, dtype, count):
    inputs = [rows(count, n, dtype, seed=count) for n in COLUMNS]
    # 16 rows for 8 blocks at most; twice as many columns in 16 bits.
    longest = (65_536 if count == 16 else 131_072) * 2 // dtype.itemsize
    for x in inputs:
        assert in_cluster(x, "H200") == (x.shape[1] <= longest)
        assert_right(op, run(op, x), x, axis=1, flat=FLAT_ULPS, context=x.shape)


@each_op
@each_dtype
def test_special_values_in_clusters(op, dtype):
    for columns in (64, 4096, 32_768):
        every = special_rows(columns, dtype)
        for first in range(0, len(every), 8):
            x = kept(every[first : first + 8])
            assert_right(op, run(op, x), x, axis=1, context=columns)


@each_op
@each_dtype
def test_parts_of_a_cluster_without_a_finite_logit(op, dtype):
    columns = 32_768
    places = (0, 4095, 4096, columns - 1)
    x = np.full((8, columns), -np.inf, dtype)  # the rows that are left have no logit
    for row, place in enumerate(places):
        x[row, place] = -3
    got = np.asarray(run(op, kept(x)))
    for row, place in enumerate(places):
        assert got[row, place] == (1 if op == "softmax" else 0)
        assert (np.delete(got[row], place) == (0 if op == "softmax" else -np.inf)).all()
    assert np.isnan(got[len(places) :]).all()


@each_op
@each_dtype
def test_clusters_multiply_logits_by_a_number(op, dtype):
    x = kept(rows(7, 50_264, dtype, huge=False))
    factor = float(jnp.asarray(1 / 11.3, dtype))
    lowered = jax.jit(lambda x: run(op, x, factor)).lower(x).as_text()
    assert [float(v) for v in re.findall(r"\bscale = (\S+)", lowered)] == [pytest.approx(factor)]
    z = x * np.float32(factor) if dtype.itemsize == 4 else wide(x) * factor
    assert_right(op, run(op, x, factor), z, axis=1, flat=FLAT_ULPS)


@each_op
@each_dtype
def test_clusters_give_the_same_bits_every_time(op, dtype):
    x = kept(rows(12, 65_536, dtype))
    first = np.asarray(run(op, x))
    for _ in range(20):
        np.testing.assert_array_equal(run(op, x), first)
    np.testing.assert_array_equal(run(op, x[::-1]), first[::-1])
