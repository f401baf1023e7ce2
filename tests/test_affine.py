"""Softmax of logits times a number and with a bias, which kernels on a GPU apply as they read them.

What kinds of products and sums, test_cuda_aot.py has.
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

import jax_softmax
from jax_softmax import _native

pytestmark = pytest.mark.gpu
each_op = pytest.mark.parametrize("op", FORWARD)
each_dtype = pytest.mark.parametrize("dtype", [d for d in DTYPES if d.itemsize < 8], ids=str)
# Where they may add a bias, as the number of rows may decide.
KERNELS = {"implementation": "cuda", "batch_invariant": False}
each_strategy = pytest.mark.parametrize("strategy", CUDA_STRATEGIES)


def scaled(op, x, number, **request):
    return bind(op, x * jnp.asarray(number, x.dtype), **request)


def biases(shape, axis, dtype):
    """One for all rows, and of three dimensions or more one for those of each first index."""
    made = np.random.default_rng(shape[axis]).normal(size=shape[axis])
    made = made.reshape([-1 if d == axis else 1 for d in range(len(shape))])
    if len(shape) > 2 and axis > 0:
        made = made + np.arange(shape[0]).reshape([-1] + [1] * (len(shape) - 1))
    return made.astype(dtype)


def adds(op, x, bias, axis):
    """Whether kernels add it."""
    request = {"output_dtype": x.dtype, "axis": axis, "strategy": "auto", "batch_invariant": False}
    request["terms"] = [bias.shape]
    fits = 0 < bias.size <= x.size / 4
    return fits and _native.takes_terms("cuda", f"masked_{op}", x.shape, x.dtype, **request)


def added(x, bias):
    """In float32, as kernels compute."""
    with np.errstate(invalid="ignore"):
        return x.astype(np.float32) + bias.astype(np.float32)


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
@each_dtype
def test_the_sum_matches_wider_arithmetic(op, dtype):
    cases = [
        (operands(op, shape, axis, dtype)[0], biases(shape, axis, dtype), axis)
        for shape, axis in problems(op, dtype, "cuda:stream")
        if shape[axis] > 1
    ]
    cases = [case for case in cases if adds(op, *case)]
    assert len(cases) >= 40
    arrays = [case[:2] for case in cases]

    @jax.jit
    def program(arrays):
        pairs = zip(arrays, cases, strict=True)
        return [bind(op, x + bias, axis=axis, **KERNELS) for (x, bias), (*_, axis) in pairs]

    assert program.lower(arrays).as_text().count(f"masked_{op}.v5") == len(cases)
    for got, (x, bias, axis) in zip(jax.device_get(program(arrays)), cases, strict=True):
        assert_right(op, got, added(x, bias), axis=axis, flat=flat_ulps(op, "cuda"))


@each_op
@each_dtype
@pytest.mark.parametrize("columns", [40, 1000, 1537])
def test_special_values_and_a_bias(op, dtype, columns):
    """A row of which all is -inf is NaN, as jax.nn's is, whatever made it that."""
    x = special_rows(columns, dtype)
    first = np.arange(columns) < columns // 2
    x = np.concatenate([x, np.where(first, -np.inf, x[-1:]).astype(dtype)])
    f = jax.jit(lambda x, b: getattr(jax_softmax, op)(x + b, **KERNELS))
    for special in (1, np.inf, np.nan, -np.inf):
        bias = np.where(first, 0.5, special).astype(dtype)
        assert f"masked_{op}.v5" in f.lower(x, bias).as_text()
        assert_right(op, f(x, bias), added(x, bias), axis=1, context=special)


@each_op
@each_dtype
@pytest.mark.parametrize("columns", [512, 1000, 8192, 50_257])
@pytest.mark.parametrize("default", [True, False])
def test_gradients_through_a_product_and_a_bias(op, dtype, columns, default):
    request = {} if default else KERNELS
    rng = np.random.default_rng(columns)
    x, g = rng.normal(size=(2, 2**22 // columns, columns)).astype(dtype)
    bias = rng.normal(size=columns).astype(dtype)

    def both_passes(f):
        def value(x, bias):
            return f(x * jnp.asarray(0.25, dtype) + bias)

        return jax.jit(lambda x, bias, g: (lambda y, back: (y, *back(g)))(*jax.vjp(value, x, bias)))

    ours = both_passes(lambda x: getattr(jax_softmax, op)(x, **request))
    assert default or f"masked_{op}.v5" in ours.lower(x, bias, g).as_text()
    with jax.enable_x64(True):
        truth = both_passes(lambda x: getattr(jax.nn, op)(x))
        arrays = [jnp.asarray(v, jnp.float64) for v in (x, bias, g)]
        want = jax.device_get(jax.jit(lambda *v: truth(*v))(*arrays))
    tolerance = 1e-4 if dtype.itemsize == 4 else 2e-2
    for got, wanted in zip(ours(x, bias, g), want, strict=True):
        largest = abs(wanted).max()
        np.testing.assert_allclose(wide(got), wanted, tolerance, tolerance * largest)


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
    call = jax.ffi.ffi_call("jax_softmax.softmax.v5", shape)
    request = {"axis": np.int64(1), "logical_axis": np.int64(1), "strategy": "auto"}
    with pytest.raises(jax.errors.JaxRuntimeError, match="wants a positive scale"):
        jax.block_until_ready(
            call(jnp.ones((4, 8)), batch_invariant=True, scale=np.float64(-1), **request)
        )
