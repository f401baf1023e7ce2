"""Softmax of logits times a number, which kernels on a GPU multiply as they read them.

What kinds of products, test_cuda_aot.py has.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _cases import operands, problems, skip_refused
from _support import CUDA_STRATEGIES, axis_of, bind
from _truth import DTYPES, FORWARD, TRUTH, assert_right, wide
from test_values import flat_ulps, special_rows

pytestmark = pytest.mark.gpu
each_op = pytest.mark.parametrize("op", FORWARD)
each_dtype = pytest.mark.parametrize("dtype", [d for d in DTYPES if d.itemsize < 8], ids=str)
each_strategy = pytest.mark.parametrize("strategy", CUDA_STRATEGIES)


def scaled(op, x, number, **request):
    return bind(op, x * jnp.asarray(number, x.dtype), **request)


@each_op
@each_dtype
@each_strategy
def test_the_product_matches_wider_arithmetic(op, dtype, strategy):
    implementation = f"cuda:{strategy}"
    shapes, axes = zip(*problems(op, dtype, implementation), strict=True)
    inputs = [operands(op, *case, dtype)[0] for case in zip(shapes, axes, strict=True)]
    request = {"implementation": implementation}

    @jax.jit
    def program(inputs):
        return [scaled(op, x, 0.25, axis=a, **request) for x, a in zip(inputs, axes, strict=True)]

    results = jax.device_get(program(inputs))
    for got, x, axis in zip(results, inputs, axes, strict=True):
        if got.size:
            flat = flat_ulps(op, implementation)
            assert_right(op, got, wide(x) / 4, axis=axis, flat=flat, context=implementation)


@each_op
@each_strategy
@pytest.mark.parametrize("number", [0.3, 1 / 3, 2.7e-4, 7.7])
def test_a_product_in_float32_is_rounded_first(op, number, strategy):
    """As where it is written to memory, so that all that use it have the same digits."""
    implementation = f"cuda:{strategy}"
    skip_refused(op, "float32", implementation)
    axis = axis_of(strategy)
    x = np.moveaxis(operands(op, (304, 199), 1, np.dtype("float32"))[0], 1, axis)
    request = {"axis": axis, "implementation": implementation}

    def in_memory(x):
        return bind(op, jax.lax.optimization_barrier(x * np.float32(number)), **request)

    got, want = (jax.jit(f)(x) for f in (lambda x: scaled(op, x, number, **request), in_memory))
    np.testing.assert_array_equal(got, want)


@each_op
@each_strategy
@pytest.mark.parametrize("number", [0.3, 0.7])  # the largest logits times more are infinite
def test_a_product_of_16_bits_is_not_rounded(op, number, strategy):
    implementation = f"cuda:{strategy}"
    skip_refused(op, "bfloat16", implementation)
    axis = axis_of(strategy)
    number = float(jnp.bfloat16(number))
    x = np.moveaxis(operands(op, (304, 199), 1, jnp.dtype("bfloat16"))[0], 1, axis)
    got = jax.jit(lambda x: scaled(op, x, number, axis=axis, implementation=implementation))(x)
    assert_right(op, got, wide(x) * number, axis=axis, context=implementation)


@each_op
@each_dtype
@each_strategy
def test_special_values_times_a_number(op, dtype, strategy):
    implementation = f"cuda:{strategy}"
    skip_refused(op, dtype, implementation)
    axis = axis_of(strategy)
    x = np.ascontiguousarray(np.moveaxis(special_rows(33, dtype), 1, axis))
    got = jax.jit(lambda x: scaled(op, x, 0.5, axis=axis, implementation=implementation))(x)
    assert_right(op, got, wide(x) / 2, axis=axis, context=implementation)


@each_op
@each_strategy
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("divisor", [0.5, 0.7, 11.3])
def test_products_of_a_part_of_a_row_may_be_too_large(op, dtype, divisor, strategy):
    """As of a sampler's logits, most of which are the smallest number there is."""
    implementation, dtype = f"cuda:{strategy}", jnp.dtype(dtype)
    skip_refused(op, dtype, implementation)
    axis = axis_of(strategy)
    lowest = float(jnp.finfo(dtype).min)
    x = np.random.default_rng(0).normal(size=(304, 199))
    x = np.where(np.arange(199) // 8 % 7 == np.arange(304)[:, None] % 7, x, lowest)
    x[::16] = -1e30  # in 16 bits, whose products are not rounded, a row like any other
    x = np.moveaxis(x.astype(dtype), 1, axis)
    f = functools.partial(bind, op, axis=axis, implementation=implementation)
    divisor = np.asarray(divisor, dtype)
    got = wide(np.moveaxis(jax.jit(lambda x: f(x / divisor))(x), axis, 1))
    want = np.moveaxis(TRUTH[op](wide(x) / float(divisor), axis), axis, 1)
    assert np.isfinite(got if op == "softmax" else got.max(1)).all()
    if op == "softmax":
        np.testing.assert_allclose(got, want, 1e-2, 1e-6)
    else:
        few = want > -1e3
        np.testing.assert_allclose(got[few], want[few], 1e-2, 1e-6)
        assert (got[~few] < -1e3).all()


def test_a_handler_wants_a_positive_scale():
    shape = jax.ShapeDtypeStruct((4, 8), "float32")
    call = jax.ffi.ffi_call("jax_softmax.softmax.v4", shape)
    request = {"axis": np.int64(1), "logical_axis": np.int64(1), "strategy": "auto"}
    with pytest.raises(jax.errors.JaxRuntimeError, match="wants a positive scale"):
        jax.block_until_ready(
            call(jnp.ones((4, 8)), batch_invariant=True, scale=np.float64(-1), **request)
        )
