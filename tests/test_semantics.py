"""What a drop-in keeps: arguments, dtypes, masks, edge values and errors, next to `jax.nn`."""

import dataclasses
import functools
import inspect
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _support import compiled, count_calls, native_module
from _truth import TRUTH, wide

import jax_softmax
from jax_softmax import _native

pytestmark = pytest.mark.usefixtures("quickly_compiled")

each_name = pytest.mark.parametrize("name", ["softmax", "log_softmax"])


def ours(name):
    return getattr(jax_softmax, name)


def theirs(name):
    return getattr(jax.nn, name)


def randn(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Parameter:
    """What layers of Flax NNX have for parameters: a pytree that jax.nn takes for an array."""

    value: jax.Array

    def __jax_array__(self):
        return self.value


def assert_same(got, want, rtol=2e-6, atol=1e-6):
    assert got.shape == want.shape
    assert got.dtype == want.dtype
    assert got.weak_type == want.weak_type
    np.testing.assert_allclose(
        np.asarray(got).astype(np.complex128),
        np.asarray(want).astype(np.complex128),
        rtol=rtol,
        atol=atol,
    )


@each_name
def test_signature_starts_like_jax_nn(name):
    mine, original = (
        list(inspect.signature(f).parameters.values()) for f in (ours(name), theirs(name))
    )
    assert [(p.name, p.default, p.kind) for p in mine[: len(original)]] == [
        (p.name, p.default, p.kind) for p in original
    ]
    assert all(p.kind is p.KEYWORD_ONLY for p in mine[len(original) :])


AXES = [
    -1,
    0,
    1,
    2,
    3,
    -4,
    None,
    (),
    (1,),
    (0, 1),
    (3, 1),
    (-1, 0, 2),
    (0, 1, 2, 3),
    [2, 0],
    np.int64(1),
]


@each_name
@pytest.mark.parametrize("axis", AXES, ids=repr)
def test_axis(name, axis):
    x = randn(2, 3, 4, 5)
    # jax.nn.log_softmax alone takes no list.
    want = theirs(name)(x, tuple(axis) if isinstance(axis, list) else axis)
    assert_same(ours(name)(x, axis), want)
    assert_same(ours(name)(x, axis=axis), want)


@each_name
@pytest.mark.parametrize("axis", [-1, None, (), 0], ids=repr)
@pytest.mark.parametrize("shape", [(1,), (7,), (1, 1), (5, 1), (1, 5)], ids=str)
def test_low_ranks(name, shape, axis):
    x = randn(*shape)
    assert_same(ours(name)(x, axis), theirs(name)(x, axis))


@each_name
def test_high_rank(name):
    x = randn(*(2, 1) * 10)  # more dimensions than Shardy has plain letters for, once padded
    for axis in (0, 7, -2, (3, 4, 18)):
        assert_same(ours(name)(x, axis), theirs(name)(x, axis))


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp"])
@pytest.mark.parametrize("n", [64, 2048, 200_000])  # the last one is the kernels' for logsumexp too
def test_slices_may_start_anywhere(name, n, backend):
    """XLA may hand a kernel a part of another array as it lies there."""
    starts, x = (1, 2, 7, n), randn(4 * n)
    kernels = {
        "softmax": functools.partial(jax_softmax.softmax, batch_invariant=True),
        "log_softmax": functools.partial(jax_softmax.log_softmax, batch_invariant=True),
        "logsumexp": jax_softmax.logsumexp,
    }[name]
    got = jax.jit(lambda x: [kernels(x[i : i + n]) for i in starts])(x)
    for i, y in zip(starts, got, strict=True):
        want = TRUTH[name](wide(x[i : i + n]), 0)
        np.testing.assert_allclose(y, np.reshape(want, y.shape), rtol=2e-6, atol=1e-6)


@each_name
@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (0, 0), (2, 0, 3), (2, 3, 0)], ids=str)
def test_empty_arrays(name, shape):
    x = jnp.zeros(shape)
    axes = [None, (), *range(len(shape)), tuple(range(len(shape)))]
    for axis in axes:
        assert_same(ours(name)(x, axis), theirs(name)(x, axis))
        assert jax.grad(lambda x, axis=axis: ours(name)(x, axis).sum())(x).shape == shape


@each_name
@pytest.mark.parametrize("axis", [None, ()])
@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize(
    "value", [1.5, 3, 1 + 2j, np.float32(2), np.int8(2), np.float16(2)], ids=repr
)
def test_scalars(name, value, x64, axis):
    with jax.enable_x64(x64):
        # jax.nn.log_softmax casts -inf to an integer, with a warning; softmax has the same dtype.
        want = jax.nn.softmax(value, axis)
        want = want if name == "softmax" else jnp.log(want)
        assert_same(ours(name)(value, axis), want)


@each_name
def test_zero_dimensions_and_an_int_axis(name):
    for f in (ours(name), theirs(name)):
        with pytest.raises(ValueError, match="axis -1 is out of bounds"):
            f(jnp.float32(1))


NARROW_FLOATS = ["float16", "bfloat16", "float32", "complex64"]
FLOATS = [(d, False) for d in NARROW_FLOATS]
FLOATS += [(d, True) for d in (*NARROW_FLOATS, "float64", "complex128")]


@each_name
@pytest.mark.parametrize("dtype, x64", FLOATS)
def test_floating_dtypes_are_kept(name, dtype, x64):
    with jax.enable_x64(x64):
        x = jnp.asarray(randn(4, 9)).astype(dtype)
        if jnp.issubdtype(x.dtype, jnp.complexfloating):
            x = x + 1j * randn(4, 9, seed=1).astype(x.dtype)
        got, want = ours(name)(x), theirs(name)(x)
        # jax.nn works in the 16-bit dtype itself: some of its results are far from the truth.
        tolerance = 40 * float(jnp.finfo(x.dtype).eps)
        assert_same(got, want, rtol=tolerance, atol=tolerance)


@each_name
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz"])
def test_smaller_floats_run_through_xla(name, dtype):
    x = jnp.asarray(randn(4, 9)).astype(dtype)
    got = jax.jit(ours(name))(x)
    want = theirs(name)(x.astype(jnp.float32)).astype(dtype)
    # A float32 result within rounding error of the middle between two neighbours may go either way.
    assert_same(got, want, rtol=float(jnp.finfo(dtype).eps))
    assert count_calls(compiled(ours(name), x)) == 0


NARROW_INTEGERS = ["int8", "int16", "int32", "uint8", "uint16", "uint32"]
INTEGERS = [(d, False) for d in NARROW_INTEGERS]
INTEGERS += [(d, True) for d in (*NARROW_INTEGERS, "int64", "uint64")]


@each_name
@pytest.mark.parametrize("dtype, x64", INTEGERS)
def test_integers_are_promoted(name, dtype, x64):
    with jax.enable_x64(x64):
        x = jnp.arange(12).reshape(3, 4).astype(dtype)
        got = ours(name)(x)
        assert got.dtype == (jnp.float64 if x.dtype.itemsize == 8 else jnp.float32)
        assert_same(got, theirs(name)(x.astype(got.dtype)))


def test_integers_are_converted_before_the_maximum_is_subtracted():
    """The one deliberate difference: int8's 127 - -128 wraps in jax.nn."""
    x = jnp.array([127, -128], jnp.int8)
    np.testing.assert_allclose(jax_softmax.softmax(x), [1, np.exp(-255.0)], atol=1e-30)
    assert jax.nn.softmax(x)[0] < 0.5


@each_name
def test_pytrees_that_are_arrays(name):
    x, mask = randn(3, 4), np.arange(4) != 1
    f, want = getattr(jax_softmax, name), getattr(jax.nn, name)(x, where=mask)
    np.testing.assert_allclose(f(Parameter(x), where=Parameter(mask)), want, rtol=1e-6)
    got = jax.grad(lambda p: jnp.sum(f(p)[0, :2]))(Parameter(x))
    want = jax.grad(lambda x: jnp.sum(f(x)[0, :2]))(x)
    np.testing.assert_array_equal(got.value, want)


@each_name
def test_weak_types_are_not_passed_on(name):
    weak = jnp.asarray(2.0) * 1
    assert weak.weak_type
    got = ours(name)(weak, axis=None)
    assert not got.weak_type
    assert not jax.jit(lambda x: ours(name)(x, axis=None))(2.0).weak_type


@each_name
def test_a_float16_row_with_a_large_sum_is_not_lost(name):
    """jax.nn sums in float16, which ends at 65504."""
    got = ours(name)(jnp.zeros(2**17, jnp.float16))
    want = {"softmax": 2.0**-17, "log_softmax": np.float16(-17 * np.log(2))}[name]
    np.testing.assert_array_equal(got, np.full(2**17, want, np.float16))


# -- dtype ---------------------------------------------------------------------------------------

# Without a kernel for the pair; the truth rounded once is what comes of them all the same.
THROUGH_XLA = [
    ("float64", "float32"),
    ("float32", "float64"),
    ("float64", "bfloat16"),
    ("float16", "float64"),
    ("float16", "bfloat16"),
    ("bfloat16", "float16"),
    ("float32", "float8_e5m2"),
    ("float8_e4m3fn", "float32"),
    ("float8_e5m2", "float8_e4m3fn"),
    ("bfloat16", "float8_e4m3fn"),
]


def assert_rounded(got, want, dtype, ulps):
    """`got` has `dtype` and is within so many units of it."""
    assert got.dtype == dtype and not got.weak_type
    eps = ulps * float(jnp.finfo(dtype).eps)
    smallest = float(jnp.finfo(dtype).smallest_subnormal)
    np.testing.assert_allclose(np.asarray(got, np.float64), want, eps, max(smallest, 1e-14))


@each_name
@pytest.mark.parametrize("dtype, output_dtype", THROUGH_XLA, ids=str)
def test_any_two_floating_dtypes(name, dtype, output_dtype):
    with jax.enable_x64(True):
        x = jnp.asarray(randn(4, 9)).astype(dtype)
        f = functools.partial(ours(name), dtype=output_dtype)
        narrowest = max(dtype, output_dtype, key=lambda d: float(jnp.finfo(d).eps))
        want, pull_back = jax.vjp(theirs(name), x.astype(np.float64))
        ulps = 8 if jnp.dtype(output_dtype).itemsize >= 4 else 1
        assert_rounded(f(x), want, output_dtype, ulps)
        (dx,) = jax.vjp(f, x)[1](f(x))
        assert dx.dtype == dtype
        want_dx = pull_back(f(x).astype(np.float64))[0]
        eps = 4 * float(jnp.finfo(narrowest).eps)
        np.testing.assert_allclose(np.asarray(dx, np.float64), want_dx, eps, eps)
        assert count_calls(compiled(f, x)) == 0


@each_name
@pytest.mark.parametrize("dtype", [jnp.float32, "float32", np.dtype("float32"), np.float32])
def test_spellings_of_dtype(name, dtype):
    x = jnp.asarray(randn(4, 9)).astype(jnp.bfloat16)
    got = ours(name)(x, dtype=dtype)
    assert_rounded(got, theirs(name)(x.astype(np.float32)), np.float32, ulps=8)


@each_name
@pytest.mark.parametrize("dtype, x64", FLOATS)
def test_the_dtype_of_x_changes_nothing(name, dtype, x64):
    with jax.enable_x64(x64):
        x = jnp.asarray(randn(4, 9)).astype(dtype)
        np.testing.assert_array_equal(ours(name)(x, dtype=dtype), ours(name)(x))


@each_name
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_integers_with_another_dtype(name, dtype):
    x = jnp.arange(12).reshape(3, 4)
    assert_rounded(ours(name)(x, dtype=dtype), theirs(name)(x.astype(np.float32)), dtype, ulps=8)


def test_complex_numbers_may_get_wider():
    with jax.enable_x64(True):
        x = (randn(4, 9) + 1j * randn(4, 9, seed=1)).astype(np.complex64)
        want = jax.nn.softmax(x.astype(np.complex128))
        assert_same(jax_softmax.softmax(x, dtype=np.complex128), want, rtol=1e-12)


@each_name
@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e5m2"])
@pytest.mark.parametrize("axis", [-1, (0, 1), ()], ids=repr)
def test_where_with_another_dtype(name, dtype, axis):
    x, where = randn(3, 6), np.tile(np.arange(6) % 3 > 0, (3, 1))
    got, plain = ours(name)(x, axis, where, dtype=dtype), ours(name)(x, axis, where)
    assert_rounded(got, plain, dtype, ulps=1)


@each_name
def test_64_bits_where_they_are_off(name):
    """As everywhere in JAX."""
    with pytest.warns(UserWarning, match="float64.*truncated to dtype float32"):
        got = ours(name)(randn(3, 17), dtype="float64")
    assert got.dtype == np.float32


@each_name
def test_a_backend_converts_what_it_has_kernels_for(name):
    native_module("cpu")
    with jax.default_device(jax.devices("cpu")[0]):
        got = ours(name)(np.arange(6), dtype="bfloat16", implementation="cpu:row")
    assert_rounded(got, theirs(name)(np.arange(6.0)), "bfloat16", ulps=1)


@each_name
@pytest.mark.parametrize("implementation", ["cpu", "cpu:row"])
def test_a_backend_refuses_pairs_it_has_no_kernels_for(name, implementation):
    native_module("cpu")
    message = "turn float16 into float16, float32, not bfloat16"
    with pytest.raises(ValueError, match=message):
        ours(name)(randn(3, dtype=np.float16), dtype="bfloat16", implementation=implementation)


@each_name
def test_batch_invariance_reaches_the_kernel(name):
    x = randn(5, 100)
    for flag in (True, False, np.True_, np.False_, None):
        f = functools.partial(ours(name), batch_invariant=flag)
        assert_same(f(x), theirs(name)(x))
        lowered = jax.jit(f).trace(x).lower(lowering_platforms=("cpu",))
        assert f"batch_invariant = {str(flag is None or bool(flag)).lower()}" in lowered.as_text()


# -- where ---------------------------------------------------------------------------------------

MASKS = {
    "full": (np.random.default_rng(0).random((4, 5, 6)) < 0.6),
    "row": np.arange(6) % 2 == 0,
    "column": (np.arange(5) % 2 == 0)[:, None],
    "true": True,
    "false": False,
    "zero-d": jnp.array(True),
}


@each_name
@pytest.mark.parametrize("axis", [-1, 1, (0, 2), None, ()], ids=repr)
@pytest.mark.parametrize("mask", MASKS)
def test_where(name, mask, axis):
    x, where = randn(4, 5, 6), MASKS[mask]
    assert_same(ours(name)(x, axis, where), theirs(name)(x, axis, where))
    assert_same(ours(name)(x, axis=axis, where=where), theirs(name)(x, axis=axis, where=where))


@each_name
@pytest.mark.parametrize(
    "shape, axis",
    [((4, 5, 6), -1), ((4, 5, 6), (0, 1)), ((4, 5, 6), None), ((3, 4, 1, 6), 1)],
    ids=str,
)
def test_a_larger_mask_broadcasts_x(name, shape, axis):
    x = randn(*(1 if d == 5 else d for d in shape[-3:]))
    where = np.random.default_rng(1).random(shape) < 0.6
    assert_same(ours(name)(x, axis, where), theirs(name)(x, axis, where))


@each_name
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_under_the_mask_do_not_matter(name, bad):
    x, where = randn(4, 6), np.tile(np.arange(6) % 3 > 0, (4, 1))
    expected = ours(name)(x, where=where)
    np.testing.assert_array_equal(ours(name)(np.where(where, x, bad), where=where), expected)


@each_name
def test_masked_elements_and_rows(name):
    where = np.array([[True, False, True], [False, False, False]])
    got = ours(name)(randn(2, 3), where=where)
    masked = {"softmax": 0, "log_softmax": -np.inf}[name]
    np.testing.assert_array_equal(got[~where], masked)
    assert np.isfinite(got[where]).all()


@pytest.mark.parametrize("bad", [0.0, np.nan, np.inf])
@each_name
def test_gradients_are_zero_under_the_mask(name, bad):
    where = np.array([[True, False, True, True], [False, False, False, False]])
    x, weights = np.where(where, randn(2, 4), np.float32(bad)), randn(2, 4, seed=1)

    def loss(f, x):
        return jnp.sum(jnp.where(where, weights * f(x, where=where), 0))

    gradient = jax.grad(lambda x: loss(ours(name), x))(x)
    np.testing.assert_array_equal(gradient[~where], 0)
    expected = jax.grad(lambda x: loss(theirs(name), x))(np.where(where, x, np.float32(0)))
    np.testing.assert_allclose(gradient[where], expected[where], rtol=1e-5, atol=1e-6)


@each_name
def test_forward_mode_under_the_mask(name):
    x, t, where = randn(3, 5), randn(3, 5, seed=1), np.tile(np.arange(5) > 1, (3, 1))
    got, want = (
        jax.jvp(lambda x, f=f: f(x, where=where), (x,), (t,))[1] for f in (ours(name), theirs(name))
    )
    np.testing.assert_array_equal(got[~where], 0)
    np.testing.assert_allclose(got[where], want[where], rtol=1e-5, atol=1e-6)
    # Whatever a masked tangent is.
    t[:, 0], t[:, 1] = np.nan, np.inf
    again = jax.jvp(lambda x: ours(name)(x, where=where), (x,), (t,))[1]
    np.testing.assert_array_equal(again, got)


# -- errors --------------------------------------------------------------------------------------

X = randn(2, 3)
BAD_ARGUMENTS = {
    "list": (([1.0, 2.0],), {}, TypeError, "wants an array.*jax.numpy.asarray"),
    "None": ((None,), {}, TypeError, "wants an array"),
    "string": (("abc",), {}, TypeError, "non-array argument"),
    "bool array": ((np.array([True, False]),), {}, TypeError, r"x\.astype\(float\)"),
    "bool": ((True,), {"axis": None}, TypeError, r"x\.astype\(float\)"),
    "axis too large": ((X,), {"axis": 2}, ValueError, "axis 2 is out of bounds.*dimension 2"),
    "axis too small": ((X,), {"axis": -3}, ValueError, "axis -3 is out of bounds"),
    "axis in a tuple": ((X,), {"axis": (0, 5)}, ValueError, "axis 5 is out of bounds"),
    "axis twice": ((X,), {"axis": (0, 0)}, ValueError, "duplicate value in 'axis'"),
    "axis twice, signs": ((X,), {"axis": (1, -1)}, ValueError, "duplicate value in 'axis'"),
    "axis float": ((X,), {"axis": 1.5}, TypeError, "axis wants an int"),
    "axis string": ((X,), {"axis": "rows"}, TypeError, "axis wants an int.*jax.nn's .* named axes"),
    "axis strings": ((X,), {"axis": ("rows", 0)}, TypeError, "axis wants an int.*named axes"),
    "where shape": ((X,), {"where": np.ones(4, bool)}, ValueError, r"\(4,\).*broadcast.*\(2, 3\)"),
    "where float": ((X,), {"where": np.ones(3)}, TypeError, "boolean.*where != 0"),
    "where rank": ((X,), {"where": np.ones((2, 3, 1), bool)}, ValueError, "does not broadcast"),
    "where list": ((X,), {"where": [True] * 3}, TypeError, "boolean array, got list"),
    "unknown": ((X,), {"implementation": "gpu"}, ValueError, "'gpu' is unknown: use None"),
    "empty": ((X,), {"implementation": ""}, ValueError, "is unknown: use None"),
    "dtype integer": ((X,), {"dtype": int}, TypeError, "dtype wants a floating dtype, got int64"),
    "dtype bool": ((X,), {"dtype": "bool"}, TypeError, "dtype wants a floating dtype, got bool"),
    "dtype unknown": ((X,), {"dtype": "float33"}, TypeError, "floating dtype or None.*float33"),
    "dtype of an array": ((X,), {"dtype": X}, TypeError, "dtype wants a floating dtype or None"),
    "dtype list": ((X,), {"dtype": ["float32"]}, TypeError, "wants a floating dtype"),
    "dtype complex": ((X,), {"dtype": np.complex64}, TypeError, "complex64 does not fit x of flo"),
    "dtype real": ((1j * X,), {"dtype": np.float32}, TypeError, "float32 does not fit x of comp"),
    "batch": (
        (X,),
        {"batch_invariant": "no"},
        TypeError,
        "batch_invariant wants True, False or None",
    ),
    "batch array": ((X,), {"batch_invariant": jnp.array(True)}, TypeError, "wants True, False or"),
    "implementation list": ((X,), {"implementation": ["cpu"]}, TypeError, "wants a string or None"),
    "random key": ((jax.random.key(0),), {}, TypeError, "wants numbers, got key"),
    "xla strategy": ((X,), {"implementation": "xla:row"}, ValueError, "no strategies"),
}


@each_name
@pytest.mark.parametrize("case", BAD_ARGUMENTS)
def test_bad_arguments_say_what_to_do(name, case):
    args, kwargs, error, message = BAD_ARGUMENTS[case]
    with pytest.raises(error, match=message):
        ours(name)(*args, **kwargs)


@each_name
@pytest.mark.parametrize("dtype", [np.complex64, jnp.float8_e5m2], ids=["complex64", "float8_e5m2"])
def test_a_backend_refuses_dtypes_it_has_no_kernels_for(name, dtype):
    native_module("cpu")
    with pytest.raises(ValueError, match=r"not available: its kernels take float32.*not "):
        ours(name)(jnp.zeros(3, dtype), implementation="cpu")


@each_name
def test_a_backend_takes_integers_as_floats(name):
    x = np.arange(6)
    with jax.default_device(jax.devices("cpu")[0]):
        got = ours(name)(x, implementation="cpu")
    np.testing.assert_allclose(got, theirs(name)(x.astype(np.float32)), rtol=1e-6)


@each_name
@pytest.mark.parametrize("strategy, axis", [("nonsense", -1), ("warp", -1), ("row", 0)], ids=str)
def test_a_strategy_that_cannot_run_is_refused(name, strategy, axis):
    native_module("cpu")
    with pytest.raises(ValueError, match=strategy):
        ours(name)(randn(4, 5, 6), axis, implementation=f"cpu:{strategy}")


@each_name
def test_an_extension_that_was_not_built_is_named(name, monkeypatch):
    monkeypatch.setattr(_native, "load", lambda backend: f"the {backend} extension was not built")
    with pytest.raises(ValueError, match="'cuda' is not available: the cuda extension was not"):
        ours(name)(randn(3, 11), implementation="cuda")


@each_name
def test_cuda_without_a_gpu_says_so(name, monkeypatch):
    def devices(backend=None):
        raise RuntimeError(f"Unknown backend {backend}")

    monkeypatch.setattr(_native, "load", lambda backend: object())
    monkeypatch.setattr(jax, "devices", devices)
    with pytest.raises(ValueError, match="not available: JAX sees no CUDA device"):
        ours(name)(randn(3, 12), implementation="cuda")


@each_name
def test_a_backend_on_another_platform_is_refused(name):
    native_module("cpu")
    traced = jax.jit(lambda x: ours(name)(x, implementation="cpu")).trace(randn(3, 4))
    with pytest.raises(ValueError, match="'cpu' was asked for in a computation compiled for tpu"):
        traced.lower(lowering_platforms=("tpu",))


@each_name
def test_other_platforms_get_plain_xla(name):
    lowered = jax.jit(ours(name)).trace(randn(3, 4)).lower(lowering_platforms=("tpu",))
    assert "custom_call" not in lowered.as_text()


@each_name
def test_implementations_agree(name):
    x = randn(7, 100)
    by_name = {i: ours(name)(x, implementation=i) for i in (None, "cpu", "xla") if i != "cpu"}
    with jax.default_device(jax.devices("cpu")[0]):
        by_name["cpu"] = ours(name)(x, implementation="cpu")
    for a, b in itertools.combinations(by_name.values(), 2):
        np.testing.assert_allclose(a, b, rtol=3e-6)
