"""absmax_scale and absmax_quantize next to float64 and to a reference that autodiff takes apart."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _support import COLLECTIVES, compiled, count_calls, operations, precision
from _truth import DTYPES, ulp, wide
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jax.test_util import check_grads

from jax_softmax import _primitives, absmax_quantize, absmax_scale

pytestmark = pytest.mark.usefixtures("backend", "quickly_compiled")
AXES = [-1, 0, 1, (0, 2), (2, 0), [1], None, ()]
LARGEST = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0, "int8": 127.0}
BITS_AFTER_THE_FIRST = {"float8_e4m3fn": 3, "float8_e5m2": 2}
SMALLEST_SUBNORMAL = {"float8_e4m3fn": 2.0**-9, "float8_e5m2": 2.0**-16}
each_axis = pytest.mark.parametrize("axis", AXES, ids=repr)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
each_quantized = pytest.mark.parametrize("quantized", LARGEST)
functions = pytest.mark.parametrize("f", [absmax_scale, absmax_quantize])


def randn(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def naive(x, axis=-1):
    """The definition, for rows that are not 0."""
    absmax = jnp.max(jnp.abs(x), axis, keepdims=True)
    return x / absmax, jnp.squeeze(absmax, axis)


def weighted(f):
    """A scalar function that tells the elements of both of `f`'s results apart."""

    def loss(x):
        return sum(jnp.sum(jnp.sin(v + jnp.arange(v.size).reshape(v.shape))) for v in f(x))

    return loss


def assert_close(got, want, rtol=1e-5, atol=1e-6):
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(g, w, rtol=rtol, atol=atol)


def normalised(axis, ndim):
    given = range(ndim) if axis is None else [axis] if isinstance(axis, int) else axis
    return tuple(a % ndim for a in given)


# -- scaling -------------------------------------------------------------------------------------


@each_axis
@each_dtype
def test_scale_is_right_to_the_last_place(dtype, axis):
    with precision(dtype):
        x = jnp.asarray(10 * randn(6, 40, 50, dtype=np.float64), dtype)
        y, absmax = absmax_scale(x, axis)
        _, kept = absmax_scale(x, axis, keepdims=True)
    axes = normalised(axis, 3)
    want = np.max(abs(wide(x)), axes, keepdims=True)
    assert y.dtype == dtype and absmax.dtype == kept.dtype == np.promote_types(dtype, np.float32)
    assert absmax.shape == np.squeeze(want, axes).shape and kept.shape == want.shape
    np.testing.assert_array_equal(wide(kept), want)
    np.testing.assert_array_equal(wide(absmax), np.squeeze(want, axes))
    # Rounded once; a GPU's float32 division may be two units off.
    assert (abs(wide(y) - wide(x) / want) <= 2 * ulp(wide(x) / want, dtype)).all()
    if dtype.itemsize == 2:
        assert (abs(wide(y) - wide(x) / want) <= 0.51 * ulp(wide(x) / want, dtype)).all()
    np.testing.assert_array_equal(
        wide(y)[abs(wide(x)) == want], np.sign(wide(x)[abs(wide(x)) == want])
    )


@pytest.mark.parametrize("times", [1, 7], ids=["3 columns", "21 columns"])  # XLA's on a CPU, ours
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_maximum_is_exactly_one_at_any_size(dtype, times):
    """Also where its reciprocal overflows, if subnormal numbers are not flushed to zero."""
    sizes = np.geomspace(2.0**-125, 2.0**126, 4001)
    x = jnp.asarray(np.stack([sizes, -sizes, sizes / 2] * times, 1), dtype)
    y, _ = absmax_scale(x)
    np.testing.assert_array_equal(np.asarray(y[:, :2], np.float32), np.tile([1, -1], (4001, 1)))
    np.testing.assert_allclose(np.asarray(y[:, 2], np.float32), 0.5, rtol=8e-3)
    tiny = np.array([[2.0**-149, -(2.0**-149), 0], [2.0**-130, -(2.0**-129), 0]], np.float32)
    y, absmax = absmax_scale(np.tile(tiny, (1, times)))
    np.testing.assert_array_equal(
        np.asarray(absmax).view(np.int32), abs(tiny).max(1).view(np.int32)
    )
    y, want = np.asarray(y), np.tile([[1, -1, 0], [0.5, -1, 0]], (1, times))
    assert np.array_equal(y, want) or not np.any(y)


@functions
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_zero_rows_are_zero_with_zero_gradients(f, dtype):
    x = jnp.asarray([[0, 0, -0.0], [3, -4, 0]], dtype)
    y, row = f(x)
    assert not np.any(np.asarray(y[0], np.float32)) and np.all(np.asarray(y[1, :2], bool))
    assert row[0] == (0 if f is absmax_scale else np.finfo(np.float32).tiny)

    def loss(x):
        y, row = f(x)
        return jnp.sum(y.astype(jnp.float32) * jnp.arange(1.0, 4.0)) + jnp.sum(row**2)

    gradient = jax.grad(loss)(x)
    hvp = jax.jvp(jax.grad(loss), (x,), (jnp.ones_like(x),))[1]
    assert not np.any(np.asarray(gradient[0], np.float32))
    assert not np.any(np.asarray(hvp[0], np.float32))
    assert np.isfinite(np.asarray(hvp, np.float32)).all()


@pytest.mark.parametrize("shape, axis", [((3, 1), -1), ((1, 3), 0), ((3, 4), ()), ((1, 1), None)])
@pytest.mark.parametrize("quantized", sorted(LARGEST))
def test_single_zeros_have_a_scale_too(shape, axis, quantized):
    q, scale = absmax_quantize(jnp.zeros(shape), quantized, axis)
    np.testing.assert_array_equal(scale, np.full_like(scale, np.finfo(np.float32).tiny))
    np.testing.assert_array_equal(wide(q), np.zeros(shape))


@pytest.mark.parametrize("n", [3, 8, 100, 4099])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_nan_reaches_its_whole_row_and_infinity_is_one(n, dtype):
    x = randn(5, n)
    x[1, n // 2] = np.nan
    x[2, 0], x[2, n - 1] = np.inf, np.nan
    x[3, 0], x[3, n - 1] = np.inf, -np.inf
    x = jnp.asarray(x, dtype)
    y, absmax = (np.asarray(v, np.float32) for v in absmax_scale(x))
    assert np.isnan(y[1:3]).all() and np.isnan(absmax[1:3]).all()
    assert absmax[3] == np.inf
    assert y[3, 0] == 1 and y[3, -1] == -1 and not y[3, 1:-1].any()
    assert np.isfinite(y[[0, 4]]).all() and (abs(y[[0, 4]]).max(1) == 1).all()
    for quantized in LARGEST:
        q, scale = absmax_quantize(x, quantized, keepdims=True)
        assert np.isnan(q.astype(np.float32) * scale)[1:4].all()
        assert not np.isfinite(scale[1:4]).any()
        assert np.isfinite(q.astype(np.float32) * scale)[[0, 4]].all()
        if quantized == "int8":
            assert not np.any(q[1:4])


@functions
def test_rows_without_elements(f):
    for shape, axis, rows in (((3, 0), 1, (3,)), ((0, 3), 1, (0,)), ((3, 0, 2), (0, 1), (2,))):
        y, row = f(np.ones(shape, np.float32), axis=axis)
        assert y.shape == shape and row.shape == rows
        if f is absmax_scale:
            assert not np.any(row)
        tangent = jax.jvp(functools.partial(f, axis=axis), *[(np.ones(shape, np.float32),)] * 2)[1]
        assert not np.any(tangent[1])


@functions
@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.uint8, int])
def test_integers_become_float32(f, dtype):
    x = np.array(
        [[1, 2, -100 if np.issubdtype(dtype, np.signedinteger) else 100], [0, 3, 4]], dtype
    )
    for got, want in zip(f(x), f(x.astype(np.float32)), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("shape", [(8, 5), (8, 100), (100, 3), (70, 5000), (2, 40_000)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_donated_operand_is_overwritten(dtype, shape, backend):
    f = jax.jit(absmax_scale, donate_argnums=0)
    # A copy: JAX may share an aligned array of NumPy's, which no donation can overwrite.
    x = jnp.array(randn(*shape), dtype, copy=True)
    program = f.lower(x).compile()
    assert "input_output_alias={ {0}: (0, {}, may-alias) }" in program.as_text()
    if backend == "cpu":
        assert "copy" not in operations(program.as_text())
    want, where = absmax_scale(x), x.unsafe_buffer_pointer()
    got = f(x)
    assert x.is_deleted() and got[0].unsafe_buffer_pointer() == where
    assert_close(*(jax.tree.map(wide, v) for v in (got, want)), rtol=0)


def test_an_operand_that_is_still_needed_is_not_overwritten():
    """Its own donation, or that of another of its type, gives way."""
    x, other = (jnp.array(randn(8, 100, seed=s), copy=True) for s in range(2))
    kept, want = np.array(x), absmax_scale(x)
    y, _ = jax.jit(lambda x, other: (absmax_scale(x)[0], other + 1), donate_argnums=1)(x, other)
    np.testing.assert_array_equal(x, kept)
    assert_close(y, want[0], rtol=0)
    y, again = jax.jit(lambda x: (absmax_scale(x)[0], jnp.sin(x)), donate_argnums=0)(x)
    assert_close(y, want[0], rtol=0)
    assert_close(again, np.sin(kept))


# -- the kernel ----------------------------------------------------------------------------------

# Around a vector's length and a group's, and rows that threads share: on a GPU 512 of them, from
# 16,385 columns on (of 16 bits 32,769) 2 to 8 blocks of a cluster, which keep 131,072 (262,144).
LENGTHS = [9, 15, 16, 17, 31, 33, 65, 100, 127, 257, 577, 777, 1537, 3001]
LENGTHS += [4096, 4099, 16_385, 20_000, 32_771, 70_001, 150_004, 300_007]


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("quantized", [None, *LARGEST])
def test_every_result_is_rounded_once(dtype, quantized, n, backend):
    # Of the shortest rows a block takes many; of the longest, a cluster one.
    x = randn(301 if n < 64 else 37 if n < 50_000 else 9, n)
    x *= np.exp2(np.arange(len(x)) % 37 - 24)[:, None].astype(np.float32)
    x[3], x[4, :-1] = 0, -0.0
    x[5, n // 2], x[6, -1], x[7, 0] = np.nan, np.inf, -np.inf
    x = jnp.asarray(x, dtype)
    y, of_row = absmax_quantize(x, quantized) if quantized else absmax_scale(x)
    x = np.asarray(x, np.float32)
    want = np.max(abs(x), 1)
    with np.errstate(invalid="ignore", over="ignore"):
        if quantized:
            want = np.maximum(want / np.float32(LARGEST[quantized]), np.finfo(np.float32).tiny)
            q = x / want[:, None]
            q = np.nan_to_num(np.rint(q)) if quantized == "int8" else q
        else:
            q = np.where(abs(x) == want[:, None], np.copysign(x != 0, x), x / want[:, None])
        q = q.astype(y.dtype)
    is_number = ~np.isnan(wide(q))
    if backend == "cuda":  # whose float32 quotients may be two units off
        finite = np.isfinite(want)
        np.testing.assert_allclose(of_row, want, rtol=3e-7)
        np.testing.assert_array_equal(np.isnan(wide(y)), ~is_number)
        error = abs(wide(y) - wide(q))[finite]
        if quantized:
            assert (error <= step(wide(q)[finite], quantized)).all() and np.mean(error > 0) < 1e-3
        else:
            assert (error <= 2 * ulp(wide(q)[finite], y.dtype)).all()
            largest = (abs(x) == want[:, None]) & (x != 0)
            assert largest.any() and (abs(wide(y))[largest] == 1).all()
    else:
        np.testing.assert_array_equal(of_row, want)
        np.testing.assert_array_equal(wide(y), wide(q))
    np.testing.assert_array_equal(*(np.signbit(wide(v))[is_number] for v in (y, q)))  # of zeros too


@functions
def test_the_kernel_is_one_call(f, backend):
    def calls(*shape, dtype=np.float32, axis=-1):
        with precision(np.dtype(dtype)):
            hlo = compiled(functools.partial(f, axis=axis), jnp.ones(shape, dtype))
        if count_calls(hlo, "absmax"):
            assert not operations(hlo) & {"reduce", "divide", "maximum", "convert", "copy"}
        return count_calls(hlo)

    for dtype in (np.float32, np.float16, jnp.bfloat16):
        assert calls(64, 100, dtype=dtype) == calls(4, 5, 9, dtype=dtype) == 1
    assert calls(64, 8) == (backend == "cuda")  # where XLA's code is the faster one
    assert calls(64, 100, axis=0) == calls(64, 100, dtype=np.float64) == 0


# -- derivatives ---------------------------------------------------------------------------------


@each_axis
def test_gradients_to_second_order(axis):
    axis = tuple(axis) if isinstance(axis, list) else axis
    with jax.enable_x64(True):
        x, t = (randn(3, 4, 5, seed=s, dtype=np.float64) for s in range(2))
        x[0, 0, 0] = x[1, 2, 0] = x[2, 2, 2] = -9  # ties along some axes
        x[1, 2, 3] = 9
        ours, theirs = (weighted(functools.partial(f, axis=axis)) for f in (absmax_scale, naive))
        for derive in (
            lambda f, x: jax.grad(f)(x),
            lambda f, x: jax.jvp(f, (x,), (t,))[1],
            lambda f, x: jax.jvp(jax.grad(f), (x,), (t,))[1],
            lambda f, x: jax.grad(lambda x: jnp.vdot(jax.grad(f)(x), t))(x),
            lambda f, x: jax.linearize(f, x)[1](t),
        ):
            got, want = (jax.jit(functools.partial(derive, f))(x) for f in (ours, theirs))
            assert_close(got, want, 1e-10, 1e-10)


@pytest.mark.parametrize("axis", [-1, 0, (0, 1)], ids=repr)
def test_check_grads(axis):
    with jax.enable_x64(True):
        x = randn(3, 4, dtype=np.float64)
        f = functools.partial(absmax_scale, axis=axis)
        check_grads(f, (x,), order=3, modes=("fwd", "rev"), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("derive", [jax.jacfwd, jax.jacrev, jax.hessian])
def test_jacobians(derive):
    x = randn(3, 4)
    assert_close(*(jax.jit(derive(f))(x) for f in (absmax_scale, naive)), 1e-4, 1e-4)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_gradients_are_rounded_once(dtype):
    x, g = (jnp.asarray(randn(6, 40, seed=s), dtype) for s in range(2))
    gradient = jax.vjp(absmax_scale, x)[1]((g, jnp.ones(6)))[0]
    with jax.enable_x64(True):
        x, g = (jnp.asarray(v, np.float64) for v in (x, g))
        want = np.asarray(jax.vjp(naive, x)[1]((g, jnp.ones(6)))[0])
    assert gradient.dtype == dtype
    assert (abs(wide(gradient) - want) <= 0.51 * ulp(want, jnp.dtype(dtype)) + 1e-5).all()


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_derivatives_do_not_square_the_maximum(size):
    x, g, t = (randn(3, 8, seed=s) for s in range(3))

    def results(x, t):
        def pull(x):
            return jax.vjp(absmax_scale, x)[1]((g, jnp.zeros(3)))[0]

        return jax.jvp(pull, (x,), (t,))

    size = np.float32(size)
    got, want = results(x * size, t * size), results(x, t)
    assert_close([v * size for v in got], want, 1e-4, 1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_reverse_mode_keeps_x_and_one_value_per_row(dtype):
    x = jnp.asarray(randn(8, 100), dtype)
    _, vjp = jax.vjp(absmax_scale, x)
    kept = sorted((r.shape, str(r.dtype)) for r in jax.tree.leaves(vjp) if r.size > 1)
    assert kept == [((8, 1), "float32"), ((8, 100), dtype)]
    assert "reduce_max" not in str(jax.make_jaxpr(vjp)((x, jnp.ones(8))))


def test_checkpoint_keeps_the_rows(capsys):
    policy = jax.checkpoint_policies.save_only_these_names(_primitives.RESIDUAL)
    x = randn(8, 100)
    f, reference = (
        jax.checkpoint(lambda x, f=f: jnp.sum(f(jnp.cos(x))[0] ** 3), policy=policy)
        for f in (absmax_scale, naive)
    )
    assert_close(*(jax.jit(jax.grad(g))(x) for g in (f, reference)))
    jax.ad_checkpoint.print_saved_residuals(f, x)
    lines = capsys.readouterr().out.splitlines()
    saved = [line for line in lines if "from the argument" not in line]
    assert len(saved) == 1 and "f32[8,1]" in saved[0]


# -- quantisation --------------------------------------------------------------------------------


def step(q, quantized):
    """The distance between neighbours of an 8-bit dtype at `q`."""
    if quantized == "int8":
        return np.ones_like(q)
    exponent = np.floor(np.log2(np.maximum(abs(q), np.finfo(q.dtype).tiny)))
    step = 2.0 ** (exponent - BITS_AFTER_THE_FIRST[quantized])
    return np.maximum(step, SMALLEST_SUBNORMAL[quantized])


@each_quantized
@each_axis
@each_dtype
def test_quantised_values_are_the_nearest(dtype, axis, quantized):
    with precision(dtype):
        x = jnp.asarray(randn(6, 40, 50, dtype=np.float64), dtype)
        q, scale = absmax_quantize(x, quantized, axis, keepdims=True)
        shapes = (
            jax.eval_shape(functools.partial(f, axis=axis), x)[1].shape
            for f in (functools.partial(absmax_quantize, dtype=quantized), absmax_scale)
        )
        assert len(set(shapes)) == 1
    axes = normalised(axis, 3)
    assert q.dtype == quantized and scale.dtype == np.promote_types(dtype, np.float32)
    want = np.max(abs(wide(x)), axes, keepdims=True) / LARGEST[quantized]
    np.testing.assert_allclose(wide(scale), want, rtol=2 * float(jnp.finfo(scale.dtype).eps))
    exact, got = wide(x) / wide(scale), wide(q)
    slack = 4 * float(jnp.finfo(scale.dtype).eps) * abs(exact)
    assert (abs(got - exact) <= step(exact, quantized) / 2 + slack).all()
    assert (np.max(abs(got), axes) == LARGEST[quantized]).all()


@each_quantized
def test_ties_go_to_even(quantized):
    largest = LARGEST[quantized]
    halves = np.array([0.5, 1.5, 2.5, -0.5, -1.5, -2.5])
    grid = 1.0 if quantized == "int8" else SMALLEST_SUBNORMAL[quantized]
    q, scale = absmax_quantize(np.array([largest, *(halves * grid)], np.float32), quantized)
    assert scale == 1
    np.testing.assert_array_equal(wide(q)[1:], np.array([0, 2, 2, 0, -2, -2]) * grid)


def quantised_bits(x, quantized):
    """As ml_dtypes and NumPy round."""
    if quantized == "int8":
        return np.rint(x).astype(np.int8).view(np.uint8)
    return x.astype(jnp.dtype(quantized)).view(np.uint8)


@each_quantized
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_every_number_is_rounded_to_the_nearest(dtype, quantized):
    """All there are in 16 bits; and of float32 random ones, each tie and its neighbours."""
    largest = np.float32(LARGEST[quantized])
    if dtype == "float32":
        rng = np.random.default_rng(0)
        grid = np.linspace(-127, 127, 255) if quantized == "int8" else range(256)
        if quantized != "int8":
            grid = wide(np.arange(256, dtype=np.uint8).view(jnp.dtype(quantized)))
        grid = np.unique(grid[np.isfinite(grid)]).astype(np.float32)
        ties = (grid[1:] + grid[:-1]) / 2
        near = [
            np.nextafter(v, s * np.inf, dtype=np.float32) for v in (grid, ties) for s in (1, -1)
        ]
        some = rng.uniform(-1, 1, 10**6) * np.exp2(rng.uniform(-40, 16, 10**6))
        x = np.concatenate([grid, ties, *near, some.astype(np.float32)])
    else:
        x = np.arange(2**16, dtype=np.uint16).view(jnp.dtype(dtype)).astype(np.float32)
    x = x[abs(x) <= largest]
    # What counts as 0 where arithmetic flushes subnormal numbers rounds to 0 as well.
    rows = np.append(x, np.zeros(-x.size % 997, np.float32)).reshape(-1, 997)
    rows = np.insert(rows, 0, largest, axis=1)  # so that every scale is 1
    q, scale = absmax_quantize(jnp.asarray(rows, dtype), quantized)
    np.testing.assert_array_equal(scale, 1)
    np.testing.assert_array_equal(np.asarray(q).view(np.uint8), quantised_bits(rows, quantized))


@each_quantized
def test_rows_of_any_size_come_back(quantized):
    """Tiny ones within a step of the smallest scale, the smallest normal number."""
    largest, tiny = LARGEST[quantized], np.finfo(np.float32).tiny
    for size in (1e-37, 1e-33, 1e-20, 1.0, 3e38):
        x = np.linspace(-1, 1, 31, dtype=np.float32) * np.float32(size)
        q, scale = absmax_quantize(x, quantized)
        assert tiny <= scale == max(scale, tiny)
        error = abs(wide(q) * float(scale) - wide(x))
        flushed = np.where(abs(x) < tiny, tiny, 0)  # where subnormal numbers count as 0
        allowed = float(scale) * (step(wide(x) / float(scale), quantized) / 2 + 1e-4)
        assert (error <= allowed + flushed).all()
        assert wide(q).max() == largest or scale == tiny


@each_quantized
def test_gradients_of_quantised_values_are_zero_and_of_scales_are_not(quantized):
    x, t = (randn(3, 8, seed=s) for s in range(2))

    def f(x):
        q, scale = absmax_quantize(x, quantized)
        return q.astype(jnp.float32), scale

    (_, scale), (t_q, t_scale) = jax.jvp(f, (x,), (t,))
    want = jax.jvp(lambda x: jnp.max(jnp.abs(x), -1) / LARGEST[quantized], (x,), (t,))
    assert not np.any(t_q)
    assert_close((scale, t_scale), want)
    gradient = jax.grad(lambda x: jnp.sum(f(x)[0]))(x)
    assert not np.any(gradient)
    gradient = jax.grad(lambda x: jnp.sum(f(x)[1]))(x) * LARGEST[quantized]
    assert_close(gradient, np.where(abs(x) == abs(x).max(1, keepdims=True), np.sign(x), 0))


# -- transformations and errors ------------------------------------------------------------------


@functions
@pytest.mark.parametrize("axis", [0, -1, None, (0, 1)], ids=repr)
def test_vmap(f, axis):
    f = functools.partial(f, axis=axis)
    x = randn(3, 4, 5)
    for in_axis in range(3):
        got = jax.vmap(f, in_axis)(x)
        want = [f(v) for v in np.moveaxis(x, in_axis, 0)]
        assert_close(
            jax.tree.map(wide, got), [np.stack([wide(w[i]) for w in want]) for i in (0, 1)]
        )
        if f.func is absmax_scale:
            loss, reference = (weighted(functools.partial(g, axis=axis)) for g in (f.func, naive))
            assert_close(*(jax.jit(jax.vmap(jax.grad(v), in_axis))(x) for v in (loss, reference)))


@functions
@pytest.mark.parametrize("axis, spec", [(-1, P("a")), (-1, P(None, "a")), (0, P(None, "a", "b"))])
@pytest.mark.parametrize("explicit", [False, True], ids=["auto", "explicit"])
def test_batch_sharded(f, axis, spec, explicit, backend):
    devices = jax.devices(backend)
    if len(devices) < 8:
        pytest.skip("needs eight devices")
    kind = jax.sharding.AxisType.Explicit if explicit else jax.sharding.AxisType.Auto
    mesh = jax.make_mesh((4, 2), ("a", "b"), (kind,) * 2, devices=devices)
    f = functools.partial(f, axis=axis)
    host = randn(8, 8, 24)

    def gradient(x):
        return jax.grad(lambda x: sum(jnp.sum(jnp.sin(v.astype(x.dtype))) for v in f(x)))(x)

    with jax.set_mesh(mesh):
        x = jax.device_put(host, NamedSharding(mesh, spec))
        for g in (f, gradient):
            assert not operations(compiled(g, x)) & COLLECTIVES
            got = jax.jit(g)(x)
            assert jax.tree.leaves(got)[0].sharding.is_equivalent_to(x.sharding, 3)
            got = jax.tree.map(np.asarray, got)
        values = jax.tree.map(np.asarray, jax.jit(f)(x))
    assert_close(got, gradient(host))
    assert_close(*(jax.tree.map(wide, v) for v in (values, f(host))), rtol=1e-6)


@functions
def test_a_sharded_axis_exchanges_rows_alone(f, backend):
    devices = jax.devices(backend)
    if len(devices) < 8:
        pytest.skip("needs eight devices")
    mesh = jax.make_mesh((8,), ("a",), (jax.sharding.AxisType.Auto,), devices=devices)
    x = jax.device_put(randn(4, 64), NamedSharding(mesh, P(None, "a")))
    assert operations(compiled(f, x)) & COLLECTIVES == {"all-reduce"}
    got, want = jax.jit(f)(x), f(randn(4, 64))
    assert_close(*(jax.tree.map(wide, v) for v in (got, want)), rtol=1e-6)


def test_float8_runs():
    x = jnp.asarray(randn(3, 8), jnp.float8_e4m3fn)
    y, absmax = absmax_scale(x)
    want = absmax_scale(x.astype(np.float32))
    assert y.dtype == x.dtype and absmax.dtype == np.float32
    assert_close(wide(y), wide(want[0]), rtol=2.0**-4, atol=2.0**-10)
    np.testing.assert_array_equal(absmax, want[1])


BAD_ARGUMENTS = {
    "list": (([1.0, 2.0],), {}, TypeError, "wants an array or a number, got list"),
    "boolean": ((np.ones(3, bool),), {}, TypeError, "does not take a boolean array"),
    "complex": ((np.ones(3, complex),), {}, TypeError, "wants real x, got complex64"),
    "axis": ((np.ones(3),), {"axis": 1}, ValueError, "axis 1 is out of bounds"),
    "axes": ((np.ones((3, 3)),), {"axis": (0, -2)}, ValueError, "duplicate value in 'axis'"),
    "no axis": ((np.ones(3),), {"axis": 0.5}, TypeError, "axis wants an int"),
    "0-d": ((np.float32(1),), {}, ValueError, "axis -1 is out of bounds"),
}


@functions
@pytest.mark.parametrize("case", BAD_ARGUMENTS)
def test_bad_arguments_say_what_to_do(f, case):
    args, kwargs, error, message = BAD_ARGUMENTS[case]
    with pytest.raises(error, match=message):
        f(*args, **kwargs)


@pytest.mark.parametrize("dtype", [np.float32, np.uint8, jnp.float8_e4m3b11fnuz, None, "fp8"])
def test_quantised_dtypes_are_three(dtype):
    with pytest.raises(TypeError, match="dtype wants float8_e4m3fn, float8_e5m2 or int8, got"):
        absmax_quantize(np.ones(3, np.float32), dtype)
