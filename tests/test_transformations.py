"""Every JAX transformation of softmax and log_softmax, next to `jax.nn` under the same one."""

import concurrent.futures
import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _support import MOVES, both, compiled, count_calls, device_of, operations
from _truth import BACKWARD, CONVERSIONS
from jax import export
from jax.experimental import jet
from jax.test_util import check_grads

import jax_softmax

pytestmark = pytest.mark.usefixtures("backend", "quickly_compiled")
NAMES = ["softmax", "log_softmax"]
each_name = pytest.mark.parametrize("name", NAMES)
TARGETS = (
    "softmax",
    "softmax_tangent",
    "log_softmax",
    "log_softmax_tangent",
    "log_softmax_cotangent",
)
UNCHECKED = [export.DisabledSafetyCheck.custom_call(f"jax_softmax.{op}.v6") for op in TARGETS]
POLICY = jax.checkpoint_policies.save_only_these_names("jax_softmax")


def randn(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def assert_close(got, want, rtol=1e-5, atol=1e-6, err_msg=""):
    near = functools.partial(np.testing.assert_allclose, rtol=rtol, atol=atol, err_msg=err_msg)
    jax.tree.map(near, got, want)


# -- derivatives ---------------------------------------------------------------------------------

AXES = [0, 1, 2, (0, 2), None, ()]
WHERE = np.random.default_rng(0).random((3, 4, 5)) < 0.7


@each_name
@pytest.mark.parametrize("axis", AXES, ids=repr)
def test_check_grads(name, axis):
    with jax.enable_x64(True):
        x = randn(3, 4, 5).astype(np.float64)
        f = functools.partial(both(name)[0], axis=axis)
        check_grads(f, (x,), order=2, modes=("fwd", "rev"), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("axis", [-1, (0, 2)], ids=repr)
def test_check_grads_with_a_mask(axis):
    with jax.enable_x64(True):
        x = randn(3, 4, 5).astype(np.float64)
        f = functools.partial(both("softmax")[0], axis=axis, where=WHERE)
        check_grads(f, (x,), order=2, modes=("fwd", "rev"), rtol=1e-4, atol=1e-4)


def weighted(f):
    """A scalar function that tells the elements of `f`'s result apart."""
    return lambda x: jnp.vdot(jnp.sin(jnp.arange(x.size, dtype=x.dtype)), f(x).ravel())


def cotangent(f, x):
    """Something of the type of `f(x)`."""
    return jnp.cos(x).astype(jax.eval_shape(f, x).dtype)


DERIVATIVES = {
    "grad": lambda f: jax.grad(weighted(f)),
    "value_and_grad": lambda f: jax.value_and_grad(weighted(f)),
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (jnp.cos(x),)),
    "vjp": lambda f: lambda x: jax.vjp(f, x)[1](cotangent(f, x)),
    "linearize": lambda f: lambda x: jax.linearize(f, x)[1](jnp.cos(x)),
    "linear_transpose": lambda f: (
        lambda x: jax.linear_transpose(jax.linearize(f, x)[1], x)(cotangent(f, x))
    ),
    "jacfwd": jax.jacfwd,
    "jacrev": jax.jacrev,
    "hessian": lambda f: jax.hessian(weighted(f)),
    "jacfwd(jacfwd)": lambda f: jax.jacfwd(jax.jacfwd(f)),
    "jacfwd(jacrev)": lambda f: jax.jacfwd(jax.jacrev(f)),
    "jacrev(jacfwd)": lambda f: jax.jacrev(jax.jacfwd(f)),
    "jacrev(jacrev)": lambda f: jax.jacrev(jax.jacrev(f)),
    "hvp": lambda f: lambda x: jax.jvp(jax.grad(weighted(f)), (x,), (jnp.cos(x),))[1],
}


def every_derivative(f, x):
    """All of them by one program: compiling them one by one is slow."""
    return jax.jit(lambda x: {name: derive(f)(x) for name, derive in DERIVATIVES.items()})(x)


@each_name
@pytest.mark.parametrize("axis", [0, -1])
def test_derivatives(name, axis):
    x = randn(3, 4)
    got, want = (every_derivative(functools.partial(f, axis=axis), x) for f in both(name))
    for derivative in DERIVATIVES:
        assert_close(got[derivative], want[derivative], err_msg=derivative)


@each_name
def test_third_derivative(name):
    x = randn(3)
    got, want = (jax.jit(jax.jacfwd(jax.jacrev(jax.jacfwd(f))))(x) for f in both(name))
    assert_close(got, want)


MASK = np.arange(12) % 5 != 2
# Ours, and what jet knows: masks are no operands, as these have no series.
SERIES = {
    "softmax": (jax_softmax.softmax, jax.nn.softmax),
    "log_softmax": (jax_softmax.log_softmax, jax.nn.log_softmax),
    "where": tuple(functools.partial(f, where=MASK) for f in both("softmax")),
    "logsumexp": (jax_softmax.logsumexp, functools.partial(jax.nn.logsumexp, axis=-1)),
    "terms": (
        lambda x: jax_softmax.masked_softmax(x, MASK, scale=0.5, softcap=2.0, causal=True),
        lambda x: jax.nn.softmax(2 * jnp.tanh(x / 4), where=MASK & np.tri(3, 12, 9, bool)),
    ),
}


@pytest.mark.parametrize("case", SERIES)
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_taylor_series(case, wrap):
    x, *terms = randn(4, 3, 12)
    got, want = (jet.jet(wrap(f), (x,), (terms,)) for f in SERIES[case])
    assert_close(got, want, atol=1e-5)
    assert np.abs(np.asarray(want[1][2])).max() > 0.1  # the third term is not all zeros


@each_name
@pytest.mark.parametrize("mode", ["rev", "fwd"])
def test_one_call_forward_and_one_backward(name, mode):
    f = both(name)[0]
    x = randn(8, 128)
    if mode == "rev":
        hlo = compiled(lambda x, g: jax.vjp(f, x)[1](g), x, x)
    else:
        hlo = compiled(lambda x, t: jax.jvp(f, (x,), (t,)), x, x)
    assert count_calls(hlo, name) == 1
    assert count_calls(hlo) == 2


@each_name
def test_reverse_mode_keeps_only_the_result(name):
    f = both(name)[0]
    y, vjp = jax.vjp(f, randn(3, 4))
    (residual,) = [r for r in jax.tree.leaves(vjp) if r.size > 1]
    np.testing.assert_array_equal(residual, y)


# -- dtype ---------------------------------------------------------------------------------------

WIDE = [("float64", "float32"), ("float32", "float64")]  # through XLA; the digits to tell rules by
DTYPES = [*CONVERSIONS, *WIDE]
each_conversion = pytest.mark.parametrize("dtype, output_dtype", CONVERSIONS, ids=str)
each_pair = pytest.mark.parametrize("dtype, output_dtype", DTYPES, ids=str)


def converting(name, output_dtype):
    """Both functions with that result dtype; jax.nn in float32 at least."""
    mine, original = both(name)

    def reference(x, *args, **kwargs):
        wide = jnp.promote_types(jnp.promote_types(x.dtype, output_dtype), jnp.float32)
        return original(x.astype(wide), *args, **kwargs).astype(output_dtype)

    return functools.partial(mine, dtype=output_dtype), reference


def assert_same_to(ulps, got, want, *dtypes, err_msg=""):
    """Equal in dtype, and in value to so many units of the narrowest of `dtypes`."""
    eps = ulps * max(float(jnp.finfo(d).eps) for d in dtypes)
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert g.dtype == w.dtype, err_msg
        pair = (np.asarray(a, np.float64) for a in (g, w))
        np.testing.assert_allclose(*pair, eps, eps, err_msg=err_msg)


@each_name
@each_pair
def test_derivatives_with_another_dtype(name, dtype, output_dtype):
    with jax.enable_x64(True):
        x = jnp.asarray(randn(3, 4)).astype(dtype)
        got, want = (every_derivative(f, x) for f in converting(name, output_dtype))
        for derivative in DERIVATIVES:
            pair = got[derivative], want[derivative]
            assert_same_to(4, *pair, dtype, output_dtype, err_msg=derivative)


@each_name
@pytest.mark.parametrize("dtype, output_dtype", WIDE)
def test_third_derivative_with_another_dtype(name, dtype, output_dtype):
    with jax.enable_x64(True):
        x = jnp.asarray(randn(3)).astype(dtype)
        got, want = (
            jax.jit(jax.jacfwd(jax.jacrev(jax.jacfwd(f))))(x)
            for f in converting(name, output_dtype)
        )
        assert_same_to(8, got, want, np.float32)


@each_name
@pytest.mark.parametrize("dtype, output_dtype", WIDE)
def test_check_grads_with_another_dtype(name, dtype, output_dtype):
    with jax.enable_x64(True):
        f = functools.partial(both(name)[0], axis=0, dtype=output_dtype)
        x = jnp.asarray(randn(4, 3)).astype(dtype)
        check_grads(f, (x,), order=3, modes=("fwd", "rev"), rtol=1e-2, atol=1e-2, eps=1e-2)


@each_name
@each_pair
def test_derivatives_under_a_mask_with_another_dtype(name, dtype, output_dtype):
    with jax.enable_x64(True):
        x, where = jnp.asarray(randn(3, 5)).astype(dtype), np.arange(5) > 1

        def derivatives(f):
            def kept(x):
                return jnp.where(where, f(x, where=where), 0)

            return kept(x), jax.jvp(kept, (x,), (x,)), jax.vjp(kept, x)[1](cotangent(kept, x))

        got, want = (derivatives(f) for f in converting(name, output_dtype))
        assert_same_to(4, got, want, dtype, output_dtype)


@each_name
@each_conversion
def test_a_conversion_costs_no_call_and_reverse_mode_no_pass(name, dtype, output_dtype):
    f = converting(name, output_dtype)[0]
    x, g = randn(8, 128).astype(dtype), randn(8, 128).astype(output_dtype)
    reverse = compiled(lambda x, g: jax.vjp(f, x)[1](g), x, g)
    forward = compiled(lambda x, t: jax.jvp(f, (x,), (t,)), x, x)
    assert count_calls(reverse) == count_calls(forward) == 2
    assert "convert" not in operations(reverse)
    # The result and the tangent differ in dtype; the kernel takes one.
    assert "convert" in operations(forward)


OPERAND = re.compile(r"custom_call @jax_softmax.*: \(tensor<8x128x(\w+)>")
WITH_TERMS = {
    "nothing": {},
    "where": {"where": np.arange(128) % 3 != 0},
    "causal": {"causal": True, "scale": 0.7},
    "a bias": {"bias": np.ones(128, np.float32)},
}


@each_name
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("terms", WITH_TERMS)
def test_kernels_read_the_16_bits_that_a_float32_was_made_of(name, dtype, terms):
    options = WITH_TERMS[terms] | {"batch_invariant": True}
    log = name == "log_softmax"
    f = functools.partial(both(name)[0], **options)
    if terms not in ("nothing", "where"):
        f = functools.partial(jax_softmax.masked_softmax, log=log, **options)
    x = jnp.asarray(randn(8, 128), dtype)

    def widened(x):
        return f(x.astype("float32"))

    (operand,) = OPERAND.findall(jax.jit(widened).lower(x).as_text())
    # Kernels for a bias alone convert nothing.
    assert operand == (
        "f32" if terms == "a bias" else {"bfloat16": "bf16", "float16": "f16"}[dtype]
    )
    y = jax.jit(widened)(x)
    tolerance = {} if terms == "a bias" else {"rtol": 0, "atol": 0}
    assert_close(y, jax.jit(functools.partial(f, dtype="float32"))(x), **tolerance)
    g = jnp.asarray(randn(8, 128, seed=1))
    pull_back = jax.jit(lambda f, x: jax.vjp(f, x)[1](g)[0], static_argnums=0)
    got, want = pull_back(widened, x), pull_back(f, x.astype("float32"))
    assert got.dtype == dtype
    assert_close(got.astype("float32"), want, rtol=1e-2, atol=1e-3)


BEFORE_RESHAPES = {
    "rows": lambda f, x: f(x.astype("float32").reshape(-1, 128)),
    "twice": lambda f, x: f(x.astype("float32").reshape(2, 512).reshape(8, 128)),
    "two axes": lambda f, x: f(x.astype("float32").reshape(8, 4, 32), axis=(1, 2)),
}


@each_name
@pytest.mark.parametrize("reshapes", BEFORE_RESHAPES)
def test_reshapes_hide_no_conversion(name, reshapes):
    f = functools.partial(both(name)[0], batch_invariant=True)
    x = jnp.asarray(randn(2, 4, 128), "bfloat16")
    program = jax.jit(functools.partial(BEFORE_RESHAPES[reshapes], f))
    assert OPERAND.findall(program.lower(x).as_text()) == ["bf16"]
    want = f(x, dtype="float32").reshape(8, 128)
    np.testing.assert_array_equal(program(x).reshape(8, 128), want)


def test_calls_on_one_conversion_have_one_barrier():
    """It keeps XLA from computing with more digits than kernels read."""

    def several(x):
        z = x.astype("float32")
        return [both(name)[0](z) for name in NAMES]

    x = jnp.asarray(randn(8, 128), "bfloat16")
    lowered = jax.jit(several).lower(x).as_text()
    assert OPERAND.findall(lowered) == ["bf16"] * 2
    assert lowered.count("optimization_barrier") == 1


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("where", [None, np.arange(128) % 3 != 0], ids=["all", "where"])
def test_what_else_uses_the_float32_has_the_digits_that_kernels_read(dtype, where):
    """XLA may compute with more of them than the 16 bits have that it makes float32 of."""
    x, b = (jnp.asarray(20 * randn(8, 128, seed=seed), dtype) for seed in range(2))

    @jax.jit
    def logits_and_rest(x, b):
        z = (x * jnp.asarray(1.7, dtype) + b).astype("float32")
        y = jax_softmax.log_softmax(z, where=where, batch_invariant=True)
        return z, z - y

    z, rest = logits_and_rest(x, b)
    kept = slice(None) if where is None else where
    assert np.ptp(rest[:, kept], axis=1).max() < 1e-3
    np.testing.assert_array_equal(z, z.astype(dtype).astype("float32"))


@each_name
def test_other_conversions_before_a_kernel_are_left_alone(name, backend):
    f = both(name)[0]
    x = randn(8, 128)

    def operand(f, x):
        return OPERAND.findall(jax.jit(f).lower(x).as_text())

    rounded = x.astype("bfloat16")
    assert operand(lambda x: f(x.astype("bfloat16")), x) == ["bf16"]
    assert operand(lambda x: f(x.astype("float32") * 2), rounded) == ["f32"]
    # From bfloat16 to float16 there are no kernels.
    to_half = functools.partial(f, dtype="float16")
    assert operand(lambda x: to_half(x.astype("float32")), rounded) == ["f32"]
    assert operand(lambda x: f(x.astype("float32")), np.ones((8, 128), np.int16)) == ["f32"]
    strategy = {"cpu": "cpu:row", "cuda": "cuda:stream"}[backend]
    forced = functools.partial(getattr(jax_softmax, name), implementation=strategy)
    assert operand(lambda x: forced(x.astype("float32")), rounded) == ["f32"]
    with jax.enable_x64(True):
        assert operand(lambda x: f(x.astype("float64")), rounded) == ["f64"]


@each_name
@each_conversion
def test_reverse_mode_keeps_only_the_converted_result(name, dtype, output_dtype):
    y, vjp = jax.vjp(converting(name, output_dtype)[0], randn(3, 4).astype(dtype))
    (residual,) = [r for r in jax.tree.leaves(vjp) if r.size > 1]
    assert residual.dtype == output_dtype
    np.testing.assert_array_equal(residual, y)


@each_name
@each_conversion
@pytest.mark.parametrize("in_axis", [0, 1, 2])
@pytest.mark.parametrize("axis", [0, 1])
def test_vmap_with_another_dtype(name, dtype, output_dtype, in_axis, axis):
    x = randn(3, 4, 5).astype(dtype)
    got, want = (
        jax.vmap(functools.partial(f, axis=axis), in_axis, in_axis)(x)
        for f in converting(name, output_dtype)
    )
    assert_same_to(2, got, want, output_dtype)


@each_name
@each_conversion
@pytest.mark.parametrize("x_axis, t_axis", [(None, 2), (1, None), (2, 1)])
@pytest.mark.parametrize("mode", ["jvp", "vjp"])
def test_vmap_over_some_operands_of_two_dtypes(name, dtype, output_dtype, x_axis, t_axis, mode):
    x, t = (
        randn(*np.insert([3, 4], a, 5) if a is not None else (3, 4), seed=s)
        for s, a in enumerate((x_axis, t_axis))
    )
    x, t = x.astype(dtype), t.astype(dtype if mode == "jvp" else output_dtype)

    def derivative(f, x, t):
        return jax.jvp(f, (x,), (t,))[1] if mode == "jvp" else jax.vjp(f, x)[1](t)[0]

    got, want = (
        jax.vmap(functools.partial(derivative, f), (x_axis, t_axis))(x, t)
        for f in converting(name, output_dtype)
    )
    assert_same_to(4, got, want, dtype, output_dtype)


@each_name
@pytest.mark.parametrize("dtype, output_dtype", [CONVERSIONS[1], WIDE[0]], ids=str)
def test_strict_promotion_with_another_dtype(name, dtype, output_dtype):
    with jax.enable_x64(True), jax.numpy_dtype_promotion("strict"):
        x = jnp.asarray(randn(3, 4)).astype(dtype)
        f = functools.partial(both(name)[0], dtype=output_dtype)
        got, want = (outer(jax.jacrev(f))(x) for outer in (jax.jacfwd, jax.jacrev))
        assert_same_to(4, got, want, dtype, output_dtype)


# -- vmap ----------------------------------------------------------------------------------------


@each_name
@pytest.mark.parametrize("in_axis, out_axis", [*itertools.product(range(3), [0, 2, -1])])
@pytest.mark.parametrize("axis", [0, 1, -2, None, (0, 1)], ids=repr)
def test_vmap(name, in_axis, out_axis, axis):
    x = randn(3, 4, 5)
    got, want = (
        jax.vmap(functools.partial(f, axis=axis), in_axis, out_axis)(x) for f in both(name)
    )
    assert_close(got, want)


@each_name
def test_nested_vmap(name):
    x = randn(2, 3, 4, 5)
    for outer, inner in itertools.product(range(4), range(3)):
        got, want = (jax.vmap(jax.vmap(f, inner, 1), outer, 2)(x) for f in both(name))
        assert_close(got, want)


@each_name
@pytest.mark.parametrize("in_axis", [0, 1, 2])
@pytest.mark.parametrize("axis", [0, 1])
def test_vmap_of_grad(name, in_axis, axis):
    x = randn(3, 4, 5)
    got, want = (
        jax.vmap(jax.grad(weighted(functools.partial(f, axis=axis))), in_axis, in_axis)(x)
        for f in both(name)
    )
    assert_close(got, want)


@each_name
@pytest.mark.parametrize(
    "x_axis, t_axis", [(None, 0), (None, 2), (0, None), (1, None), (0, 2), (2, 1)]
)
@pytest.mark.parametrize("mode", ["jvp", "vjp"])
def test_vmap_over_some_operands(name, x_axis, t_axis, mode):
    x, t = (
        randn(*np.insert([3, 4], a, 5) if a is not None else (3, 4), seed=s)
        for s, a in enumerate((x_axis, t_axis))
    )

    def derivative(f, x, t):
        return jax.jvp(f, (x,), (t,))[1] if mode == "jvp" else jax.vjp(f, x)[1](t)[0]

    got, want = (
        jax.vmap(functools.partial(derivative, f), (x_axis, t_axis))(x, t) for f in both(name)
    )
    assert_close(got, want)


@each_name
@pytest.mark.parametrize("in_axis", [0, 1, 2])
def test_vmap_moves_no_data(name, in_axis):
    f = both(name)[0]
    for run, calls in ((f, 1), (lambda x: jax.vjp(f, x)[1](x)[0], 2)):
        hlo = compiled(jax.vmap(run, in_axis, in_axis), randn(8, 16, 32))
        assert not operations(hlo) & MOVES
        assert count_calls(hlo) == calls


# -- control flow and checkpoint -----------------------------------------------------------------


@each_name
def test_scan(name):
    def loss(f, x):
        return jax.lax.scan(lambda c, row: (f(c + row), jnp.sum(c * row)), x[0], x)[1].sum()

    got, want = (
        jax.jit(jax.value_and_grad(functools.partial(loss, f)))(randn(6, 5)) for f in both(name)
    )
    assert_close(got, want)


@each_name
def test_while_loop(name):
    def run(f, x):
        return jax.lax.while_loop(lambda c: c[0] < 4, lambda c: (c[0] + 1, f(c[1])), (0, x))[1]

    got, want = (
        jax.jit(lambda x, f=f: jax.jvp(functools.partial(run, f), (x,), (jnp.cos(x),)))(randn(3, 5))
        for f in both(name)
    )
    assert_close(got, want)


@each_name
@pytest.mark.parametrize("flag", [True, False])
def test_cond(name, flag):
    def loss(f, flag, x):
        return weighted(lambda x: jax.lax.cond(flag, f, lambda x: 2 * x, x))(x)

    got, want = (
        jax.jit(jax.grad(functools.partial(loss, f), 1))(flag, randn(3, 5)) for f in both(name)
    )
    assert_close(got, want)


def named_checkpoint(f):
    """Work before and after softmax, of which only softmax's result is to be kept."""
    return jax.checkpoint(lambda x: jnp.sum(jnp.sin(f(jnp.cos(x))) ** 2), policy=POLICY)


@each_name
def test_checkpoint_runs_one_call_forward_and_one_backward(name):
    # The value too: without it the forward pass would be dropped, and the recomputation be the one.
    hlo = compiled(jax.value_and_grad(named_checkpoint(both(name)[0])), randn(8, 128))
    assert count_calls(hlo, name) == 1
    assert count_calls(hlo, BACKWARD[name]) == 1
    assert count_calls(hlo) == 2


@each_name
def test_checkpoint_keeps_only_the_named_result(name, capsys):
    jax.ad_checkpoint.print_saved_residuals(named_checkpoint(both(name)[0]), randn(8, 128))
    saved = [
        line for line in capsys.readouterr().out.splitlines() if "from the argument" not in line
    ]
    assert len(saved) == 1 and "f32[8,128]" in saved[0] and "jax_softmax" in saved[0]


@each_name
def test_checkpoint_values(name):
    got, want = (jax.jit(jax.grad(named_checkpoint(f)))(randn(8, 128)) for f in both(name))
    assert_close(got, want)


# -- many calls at once --------------------------------------------------------------------------


@each_name
@pytest.mark.timeout(120, method="thread")  # a hang is inside C++, where no signal is served
def test_sixteen_independent_calls_in_one_program(name):
    xs = [randn(512, 640, seed=i) for i in range(16)]
    program = jax.jit(lambda xs: [both(name)[0](x) for x in xs])
    want = [both(name)[1](x) for x in xs]
    for _ in range(20):
        got = jax.block_until_ready(program(xs))
    assert count_calls(compiled(lambda xs: [both(name)[0](x) for x in xs], xs)) == 16
    assert_close(got, want)


@pytest.mark.timeout(120, method="thread")
def test_calls_from_sixteen_threads(backend):
    xs = [jax.device_put(randn(512, 640, seed=i), device_of(backend)) for i in range(16)]

    def work(x):
        for _ in range(20):
            y = jax.block_until_ready(both("softmax")[0](x))
        return y

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        results = list(pool.map(work, xs, timeout=100))
    assert_close(results, [jax.nn.softmax(x) for x in xs])


@pytest.mark.gpu
def test_kernels_of_different_shared_memory_from_two_threads():
    """More than 48 KiB has to be asked for, per kernel and not per call."""
    gpu = device_of("cuda")
    xs = [jax.device_put(randn(64, n), gpu) for n in (14_000, 50_000, 20_000, 56_000)]
    f = jax.jit(lambda x: jax_softmax.softmax(x, implementation="cuda:block"))
    jax.block_until_ready([f(x) for x in xs])

    def work(x):
        for _ in range(300):
            y = f(x)
        return jax.block_until_ready(y)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        results = list(pool.map(work, xs, timeout=100))
    assert_close(results, [jax.nn.softmax(x) for x in xs])


# -- compilation ---------------------------------------------------------------------------------


@each_name
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("axis", [0, 1, (0, 1)], ids=repr)
def test_eager_and_jit_give_the_same_bits(name, dtype, axis):
    f = functools.partial(both(name)[0], axis=axis)
    x = jnp.asarray(randn(33, 77)).astype(dtype)
    eager, jitted = f(x), jax.jit(f)(x)
    with jax.disable_jit():
        op_by_op = f(x)
    assert eager.tobytes() == jitted.tobytes() == op_by_op.tobytes()


@each_name
def test_donation(name):
    x = jnp.asarray(randn(16, 32))
    want = both(name)[1](x)
    assert_close(jax.jit(both(name)[0], donate_argnums=0)(x), want)
    assert x.is_deleted()


def exported(f, x, **kwargs):
    """`f` after a round trip through bytes."""
    made = export.export(jax.jit(f), disabled_checks=UNCHECKED, **kwargs)(x)
    return export.deserialize(made.serialize(vjp_order=1))


@each_name
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_export(name, axis, backend):
    f, reference = (functools.partial(f, axis=axis) for f in both(name))
    x = jnp.asarray(randn(3, 4, 5))
    loaded = exported(f, x, platforms=[backend])
    assert_close(loaded.call(x), reference(x))
    assert_close(jax.grad(weighted(loaded.call))(x), jax.grad(weighted(reference))(x))
    assert f"jax_softmax.{name}.v6" in str(loaded.mlir_module())


@each_name
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_export_with_a_symbolic_batch(name, axis, backend):
    f, reference = (functools.partial(f, axis=axis) for f in both(name))
    symbolic = jax.ShapeDtypeStruct(export.symbolic_shape("b, 4, 5"), np.float32)
    loaded = exported(f, symbolic, platforms=[backend])
    for b in (1, 3, 7):
        x = jnp.asarray(randn(b, 4, 5))
        assert_close(loaded.call(x), reference(x))
        assert_close(jax.grad(weighted(loaded.call))(x), jax.grad(weighted(reference))(x))


@each_name
@pytest.mark.parametrize("axis", [-1, None])
def test_export_of_a_mask_with_symbolic_dimensions(name, axis, backend):
    ours, reference = both(name)
    symbolic = jax.ShapeDtypeStruct(export.symbolic_shape("b, c"), np.float32)
    loaded = exported(lambda x: ours(x, axis, x > 0), symbolic, platforms=[backend])
    x = jnp.asarray(randn(5, 7))
    assert_close(loaded.call(x), reference(x, axis, x > 0))


@each_name
def test_export_for_several_platforms(name):
    x = jnp.asarray(randn(3, 4, 5))
    f, reference = both(name)
    assert_close(exported(f, x, platforms=["cpu", "cuda", "tpu"]).call(x), reference(x))


def test_export_unchecked_is_needed(backend):
    with pytest.raises(ValueError, match=r"custom.*call.*jax_softmax\.softmax\.v6"):
        export.export(jax.jit(both("softmax")[0]), platforms=[backend])(randn(3, 4))
