"""Sharded operands: no collective where the softmax axis is whole, right values everywhere."""

import contextlib
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _support import (
    COLLECTIVES,
    bind,
    both,
    compiled,
    count_calls,
    instructions,
    native_module,
    operations,
)
from _truth import CONVERSIONS
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_softmax
from jax_softmax import _calls, _choice

pytestmark = pytest.mark.usefixtures("quickly_compiled")

SHAPE = (16, 8, 24)
# Every way to shard a 3-D array over a mesh ("a", "b") that leaves the softmax axis whole.
CASES = [
    (0, P(None, "a")),
    (0, P(None, None, "a")),
    (0, P(None, "a", "b")),
    (1, P("a")),
    (1, P(None, None, "a")),
    (1, P("a", None, "b")),
    (1, P(("a", "b"))),
    (2, P("a")),
    (2, P(None, "a")),
    (2, P("b", "a")),
]
each_case = pytest.mark.parametrize("axis, spec", CASES, ids=str)
each_name = pytest.mark.parametrize("name", ["softmax", "log_softmax"])


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def make_mesh(request):
    """A function from axis types to a mesh of all devices of a platform."""
    native_module(request.param)
    devices = jax.devices(request.param)
    if len(devices) == 1:
        pytest.skip("needs two GPUs")
    shape = (len(devices) // 2, 2) if len(devices) > 2 else (2, 1)

    def make(axis_type=AxisType.Auto):
        return jax.make_mesh(shape, ("a", "b"), (axis_type,) * 2, devices=devices)

    return make


def randn(seed=0):
    return np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32)


def forward(f, x, t):
    return f(x)


def jvp(f, x, t):
    return jax.jvp(f, (x,), (t,))[1]


def vjp(f, x, t):
    return jax.vjp(f, x)[1](t)[0]


MODES = {"forward": (forward, 1), "jvp": (jvp, 2), "vjp": (vjp, 2)}
each_mode = pytest.mark.parametrize("mode", MODES)


def functions(name, axis, mode):
    """What is tested and what it is compared with, both from (x, t), and the calls it makes."""
    run, calls = MODES[mode]
    mine, reference = (functools.partial(run, functools.partial(f, axis=axis)) for f in both(name))
    return mine, reference, calls


def assert_local(f, *args, calls):
    """`f` makes so many custom calls, each on a device's own part."""
    hlo = compiled(f, *args)
    assert not operations(hlo) & COLLECTIVES
    assert count_calls(hlo) == calls


def assert_result(got, want, sharding):
    assert got.sharding.is_equivalent_to(sharding, got.ndim)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@each_name
@each_mode
@each_case
def test_batch_sharded_jit(name, mode, axis, spec, make_mesh):
    f, reference, calls = functions(name, axis, mode)
    sharding = NamedSharding(make_mesh(), spec)
    x, t = (jax.device_put(randn(seed), sharding) for seed in range(2))
    assert_local(f, x, t, calls=calls)
    assert_result(jax.jit(f)(x, t), reference(randn(0), randn(1)), sharding)


@each_name
@each_mode
@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit], ids=lambda t: t.name)
@pytest.mark.parametrize("dtype, output_dtype", CONVERSIONS, ids=str)
def test_conversions_stay_local(name, mode, axis_type, dtype, output_dtype, make_mesh):
    """The operands of a derivative differ in dtype, and agree in sharding all the same."""
    run, calls = MODES[mode]
    f = functools.partial(run, functools.partial(both(name)[0], dtype=output_dtype))
    mesh = make_mesh(axis_type)
    with jax.set_mesh(mesh):
        sharding = NamedSharding(mesh, P("b", "a"))
        x = jax.device_put(randn(0).astype(dtype), sharding)
        t = jax.device_put(randn(1).astype(output_dtype if mode == "vjp" else dtype), sharding)
        assert_local(f, x, t, calls=calls)
        got = jax.jit(f)(x, t)
    assert got.dtype == (dtype if mode == "vjp" else output_dtype)
    assert got.sharding.is_equivalent_to(sharding, got.ndim)
    alone = jax.device_put((np.asarray(x), np.asarray(t)), mesh.devices.flat[0])
    np.testing.assert_array_equal(got, f(*alone))


@each_name
@each_case
def test_sharded_mask(name, axis, spec, make_mesh):
    f, reference = (functools.partial(f, axis=axis) for f in both(name))
    sharding = NamedSharding(make_mesh(), spec)
    mask = randn(1) > 0
    x, where = (jax.device_put(a, sharding) for a in (randn(), mask))
    assert_local(lambda x, where: f(x, where=where), x, where, calls=1)
    assert_result(jax.jit(f)(x, where=where), reference(randn(), where=mask), sharding)


@each_name
@pytest.mark.parametrize("in_axis", [0, 1])
def test_sharded_vmap(name, in_axis, make_mesh):
    f, reference = (jax.vmap(f, in_axis, in_axis) for f in both(name))
    sharding = NamedSharding(make_mesh(), P("a", "b"))
    x = jax.device_put(randn(), sharding)
    assert_local(f, x, calls=1)
    assert_result(jax.jit(f)(x), reference(randn()), sharding)


@each_name
@each_mode
@pytest.mark.parametrize("check_vma", [True, False])
def test_shard_map(name, mode, check_vma, make_mesh):
    f, reference, calls = functions(name, 1, mode)
    mesh, spec = make_mesh(), P("a", None, "b")
    sharding = NamedSharding(mesh, spec)
    mapped = jax.shard_map(f, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=check_vma)
    x, t = (jax.device_put(randn(seed), sharding) for seed in range(2))
    assert_local(mapped, x, t, calls=calls)
    assert_result(jax.jit(mapped)(x, t), reference(randn(0), randn(1)), sharding)


@each_name
@pytest.mark.parametrize("varying", ["x", "t"])
def test_shard_map_with_one_operand_the_same_everywhere(name, varying, make_mesh):
    """The two operands of a custom call must vary over the same mesh axes."""
    reference = functions(name, 1, "jvp")[1]
    mesh = make_mesh()
    size = len(mesh.devices.flat)
    whole, part = randn(0), randn(1)[: SHAPE[0] // size]
    spec, tiled = P(("a", "b")), np.tile(part, (size, 1, 1))
    if varying == "x":
        args, expected, in_specs = (whole, part), reference(whole, tiled), (spec, P())
    else:
        args, expected, in_specs = (part, whole), reference(tiled, whole), (P(), spec)

    def local(x, t):
        # Through the primitive, as the derivative of anything jitted gets the type of x alone.
        y = jvp(functools.partial(bind, name, axis=1), x, t)
        assert jax.typeof(y).manual_axis_type.varying == {"a", "b"}
        return y

    got = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=in_specs, out_specs=spec))(*args)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@each_name
@each_mode
def test_derivative_of_shard_map(name, mode, make_mesh):
    mesh, spec = make_mesh(), P("a", None, "b")
    sharding = NamedSharding(mesh, spec)
    f, reference = (functools.partial(f, axis=1) for f in both(name))
    mapped = jax.shard_map(f, mesh=mesh, in_specs=spec, out_specs=spec)
    run, calls = MODES[mode]
    x, t = (jax.device_put(randn(seed), sharding) for seed in range(2))
    assert_local(functools.partial(run, mapped), x, t, calls=calls)
    got = jax.jit(functools.partial(run, mapped))(x, t)
    assert_result(got, run(reference, randn(0), randn(1)), sharding)


@each_name
@each_mode
@each_case
def test_explicit_mesh(name, mode, axis, spec, make_mesh):
    f, reference, calls = functions(name, axis, mode)
    mesh = make_mesh(AxisType.Explicit)
    with jax.set_mesh(mesh):
        x, t = (jax.device_put(randn(seed), NamedSharding(mesh, spec)) for seed in range(2))
        assert_local(f, x, t, calls=calls)
        got = jax.jit(f)(x, t)
        assert jax.typeof(got).sharding == jax.typeof(x).sharding
        assert_result(got, reference(randn(0), randn(1)), x.sharding)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("again", [False, True])
def test_on_an_explicit_mesh_kernels_read_the_16_bits_of_a_float32(masked, again, make_mesh):
    mesh = make_mesh(AxisType.Explicit)
    sharding = NamedSharding(mesh, P("a"))

    def of_float32(x):
        wide = x.astype("float32")
        wide = jax.sharding.reshard(wide, sharding) if again else wide
        mask = jnp.arange(x.shape[-1]) % 3 != 0 if masked else None
        return jax_softmax.softmax(wide, where=mask, batch_invariant=True)

    with jax.set_mesh(mesh):
        x = jax.device_put(np.ones((16, 64, 1024), "bfloat16"), sharding)
        program = jax.jit(of_float32).lower(x).as_text()
    operands = re.findall(r"custom_call @jax_softmax.*: \(tensor<[\dx]*x(\w+)>", program)
    assert operands == ["bf16"]


@each_name
@pytest.mark.parametrize("specs", [(P("a"), P()), (P(), P("a"))], ids=["t", "x"])
def test_explicit_mesh_with_one_operand_replicated(name, specs, make_mesh):
    f, reference, _ = functions(name, 1, "jvp")
    mesh = make_mesh(AxisType.Explicit)
    with jax.set_mesh(mesh):
        args = [jax.device_put(randn(i), NamedSharding(mesh, specs[i])) for i in range(2)]
        got = jax.jit(f)(*args)
    np.testing.assert_allclose(got, reference(randn(0), randn(1)), rtol=1e-5, atol=1e-6)


@each_name
@each_mode
@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit], ids=lambda t: t.name)
@pytest.mark.parametrize("spec", [P(None, "a"), P("b", "a")], ids=str)
@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
@pytest.mark.parametrize("batch_invariant", [None, True])
def test_a_sharded_softmax_axis(name, mode, axis_type, spec, masked, batch_invariant, make_mesh):
    """Right values; no more than rows travels where the trace tells that the axis is sharded.

    Kernels, asked for by batch_invariant=True, gather the axis.
    """
    run, _ = MODES[mode]
    f = functools.partial(getattr(jax_softmax, name), batch_invariant=batch_invariant)
    mine, reference = (
        lambda x, t, mask, f=f: run(lambda x: f(x, 1, where=mask if masked else None), x, t)
        for f in (f, getattr(jax.nn, name))
    )
    mesh = make_mesh(axis_type)
    operands = randn(0), randn(1), randn(2) > -1
    with jax.set_mesh(mesh):
        args = jax.device_put(operands, NamedSharding(mesh, spec))
        got = jax.jit(mine)(*args)
        if axis_type == AxisType.Explicit:
            hlo = compiled(mine, *args)
            if batch_invariant:
                assert masked or count_calls(hlo) > 0
            else:
                assert operations(hlo) & COLLECTIVES == {"all-reduce"}
            assert got.sharding.is_equivalent_to(args[0].sharding, 3)
    np.testing.assert_allclose(got, reference(*operands), rtol=1e-5, atol=1e-6)


@each_name
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rows", [8, 1024])  # few elements, and many
def test_over_an_explicit_meshs_axis_a_gradient_exchanges_no_more_than_jax_nns(
    name, dtype, rows, make_mesh
):
    def exchanges(f):
        def gradient(x, t):
            return jax.vjp(f, x)[1](t)[0]

        return instructions(compiled(gradient, x, x)).count("all-reduce")

    mesh = make_mesh(AxisType.Explicit)
    with jax.set_mesh(mesh):
        x = jax.device_put(np.ones((rows, 1024), dtype), NamedSharding(mesh, P(None, "a")))
        assert 0 < exchanges(getattr(jax_softmax, name)) <= exchanges(getattr(jax.nn, name))


@each_name
def test_a_softmax_axis_over_one_device_has_the_kernel(name, make_mesh):
    """As on a mesh with an axis for tensor parallelism that is not used."""
    devices = make_mesh().devices.flatten()
    mesh = jax.make_mesh((devices.size, 1), ("a", "b"), (AxisType.Explicit,) * 2, devices=devices)
    f, reference, calls = functions(name, 1, "vjp")
    with jax.set_mesh(mesh):
        args = [jax.device_put(randn(seed), NamedSharding(mesh, P("a", "b"))) for seed in range(2)]
        assert_local(f, *args, calls=calls)
        assert_result(jax.jit(f)(*args), reference(randn(0), randn(1)), args[0].sharding)


@each_name
@each_mode
@pytest.mark.parametrize("axis", [None, (0, 2), (1, 2)])
@pytest.mark.parametrize("spec", [P(None, "a"), P("b", "a"), P("a", None, "b")], ids=str)
def test_joint_axes_on_an_explicit_mesh(name, mode, axis, spec, make_mesh):
    """Sharded axes cannot be merged by a reshape; the result is sharded like the operand."""
    f, reference, _ = functions(name, axis, mode)
    mesh = make_mesh(AxisType.Explicit)
    with jax.set_mesh(mesh):
        x, t = (jax.device_put(randn(seed), NamedSharding(mesh, spec)) for seed in range(2))
        got = jax.jit(f)(x, t)
        assert jax.typeof(got).sharding == jax.typeof(x).sharding
    np.testing.assert_allclose(got, reference(randn(0), randn(1)), rtol=1e-5, atol=1e-6)


# -- logsumexp and the losses ---------------------------------------------------------------------


def labels_of(axis):
    rows = tuple(d for i, d in enumerate(SHAPE) if i != axis)
    return np.random.default_rng(2).integers(0, SHAPE[axis], rows)


def spec_of_rows(spec, axis):
    parts = [*spec, *[None] * (len(SHAPE) - len(spec))]
    del parts[axis]
    return P(*parts)


def total(f):
    return lambda *args: f(*args).sum()


def along(f, x, *rest):
    return jax.jvp(lambda x: f(x, *rest), (x,), (x,))[1]


def smooth_loss(x, labels, axis, **kwargs):
    return jax_softmax.softmax_cross_entropy_with_integer_labels(
        x, labels, axis, label_smoothing=0.1, z_loss=0.1, **kwargs
    )


@pytest.mark.parametrize("dtype", ["int32", "uint32", "uint16"])
def test_integers_of_every_kind_label_sharded_classes(dtype, make_mesh):
    loss = jax_softmax.softmax_cross_entropy_with_integer_labels
    labels = labels_of(1).astype(dtype)
    mesh = make_mesh(AxisType.Explicit)
    with jax.set_mesh(mesh):
        x = jax.device_put(randn(), NamedSharding(mesh, P(None, "a")))
        got = loss(x, labels, 1)
    np.testing.assert_allclose(got, loss(randn(), labels, 1), rtol=1e-6)


# What runs, from the operand and the labels; the result has the operand's shape, or the rows'.
REDUCING = {
    "logsumexp": lambda x, labels, axis: jax_softmax.logsumexp(x, axis),
    "logsumexp jvp": lambda x, labels, axis: along(lambda x: jax_softmax.logsumexp(x, axis), x),
    "logsumexp vjp": lambda x, labels, axis: jax.grad(
        total(lambda x: jax_softmax.logsumexp(x, axis))
    )(x),
    "logsumexp hvp": lambda x, labels, axis: along(
        jax.grad(total(lambda x: jax_softmax.logsumexp(x, axis))), x
    ),
    "loss": lambda x, labels, axis: smooth_loss(x, labels, axis),
    "loss vjp": lambda x, labels, axis: jax.grad(total(smooth_loss))(x, labels, axis),
    "loss hvp": lambda x, labels, axis: along(jax.grad(total(smooth_loss)), x, labels, axis),
    "masked loss vjp": lambda x, labels, axis: jax.grad(
        total(functools.partial(smooth_loss, where=x > -1, ignore_index=0))
    )(x, labels, axis),
    "loss of probabilities": lambda x, labels, axis: jax_softmax.softmax_cross_entropy(
        x, x * x, axis
    ),
    "loss of probabilities vjp": lambda x, labels, axis: jax.grad(
        total(jax_softmax.softmax_cross_entropy), 1
    )(x, x * x, axis),
}
each_reducing = pytest.mark.parametrize("name", REDUCING)
each_axis_type = pytest.mark.parametrize(
    "axis_type", [AxisType.Auto, AxisType.Explicit], ids=lambda t: t.name
)


@each_reducing
@each_axis_type
@pytest.mark.parametrize(
    "axis, spec", [(0, P(None, "a", "b")), (1, P("a", None, "b")), (2, P("b", "a"))], ids=str
)
def test_reductions_of_batch_sharded_operands_are_local(name, axis_type, axis, spec, make_mesh):
    mesh = make_mesh(axis_type)
    f = functools.partial(REDUCING[name], axis=axis)
    want = jax.jit(f)(randn(), labels_of(axis))
    with jax.set_mesh(mesh):
        x = jax.device_put(randn(), NamedSharding(mesh, spec))
        rows = NamedSharding(mesh, spec_of_rows(spec, axis))
        labels = jax.device_put(labels_of(axis), rows)
        assert not operations(compiled(f, x, labels)) & COLLECTIVES
        got = jax.jit(f)(x, labels)
    assert_result(got, want, x.sharding if got.ndim == 3 else rows)


@each_reducing
@each_axis_type
@pytest.mark.parametrize("spec", [P(None, "a"), P("b", "a")], ids=str)
def test_reductions_over_a_sharded_axis_exchange_rows_alone(name, axis_type, spec, make_mesh):
    mesh = make_mesh(axis_type)
    f = functools.partial(REDUCING[name], axis=1)
    want = jax.jit(f)(randn(), labels_of(1))
    with jax.set_mesh(mesh):
        x = jax.device_put(randn(), NamedSharding(mesh, spec))
        labels = jax.device_put(labels_of(1), NamedSharding(mesh, spec_of_rows(spec, 1)))
        assert operations(compiled(f, x, labels)) & COLLECTIVES <= {"all-reduce"}
        got = jax.jit(f)(x, labels)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@each_axis_type
def test_few_columns_of_a_sharded_axis_are_reduced_all_the_same(axis_type, make_mesh):
    mesh = make_mesh(axis_type)
    f = functools.partial(jax_softmax.logsumexp, axis=1)
    few = randn()[:, :4]
    with jax.set_mesh(mesh):
        x = jax.device_put(few, NamedSharding(mesh, P(None, "a")))
        assert operations(compiled(f, x)) & COLLECTIVES == {"all-reduce"}
        got = jax.jit(f)(x)
    np.testing.assert_allclose(got, jax.nn.logsumexp(few, 1), rtol=1e-5)


@each_reducing
@pytest.mark.parametrize("check_vma", [True, False])
def test_reductions_under_shard_map(name, check_vma, make_mesh):
    mesh, spec, rows = make_mesh(), P("a", None, "b"), P("a", "b")
    f = functools.partial(REDUCING[name], axis=1)
    want = jax.jit(f)(randn(), labels_of(1))
    mapped = jax.shard_map(
        f,
        mesh=mesh,
        in_specs=(spec, rows),
        out_specs=spec if want.ndim == 3 else rows,
        check_vma=check_vma,
    )
    args = [
        jax.device_put(v, NamedSharding(mesh, s))
        for v, s in ((randn(), spec), (labels_of(1), rows))
    ]
    assert not operations(compiled(mapped, *args)) & COLLECTIVES
    got = jax.jit(mapped)(*args)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("loss", ["labels", "probabilities"])
@pytest.mark.parametrize("specs", [(P("a"), P(), P()), (P(), P("a"), P()), (P(), P(), P("a"))])
@pytest.mark.parametrize("mapped", [False, True], ids=["explicit mesh", "shard_map"])
def test_operands_of_a_loss_sharded_differently(loss, specs, mapped, make_mesh):
    mesh = make_mesh(AxisType.Auto if mapped else AxisType.Explicit)
    loss, targets = {
        "labels": (smooth_loss, labels_of(2)),
        "probabilities": (jax_softmax.softmax_cross_entropy, randn(3) ** 2),
    }[loss]
    x, where = randn(), randn(4)[:, :1] > -1
    size = mesh.shape["a"]

    def f(x, targets, where):
        return jax.value_and_grad(total(functools.partial(loss, axis=2, where=where)))(x, targets)

    if mapped:
        # A device sees a part of what is sharded, and the whole of what is not.
        part = SHAPE[0] // size
        args = [v if s else v[:part] for v, s in zip((x, targets, where), specs, strict=True)]
        tiled = [
            v if s else np.tile(v, (size, *[1] * (v.ndim - 1)))
            for v, s in zip(args, specs, strict=True)
        ]
        value, gradient = f(*tiled)
        if not specs[0]:
            gradient = gradient.reshape(size, part, *SHAPE[1:]).sum(0)

        def local(*args):
            def everywhere(x):
                return jax.lax.psum(loss(x, args[1], 2, where=args[2]).sum(), "a")

            return jax.value_and_grad(everywhere)(args[0])

        f = jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=(P(), specs[0]))
    else:
        args = [x, targets, where]
        value, gradient = f(*args)
    with jax.set_mesh(mesh):
        args = [jax.device_put(v, NamedSharding(mesh, s)) for v, s in zip(args, specs, strict=True)]
        got = jax.jit(f)(*args)
    np.testing.assert_allclose(got[0], value, rtol=1e-5)
    np.testing.assert_allclose(got[1], gradient, rtol=1e-5, atol=1e-5)


# -- what is fused, on an explicit mesh -----------------------------------------------------------

# More than XLA is left on a GPU.
LARGE = (16, 64, 1024)


def vjp_of(f):
    return lambda x, *rest: jax.vjp(lambda x: f(x, *rest), x)[1](x)[0]


def attention(x, mask, bias, labels):
    del labels
    sink = bias[0, :, 0]
    return jax_softmax.masked_softmax(x, mask, bias, scale=0.5, sink=sink, batch_invariant=True)


def causal(x, mask, bias, labels):
    """Where rows are sharded, a device does not know their numbers: plain JAX around softmax."""
    del mask, bias, labels
    return jax_softmax.masked_softmax(x, causal=True, batch_invariant=True)


def masked_log(x, mask, bias, labels):
    del bias, labels
    return jax_softmax.log_softmax(x, where=mask, batch_invariant=True)


def loss(x, mask, bias, labels):
    del mask, bias
    return jax_softmax.softmax_cross_entropy_with_integer_labels(x, labels, z_loss=0.1)


def loss_vjp(x, mask, bias, labels):
    return jax.grad(total(loss))(x, mask, bias, labels)


FUSED = {
    "attention": (attention, 1),
    "attention vjp": (vjp_of(attention), 2),
    "causal": (causal, 1),
    "masked log vjp": (vjp_of(masked_log), 2),
    "logsumexp": (lambda x, mask, bias, labels: jax_softmax.logsumexp(x), 1),
    "loss": (loss, 1),
    "loss vjp": (loss_vjp, 2),
    "absmax_scale": (lambda x, mask, bias, labels: jax_softmax.absmax_scale(x)[0], 1),
    "absmax_quantize": (
        lambda x, mask, bias, labels: jax_softmax.absmax_quantize(x)[0].astype(x.dtype),
        1,
    ),
}


def fused_operands(mesh, spec):
    """Logits, a mask per key, a bias per head, labels, and all of them sharded."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal(LARGE).astype(np.float32)
    mask = rng.random((LARGE[0], 1, LARGE[2])) > 0.2
    bias = rng.standard_normal((1, *LARGE[1:])).astype(np.float32)
    labels = rng.integers(0, LARGE[2], LARGE[:2])
    batch, head = (*spec, None, None)[:2]
    specs = [spec, P(batch), P(None, head), spec]
    operands = [x, mask, bias, labels]
    sharded = [NamedSharding(mesh, s) for s in specs]
    return operands, list(map(jax.device_put, operands, sharded))


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("spec", [P("a"), P("b", "a"), P(("a", "b")), P()], ids=str)
@pytest.mark.parametrize("mesh_is_set", [True, False])
def test_explicit_mesh_has_what_is_fused(name, spec, mesh_is_set, make_mesh):
    f, calls = FUSED[name]
    mesh = make_mesh(AxisType.Explicit)
    with jax.set_mesh(mesh) if mesh_is_set else contextlib.nullcontext():
        operands, args = fused_operands(mesh, spec)
        assert_local(f, *args, calls=calls)
        got = jax.jit(f)(*args)
    alone = jax.device_put(operands, mesh.devices.flat[0])
    assert_result(got, jax.jit(f)(*alone), NamedSharding(mesh, spec))


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit], ids=lambda t: t.name)
def test_the_gradient_of_a_bias_is_summed_where_it_is(log, axis_type, make_mesh):
    mesh = make_mesh(axis_type)
    (x, mask, bias, _), args = fused_operands(mesh, P("a"))

    def gradient(x, mask, bias):
        masked = functools.partial(jax_softmax.masked_softmax, log=log)
        return jax.grad(lambda b: jnp.where(mask, masked(x, mask, b) * x, 0).sum())(bias)

    with jax.set_mesh(mesh):
        assert operations(compiled(gradient, *args[:3])) & COLLECTIVES == {"all-reduce"}
        got = jax.jit(gradient)(*args[:3])
    np.testing.assert_allclose(got, gradient(x, mask, bias), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("workspace", [0, 8, 4096])
def test_scratch_memory_is_not_spread_over_the_axis(workspace):
    """On an explicit mesh that shards the softmax axis, whose size the scratch space has not."""
    mesh = jax.make_mesh((4, 2), ("a", "b"), (AxisType.Explicit,) * 2, devices=jax.devices("cpu"))
    sharding = NamedSharding(mesh, P("b", "a"))
    x = jax.typeof(jax.device_put(np.zeros((8, 64), np.float32), sharding))
    made = _calls.call_results(x, per_row=False, logical_axis=1, dtype=x.dtype, workspace=workspace)
    assert made[0] == x and len(made) == 1 + (workspace > 0)
    if workspace:
        assert made[1].shape == (8, workspace // 4) and made[1].sharding.spec == P("b", None)


def weighed(y, w, constrain):
    return (constrain(2 * w) * y).sum() + jnp.square(constrain(y)).sum()


CONSTRAINED = {  # what reads one of ours, or takes a constrained operand, and the same by jax.nn
    "softmax": (jax_softmax.softmax, jax.nn.softmax),
    "log_softmax": (jax_softmax.log_softmax, jax.nn.log_softmax),
    "logsumexp": (
        lambda x: jax_softmax.logsumexp(x, keepdims=True),
        lambda x: jax.nn.logsumexp(x, -1, keepdims=True),
    ),
    "masked_softmax": (
        lambda x: jax_softmax.masked_softmax(x, bias=x[:1], scale=0.5),
        lambda x: jax.nn.softmax(0.5 * x + x[:1]),
    ),
}


@pytest.mark.parametrize("placed", [False, True], ids=["arguments anywhere", "arguments placed"])
@pytest.mark.parametrize("name", CONSTRAINED)
def test_constraints_within_a_program_on_an_automatic_mesh(name, placed, make_mesh):
    """Only some values then have a mesh in their types."""
    sharding = NamedSharding(make_mesh(AxisType.Auto), P("a"))
    constrain = functools.partial(jax.lax.with_sharding_constraint, shardings=sharding)
    x, w = (randn(seed) for seed in (0, 1))
    if placed:
        x, w = jax.device_put((x, w), sharding)

    def both_passes(f):
        return jax.jit(jax.value_and_grad(lambda x: weighed(f(x), w[..., :1], constrain)))

    ours, theirs = (both_passes(f) for f in CONSTRAINED[name])
    for got, want in zip(ours(x), theirs(x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    of_constrained = [jax.grad(lambda x, f=f: f(constrain(x)).sum()) for f in CONSTRAINED[name]]
    got, want = (f(x) for f in of_constrained)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_a_constraint_in_what_comes_back(monkeypatch):
    """On a mesh of one device, as of code for several that runs on one."""
    monkeypatch.setattr(_choice, "RULES", {"cpu": _choice.RULES["cuda"]})
    mesh = jax.make_mesh((1,), ("a",), (AxisType.Auto,), devices=jax.devices("cpu")[:1])
    sharding = NamedSharding(mesh, P("a"))
    constrain = functools.partial(jax.lax.with_sharding_constraint, shardings=sharding)
    x, w = (np.random.default_rng(i).standard_normal((600, 256)).astype("float32") for i in (0, 1))
    x, w = jax.device_put((x, w), sharding)

    def both_passes(library):
        def loss(x, w):
            y = library.log_softmax(x)
            return (constrain(2 * w) * jnp.square(y)).sum() + jnp.square(constrain(y)).sum()

        return jax.jit(jax.value_and_grad(loss))(x, w)

    for got, want in zip(both_passes(jax_softmax), both_passes(jax.nn), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
