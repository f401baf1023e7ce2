"""masked_softmax next to float64 and to a reference that autodiff takes apart."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_softmax import masked_softmax

pytestmark = pytest.mark.usefixtures("backend", "quickly_compiled")
SHAPE = (2, 3, 5, 7)
each_form = pytest.mark.parametrize("log", [False, True], ids=["softmax", "log"])


def naive(
    x,
    mask=None,
    bias=None,
    *,
    scale=1.0,
    causal=False,
    axis=-1,
    log=False,
    softcap=None,
    sink=None,
    jnp=jnp,
):
    """The definition, in the dtype of `x`, with the sink as one more column.

    By NumPy where `jnp` is that: nothing is compiled then, and nothing can be differentiated.
    """
    z = x * scale
    if softcap is not None:
        z = softcap * jnp.tanh(z / softcap)
    z = z if bias is None else z + bias
    allowed = jnp.ones(x.shape, bool) if mask is None else jnp.broadcast_to(mask, x.shape)
    if causal:
        allowed = allowed & jnp.tri(*x.shape[-2:], k=x.shape[-1] - x.shape[-2], dtype=bool)
    z = jnp.where(allowed, z, -jnp.inf)
    rows = np.delete(z.shape, axis)
    column = jnp.broadcast_to(-jnp.inf if sink is None else sink, rows)
    whole = jnp.concatenate([z, jnp.expand_dims(column, axis)], axis)
    # Where all is masked: any finite logit gives the row a softmax, which is masked then.
    empty = jnp.isneginf(whole).all(axis, keepdims=True)
    whole = jnp.where(empty, 0, whole)
    d = whole - jnp.max(whole, axis, keepdims=True)
    y = d - jnp.log(jnp.sum(jnp.exp(d), axis, keepdims=True))
    y, _ = jnp.split(y, [z.shape[axis]], axis)
    return jnp.where(allowed, y if log else jnp.exp(y), -jnp.inf if log else 0)


def arrays(seed=0, dtype=np.float64):
    """Every operand, each with a broadcast dimension, and one row masked as a whole."""
    rng = np.random.default_rng(seed)
    mask = rng.random((3, 1, 7)) < 0.7
    mask[1] = False
    return {
        "x": 3 * rng.standard_normal(SHAPE).astype(dtype),
        "mask": mask,
        "bias": rng.standard_normal((2, 1, 5, 1)).astype(dtype),
        "scale": np.asarray(0.7, dtype),
        "sink": rng.standard_normal((3, 1)).astype(dtype),
    }


OPTIONS = [
    {},
    {"mask"},
    {"bias"},
    {"scale"},
    {"causal"},
    {"softcap"},
    {"sink"},
    {"mask", "sink"},
    {"mask", "bias", "scale", "causal", "softcap", "sink"},
]


def chosen(options, log, dtype=np.float64):
    """The operands to differentiate in, and the rest."""
    given = arrays(dtype=dtype)
    rest = {"log": log}
    rest |= {"mask": given["mask"]} if "mask" in options else {}
    rest |= {"causal": True} if "causal" in options else {}
    rest |= {"softcap": 2.5} if "softcap" in options else {}
    return {k: v for k, v in given.items() if k == "x" or (k in options and k != "mask")}, rest


@each_form
@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "+".join(sorted(o)) or "none")
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_values(options, log, dtype):
    with jax.enable_x64(True):
        operands, rest = chosen(options, log)
        rounded = {k: v.astype(jnp.dtype(dtype)) for k, v in operands.items()}
        got = masked_softmax(**jax.tree.map(jnp.asarray, rounded), **rest)
        with np.errstate(divide="ignore"):
            want = naive(**jax.tree.map(np.float64, rounded), **rest, jnp=np)
        assert got.dtype == jnp.dtype(dtype) and got.shape == SHAPE
        tolerance = {"float64": 1e-14, "float32": 2e-6, "float16": 1e-3, "bfloat16": 8e-3}[dtype]
        np.testing.assert_allclose(
            got.astype(np.float64), want, rtol=tolerance, atol=tolerance / 10
        )


@each_form
@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "+".join(sorted(o)) or "none")
def test_gradients_to_second_order(options, log):
    with jax.enable_x64(True):
        operands, rest = chosen(options, log)
        weights = np.random.default_rng(1).standard_normal(SHAPE)

        def loss(f, operands):
            y = f(**operands, **rest)
            return jnp.sum(jnp.sin(jnp.where(jnp.isfinite(y), y, 0) * weights))

        ours, theirs = (functools.partial(loss, f) for f in (masked_softmax, naive))
        got, want = jax.jit(lambda v: (jax.grad(ours)(v), jax.grad(theirs)(v)))(operands)
        jax.tree.map(
            functools.partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-11), got, want
        )
        direction = jax.tree.map(
            lambda v: jnp.asarray(np.cos(np.arange(v.size))).reshape(v.shape), operands
        )
        got, want = jax.jit(
            lambda *v: [jax.jvp(jax.grad(f), v[:1], v[1:])[1] for f in (ours, theirs)]
        )(operands, direction)
        jax.tree.map(
            functools.partial(np.testing.assert_allclose, rtol=1e-8, atol=1e-10), got, want
        )


@pytest.mark.parametrize("columns", [7, 1000, 9000])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_a_sink_may_outweigh_every_logit(dtype, columns):
    with jax.enable_x64(True):
        x = jnp.zeros((4, columns), dtype)
        np.testing.assert_array_equal(masked_softmax(x, sink=1000.0).astype(np.float64), 0)
        got = masked_softmax(x, sink=1000.0, log=True).astype(np.float64)
        np.testing.assert_allclose(got, -1000, rtol=8e-3 if dtype == "bfloat16" else 1e-6)


@pytest.mark.parametrize("columns", [7, 1000, 9000])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_a_row_of_minus_infinity_is_its_sink_s(dtype, columns, backend):
    with jax.enable_x64(True):
        x = jnp.full((4, columns), -jnp.inf, dtype)
        for implementation in (backend, "xla"):
            for sink in (-1000.0, -1e30):
                for log, want in ((False, 0), (True, -np.inf)):
                    got = masked_softmax(x, sink=sink, log=log, implementation=implementation)
                    np.testing.assert_array_equal(got.astype(np.float64), want)


@pytest.mark.parametrize("offset", [1e4, -1e8])
def test_a_sinks_gradient_far_from_zero(offset):
    rng = np.random.default_rng(0)
    x = np.asarray(offset + 3 * rng.standard_normal((4, 1000)), np.float32)
    sink, weights = np.float32(offset + 8), rng.standard_normal(1000)

    def total(f, x, sink):
        return jnp.sum(f(x, sink=sink) * weights.astype(x.dtype))

    got = jax.grad(functools.partial(total, masked_softmax), (0, 1))(x, sink)
    with jax.enable_x64(True):
        wide = x.astype(np.float64), np.float64(sink)
        want = jax.device_get(jax.grad(functools.partial(total, naive), (0, 1))(*wide))
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-6 * np.max(abs(w)))


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_any_axis(axis):
    given = arrays(dtype=np.float32)
    mask = np.random.default_rng(2).random(SHAPE) < 0.6
    sink = np.ones([d for i, d in enumerate(SHAPE) if i != axis % 4], np.float32)
    rest = {"mask": mask, "bias": given["bias"], "sink": sink, "axis": axis}
    got, want = (f(given["x"], **rest) for f in (masked_softmax, naive))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-7)


@each_form
def test_a_row_masked_as_a_whole_is_zero_with_zero_gradients(log):
    given = arrays(dtype=np.float32)

    def total(x, bias, scale, sink):
        y = masked_softmax(x, given["mask"], bias, scale=scale, sink=sink, log=log)
        return jnp.sum(jnp.where(jnp.isfinite(y), y, 0) ** 2), y

    operands = [given[name] for name in ("x", "bias", "scale", "sink")]
    (_, y), gradients = jax.value_and_grad(total, (0, 1, 2, 3), has_aux=True)(*operands)
    assert (y[:, 1] == (-np.inf if log else 0)).all()
    assert all(np.isfinite(g).all() for g in gradients)
    assert (gradients[0][:, 1] == 0).all() and gradients[3][1] == 0


@each_form
@pytest.mark.parametrize("hidden", [np.nan, np.inf, -np.inf])
def test_what_is_masked_may_hold_anything(log, hidden):
    given = arrays(dtype=np.float32)
    mask = np.broadcast_to(given["mask"], SHAPE)

    def total(x, bias, scale):
        y = masked_softmax(x, mask, bias, scale=scale, log=log)
        return jnp.sum(jnp.where(mask, y, 0) ** 2)

    def run(x, bias):
        return jax.value_and_grad(total, (0, 1, 2))(x, bias, given["scale"])

    bias = np.broadcast_to(given["bias"], SHAPE)
    clean = run(given["x"], bias)
    spoilt = run(np.where(mask, given["x"], hidden), np.where(mask, bias, hidden))
    jax.tree.map(np.testing.assert_array_equal, clean, spoilt)


@pytest.mark.parametrize("rows, columns", [(5, 7), (7, 5), (1, 9), (6, 6)])
def test_causal_meets_in_the_last_corner(rows, columns):
    x = np.random.default_rng(3).standard_normal((rows, columns)).astype(np.float32)
    y = np.asarray(masked_softmax(x, causal=True))
    seen = np.tri(rows, columns, columns - rows, dtype=bool)
    assert ((y > 0) == seen).all()
    np.testing.assert_allclose(y.sum(1), seen.any(1), rtol=1e-6)


@each_form
def test_vmap_over_any_operand(log):
    given = arrays(dtype=np.float32)
    names = ("x", "bias", "scale", "sink")

    def f(mask, *operands):
        return masked_softmax(mask=mask, log=log, **dict(zip(names, operands, strict=True)))

    operands = [given["mask"], *(given[name] for name in names)]
    stacked = [np.stack([v, ~v if v.dtype == bool else v + 1]) for v in operands]
    for which in itertools.chain(range(5), [range(5)]):
        batched = {which} if isinstance(which, int) else set(which)
        used = [
            s if i in batched else v for i, (s, v) in enumerate(zip(stacked, operands, strict=True))
        ]
        axes = [0 if i in batched else None for i in range(5)]
        got = jax.vmap(f, axes)(*used)
        for n in range(2):
            one = [u[n] if i in batched else u for i, u in enumerate(used)]
            np.testing.assert_allclose(got[n], f(*one), rtol=1e-6, atol=1e-7)


@each_form
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_nan_under_the_mask_is_in_no_second_derivative(log, softcap):
    """Where a sink's derivative is of products of the logits."""
    mask = np.array([[True, False, True], [False, False, False]])

    def total(x, scale, sink):
        return (masked_softmax(x, mask, scale=scale, sink=sink, softcap=softcap, log=log) ** 2)[
            mask
        ].sum()

    def of_sink(x, scale):
        return jax.grad(total, 2)(x, scale, np.zeros(2, np.float32)).sum()

    x = np.array([[1, 5, 2], [3, 4, 5]], np.float32)
    given = [np.where(mask, x, masked).astype(np.float32) for masked in (0, np.nan)]
    want, got = (jax.grad(of_sink, (0, 1))(x, np.float32(1.5)) for x in given)
    for g, w in zip(got, want, strict=True):
        assert np.isfinite(w).all() and np.any(w)
        np.testing.assert_array_equal(g, w)


def test_dtype_and_plain_numbers():
    x = jnp.ones((2, 4), jnp.bfloat16)
    assert masked_softmax(x, dtype=jnp.float32).dtype == jnp.float32
    assert masked_softmax(x, True, 0.5, scale=2, sink=0.0).dtype == jnp.bfloat16
    e = np.e
    np.testing.assert_allclose(
        masked_softmax(np.ones((1, 3), np.float32), sink=0.0),
        np.full((1, 3), e / (3 * e + 1)),
        rtol=1e-6,
    )


MISTAKES = {
    "mask that is no boolean": ({"mask": np.ones(7)}, TypeError, "mask .*boolean"),
    "mask of more dimensions": ({"mask": np.ones((9, *SHAPE), bool)}, ValueError, "mask of shape"),
    "mask that does not fit": ({"mask": np.ones(6, bool)}, ValueError, "mask of shape"),
    "bias that does not fit": ({"bias": np.ones((4, 7))}, ValueError, "bias of shape"),
    "no scale": ({"scale": None}, TypeError, "scale wants an array, got NoneType"),
    "bias of text": ({"bias": "text"}, TypeError, "bias wants an array, got str"),
    "sink of text": ({"sink": "text"}, TypeError, "sink wants an array, got str"),
    "complex bias": ({"bias": 1j}, TypeError, "bias wants real"),
    "scale per column": ({"scale": np.ones(7)}, ValueError, "scale of shape"),
    "sink per column": ({"sink": np.ones(7)}, ValueError, "sink of shape"),
    "two axes": ({"axis": (0, 1)}, TypeError, r"axis wants an int, got \(0, 1\)"),
    "no such axis": ({"axis": 4}, ValueError, "axis 4"),
    "causal along rows": ({"axis": 1, "causal": True}, ValueError, "causal"),
    "softcap of zero": ({"softcap": 0.0}, ValueError, "softcap"),
    "softcap of no float32": ({"softcap": 1e39}, ValueError, "softcap"),
    "softcap of infinity": ({"softcap": np.inf}, ValueError, "softcap"),
    "softcap of nearly zero": ({"softcap": 1e-39}, ValueError, "softcap wants a positive"),
    "softcap of text": ({"softcap": "3"}, TypeError, "softcap wants a number, known at compile"),
    "integer result": ({"dtype": np.int32}, TypeError, "dtype"),
    "implementation": ({"implementation": "magic"}, ValueError, "implementation"),
    "list": ({"implementation": ["cpu"]}, TypeError, "implementation wants a string or None"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named(mistake):
    kwargs, error, message = MISTAKES[mistake]
    with pytest.raises(error, match=message):
        masked_softmax(arrays(dtype=np.float32)["x"], **kwargs)
    with pytest.raises(TypeError, match="x wants real"):
        masked_softmax(np.ones((2, 3), np.complex64))
    with pytest.raises(TypeError, match="causal wants True or False, known at compile time"):
        jax.jit(lambda causal: masked_softmax(np.ones((2, 3)), causal=causal))(True)
    with pytest.raises(TypeError, match="masked_softmax does not take a boolean"):
        masked_softmax(np.ones((2, 3), bool))


@each_form
@pytest.mark.parametrize("operand", ["x", "scale", "sink"])
def test_a_mask_of_more_dimensions_beside_a_causal_one_promotes_no_rank(operand, log):
    def f(v):
        given = {"x": np.ones((2, 4, 6), np.float32), operand: v}
        return masked_softmax(mask=np.ones((2, 4, 6), bool), causal=True, log=log, **given)[0, 0, 0]

    with jax.numpy_rank_promotion("raise"):
        value = jnp.ones((2, 4, 6)) if operand == "x" else jnp.float32(1)
        assert jnp.isfinite(jax.grad(f)(value)).all()


def test_cotangents_under_the_mask_do_not_count():
    """As behind jax.nn.softmax(where=): the entropy's gradient is 0 * inf there."""
    x, mask = np.arange(12.0).reshape(3, 4), np.arange(4) < 3

    def entropy(f, x):
        y = f(x)
        return jnp.sum(jnp.where(mask, y * jnp.log(y), 0))

    ours = jax.grad(functools.partial(entropy, lambda x: masked_softmax(x, mask)))(x)
    theirs = jax.grad(functools.partial(entropy, lambda x: jax.nn.softmax(x, where=mask)))(x)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-7)
    assert np.isfinite(ours).all()


def called(f, operands):
    return f(**operands)


@pytest.mark.parametrize("operand", ["x", "mask", "bias", "scale", "sink"])
@pytest.mark.parametrize("causal", [False, True])
def test_vmap_over_one_operand(operand, causal):
    given = arrays(dtype=np.float32)
    batched = {k: np.stack([v, v[..., ::-1] if v.ndim else v * 2, v]) for k, v in given.items()}
    f = functools.partial(masked_softmax, causal=causal)
    want = np.stack([f(**(given | {operand: one})) for one in batched[operand]])
    for at in (0, -1) if given[operand].ndim else (0,):
        operands = given | {operand: np.moveaxis(batched[operand], 0, at)}
        axes = {k: at if k == operand else None for k in given}
        got = jax.vmap(functools.partial(called, f), in_axes=(axes,))(operands)
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("shape", [(3, 0), (0, 3), (0, 0)])
def test_empty_operands_on_every_platform(shape):
    x, mask = jnp.zeros(shape), jnp.ones(shape, bool)
    assert masked_softmax(x, mask).shape == shape
    traced = jax.jit(masked_softmax).trace(x, mask)
    assert "stablehlo" in traced.lower(lowering_platforms=("cuda",)).as_text()
