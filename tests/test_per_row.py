"""An op with one value for each row: its shapes, rows without columns, batches and shards."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _support import COLLECTIVES, MOVES, accepts, bind, compiled, count_calls, operations
from _truth import assert_right
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

SHAPE = (16, 8, 24)
each_axis = pytest.mark.parametrize("axis", range(3))
each_form = pytest.mark.parametrize("form", ["logsumexp", "logsumexp_parts"])
CASES = [
    (0, P(None, "a")),
    (0, P(None, "b", "a")),
    (1, P("a")),
    (1, P("a", None, "b")),
    (2, P("a", "b")),
    (2, P(("a", "b"))),
]


def randn(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def logsumexp(axis, implementation="cpu", form="logsumexp"):
    return functools.partial(bind, form, axis=axis, implementation=implementation)


def whole(result):
    """The logsumexp, of which there may be two terms."""
    return sum(jax.tree.leaves(result))


@pytest.mark.parametrize("shape, axis", [((21, 0), 1), ((3, 0, 5), 1), ((0, 40), 0), ((5, 0), 0)])
def test_a_row_without_columns_is_minus_infinity(shape, axis, implementation):
    if not accepts("logsumexp", shape, np.dtype("float32"), axis, implementation):
        pytest.skip(f"{implementation} takes no such rows")
    got = logsumexp(axis, implementation)(np.zeros(shape, np.float32))
    assert got.shape == tuple(np.delete(shape, axis)) and (got == -jnp.inf).all()


def test_a_vector_becomes_a_scalar(backend):
    x = randn(1000)
    assert_right("logsumexp", logsumexp(0, backend)(x), x, axis=0)


@each_axis
@each_form
def test_no_data_moves(axis, form, backend):
    x = randn(*SHAPE)
    hlo = compiled(logsumexp(axis, backend, form), x)
    assert count_calls(hlo, form) == 1 and not operations(hlo) & MOVES


@each_axis
@each_form
@pytest.mark.parametrize("batch", range(4))
def test_vmap(axis, batch, form, backend):
    x = randn(*SHAPE, 3)
    f = logsumexp(axis, backend, form)
    batched = jax.vmap(f, in_axes=batch)
    parts = [jax.tree.leaves(f(part)) for part in np.moveaxis(x, batch, 0)]
    got = jax.tree.leaves(batched(x))
    for value, want in zip(got, map(np.stack, zip(*parts, strict=True)), strict=True):
        np.testing.assert_allclose(value, want, rtol=1e-6)
    assert count_calls(compiled(batched, x), form) == 1


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit], ids=str)
@pytest.mark.parametrize("axis, spec", CASES, ids=str)
@each_form
def test_sharded_rows_stay_where_they_are(form, axis, spec, axis_type):
    devices = jax.devices("cpu")
    mesh = jax.make_mesh((len(devices) // 2, 2), ("a", "b"), (axis_type,) * 2, devices=devices)
    host = randn(*SHAPE)
    x = jax.device_put(host, NamedSharding(mesh, spec))
    f = jax.jit(logsumexp(axis, form=form))
    got = f(x)
    rows = [s for i, s in enumerate((*spec, None, None)[:3]) if i != axis]
    for value in jax.tree.leaves(got):
        assert value.sharding.is_equivalent_to(NamedSharding(mesh, P(*rows)), 2)
    assert_right("logsumexp", whole(got), host, axis=axis)
    hlo = compiled(f, x)
    assert count_calls(hlo, form) == 1 and not operations(hlo) & COLLECTIVES


@each_form
def test_a_sharded_axis_gives_the_right_values(form):
    mesh = jax.make_mesh((8,), ("a",), devices=jax.devices("cpu"))
    host = randn(*SHAPE)
    x = jax.device_put(host, NamedSharding(mesh, P(None, None, "a")))
    assert_right("logsumexp", whole(jax.jit(logsumexp(2, form=form))(x)), host, axis=2)
