"""Softmax of logits times a number, with a bias, and with what a mask puts in, by kernels on a GPU.

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
# Rows of all strategies that masks have, whole vectors and not.
MASKED = ((5, 7), (3, 9, 33), (2, 5, 49), (9, 256), (2, 3, 600), (4, 1337), (3, 4096), (2, 9000))
MASKED += ((2, 20_001), (2, 65_536))
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

    assert program.lower(arrays).as_text().count(f"masked_{op}.v6") == len(cases)
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
        assert f"masked_{op}.v6" in f.lower(x, bias).as_text()
        assert_right(op, f(x, bias), added(x, bias), axis=1, context=special)


def masks(shape, rng):
    """By which all is masked of a few rows, in the shapes that kernels take."""
    whole = rng.random(shape) < 0.8
    whole[..., :1, :] = False
    made = {"columns": whole[..., -1:, :], "elements": whole}
    return made if len(shape) < 3 else made | {"rows and columns": whole[:1]}


@each_op
@each_dtype
def test_what_a_mask_puts_in_matches_wider_arithmetic(op, dtype):
    """Where it is masked, half is not a number."""
    rng = np.random.default_rng(0)
    fills = [float(jnp.finfo(dtype).min), -np.inf, -1e9, 0.0, 3.0]
    cases, arrays = [], []
    for shape in MASKED:
        logits = 3 * rng.standard_normal(shape)
        for number, mask in enumerate(masks(shape, rng).values()):
            x = np.where(mask | (rng.random(shape) < 0.5), logits, np.nan).astype(dtype)
            inverted = number % 2 == 1
            arrays.append((x, ~mask if inverted else mask))
            cases.append((mask, fills[len(cases) % len(fills)], inverted))

    def filled(x, m, fill, inverted):
        return jnp.where(m, fill, x) if inverted else jnp.where(m, x, fill)

    @jax.jit
    def program(arrays):
        return [
            bind(op, filled(x, m, *how), axis=x.ndim - 1, **KERNELS)
            for (x, m), (_, *how) in zip(arrays, cases, strict=True)
        ]

    assert program.lower(arrays).as_text().count("fills = true") == len(cases)
    results = jax.device_get(program(arrays))
    for got, (x, _), (mask, fill, _) in zip(results, arrays, cases, strict=True):
        with np.errstate(over="ignore"):
            z = np.where(mask, wide(x), wide(np.asarray(fill).astype(dtype)))
        context = f"{x.shape} {mask.shape} {fill}"
        assert_right(op, got, z, axis=x.ndim - 1, flat=flat_ulps(op, "cuda"), context=context)


@each_op
def test_a_mask_of_one_column_is_xlas(op):
    x, mask = np.zeros((4, 8, 1), "float32"), np.arange(8)[:, None] < 5
    f = jax.jit(lambda x, m: getattr(jax_softmax, op)(jnp.where(m, x, -5.0), **KERNELS))
    assert "fills = true" not in f.lower(x, mask).as_text()
    np.testing.assert_array_equal(f(x, mask), np.full(x.shape, op == "softmax"))


@each_op
@each_dtype
@pytest.mark.parametrize("columns", [512, 768, 1000, 4096])
@pytest.mark.parametrize("causal", [True, False])
def test_gradients_behind_a_mask(op, dtype, columns, causal):
    """As the default has them: of rows without any element, too."""
    rng = np.random.default_rng(columns)
    x, g = rng.normal(size=(2, max(2**23 // columns**2, 5), columns, columns)).astype(dtype)
    keys = rng.random((len(x), 1, columns)) < 0.7
    keys[0] = False
    lowest = float(jnp.finfo(dtype).min)

    def both_passes(f, x, g, keys):
        mask = jnp.tri(columns, dtype=bool) if causal else keys
        y, back = jax.vjp(lambda x: f(jnp.where(mask, x / 4, lowest)), x)
        return y, back(g)[0]

    ours = jax.jit(functools.partial(both_passes, getattr(jax_softmax, op)))
    by_kernel = causal or dtype.itemsize == 2  # XLA may have what reads float32 within its code
    assert ours.lower(x, g, keys).as_text().count("fills = true") == by_kernel
    with jax.enable_x64(True):
        truth = jax.jit(functools.partial(both_passes, getattr(jax.nn, op)))
        wanted = jax.device_get(truth(jnp.asarray(x, "float64"), jnp.asarray(g, "float64"), keys))
    tolerance = 1e-4 if dtype.itemsize == 4 else 2e-2
    for got, want in zip(ours(x, g, keys), wanted, strict=True):
        few = np.abs(want) < 1e4  # and not the logarithms of what is masked
        assert few.any() and (wide(got)[~few] < -1e4).all()
        largest = abs(want[few]).max()
        np.testing.assert_allclose(wide(got)[few], want[few], tolerance, tolerance * largest)


@each_dtype
@pytest.mark.parametrize("length", [49, 197, 1024])
@pytest.mark.parametrize("way", ["a scale", "a bias", "a bias of keys", "a mask of keys"])
def test_attention_and_its_gradients(dtype, length, way):
    """By whatever of them the default has kernels do, before products of float64."""
    rng = np.random.default_rng(length)
    heads = 4, 2, length  # a bias is at most a quarter of the scores
    q, k, v, g = rng.normal(size=(4, *heads, 64)).astype(dtype)
    bias = rng.normal(size=heads[1:] + heads[2:]).astype(dtype)
    keys = rng.random((4, length)) < 0.8
    keys[0, : length // 2] = False

    def both_passes(softmax, q, k, v, bias, g):
        def value(q, k, v, bias):
            scores = jnp.einsum("bhqd,bhkd->bhqk", q, k, precision="highest") * 0.125
            if way == "a bias":
                scores = scores + bias
            if way == "a bias of keys":
                scores = scores + jnp.where(keys, 0.0, -100.0).astype(scores.dtype)[:, None, None]
            if way == "a mask of keys":
                scores = jnp.where(keys[:, None, None], scores, -1e4)
            return jnp.einsum("bhqk,bhkd->bhqd", softmax(scores), v, precision="highest")

        y, back = jax.vjp(value, q, k, v, bias)
        return y, *back(g)

    arrays = q, k, v, bias, g
    ours = jax.jit(functools.partial(both_passes, jax_softmax.softmax))
    if length == 1024:
        op = "softmax" if way == "a scale" else "masked_softmax"
        forward = way != "a scale" or dtype.itemsize == 2
        assert (f"{op}.v6" in ours.lower(*arrays).as_text()) == forward
    with jax.enable_x64(True):
        wider = [jnp.asarray(v, jnp.float64) for v in arrays]
        wanted = jax.device_get(jax.jit(functools.partial(both_passes, jax.nn.softmax))(*wider))
    tolerance = 1e-4 if dtype.itemsize == 4 else 4e-2
    for got, want in zip(ours(*arrays), wanted, strict=True):
        np.testing.assert_allclose(wide(got), want, tolerance, tolerance * max(abs(want).max(), 1))


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
    assert default or f"masked_{op}.v6" in ours.lower(x, bias, g).as_text()
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
    call = jax.ffi.ffi_call("jax_softmax.softmax.v6", shape)
    request = {"axis": np.int64(1), "logical_axis": np.int64(1), "strategy": "auto"}
    with pytest.raises(jax.errors.JaxRuntimeError, match="wants a positive scale"):
        jax.block_until_ready(
            call(jnp.ones((4, 8)), batch_invariant=True, scale=np.float64(-1), **request)
        )
