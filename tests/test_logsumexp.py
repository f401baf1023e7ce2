"""logsumexp next to wider arithmetic and to `jax.nn.logsumexp`."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _cases import rows
from _support import compiled, operations, precision
from _truth import DTYPES, softmax, ulp, wide
from jax import export
from jax.test_util import check_grads

from jax_softmax import _primitives, _reductions, _reference, logsumexp

pytestmark = pytest.mark.usefixtures("backend", "quickly_compiled")
AXES = [-1, 0, 1, (0, 2), (2, 0), None, ()]
MASKS = [(3, 4, 5), (5,), (4, 1), (3, 1, 1), ()]
REDUCTIONS = ("reduce_", "logsumexp[", "logsumexp_parts", "logsumexp_tangent")


def randn(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def both(**kwargs):
    kwargs.setdefault("axis", -1)
    return functools.partial(logsumexp, **kwargs), functools.partial(jax.nn.logsumexp, **kwargs)


def assert_close(got, want, rtol=1e-5, atol=1e-6):
    jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, rtol=rtol, atol=atol), got, want)


def weighted(f):
    """A scalar function that tells the elements of `f`'s result apart."""
    return lambda x: jnp.vdot(jnp.sin(1 + jnp.arange(f(x).size, dtype=f(x).dtype)), f(x).ravel())


# -- values --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_gradient_of_what_a_program_computes_sums_to_1(dtype):
    """XLA may compute with more digits than the 16 bits have that a kernel reads."""
    x = jnp.asarray(20 * randn(64, 2048), dtype)

    @jax.jit
    @jax.grad
    def gradient(d, x):
        return logsumexp(x * jnp.asarray(1.7, dtype) + d, dtype="float32").sum()

    rows = np.asarray(gradient(jnp.zeros_like(x), x), np.float64)
    np.testing.assert_allclose(rows.sum(-1), 1, atol=0.01)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_matches_wider_arithmetic(dtype):
    xs = [rows(21, n, dtype, huge=False) for n in (1, 2, 7, 64, 257, 4099)]
    with precision(dtype):
        last = jax.jit(lambda xs: [logsumexp(x) for x in xs])(xs)
        first = jax.jit(lambda xs: [logsumexp(x.T, 0) for x in xs])(xs)
    for x, *results in zip(xs, last, first, strict=True):
        want = np.logaddexp.reduce(wide(x), axis=1)
        # Of the maximum and of the sum's logarithm, which may cancel: rounded in float32 at least.
        size = np.max(abs(wide(x)), axis=1) + np.log(x.shape[1])
        eps = max(float(jnp.finfo(dtype).eps) if dtype.itemsize > 2 else 0, 2.0**-52)
        allowed = 4 * max(eps, 2.0**-23 if dtype.itemsize < 8 else 0) * size
        if dtype.itemsize == 2:
            allowed = allowed + 0.5 * ulp(want, dtype)
        for got in results:
            assert got.dtype == dtype
            assert (abs(wide(got) - want) <= allowed).all()


@pytest.mark.parametrize("columns", [1, 2, 3, 4, 5, 64])
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("one_by_one", [False, True])
def test_plain_jax_keeps_what_is_not_finite(columns, axis, one_by_one):
    special = np.array([-np.inf, np.inf, np.nan, 3e38, -3e38, 0, 1], np.float32)
    x = special[np.random.default_rng(columns).integers(0, 7, (50, 40, columns))]
    x[0] = -np.inf
    x = np.moveaxis(x, -1, axis)
    f = functools.partial(_reference.logsumexp, axis=axis, dtype=x.dtype, one_by_one=one_by_one)
    got = jax.jit(f)(x)
    np.testing.assert_allclose(got, jax.nn.logsumexp(x, axis), rtol=1e-6)


@pytest.mark.parametrize("axis", AXES, ids=repr)
@pytest.mark.parametrize("keepdims", [False, True])
def test_axes(axis, keepdims):
    x = randn(3, 4, 5)
    got, want = (f(x) for f in both(axis=axis, keepdims=keepdims))
    assert got.shape == want.shape and got.dtype == want.dtype
    assert_close(got, want)


def test_the_last_axis_is_the_default():
    x = randn(3, 4)
    assert_close(logsumexp(x), jax.nn.logsumexp(x, axis=-1))


@pytest.mark.parametrize("shape", MASKS, ids=str)
@pytest.mark.parametrize("axis", AXES, ids=repr)
def test_masks_hide_what_they_cover(shape, axis):
    where = np.random.default_rng(1).random(shape) < 0.6
    x = np.where(where, randn(3, 4, 5), np.nan)
    for f in (lambda f: f, lambda f: jax.grad(weighted(f))):
        got, want = (jax.jit(f(g))(x) for g in both(axis=axis, where=where))
        assert_close(got, want)


def test_a_mask_may_be_larger():
    where = np.random.default_rng(1).random((3, 4, 5)) < 0.6
    assert_close(*(f(randn(4, 5)) for f in both(axis=-1, where=where)))


def special_rows():
    base = randn(7)
    specials = [np.nan, np.inf, -np.inf]
    made = [np.full(7, value) for value in specials]
    for count in (1, 2, 3):
        for values in itertools.product(specials, repeat=count):
            made.append(np.array([*values, *base[count:]]))
    return np.stack(made).astype(np.float32)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_special_values_and_their_gradients(dtype):
    x = jnp.asarray(special_rows(), dtype)
    tolerance = 1e-5 if dtype == "float32" else 2e-2

    def results(f, x):
        return f(x), jax.grad(lambda x: f(x).sum())(x), jax.jvp(f, (x,), (jnp.ones_like(x),))[1]

    for got, want in zip(*(results(f, x) for f in both()), strict=True):
        np.testing.assert_allclose(*(wide(v) for v in (got, want)), tolerance, tolerance)


def test_rows_without_elements():
    for shape, axis in (((3, 0), 1), ((0, 3), 1), ((0, 3), 0), ((3, 0, 2), (0, 1))):
        got, want = (f(np.ones(shape, np.float32)) for f in both(axis=axis))
        assert got.shape == want.shape
        np.testing.assert_array_equal(got, want)


def test_rows_masked_as_a_whole():
    x, where = np.full((2, 3), np.nan, np.float32), np.zeros((2, 3), bool)
    got, vjp = jax.vjp(lambda x: logsumexp(x, where=where), x)
    np.testing.assert_array_equal(got, -np.inf)
    np.testing.assert_array_equal(vjp(jnp.ones(2))[0], 0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_derivatives_of_rows_far_from_zero(dtype):
    offset = np.array([-1e4, 1e6, -1e9, 3e38], np.float32)[:, None]
    x = (jnp.asarray(randn(4, 1000)) + offset).astype(dtype)
    t = jnp.asarray(randn(4, 1000, seed=1), dtype)
    f = functools.partial(logsumexp, dtype=np.float32)
    gradient, hvp = jax.jvp(jax.grad(lambda x: f(x).sum()), (x,), (t,))
    p = softmax(wide(x), -1)
    mean = np.sum(p * wide(t), -1, keepdims=True)
    eps = float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(wide(gradient), p, rtol=max(eps, 1e-6))
    np.testing.assert_allclose(jax.jvp(f, (x,), (t,))[1], mean[:, 0], rtol=2e-6, atol=1e-6)
    np.testing.assert_allclose(wide(hvp), p * (wide(t) - mean), rtol=4 * eps, atol=1e-8 + eps / 500)


def test_16_bits_are_computed_in_float32():
    x = jnp.zeros(2**17, jnp.float16)  # their sum is past float16's largest number
    assert logsumexp(x) == np.float16(np.log(2**17))
    gradient = jax.grad(logsumexp)(jnp.full(8, 300, jnp.bfloat16))  # the residuals have more digits
    np.testing.assert_array_equal(gradient.astype(np.float32), 0.125)


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.uint8])
def test_integers_become_float32(dtype):
    x = np.array([[1, 2, 100], [0, 3, 4]], dtype)
    got, want = (f(x) for f in both())
    assert got.dtype == want.dtype == np.float32
    assert_close(got, want)


@pytest.mark.parametrize("dtype, output_dtype", [*itertools.product(DTYPES, repeat=2)], ids=str)
def test_dtype(dtype, output_dtype):
    with jax.enable_x64(True):
        x = jnp.asarray(randn(3, 4), dtype)
        got, gradient = jax.value_and_grad(lambda x: logsumexp(x, dtype=output_dtype)[1])(x)
        assert got.dtype == output_dtype and gradient.dtype == dtype
        want, p = (f(x[1].astype(np.float64)) for f in (jax.nn.logsumexp, jax.nn.softmax))
        eps = [float(jnp.finfo(d).eps) for d in (dtype, output_dtype)]
        single = 2.0**-23 if max(dtype.itemsize, output_dtype.itemsize) < 8 else 0
        np.testing.assert_allclose(wide(got), want, rtol=2 * max(eps[1], single))
        np.testing.assert_allclose(wide(gradient[1]), wide(p), rtol=4 * max(eps[0], single))


def test_float8_runs():
    x = jnp.asarray(randn(3, 8), jnp.float8_e4m3fn)
    got, want = (f(x.astype(np.float32)) for f in both(where=x > 0))
    np.testing.assert_allclose(logsumexp(x, where=x > 0, dtype=np.float32), got, rtol=1e-6)
    assert_close(got, want)


BAD_ARGUMENTS = {
    "list": (([1.0, 2.0],), {}, TypeError, "logsumexp wants an array or a number, got list"),
    "boolean": ((np.ones(3, bool),), {}, TypeError, "logsumexp does not take a boolean array"),
    "complex": ((np.ones(3, complex),), {}, TypeError, "real x, got complex64; use jax.nn"),
    "axis": ((np.ones(3),), {"axis": 1}, ValueError, "axis 1 is out of bounds"),
    "axes": ((np.ones((3, 3)),), {"axis": (0, -2)}, ValueError, "duplicate value in 'axis'"),
    "0-d": ((np.float32(1),), {}, ValueError, "axis -1 is out of bounds"),
    "mask dtype": ((np.ones(3),), {"where": np.ones(3)}, TypeError, "where wants a boolean"),
    "mask shape": ((np.ones(3),), {"where": np.ones(2, bool)}, ValueError, "does not broadcast"),
    "dtype": ((np.ones(3),), {"dtype": int}, TypeError, "dtype wants a floating dtype"),
}


@pytest.mark.parametrize("case", BAD_ARGUMENTS)
def test_bad_arguments_say_what_to_do(case):
    args, kwargs, error, message = BAD_ARGUMENTS[case]
    with pytest.raises(error, match=message):
        logsumexp(*args, **kwargs)


# -- transformations -----------------------------------------------------------------------------


@pytest.mark.parametrize("axis", AXES, ids=repr)
def test_check_grads(axis):
    with jax.enable_x64(True):
        x = randn(3, 4, 5).astype(np.float64)
        check_grads(both(axis=axis)[0], (x,), order=3, modes=("fwd", "rev"), rtol=1e-3, atol=1e-3)


DERIVATIVES = {
    "linearize": lambda f: lambda x: jax.linearize(f, x)[1](jnp.cos(x)),
    "hessian": lambda f: jax.hessian(weighted(f)),
    "hvp": lambda f: lambda x: jax.jvp(jax.grad(weighted(f)), (x,), (jnp.cos(x),))[1],
    "reverse over reverse": lambda f: jax.jacrev(jax.jacrev(f)),
    "reverse over forward": lambda f: jax.jacrev(jax.jacfwd(f)),
    "third": lambda f: jax.jacfwd(jax.jacrev(jax.jacfwd(f))),
    "vmap of grad": lambda f: jax.vmap(jax.grad(lambda x: jnp.sum(f(x) ** 2)), 1),
}


@pytest.mark.parametrize("axis", [0, -1, (0, 1)], ids=repr)
@pytest.mark.parametrize("derivative", DERIVATIVES)
def test_derivatives(derivative, axis):
    if derivative == "vmap of grad":
        axis = -1
    x = randn(3, 4)
    assert_close(*(jax.jit(DERIVATIVES[derivative](f))(x) for f in both(axis=axis)))


def test_second_derivatives_under_a_mask():
    """Forward over reverse, with rows masked in part and as a whole."""
    where = np.array([[True, True, False, True], [False] * 4, [True] * 4])
    x, t = np.where(where, randn(3, 4), np.inf), randn(3, 4, seed=1)

    def product(f, x, t):
        return jax.jvp(jax.grad(lambda x: jnp.sum(f(x) ** 2)), (x,), (t,))[1]

    got = jax.jit(
        functools.partial(product, lambda x: jnp.where(where.any(-1), logsumexp(x, where=where), 0))
    )(x, t)
    want = jax.jit(functools.partial(product, lambda x: jax.nn.logsumexp(x, -1)))(
        np.where(where, x, -np.inf)[::2], t[::2]
    )
    assert_close(got[::2], np.where(where[::2], want, 0))
    np.testing.assert_array_equal(got[1], 0)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bit_derivatives(dtype):
    x, t = (jnp.asarray(randn(3, 40, seed=s), dtype) for s in range(2))
    f = functools.partial(logsumexp, dtype=np.float32)
    tangent = jax.jvp(f, (x,), (t,))[1]
    gradient = jax.grad(lambda x: f(x).sum())(x)
    hvp = jax.jvp(jax.grad(lambda x: f(x).sum()), (x,), (t,))[1]
    x, t = x.astype(np.float32), t.astype(np.float32)
    p = jax.nn.softmax(x)
    mean = jnp.sum(p * t, -1, keepdims=True)
    assert tangent.dtype == np.float32 and gradient.dtype == hvp.dtype == dtype
    assert_close(tangent, mean[:, 0])
    eps = float(jnp.finfo(dtype).eps)
    assert_close(gradient.astype(np.float32), p, eps, 1e-7)
    assert_close(hvp.astype(np.float32), p * (t - mean), 4 * eps, eps / 8)


@pytest.mark.parametrize("axis", [0, 1, -2, None, (0, 1)], ids=repr)
def test_vmap(axis):
    x = randn(3, 4, 5)
    for in_axis in range(3):
        mapped = (jax.vmap(jax.value_and_grad(weighted(f)), in_axis)(x) for f in both(axis=axis))
        assert_close(*mapped)
    nested = (jax.vmap(jax.vmap(f, 1, 0), 2, 0)(randn(2, 3, 4, 5)) for f in both(axis=axis))
    assert_close(*nested)


BATCHED = [b for b in itertools.product([False, True], repeat=3) if any(b)]


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("batched", BATCHED, ids=str)
@pytest.mark.parametrize("name", ["logsumexp_tangent", "logsumexp_cotangent"])
def test_vmap_over_some_operands(name, batched, axis):
    """Of x, of its rows' largest elements, and of the tangent or cotangent."""
    x, row = (3, 4), ((4,), (3,))[axis]
    shapes = x, row, x if name == "logsumexp_tangent" else row
    log_sum = jnp.asarray(randn(*row, seed=3))
    operands = [
        jnp.asarray(randn(*((5, *shape) if b else shape), seed=seed))
        for seed, (b, shape) in enumerate(zip(batched, shapes, strict=True))
    ]
    params = {"axis": axis, "dtype": np.dtype("float32"), "backend": None, "strategy": "auto"}
    primitive = getattr(_reductions, f"{name}_p")

    def f(x, largest, t):
        return primitive.bind(x, largest, log_sum, t, batch_invariant=None, **params)

    def with_batch(choose):
        return [choose(x) if b else x for x, b in zip(operands, batched, strict=True)]

    want = np.stack([f(*with_batch(lambda x, i=i: x[i])) for i in range(5)])
    for at in (0, -1):  # behind the axis, rows have the batch one dimension earlier
        moved = with_batch(lambda x, at=at: jnp.moveaxis(x, 0, at))
        in_axes = [at if b else None for b in batched]
        assert_close(jax.vmap(f, in_axes, at)(*moved), np.moveaxis(want, 0, at))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_reverse_mode_keeps_x_and_two_values_per_row_and_reduces_nothing(dtype):
    x = jnp.asarray(randn(8, 100), dtype)
    y, vjp = jax.vjp(logsumexp, x)
    kept = sorted((r.shape, str(r.dtype)) for r in jax.tree.leaves(vjp) if r.size > 1)
    assert kept == [*[((8,), "float32")] * 2, ((8, 100), dtype)]
    backward = str(jax.make_jaxpr(vjp)(y))
    assert "logsumexp_cotangent" in backward
    assert not any(word in backward for word in REDUCTIONS)


def test_checkpoint_keeps_the_rows(capsys):
    policy = jax.checkpoint_policies.save_only_these_names(_primitives.RESIDUAL)
    f, reference = (
        jax.checkpoint(lambda x, f=f: jnp.sum(f(jnp.cos(x)) ** 2), policy=policy) for f in both()
    )
    x = randn(8, 100)
    assert_close(*(jax.jit(jax.grad(g))(x) for g in (f, reference)))
    jax.ad_checkpoint.print_saved_residuals(f, x)
    saved = [
        line for line in capsys.readouterr().out.splitlines() if "from the argument" not in line
    ]
    assert len(saved) == 2 and all("f32[8]" in s and "jax_softmax" in s for s in saved)


def test_scan():
    def total(f, x):
        return jax.lax.scan(lambda c, row: (c + f(c * row), f(row)), x[0, 0], x)[1].sum()

    results = (
        jax.jit(jax.value_and_grad(functools.partial(total, f)))(randn(6, 5)) for f in both()
    )
    assert_close(*results)


def test_export_with_a_symbolic_batch(backend):
    symbolic = jax.ShapeDtypeStruct(export.symbolic_shape("b, c"), np.float32)
    f, reference = both(axis=-1)
    names = "jax_softmax.logsumexp.v6", "jax_softmax.logsumexp_parts.v6"
    calls = [export.DisabledSafetyCheck.custom_call(name) for name in names]
    made = export.export(jax.jit(f), platforms=[backend], disabled_checks=calls)(symbolic)
    loaded = export.deserialize(made.serialize(vjp_order=1))
    for shape in ((3, 7), (1, 4)):
        x = jnp.asarray(randn(*shape))
        assert_close(loaded.call(x), reference(x))
        assert_close(jax.grad(weighted(loaded.call))(x), jax.grad(weighted(reference))(x))


def test_vmap_moves_no_data():
    x = randn(8, 16, 32)
    for in_axis in range(3):
        for f in (logsumexp, lambda x: jax.grad(lambda x: logsumexp(x).sum())(x)):
            hlo = compiled(jax.vmap(f, in_axis, min(in_axis, 1) if f is logsumexp else in_axis), x)
            assert "transpose" not in operations(hlo)
