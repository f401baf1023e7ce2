"""Sharded operands: no collective where the softmax axis is whole, right values everywhere."""

import functools

import jax
import numpy as np
import pytest
from _support import COLLECTIVES, bind, both, compiled, count_calls, native_module, operations
from _truth import CONVERSIONS
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

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
    np.testing.assert_array_equal(got, f(np.asarray(x), np.asarray(t)))


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
def test_a_sharded_softmax_axis_gives_the_right_values(name, mode, axis_type, spec, make_mesh):
    f, reference, _ = functions(name, 1, mode)
    mesh = make_mesh(axis_type)
    with jax.set_mesh(mesh):
        x, t = (jax.device_put(randn(seed), NamedSharding(mesh, spec)) for seed in range(2))
        got = jax.jit(f)(x, t)
    np.testing.assert_allclose(got, reference(randn(0), randn(1)), rtol=1e-5, atol=1e-6)


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
