"""Generated shapes, axes, dtypes and masks against `jax.nn` in float64."""

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

import jax_softmax

ULPS = {"float32": 16, "float64": 32, "float16": 1, "bfloat16": 1}
profile = hypothesis.settings(derandomize=True, database=None, deadline=None, max_examples=25)


@st.composite
def calls(draw):
    """x, axis and where of one call."""
    shape = tuple(draw(st.lists(st.integers(0, 9), max_size=4)))
    if shape and draw(st.booleans()):
        shape = (*shape[:-1], draw(st.sampled_from([31, 64, 200, 1025])))
    axes = list(range(-len(shape), len(shape)))
    one = st.sampled_from(axes) if axes else st.none()
    several = st.lists(st.integers(0, max(len(shape) - 1, 0)), unique=True, max_size=len(shape))
    axis = draw(st.one_of(one, several.map(tuple), st.none()))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    x = draw(st.sampled_from([0.1, 1.0, 10.0])) * rng.standard_normal(shape)
    where = rng.random(shape) < 0.7 if draw(st.booleans()) else None
    return x, axis, where


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize("dtype", ULPS)
@hypothesis.given(call=calls())
@profile
def test_generated_calls(name, dtype, call):
    x, axis, where = call
    with jax.enable_x64(True):
        x = jnp.asarray(x).astype(dtype)
        got = getattr(jax_softmax, name)(x, axis, where)
        want = getattr(jax.nn, name)(x.astype(jnp.float64), axis, where)
    assert got.dtype == x.dtype and got.shape == x.shape
    info = jnp.finfo(dtype)
    # jax.nn.log_softmax near zero is right to the absolute error of a logarithm near one.
    atol = max(1e-14, float(info.smallest_subnormal))
    np.testing.assert_allclose(
        np.asarray(got, np.float64), want, rtol=ULPS[dtype] * float(info.eps), atol=atol
    )
