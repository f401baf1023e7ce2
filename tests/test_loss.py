"""The cross-entropies next to optax's functions of their names, and to float64."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _support import compiled, count_calls, operations, precision
from _truth import DTYPES, log_softmax, wide
from jax import export

from jax_softmax import _reductions, _reference, softmax_cross_entropy
from jax_softmax import softmax_cross_entropy_with_integer_labels as cross_entropy

pytestmark = pytest.mark.usefixtures("backend", "quickly_compiled")
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


COMPUTED = {  # losses: at least 0, and rows of their gradients sum to 0
    "labels": cross_entropy,
    "labels in float32": lambda x, labels: cross_entropy(x.astype("float32"), labels),
    "labels in float32, as rows": lambda x, labels: cross_entropy(
        x.reshape(4, -1, 2048).astype("float32").reshape(-1, 2048), labels
    ),
    "labels, where": lambda x, labels: cross_entropy(x, labels, where=np.ones((1, 2048), bool)),
    "labels, first axis": lambda x, labels: cross_entropy(x.T, labels, axis=0),
    "probabilities": lambda x, labels: softmax_cross_entropy(x, jax.nn.one_hot(labels, 2048)),
    "probabilities in float32": lambda x, labels: softmax_cross_entropy(
        x.astype("float32"), jax.nn.one_hot(labels, 2048)
    ),
}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("kind", COMPUTED)
def test_logits_that_a_program_computes_are_the_rounded_ones_everywhere(kind, dtype):
    """XLA may compute with more digits than the 16 bits have that a kernel reads."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(20 * rng.standard_normal((64, 2048)), dtype)
    b = jnp.asarray(rng.standard_normal(2048), dtype)

    def logits(x, b):
        return x * jnp.asarray(1.7, dtype) + b

    labels = jnp.argmax(logits(x, b), -1)  # of results that are in memory
    loss = jax.jit(lambda x, b: COMPUTED[kind](logits(x, b), labels))(x, b)
    assert loss.min() >= 0

    @jax.jit
    @jax.grad
    def gradient(d, x, b):
        return COMPUTED[kind](logits(x, b) + d, labels).sum()

    rows = np.asarray(gradient(jnp.zeros_like(x), x, b), np.float64)
    assert abs(rows.sum(-1)).max() < 0.01


@pytest.mark.parametrize("labels", [[-1, -7, 0], [7, 6, -8], [100, -100, 3]], ids=str)
def test_negative_and_out_of_range_labels(labels):
    logits, labels = batch(3, 7)[0], np.array(labels)
    assert_close(*(loss(logits, labels) for loss in BOTH))
    assert_close(*(jax.grad(lambda x, loss=loss: loss(x, labels).sum())(logits) for loss in BOTH))


@pytest.mark.parametrize("where", [None, np.ones(7, bool)], ids=["all", "where"])
def test_labels_that_32_signed_bits_do_not_hold(where):
    logits, _ = batch(3, 7)
    for dtype, labels in (np.uint32, [2**32 - 1, 2**31, 3]), (np.int64, [2**32 + 1, -(2**32), 3]):
        with jax.enable_x64(dtype == np.int64):
            labels = np.array(labels, dtype)
            options = {} if where is None else {"where": where[None]}
            got = BOTH[0](logits, labels, **options)
            assert np.isnan(got[:2]).all()
            np.testing.assert_array_equal(got[2], BOTH[0](logits, np.full(3, 3), **options)[2])


def test_a_logit_of_minus_infinity():
    logits, labels = jnp.array([[0.0, 1.0, -jnp.inf]] * 2), np.array([0, 2])
    assert_close(*(loss(logits, labels) for loss in BOTH))
    assert_close(
        *(jax.grad(lambda x, loss=loss: loss(x, labels[:1])[0])(logits[:1]) for loss in BOTH)
    )


@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.2}], ids=str)
@pytest.mark.parametrize("kind", ["labels", "labels, where", "probabilities"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_far_from_zero(dtype, kind, options):
    """Their logsumexp is rounded to few digits of the loss and of its gradient, or none."""
    rng = np.random.default_rng(0)
    offset = np.array([-1e4, 1e6, -1e9, 3e38])[:, None]
    x = jnp.asarray(offset + 3 * rng.standard_normal((4, 1000)), dtype)
    labels = rng.integers(0, 1000, 4)
    one_hot = np.arange(1000) == labels[:, None]
    target = rng.dirichlet(np.ones(1000), 4) if kind == "probabilities" else one_hot
    keep = one_hot | (rng.random((4, 1000)) < 0.7) if kind == "labels, where" else one_hot | True
    where = keep if kind == "labels, where" else None

    @functools.partial(jax.grad, has_aux=True)
    def gradient_of(x):
        if kind == "probabilities":
            losses = softmax_cross_entropy(x, jnp.asarray(target, "float32"), **options)
        else:
            losses = cross_entropy(x, labels, where=where, **options)
        return losses.sum(), losses

    gradient, losses = jax.jit(gradient_of)(x)
    smoothing = options.get("label_smoothing", 0)
    target = (1 - smoothing) * target + smoothing * keep / keep.sum(-1, keepdims=True)
    log_p = log_softmax(np.where(keep, wide(x), -1e300), -1)
    want = -np.sum(target * np.where(keep, log_p, 0), -1)
    p = np.where(keep, np.exp(log_p), 0)
    np.testing.assert_allclose(losses, want, rtol=2e-6)
    rtol = max(float(jnp.finfo(dtype).eps), 4e-6)
    assert (abs(wide(gradient) - (p - target)) <= rtol * (p + target)).all()


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


@pytest.mark.parametrize("masked", [False, True])
def test_forward_mode_alone(masked):
    logits, labels = batch(5, 9)
    t = jnp.cos(logits)
    where = np.arange(9) % 4 != np.asarray(labels)[:, None] % 4 + 1 if masked else None
    t = t if where is None else jnp.where(where, t, jnp.nan)
    kept = (t if where is None else jnp.where(where, t, 0)), t

    def push(loss, t):
        f = functools.partial(loss, labels=labels, where=where)
        return jax.jit(lambda x: jax.jvp(f, (x,), (t,)))(logits)

    jax.tree.map(assert_close, push(BOTH[0], kept[1]), push(BOTH[1], kept[0]))
    if not masked:
        assert_close(*(jax.jacfwd(lambda x, f=f: f(x, labels))(logits) for f in BOTH))
        assert_close(
            *(jax.vmap(lambda x, i, f=f: jax.jacfwd(f)(x, i))(logits, labels) for f in BOTH)
        )
        second = (jax.jacfwd(jax.jacfwd(lambda x, f=f: f(x, labels).sum()))(logits) for f in BOTH)
        assert_close(*second)


@pytest.mark.parametrize("operand", ["logits", "labels"])
def test_probabilities_save_the_operands_and_rows(operand, capsys):
    """To one operand's gradient, no zeros for the other."""
    x = {"logits": batch(6, 50)[0], "labels": jnp.full((6, 50), 0.02)}
    loss = softmax_cross_entropy
    jax.ad_checkpoint.print_saved_residuals(lambda v: loss(**x | {operand: v}).sum(), x[operand])
    saved = capsys.readouterr().out
    assert saved.count("f32[6,50]") == 2 and saved.count("f32[6]") <= 3


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


# -- every option against float64 ----------------------------------------------------------------

OPTIONS = [
    {},
    {"label_smoothing": 0.1},
    {"z_loss": 0.01},
    {"label_smoothing": 1.0},
    {"label_smoothing": 0.2, "z_loss": 0.1},
]
SHAPE = (3, 4, 6)
LOSS_AXES = [-1, 0, 1, (0, 2), (2, 1)]
MASKS = {
    "none": None,
    "full": SHAPE,
    "classes": "classes",
    "rows": "rows",
    "broadcast": (3, 1, 6),
}
IGNORED = -100


def mask(kind, axes):
    """A mask of that kind, with a row of False only wherever rows can differ."""
    shape = MASKS[kind]
    if kind == "classes":
        shape = tuple(d if i in axes else 1 for i, d in enumerate(SHAPE))
    if kind == "rows":
        shape = tuple(d for i, d in enumerate(SHAPE) if i not in axes)
    if shape is None:
        return None
    where = np.random.default_rng(len(axes)).random(shape) < 0.7
    if kind == "full":
        where[tuple(slice(None) if i in axes else 0 for i in range(len(SHAPE)))] = False
    return where


def truth(x, target, axes, where, label_smoothing=0.0, z_loss=0.0):
    """The losses and logsumexps in plain JAX, for `target` labels, or probabilities."""
    n_axes = len(axes)
    x = jnp.moveaxis(x, axes, range(-n_axes, 0)).reshape(*rows_of(SHAPE, axes), -1)
    kept = jnp.ones(x.shape, bool)
    if where is not None:
        if where.ndim < len(SHAPE):
            where = np.expand_dims(where, axes)
        where = np.moveaxis(np.broadcast_to(where, SHAPE), axes, range(-n_axes, 0))
        kept = jnp.asarray(where.reshape(x.shape))
    alive = kept.any(-1)
    if jnp.issubdtype(target.dtype, jnp.integer):
        ignored = target == IGNORED
        at_label = jnp.take_along_axis(x, jnp.where(ignored, 0, target)[..., None], -1)[..., 0]
    else:
        ignored = jnp.zeros(alive.shape, bool)
        target = jnp.moveaxis(target, axes, range(-n_axes, 0)).reshape(x.shape)
    x = jnp.where(kept | ~alive[..., None], x, -jnp.inf)
    lse = jax.nn.logsumexp(x, -1)
    finite = jnp.where(kept, x, 0)
    if jnp.issubdtype(target.dtype, jnp.integer):
        loss = lse - at_label
    else:
        loss = jnp.sum(jnp.where(kept, target * (lse[..., None] - finite), 0), -1)
    mean = finite.sum(-1) / jnp.maximum(kept.sum(-1), 1)
    loss = (1 - label_smoothing) * loss + label_smoothing * (lse - mean) + z_loss * lse**2
    return jnp.where(alive & ~ignored, loss, 0), jnp.where(alive & ~ignored, lse, 0)


def rows_of(shape, axes):
    return tuple(d for i, d in enumerate(shape) if i not in axes)


def problem(dtype, axis, kind, *, dense=False, seed=0):
    rng = np.random.default_rng(seed)
    axes = tuple(a % 3 for a in (axis if isinstance(axis, tuple) else (axis,)))
    x = jnp.asarray(2 * rng.standard_normal(SHAPE), dtype)
    if dense:
        target = jnp.asarray(rng.random(SHAPE), dtype)
    else:
        n = int(np.prod([SHAPE[a] for a in axes]))
        target = rng.integers(-n, n, rows_of(SHAPE, axes))
        target[rng.random(target.shape) < 0.2] = IGNORED
    return x, target, axes, mask(kind, axes)


def to_second_order(loss, dtype, x, target, t, axis, where):
    """Losses and logsumexps; the gradients of a function of both; their derivatives along `t`."""
    operands = (0, 1) if jnp.issubdtype(target.dtype, jnp.floating) else (0,)
    x, target, t = (v if v.dtype.kind == "i" else v.astype(dtype) for v in (x, target, t))

    def f(x, target):
        losses, lse = loss(x, target, axis, where)
        # Where a whole row is masked, it is -inf.
        weights = jnp.cos(jnp.arange(losses.size, dtype=losses.dtype)).reshape(losses.shape)
        lse = jnp.where(jnp.isneginf(lse), 0, lse)
        return jnp.sum(weights * losses) + 0.3 * jnp.sum(jnp.sin(lse)), (losses, lse)

    gradients = jax.grad(f, operands, has_aux=True)
    (first, values), (second, _) = jax.jvp(lambda x: gradients(x, target), (x,), (t,))
    return values, first, second


# A program of all axes for each kind of mask, as compiling is what takes the time. Dtypes take
# turns so that each meets every axis and every kind; labels without a mask, whose gradient is an op
# of its own, take every turn.
@pytest.mark.parametrize(
    "kind, dense, first",
    [
        *((kind, dense, turn) for turn, kind in enumerate(MASKS) for dense in (False, True)),
        *(("none", False, turn) for turn in range(1, len(DTYPES))),
    ],
)
def test_against_float64_to_second_order(kind, dense, first):
    inputs, settings = [], []
    with jax.enable_x64(True):
        for seed, (axis, options) in enumerate(zip(LOSS_AXES, OPTIONS, strict=True)):
            dtype = DTYPES[(first + seed) % len(DTYPES)]
            x, target, axes, where = problem(dtype, axis, kind, dense=dense, seed=seed)
            ours = functools.partial(
                softmax_cross_entropy if dense else cross_entropy, return_lse=True, **options
            )
            if not dense:
                ours = functools.partial(ours, ignore_index=IGNORED)
            inputs.append((x, target, jnp.asarray(np.cos(x), dtype)))
            settings.append((ours, axis, functools.partial(truth, **options), axes, where))

    @functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
    def program(inputs):
        return [
            (
                to_second_order(ours, each[0].dtype, *each, axis, where),
                to_second_order(theirs, np.dtype("float64"), *each, axes, where),
            )
            for each, (ours, axis, theirs, axes, where) in zip(inputs, settings, strict=True)
        ]

    with jax.enable_x64(True):
        for (x, *_), (got, want) in zip(inputs, program(inputs), strict=True):
            dtype = x.dtype
            eps = float(jnp.finfo(dtype).eps)
            rows_eps = min(eps, 2.0**-23)
            assert got[0][0].dtype == (np.float64 if dtype.itemsize == 8 else np.float32)
            for g, w in zip(got[0], want[0], strict=True):
                assert_close(g, w, 16 * rows_eps, 16 * rows_eps)
            for g, w in zip(*map(jax.tree.leaves, (got[1:], want[1:])), strict=True):
                assert g.dtype == dtype
                assert_close(wide(g), w, 2 * eps, 32 * rows_eps)


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("axis", LOSS_AXES, ids=str)
@pytest.mark.parametrize("dense", [False, True], ids=["labels", "probabilities"])
def test_masks_and_axes_of_optax(axis, kind, dense):
    x, target, axes, where = problem(np.float32, axis, kind, dense=dense)
    if not dense:
        target = np.where(target == IGNORED, 0, target)
    pair = (softmax_cross_entropy, optax.softmax_cross_entropy) if dense else BOTH
    if isinstance(axis, tuple) and where is not None:
        # There, optax wants it whole, and of all dimensions.
        where = np.expand_dims(where, axes) if where.ndim < 3 else where
        where = np.broadcast_to(where, SHAPE)
    assert_close(*(loss(x, target, axis, where) for loss in pair))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nothing_under_the_mask_matters(value):
    x, labels, _, where = problem(np.float32, -1, "full")
    labels = np.abs(labels) % 6
    where[np.arange(3)[:, None], np.arange(4), labels] = True
    where[0, 0] = False
    labels[0, 0] = 0
    hidden = jnp.where(where, x, value)
    targets = jnp.asarray(jax.nn.one_hot(labels, 6))
    hidden_targets = jnp.where(where, targets, value)
    for loss, a, b in (
        (cross_entropy, labels, labels),
        (softmax_cross_entropy, targets, hidden_targets),
    ):
        options = {"where": where, "label_smoothing": 0.1, "z_loss": 0.1}

        def results(x, target, loss=loss, options=options):
            def f(x):
                losses = loss(x, target, **options)
                return jnp.where(where.any(-1), losses, 0).sum()

            hvp = jax.jvp(jax.grad(f), (x,), (jnp.ones_like(x) * jnp.arange(6),))[1]
            return f(x), jax.grad(f)(x), hvp

        finite, (value_, gradient, hvp) = results(jnp.where(where, x, 0), a), results(hidden, b)
        if loss is softmax_cross_entropy or where.any(-1).all():
            assert_close(value_, finite[0])
        kept = where | (np.arange(6) == labels[..., None])
        assert_close(np.where(kept, gradient, 0), np.where(kept, finite[1], 0))
        np.testing.assert_array_equal(np.asarray(gradient)[~where], 0)
        np.testing.assert_array_equal(np.asarray(gradient)[0, 0], 0)
        np.testing.assert_array_equal(np.asarray(hvp)[~where], 0)
        assert_close(hvp, finite[2])


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("where", [None, np.arange(7)[None] > 0], ids=["all", "where"])
def test_ignored_rows_have_no_second_derivative_in_any_nesting(where, value):
    logits, labels = batch(4, 7)
    labels = np.where(np.arange(4) == 2, IGNORED, labels)
    logits, t = logits.at[2].set(value), jnp.cos(jnp.arange(28.0)).reshape(4, 7)

    def f(x):
        given = {"ignore_index": IGNORED, "return_lse": True, "z_loss": 0.1}
        losses, lse = cross_entropy(x, labels, where=where, **given)
        return jnp.sum(losses**2) + jnp.sum(jnp.sin(lse))

    nestings = (
        lambda x: jax.jvp(jax.grad(f), (x,), (t,))[1],
        lambda x: jax.grad(lambda x: jnp.vdot(jax.grad(f)(x), t))(x),
        lambda x: jax.grad(lambda x: jax.jvp(f, (x,), (t,))[1])(x),
    )
    first, *others = [jax.jit(g)(logits) for g in nestings]
    assert first.any() and not first[2].any()
    for other in others:
        assert_close(other, first)


def test_both_modes_move_the_label_s_own_logit_under_a_mask():
    """But not in a row that is masked as a whole."""
    x, labels = batch(3, 6)
    where = np.ones((3, 6), bool)
    where[0, labels[0]], where[1] = False, False
    loss = functools.partial(cross_entropy, where=where, label_smoothing=0.1)
    forward, reverse = (jax.jit(jac(loss))(x, labels) for jac in (jax.jacfwd, jax.jacrev))
    assert_close(forward, reverse)
    assert forward[0, 0, labels[0]] < -0.8 and not forward[1].any()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1.0])
@pytest.mark.parametrize("label", [-1, IGNORED, 3])
def test_ignored_rows_take_no_part(value, label):
    logits, labels = batch(4, 7)
    labels = np.where(labels == 3, 4, labels)
    labels[1:3] = label
    logits = logits.at[1:3].set(value)
    options = {"ignore_index": label, "label_smoothing": 0.1, "z_loss": 0.1, "return_lse": True}

    def total(x, labels):
        return sum(v.sum() for v in cross_entropy(x, labels, **options))

    losses, lse = cross_entropy(logits, labels, **options)
    gradient = jax.grad(total)(logits, labels)
    hvp = jax.jvp(lambda x: jax.grad(total)(x, labels), (logits,), (jnp.ones_like(logits),))[1]
    for got in (losses, lse, gradient, hvp):
        np.testing.assert_array_equal(got[1:3], 0)
    others = np.array([0, 3])
    assert_close(losses[others], cross_entropy(logits, labels, **options)[0][others])
    assert_close(gradient[others], jax.grad(total)(logits[others], labels[others]))


def test_an_index_that_no_label_can_have_ignores_nothing():
    logits = batch(3, 7)[0]
    labels = np.array([1, 2, 3], np.uint32)
    got = cross_entropy(logits, labels, ignore_index=-100)
    np.testing.assert_array_equal(got, cross_entropy(logits, labels))


def test_labels_out_of_range_and_the_other_options():
    logits, labels = batch(2, 7)[0], np.array([7, 1])
    loss, vjp = jax.vjp(lambda x: cross_entropy(x, labels, z_loss=0.1), logits)
    assert np.isnan(loss[0]) and np.isfinite(loss[1])
    assert np.isfinite(vjp(jnp.ones(2))[0]).all()  # as optax's is


def test_smoothing_is_cross_entropy_with_smoothed_targets():
    logits, labels = batch(5, 9)
    smooth = optax.smooth_labels(jax.nn.one_hot(labels, 9), 0.3)
    results = [
        jax.value_and_grad(lambda x, f=f, t=t, o=o: f(x, t, **o).sum())(logits)
        for f, t, o in (
            (cross_entropy, labels, {"label_smoothing": 0.3}),
            (softmax_cross_entropy, jax.nn.one_hot(labels, 9), {"label_smoothing": 0.3}),
            (optax.softmax_cross_entropy, smooth, {}),
        )
    ]
    for got in results[:2]:
        jax.tree.map(assert_close, got, results[2])


@pytest.mark.parametrize("dtypes", [("float32", "bfloat16"), ("bfloat16", "float32")], ids=str)
def test_probabilities_of_another_dtype(dtypes):
    x, targets = (jnp.asarray(batch(3, 5, seed=s)[0], d) for s, d in enumerate(dtypes))
    f = jax.value_and_grad(lambda x, t: softmax_cross_entropy(x, t).sum(), (0, 1))
    loss, gradients = f(x, targets)
    wide = [v.astype(np.float32) for v in (x, targets)]
    want = jax.value_and_grad(lambda x, t: optax.softmax_cross_entropy(x, t).sum(), (0, 1))(*wide)
    assert loss.dtype == np.float32
    assert [g.dtype for g in gradients] == [x.dtype, targets.dtype]
    assert_close(loss, want[0])
    for got, expected in zip(gradients, want[1], strict=True):
        assert_close(got.astype(np.float32), expected, 2.0**-8, 1e-5)


def test_probabilities_are_broadcast():
    x, t = batch(4, 3, 5)[0], jnp.abs(batch(5)[0])
    for targets in (t, t[None, None], np.arange(5), np.arange(5) > 2):
        losses = [f(x, targets) for f in (softmax_cross_entropy, optax.softmax_cross_entropy)]
        assert_close(*losses)
    gradients = (
        jax.grad(lambda t, f=f: f(x, t).sum())(t)
        for f in (softmax_cross_entropy, optax.softmax_cross_entropy)
    )
    assert_close(*gradients)


# -- transformations -----------------------------------------------------------------------------


@pytest.mark.parametrize("axes", [(0, None, None), (None, 0, None), (1, None, -1), (2, 1, None)])
@pytest.mark.parametrize("dense", [False, True], ids=["labels", "probabilities"])
def test_vmap_over_some_operands(axes, dense):
    rng = np.random.default_rng(3)

    def made(shape, axis, make):
        return make(shape if axis is None else np.insert(shape, axis % (len(shape) + 1), 5))

    x = made((3, 4), axes[0], rng.standard_normal).astype(np.float32)
    if dense:
        target = made((3, 4), axes[1], rng.random).astype(np.float32)
    else:
        target = made((3,), axes[1], lambda shape: rng.integers(0, 4, shape))
    where = made((3, 4), axes[2], lambda shape: rng.random(shape) < 0.7)
    pair = (softmax_cross_entropy, optax.softmax_cross_entropy) if dense else BOTH

    def results(loss):
        def f(x, target, where):
            return jax.value_and_grad(lambda x: (loss(x, target, -1, where) ** 2).sum())(x)

        return jax.vmap(f, axes)(x, target, where)

    jax.tree.map(assert_close, *map(results, pair))


def test_scan_and_checkpoint():
    logits, labels = batch(6, 4, 9)

    def total(loss, x):
        def step(c, each):
            return c + jax.checkpoint(loss)(each[0] + c, each[1]).sum(), None

        return jax.lax.scan(step, jnp.float32(0), (x, labels))[0]

    got, want = (jax.jit(jax.value_and_grad(lambda x, f=f: total(f, x)))(logits) for f in BOTH)
    jax.tree.map(functools.partial(assert_close, rtol=5e-5), got, want)


def test_checkpoint_keeps_the_logsumexp():
    logits, labels = batch(8, 100)
    policy = jax.checkpoint_policies.save_only_these_names("jax_softmax")
    f = jax.checkpoint(lambda x: cross_entropy(jnp.cos(x), labels).sum(), policy=policy)
    backward = jax.make_jaxpr(jax.vjp(f, logits)[1])(jnp.float32(1))
    assert not any(word in str(backward) for word in REDUCTIONS)


REDUCTIONS = ("reduce_", "logsumexp", "argm", "cumsum")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_backward_keeps_the_logits_and_rows_and_reduces_nothing(dtype, options):
    logits, labels = batch(8, 100, dtype=dtype)
    loss, vjp = jax.vjp(lambda x: cross_entropy(x, labels, **options), logits)
    kept = sorted((r.shape, str(r.dtype)) for r in jax.tree.leaves(vjp) if r.size > 1)
    assert kept == [*[((8,), "float32")] * 2, ((8,), "int32"), ((8, 100), dtype)]
    backward = str(jax.make_jaxpr(vjp)(loss))
    assert not any(word in backward for word in REDUCTIONS)


@pytest.mark.parametrize("shape", [(8, 100), (1, 100), (8,)], ids=str)
def test_backward_keeps_the_mask_as_it_came(shape):
    logits, labels = batch(8, 100)
    where = np.ones(shape, bool)
    vjp = jax.vjp(lambda x: cross_entropy(x, labels, -1, where), logits)[1]
    kept = [r for r in jax.tree.leaves(vjp) if r.size > 1]
    assert sum(r.nbytes for r in kept) == logits.nbytes + where.nbytes + 3 * 4 * 8


def test_backward_of_probabilities_keeps_both_operands_and_rows():
    logits, _ = batch(8, 100, dtype="bfloat16")
    vjp = jax.vjp(softmax_cross_entropy, logits, jnp.abs(logits))[1]
    kept = sorted((r.shape, str(r.dtype)) for r in jax.tree.leaves(vjp) if r.size > 1)
    assert kept == [((8,), "float32")] * 3 + [((8, 100), "bfloat16")] * 2
    assert not any(word in str(jax.make_jaxpr(vjp)(jnp.ones(8))) for word in REDUCTIONS)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_compiled_backward_writes_nothing_but_the_gradient(dtype):
    logits, labels = batch(64, 4096, dtype=dtype)
    loss, vjp = jax.vjp(lambda x: cross_entropy(x, labels), logits)
    memory = jax.jit(vjp).lower(loss).compile().memory_analysis()
    rows = 64 * 4
    assert memory.output_size_in_bytes <= logits.nbytes + 64
    assert memory.temp_size_in_bytes <= 4 * rows


def test_export_with_a_symbolic_batch(backend):
    b, n = export.symbolic_shape("b, n")
    args = jax.ShapeDtypeStruct((b, n), np.float32), jax.ShapeDtypeStruct((b,), np.int32)

    def f(x, labels):
        return cross_entropy(x, labels, where=x > -2, label_smoothing=0.1, z_loss=0.1)

    call = export.DisabledSafetyCheck.custom_call("jax_softmax.logsumexp_parts.v6")
    made = export.export(jax.jit(f), platforms=[backend], disabled_checks=[call])(*args)
    loaded = export.deserialize(made.serialize(vjp_order=1))
    logits, labels = batch(5, 9)
    labels = labels.astype(np.int32)
    assert_close(loaded.call(logits, labels), f(logits, labels))
    gradients = (jax.grad(lambda x, f=f: f(x, labels).sum())(logits) for f in (loaded.call, f))
    assert_close(*gradients)


# -- the gradient's kernel -----------------------------------------------------------------------


def gradient(operands, dtype, axis=1):
    return _reductions.cross_entropy_gradient_p.bind(*operands, axis=axis, dtype=dtype)


def gradient_operands(rows, columns, dtype):
    """Logits, values of the rows and labels, among them some that are in no column, or ignored."""
    rng = np.random.default_rng(rows)
    x = 3 * rng.standard_normal((rows, columns))
    x[1, columns // 2], x[2, -1], x[3, 0] = -np.inf, np.nan, np.inf
    labels = rng.integers(0, columns, rows)
    labels[[0, 1, 4]] = 0, columns - 1, -1
    labels[[3, 5]] = _reference.NO_GRADIENT
    labels[6] = columns
    of_rows = [jnp.asarray(v, _reference.compute_dtype(dtype)) for v in rng.random((4, rows))]
    shift = of_rows[0] + np.nanmax(np.where(np.isposinf(x), 0, x), 1).astype(of_rows[0].dtype)
    return jnp.asarray(x, dtype), shift, *of_rows[1:], jnp.asarray(labels, jnp.int32)


# Around a vector's length, and rows that are slices of a kernel's work.
@pytest.mark.parametrize("columns", [3, 4, 15, 16, 17, 33, 100, 4097, 16384, 32771])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_gradient_is_right_in_every_column(dtype, columns):
    with precision(dtype):
        operands = gradient_operands(37, columns, dtype)
        got = wide(jax.jit(functools.partial(gradient, dtype=dtype))(operands))
        x, shift, factor, everywhere, at_label, labels = map(wide, operands)
    assert got.shape == x.shape
    x[labels == _reference.NO_GRADIENT] = 0
    want = np.exp(x - shift[:, None]) * factor[:, None] + everywhere[:, None]
    want += np.where(np.arange(columns) == labels[:, None], at_label[:, None], 0)
    want[labels == _reference.NO_GRADIENT] = 0
    assert np.isnan(want[2, -1]) and np.isfinite(want[3:]).all()
    eps = float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(got, want, rtol=eps, atol=32 * min(eps, 2.0**-23))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_gradient_is_one_call_along_the_last_axis(dtype, backend):
    def calls(columns, axis=1):
        x, *of_rows = gradient_operands(2**18 // columns, columns, dtype)
        x = x if axis == 1 else x.T
        f = functools.partial(gradient, dtype=dtype, axis=axis)
        hlo = compiled(f, (x, *of_rows))
        count = count_calls(hlo, "cross_entropy_gradient")
        assert ("exponential" in operations(hlo)) == (count == 0)
        return count

    with precision(dtype):
        assert calls(1000) == calls(3) == 1
        assert calls(1000, axis=0) == 0
        assert calls(2) == (backend == "cuda")  # where XLA's code is the faster one


def test_the_loss_takes_the_kernels_in_both_directions():
    logits, labels = batch(1024, 200)
    f = jax.value_and_grad(lambda x: cross_entropy(x, labels, label_smoothing=0.1).mean())
    hlo = compiled(f, logits)
    parts = count_calls(hlo, "logsumexp_parts")
    assert parts == count_calls(hlo, "cross_entropy_gradient") == 1
    assert count_calls(hlo) == 2


BAD_OPTIONS = {
    "smoothing": ({"label_smoothing": 1.5}, ValueError, r"within \[0, 1\], got 1.5"),
    "nan smoothing": ({"label_smoothing": np.nan}, ValueError, r"within \[0, 1\]"),
    "smoothing's type": ({"label_smoothing": "a"}, TypeError, "known at compile time, got 'a'"),
    "z_loss": ({"z_loss": -1}, ValueError, "not negative, got -1.0"),
    "ignore_index": ({"ignore_index": 0.5}, TypeError, "wants an int or None, got 0.5"),
    "axis": ({"axis": 2}, ValueError, "axis 2 is out of bounds"),
    "axis and labels": ({"axis": 0}, ValueError, "without axis 0"),
    "where": ({"where": np.ones(4, bool)}, ValueError, r"where of shape \(4,\) does not fit"),
    "where's dtype": ({"where": np.ones((3, 4))}, TypeError, "where wants a boolean"),
    "where's shape": ({"where": np.ones((3, 2), bool)}, ValueError, "does not fit logits"),
}


@pytest.mark.parametrize("case", BAD_OPTIONS)
def test_bad_options_say_what_to_do(case):
    options, error, message = BAD_OPTIONS[case]
    with pytest.raises(error, match=message):
        cross_entropy(LOGITS, np.zeros(3, int), **options)


def test_a_traced_option_is_refused():
    with pytest.raises(TypeError, match="z_loss wants a number, known at compile time"):
        jax.jit(lambda z: cross_entropy(LOGITS, np.zeros(3, int), z_loss=z))(0.1)
    with pytest.raises(TypeError, match="return_lse wants True or False, known at compile time"):
        jax.jit(lambda r: cross_entropy(LOGITS, np.zeros(3, int), return_lse=r))(True)


def test_what_is_no_array_is_refused_by_name():
    for loss in (cross_entropy, softmax_cross_entropy):
        with pytest.raises(TypeError, match="logits wants an array, got NoneType"):
            loss(None, np.zeros(3, int))
        with pytest.raises(TypeError, match="labels wants an array, got NoneType"):
            loss(LOGITS, None)


@pytest.mark.parametrize(
    "labels, error, message",
    [
        (np.zeros(3, int), ValueError, "class indices go to softmax_cross_entropy_with"),
        (np.zeros((3, 4), np.complex64), TypeError, "labels want a real dtype"),
    ],
)
def test_bad_probabilities_say_what_to_do(labels, error, message):
    with pytest.raises(error, match=message):
        softmax_cross_entropy(LOGITS, labels)


@pytest.mark.parametrize("pair", ["labels", "probabilities"])
def test_signature_starts_like_optax(pair):
    pair = BOTH if pair == "labels" else (softmax_cross_entropy, optax.softmax_cross_entropy)
    mine, theirs = (list(inspect.signature(f).parameters.values()) for f in pair)
    assert [(p.name, p.default) for p in mine[: len(theirs)]] == [
        (p.name, p.default) for p in theirs
    ]
    assert all(p.kind is p.KEYWORD_ONLY for p in mine[len(theirs) :])
