"""softmax_cross_entropy_with_integer_labels next to optax's function of that name."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _support import count_calls
from _truth import log_softmax, wide

from jax_softmax import softmax_cross_entropy_with_integer_labels as cross_entropy

pytestmark = pytest.mark.usefixtures("backend")
reference = optax.softmax_cross_entropy_with_integer_labels
BOTH = (cross_entropy, reference)


def batch(*shape, dtype=np.float32, seed=0):
    """Logits of that shape, and labels."""
    rng = np.random.default_rng(seed)
    logits = jnp.asarray(3 * rng.standard_normal(shape)).astype(dtype)
    return logits, rng.integers(0, shape[-1], shape[:-1])


def mean_of(loss):
    return lambda logits, labels: jnp.mean(loss(logits, labels))


def assert_close(got, want, rtol=1e-5, atol=1e-6):
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)


@pytest.mark.parametrize("shape", [(7,), (5, 7), (2, 3, 11), (4, 1), (0, 5), (3, 1000)], ids=str)
@pytest.mark.parametrize("label_dtype", [np.int32, np.uint8, np.int16])
def test_values_and_gradients(shape, label_dtype):
    logits, labels = batch(*shape)
    labels = labels.astype(label_dtype) % 200
    assert_close(*(loss(logits, labels) for loss in BOTH))
    assert_close(*(jax.grad(lambda x, loss=loss: loss(x, labels).sum())(logits) for loss in BOTH))


def test_float64():
    with jax.enable_x64(True):
        logits, labels = batch(6, 50, dtype=np.float64)
        got = cross_entropy(logits, labels)
        assert got.dtype == np.float64
        assert_close(got, reference(logits, labels), rtol=1e-13)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_loss_of_16_bit_logits_is_float32(dtype):
    logits, labels = batch(64, 1000, dtype=dtype)
    loss, gradient = jax.value_and_grad(mean_of(cross_entropy))(logits, labels)
    each = cross_entropy(logits, labels)
    truth = -np.take_along_axis(log_softmax(wide(logits), -1), labels[:, None], -1)[:, 0]
    assert loss.dtype == each.dtype == np.float32
    np.testing.assert_allclose(each, truth, rtol=2e-6)
    assert gradient.dtype == logits.dtype
    expected = jax.grad(mean_of(reference))(logits.astype(np.float32), labels)
    info = jnp.finfo(dtype)
    np.testing.assert_allclose(gradient.astype(np.float32), expected, rtol=info.eps, atol=info.tiny)


@pytest.mark.parametrize("labels", [[-1, -7, 0], [7, 6, -8], [100, -100, 3]], ids=str)
def test_negative_and_out_of_range_labels(labels):
    logits, labels = batch(3, 7)[0], np.array(labels)
    assert_close(*(loss(logits, labels) for loss in BOTH))
    assert_close(*(jax.grad(lambda x, loss=loss: loss(x, labels).sum())(logits) for loss in BOTH))


def test_a_logit_of_minus_infinity():
    logits, labels = jnp.array([[0.0, 1.0, -jnp.inf]] * 2), np.array([0, 2])
    assert_close(*(loss(logits, labels) for loss in BOTH))
    assert_close(
        *(jax.grad(lambda x, loss=loss: loss(x, labels[:1])[0])(logits[:1]) for loss in BOTH)
    )


def test_hessian_vector_product():
    logits, labels = batch(5, 9)

    def product(loss):
        gradient = jax.grad(lambda x: loss(x, labels).sum())
        return jax.jit(lambda x: jax.jvp(gradient, (x,), (jnp.cos(x),))[1])(logits)

    assert_close(*map(product, BOTH))


@pytest.mark.parametrize("in_axes", [(0, 0), (1, 1), (0, None), (1, 0)], ids=str)
def test_vmap(in_axes):
    logits = batch(4, 4, 6)[0]
    labels = np.random.default_rng(1).integers(0, 6, 4 if in_axes[1] is None else (4, 4))
    assert_close(*(jax.vmap(loss, in_axes)(logits, labels) for loss in BOTH))
    gradients = (jax.vmap(jax.grad(mean_of(loss)), in_axes)(logits, labels) for loss in BOTH)
    assert_close(*gradients)


def test_a_step_runs_one_call_forward_and_one_backward():
    logits, labels = batch(64, 4096)  # past what goes to XLA by choice
    step = jax.jit(jax.value_and_grad(mean_of(cross_entropy)))
    assert count_calls(step.lower(logits, labels).compile().as_text()) == 2


def test_forward_mode_alone_is_refused():
    logits, labels = batch(3, 4)
    with pytest.raises(TypeError, match="custom_vjp"):
        jax.jvp(lambda x: cross_entropy(x, labels), (logits,), (logits,))


LOGITS = np.ones((3, 4), np.float32)
BAD_ARGUMENTS = {
    "integer logits": (np.ones((3, 4), int), np.zeros(3, int), TypeError, "floating dtype"),
    "complex logits": (
        np.ones((3, 4), np.complex64),
        np.zeros(3, int),
        TypeError,
        "floating dtype",
    ),
    "float labels": (LOGITS, np.zeros(3, np.float32), TypeError, "integer dtype, got float32"),
    "boolean labels": (LOGITS, np.zeros(3, bool), TypeError, "integer dtype, got bool"),
    "0-d logits": (np.float32(1), np.zeros((), int), ValueError, "without its last axis"),
    "one-hot labels": (LOGITS, np.zeros((3, 4), int), ValueError, r"\(3, 4\) do not match"),
    "labels to broadcast": (LOGITS, np.zeros(1, int), ValueError, "without its last axis"),
}


@pytest.mark.parametrize("case", BAD_ARGUMENTS)
def test_bad_arguments_say_what_to_do(case):
    logits, labels, error, message = BAD_ARGUMENTS[case]
    with pytest.raises(error, match=message):
        cross_entropy(logits, labels)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_strict_promotion_and_small_labels(dtype):
    logits = jnp.asarray(np.random.default_rng(0).standard_normal((3, 200)), dtype)
    labels = jnp.array([-1, 100, -100], jnp.int8)

    def mean(loss, logits, labels):
        return jnp.mean(loss(logits, labels))

    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        got = jax.value_and_grad(mean, 1)(cross_entropy, logits, labels)
    wide_labels = labels.astype(jnp.int32)
    want = jax.value_and_grad(mean, 1)(
        optax.softmax_cross_entropy_with_integer_labels, logits.astype(jnp.float32), wide_labels
    )
    np.testing.assert_allclose(got[0], want[0], rtol=1e-6)
    np.testing.assert_allclose(got[1].astype(float), want[1], rtol=1e-2, atol=1e-6)


def test_float8_logits_fall_back():
    logits = jnp.ones((3, 5), jnp.float8_e4m3fn)
    loss = cross_entropy(logits, jnp.array([0, 1, 2]))
    assert loss.dtype == jnp.float32
    np.testing.assert_allclose(loss, np.log(5), rtol=1e-6)
