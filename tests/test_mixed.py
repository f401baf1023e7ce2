"""Softmax of a float32 copy of 16 bits: kernels make two values of each row, XLA the rest."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _support import choice_of
from _truth import BACKWARD, FORWARD, TRUTH, assert_right, wide
from jax import export

import jax_softmax

DTYPES = ("bfloat16", "float16")
PAIRS = [  # op, shape, axis
    ("softmax", (130, 16_384), 1),
    ("softmax", (140, 14_002), 1),
    ("softmax", (2, 70, 32_771), 2),
    ("softmax", (140, 1, 16_384, 1), 2),
    ("log_softmax", (130, 16_384), 1),
    ("log_softmax", (50, 5001), 1),
    ("log_softmax", (3, 100, 4104), 2),
]
# A cluster's blocks for each row; plain JAX has nothing else for these than for shorter ones.
CLUSTERS = [pytest.param((op, (140, 131_079), 1), marks=pytest.mark.gpu) for op in FORWARD]
each_op = pytest.mark.parametrize("op", FORWARD)


def of_float32(op, x, axis=-1, **options):
    return getattr(jax_softmax, op)(x.astype("float32"), axis, **options)


def among_others(op, x, other, axis=-1):
    """In a program with more to read, which may read the result by XLA's code."""
    return of_float32(op, x, axis), other + 1


def rows(kind: str, shape, axis) -> np.ndarray:
    """Logits whose largest outweighs the others a little, a lot, or not at all."""
    x = np.random.default_rng(0).standard_normal(shape)
    if kind == "peaked":
        largest = np.abs(x).max(axis, keepdims=True) * 4
        x[(slice(None),) * axis + (slice(5, 6),)] = largest + 17
    if kind == "two values":
        # Of many alike, errors are alike: those of their difference from the largest, and of its
        # product with a logarithm. Two rows have another two.
        x[...] = -0.0869140625
        x[(slice(None),) * axis + (slice(9, 10),)] = 6.8125
        x[0] -= 0.25
        x[1][x[1] < 1] = 0.07
    return {"normal": x, "wide": 8 * x, "peaked": 4 * x, "two values": x}.get(
        kind, np.full(shape, -0.1)
    )


KINDS = ("normal", "wide", "peaked", "two values", "constant")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", [*PAIRS, *CLUSTERS], ids=str)
def test_results_have_the_digits_of_float32(case, dtype, platform):
    op, shape, axis = case
    request = shape, axis, jnp.dtype(dtype), jnp.dtype("float32"), platform
    assert choice_of(op, *request, widened=True).pairs
    inputs = [jnp.asarray(rows(kind, shape, axis), dtype) for kind in KINDS]
    program = jax.jit(functools.partial(among_others, op, axis=axis)).lower(inputs[0], 0)
    calls = program.as_text().count("jax_softmax.row_pairs")
    assert calls == (platform == "cuda")
    assert program.as_text().count("custom_call @jax_softmax") == calls
    program = program.compile()
    for kind, x in zip(KINDS, inputs, strict=True):
        y, _ = program(x, 0)
        assert_right(op, y, x, axis=axis, context=f"{dtype} {kind}")
        if op == "softmax":
            np.testing.assert_allclose(wide(y).sum(axis), 1, rtol=0, atol=5e-7)


@each_op
@pytest.mark.usefixtures("platform")
def test_a_kernel_writes_many_that_a_program_returns(op):
    inputs = [jnp.asarray(rows(kind, (140, 32_771), 1), "bfloat16") for kind in KINDS]
    program = jax.jit(functools.partial(of_float32, op)).lower(inputs[0])
    calls = program.as_text().count(f"custom_call @jax_softmax.{op}.")
    assert calls == program.as_text().count("custom_call @jax_softmax") == 1
    program = program.compile()
    for kind, x in zip(KINDS, inputs, strict=True):
        assert_right(op, program(x), x, axis=1, context=kind)


@each_op
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [16_384, pytest.param(131_079, marks=pytest.mark.gpu)])
def test_special_rows(op, dtype, columns, platform):
    x = np.zeros((140, columns), "float32")
    x[0, 3], x[1, 5], x[2], x[3, 16_383] = np.nan, np.inf, -np.inf, -np.inf
    x[4], x[4, 9] = -np.inf, 2
    x[5], x[6] = -6e4, 6e4
    x[7], x[7, 100] = -6e4, 6e4
    x = jnp.asarray(x, dtype)
    program = jax.jit(functools.partial(among_others, op)).lower(x, 0)
    assert program.as_text().count("jax_softmax.row_pairs") == (platform == "cuda")
    y, _ = program.compile()(x, 0)
    assert_right(op, y, x, axis=1)
    assert np.isnan(y[:3]).all() and not np.isnan(y[3:]).any()


@pytest.mark.parametrize("case", [*PAIRS[:3], *PAIRS[4:]], ids=str)
@pytest.mark.parametrize("back", [False, True], ids=["float32", "16 bits"])
def test_derivatives(case, back, platform):
    op, shape, axis = case
    rng = np.random.default_rng(1)
    x, t = (jnp.asarray(rng.standard_normal(shape), "bfloat16") for _ in range(2))

    def f(x):
        y = of_float32(op, x, axis)
        return y.astype(x.dtype) if back else y

    def derivatives(x, t):
        y, pull_back = jax.vjp(f, x)
        return pull_back(t.astype(y.dtype))[0], jax.jvp(f, (x,), (t,))[1]

    y = TRUTH[op](wide(x), axis)
    forward = "softmax_tangent" if op == "softmax" else "log_softmax_tangent"
    for got, name in zip(jax.jit(derivatives)(x, t), (BACKWARD[op], forward), strict=True):
        want = TRUTH[name](y, wide(t), axis)
        error = np.abs(wide(got) - want)
        rounding = 2.0**-8 if got.dtype.itemsize == 2 else 2e-5
        assert (error <= rounding * np.abs(want) + 1e-6 * np.abs(want).max()).all()


@each_op
def test_batched(op, platform):
    x = jnp.asarray(np.random.default_rng(2).standard_normal((4, 40, 15_000)), "bfloat16")
    f = functools.partial(of_float32, op)
    for axis in (0, 1):
        program = jax.jit(jax.vmap(f, axis, axis)).lower(x)
        assert program.as_text().count("jax_softmax.") == (platform == "cuda")
        assert_right(op, program.compile()(x), x, axis=2)


@each_op
def test_who_asks_for_more_gets_the_kernels(op, platform):
    """Batch invariance, a platform's kernels or a strategy: they write the result."""
    x = jax.ShapeDtypeStruct((1024, 16_384), jnp.dtype("bfloat16"))
    wanted = [{"batch_invariant": True}, {"implementation": platform}]
    wanted.append({"implementation": {"cpu": "cpu:row", "cuda": "cuda:stream"}[platform]})
    for options in wanted:
        program = jax.jit(functools.partial(of_float32, op, **options)).lower(x).as_text()
        assert f"custom_call @jax_softmax.{op}." in program
        assert "row_pairs" not in program


@pytest.mark.gpu
@each_op
def test_export(op):
    x = jnp.asarray(rows("normal", (130, 16_384), 1), "bfloat16")
    program = jax.jit(functools.partial(of_float32, op))
    unchecked = [export.DisabledSafetyCheck.custom_call("jax_softmax.row_pairs.v6")]
    made = export.export(program, disabled_checks=unchecked)(x)
    loaded = export.deserialize(made.serialize())
    np.testing.assert_array_equal(loaded.call(x), program(x))
    with pytest.raises(ValueError, match=r"jax_softmax\.row_pairs\.v6"):
        export.export(program)(x)


@pytest.mark.gpu
@pytest.mark.parametrize("x64", [False, True])
def test_a_call_refuses_what_it_has_no_kernels_for(x64):
    def call(shape, dtype, results, log_sums=False, scale=1.0):
        types = [jax.ShapeDtypeStruct(s, d) for s, d in results]
        f = jax.ffi.ffi_call("jax_softmax.row_pairs.v6", types)
        return jax.jit(
            lambda x: f(
                x,
                axis=np.int64(1),
                logical_axis=np.int64(1),
                strategy="auto",
                batch_invariant=True,
                log_sums=log_sums,
                scale=np.float64(scale),
            )
        )(jnp.ones(shape, dtype))

    with jax.enable_x64(x64):
        largest, factors = call((4, 5000), "float16", [((4,), "float32")] * 2)
        np.testing.assert_allclose(factors, np.full(4, 1 / 5000), rtol=1e-6)
        np.testing.assert_array_equal(largest, np.ones(4))
        _, sums = call((4, 5000), "float16", [((4,), "float32")] * 2, True)
        np.testing.assert_allclose(sums, np.full(4, np.log(5000)), rtol=1e-6)
        for shape, dtype, results in (
            ((4, 5000), "float32", [((4,), "float32")] * 2),
            ((4, 5000), "float16", [((4,), "float16")] * 2),
            ((4, 5000), "float16", [((4,), "float32"), ((5,), "float32")]),
        ):
            with pytest.raises(Exception, match="two values for each row"):
                jax.block_until_ready(call(shape, dtype, results))
        three = [((4,), "float32")] * 3
        _, _, factors = call((4, 5000), "float16", three, True)
        np.testing.assert_allclose(factors, np.full(4, 1 / 5000), rtol=1e-6)
        for results, log_sums in ((three, False), ([*three[:2], ((5,), "float32")], True)):
            with pytest.raises(Exception, match="a third value for each row"):
                jax.block_until_ready(call((4, 5000), "float16", results, log_sums))
        results = [((4,), "float32")] * 2
        for dtype, scale in (("float16", 0.5), ("float32", 0.0), ("float32", -1.0)):
            with pytest.raises(Exception, match="positive scale, and of 16 bits none but 1"):
                jax.block_until_ready(call((4, 5000), dtype, results, True, scale))
