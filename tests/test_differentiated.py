"""A float32 log-softmax whose readers XLA fuses, with its derivative.

Kernels make two values of each row, XLA the rest of these.
"""

import itertools
import math
import operator
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _truth import FLAT_ULPS, TRUTH, assert_right, ulp, wide
from jax import export

import jax_softmax
from jax_softmax import _pairs, _revision

pytestmark = pytest.mark.usefixtures("quickly_compiled")

FOUND = ("row_pairs", "log_softmax")
# Past what a launch costs more than: 2^17 elements. Kernels of their own have the others.
SHAPES = [(15_000, 9), (135, 1001), (300, 512), (2, 70, 1040), (40, 4096), (60, 50_257)]
KERNELS = [
    *((14_000, 10), (5000, 33), (2100, 64), (1100, 127), (1100, 128), (700, 200), (400, 333)),
    *((2, 120, 577), (140, 999), (70, 2050), (70, 8192), (70, 70_001)),
]
SHAPES += [pytest.param(shape, marks=pytest.mark.gpu) for shape in KERNELS]
each_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)
# XLA has what is not reduced too.
each_longer = pytest.mark.parametrize("shape", SHAPES[2:6], ids=str)


def rows(kind: str, shape) -> jax.Array:
    """Logits whose largest outweighs the others a little, by far, or hardly; or far from 0."""
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    if kind == "equal":
        x[:] = 1
    if kind == "level":  # the sum is 1.3 to 3, of one that is 1 and others that are as large
        rest = np.linspace(0.3, 2, math.prod(shape[:-1])).reshape(*shape[:-1], 1)
        x[:] = 3 + np.log(rest / max(shape[-1] - 1, 1))
        x[..., -1] = 3
    if kind == "tied":
        x[..., :2] = 20
    if kind == "peaked":
        x[..., -1] = 14 + 60 * np.random.default_rng(1).random(shape[:-1])
    return jnp.asarray(x + 1e4 if kind == "far from 0" else x)


def calls(program, op: str) -> int:
    """Those of an op, or with "" of any; plain JAX stands for what the CPU has no kernel of."""
    name = r'(custom_call @jax_softmax|composite "plain)\.'
    return len(re.findall(name + (rf'{op}[."]' if op else ""), program.as_text()))


def both_passes(x, w):
    """A loss, which has squares, so that the derivative reads the result too, and its gradient."""
    return jax.value_and_grad(lambda x: (w * jnp.square(jax_softmax.log_softmax(x))).sum())(x)


@pytest.mark.parametrize("kind", ["normal", "peaked", "far from 0"])
@each_shape
def test_a_loss_and_its_gradient(shape, kind, platform):
    x, axis = rows(kind, shape), len(shape) - 1
    w = jnp.asarray(np.random.default_rng(2).standard_normal(shape), "float32")
    program = jax.jit(both_passes).lower(x, w)
    assert calls(program, "row_pairs") == 1
    program = program.compile()
    assert "jax_softmax.log_softmax" not in program.as_text()
    value, gradient = program(x, w)
    y = TRUTH["log_softmax"](wide(x), axis)
    terms, cotangent = wide(w) * y**2, 2 * wide(w) * y
    assert abs(wide(value) - terms.sum()) <= 1e-6 * np.abs(terms).sum()
    want = TRUTH["log_softmax_cotangent"](y, cotangent, axis)
    size = np.abs(cotangent).sum(axis, keepdims=True) * np.exp(y) + np.abs(cotangent)
    # Beside what rounding differences from the maximum costs.
    assert (np.abs(wide(gradient) - want) <= 2.0**-23 * (8 - 2 * y) * size).all()


@pytest.mark.parametrize("scale", [1, pytest.param(0.25, marks=pytest.mark.gpu)])
@each_shape
def test_what_labels_pick_without_a_derivative(shape, scale, platform):
    """Of rows that a program does not return, whose labels come when it has read all else."""
    x, axis = rows("normal", shape), len(shape) - 1
    labels = np.random.default_rng(3).integers(0, shape[-1], (*shape[:-1], 1))
    labels[: len(labels) // 2] = np.argmax(x[: len(labels) // 2], axis, keepdims=True)

    def picked(x, labels):
        y = jax_softmax.log_softmax(x if scale == 1 else scale * x)
        return jnp.take_along_axis(y, labels, axis)

    program = jax.jit(picked).lower(x, labels)
    # A CPU's kernels multiply nothing: what does is fused.
    by_pairs = scale == 1 or platform == "cuda"
    assert calls(program, "row_pairs") == by_pairs
    program = program.compile()
    assert not by_pairs or "jax_softmax.log_softmax" not in program.as_text()
    logits = wide(np.float32(scale) * np.asarray(x))
    want = np.take_along_axis(TRUTH["log_softmax"](logits, axis), labels, axis)
    rest = logits.max(axis, keepdims=True) - np.take_along_axis(logits, labels, axis)
    allowed = (FLAT_ULPS * np.abs(want) + rest) * 2.0**-23
    assert (np.abs(wide(program(x, labels)) - want) <= allowed).all()


LENGTHS = (
    *(1, 2, 3, 4, 7, 9, 12, 16, 21, 31, 32, 33, 45, 63, 64, 65, 90, 101, 128, 129, 150, 190, 256),
    *(257, 300, 384, 385, 450, 512, 513, 640, 700, 777, 900, 999, 1000, 1100, 1152, 1300, 1500),
    *(1700, 2000, 2048, 2049, 2816, 3001, 4096, 4097, 8192, 50_257, 70_001, 131_072),
)


# XLA:CPU does not round products, which tells only where they are rounded.
NUMBERS = {"cuda": (0.3, 3), "cpu": (0.25, 4)}


KINDS = ("normal", "peaked", "far from 0", "equal", "level", "tied")
OF_ROWS = {"axis": 1, "logical_axis": 1, "dtype": jnp.dtype("float32"), "workspace": 0}
OF_ROWS |= {"strategy": "auto", "batch_invariant": True}


@pytest.mark.gpu
@pytest.mark.parametrize("columns", LENGTHS)
def test_two_values_of_each_row(columns):
    """By every kernel, all digits of a logarithm: those of a row's largest result."""
    for scale, kind in itertools.product((1.0, NUMBERS["cuda"][0]), KINDS):
        bind = partial(_pairs.row_pairs_p.bind, scale=scale, log_sums=True, **OF_ROWS)
        program = jax.jit(bind)
        x = rows(kind, (140, columns))
        lowered = program.lower(x)
        assert calls(lowered, "row_pairs") == 1
        largest, log_sums = lowered.compile()(x)
        logits = np.float32(scale) * np.asarray(x)
        np.testing.assert_array_equal(largest, logits.max(1))
        y = (logits - largest[:, None]) - log_sums[:, None]
        assert_right("log_softmax", y, logits, axis=1, flat=FLAT_ULPS)


NARROW_LENGTHS = (
    *(1, 7, 8, 16, 24, 32, 40, 64, 72, 100, 120, 128, 248, 256, 264, 488, 512, 520, 1000, 1001),
    *(1024, 1032, 2040, 2048, 2056, 3000, 4088, 4096, 4104, 50_257),
)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("columns", NARROW_LENGTHS)
def test_two_values_of_each_row_of_16_bits(columns, dtype):
    for log_sums in (True, False):
        bind = partial(_pairs.row_pairs_p.bind, scale=1.0, log_sums=log_sums, **OF_ROWS)
        lowered = jax.jit(bind).lower(jax.ShapeDtypeStruct((140, columns), dtype))
        assert calls(lowered, "row_pairs") == 1
        program = lowered.compile()
        for kind in KINDS:
            x = rows(kind, (140, columns)).astype(dtype)
            largest, second = program(x)
            logits = np.asarray(x).astype("float32")
            np.testing.assert_array_equal(largest, logits.max(1))
            y = logits - largest[:, None]
            if log_sums:
                assert_right("log_softmax", y - second[:, None], logits, axis=1, flat=FLAT_ULPS)
            else:
                assert_right("softmax", np.exp(y) * second[:, None], logits, axis=1)


def in_float32(shape, dtype, read):
    """A loss of log-softmax of 16 bits in float32, with its gradient, lowered."""

    def both_passes(x, w, labels):
        return jax.value_and_grad(
            lambda x: read(jax_softmax.log_softmax(x.astype("float32")), w, labels)
        )(x)

    others = jax.ShapeDtypeStruct(shape, "float32"), jax.ShapeDtypeStruct(shape[:-1], "int32")
    return jax.jit(both_passes).lower(jax.ShapeDtypeStruct(shape, dtype), *others)


WIDENED = [(4200, 32), (1400, 100), (2, 70, 1040), (400, 333), (140, 1001), (40, 4096)]
WIDENED += [
    pytest.param(shape, marks=pytest.mark.gpu)
    for shape in ((14_000, 10), (7000, 21), (1100, 128), (2, 140, 512), (180, 777), (135, 999))
]


@pytest.mark.parametrize("kind", ["normal", "peaked"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("shape", WIDENED, ids=str)
def test_a_loss_of_16_bits_in_float32(shape, dtype, kind, platform):
    lowered = in_float32(shape, dtype, lambda y, w, _: (w * jnp.square(y)).sum())
    assert calls(lowered, "row_pairs") == 1
    x, axis = rows(kind, shape).astype(dtype), len(shape) - 1
    w = jnp.asarray(np.random.default_rng(2).standard_normal(shape), "float32")
    value, gradient = lowered.compile()(x, w, jnp.zeros(shape[:-1], "int32"))
    assert gradient.dtype == dtype
    y = TRUTH["log_softmax"](wide(x), axis)
    terms, cotangent = wide(w) * y**2, 2 * wide(w) * y
    assert abs(wide(value) - terms.sum()) <= 1e-6 * np.abs(terms).sum()
    want = TRUTH["log_softmax_cotangent"](y, cotangent, axis)
    size = np.abs(cotangent).sum(axis, keepdims=True) * np.exp(y) + np.abs(cotangent)
    rounded = ulp(want, jnp.dtype(dtype))
    assert (np.abs(wide(gradient) - want) <= rounded + 2.0**-23 * (8 - 2 * y) * size).all()


LOSSES = {
    "picks": lambda y, _, labels: picked(y, labels).sum(),
    "weighed": lambda y, w, _: (w * y).sum(),
    "an entropy": lambda y, *_: (jnp.exp(y) * y).sum(),
    "both": lambda y, _, labels: picked(y, labels).sum() - (jnp.exp(y) * y).sum(),
    "a square of each row": lambda y, w, _: jnp.square((w * y).sum(1)).sum(),
    "a weight of each row": lambda y, w, _: (w[:, :1] * (w * y).sum(1, keepdims=True)).sum(),
    "a product": lambda y, w, _: (w @ y.T)[0, 0],
}


@pytest.mark.parametrize("kind", LOSSES)
def test_which_rows_of_16_bits_a_kernel_reduces(kind, platform):
    by_kernel = {9: False, 24: False} | dict.fromkeys(
        (10, 32, 100, 128, 333, 999, 1000, 1001), True
    )
    if "each row" in kind:
        by_kernel = {100: True, 128: False, 333: True, 504: False, 512: True}
    for columns, expected in by_kernel.items():
        lowered = in_float32((140_000 // columns, columns), "bfloat16", LOSSES[kind])
        expected = expected and kind != "a product"
        assert calls(lowered, "row_pairs") == expected
    few = in_float32((250, 512), "float16", LOSSES[kind])
    assert calls(few, "") == 0


def squares(y, w, _):
    return (w * jnp.square(y)).sum()


def longer_in_float32(shape, dtype, read):
    """What is made of softmax of 16 bits in float32, and its pull-back, lowered."""

    def both_passes(x, w, labels):
        def reads(x):
            return read(jax_softmax.softmax(x.astype("float32")), w, labels)

        y, pull_back = jax.vjp(reads, x)
        return y, pull_back(w.astype(y.dtype) if y.shape == shape else jnp.ones_like(y))[0]

    others = jax.ShapeDtypeStruct(shape, "float32"), jax.ShapeDtypeStruct(shape[:-1], "int32")
    return jax.jit(both_passes).lower(jax.ShapeDtypeStruct(shape, dtype), *others)


def test_which_longer_rows_of_softmax_a_kernel_reduces(platform):
    """Those that are several kernels to XLA."""
    by_kernel = {4097: False, 14_000: False, 14_001: False, 14_002: True, 16_383: False}
    for columns, expected in (by_kernel | {16_384: True, 16_385: True}).items():
        few = longer_in_float32((128, columns), "bfloat16", squares)
        assert calls(few, "") == 0
        lowered = longer_in_float32((140, columns), "bfloat16", squares)
        assert calls(lowered, "row_pairs") == calls(lowered, "") == expected


@pytest.mark.parametrize("rows_of", ["normal", "peaked"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_longer_rows_of_softmax_of_16_bits_in_float32(dtype, rows_of, platform):
    shape = (130, 14_002)
    lowered = longer_in_float32(shape, dtype, squares)
    assert calls(lowered, "row_pairs") == 1
    x = rows(rows_of, shape).astype(dtype)
    w = jnp.asarray(np.random.default_rng(2).standard_normal(shape), "float32")
    value, gradient = lowered.compile()(x, w, jnp.zeros(shape[:-1], "int32"))
    assert gradient.dtype == dtype
    logits = wide(x)
    y = TRUTH["softmax"](logits, 1)
    terms, cotangent = wide(w) * y**2, 2 * wide(w) * y
    distance = logits.max(1, keepdims=True) - logits
    digits = 2.0**-23 * (8 + 2 * distance)
    assert abs(wide(value) - terms.sum()) <= (digits * np.abs(terms)).sum()
    want = TRUTH["softmax_tangent"](y, cotangent, 1)
    sums = (digits * np.abs(y * cotangent)).sum(1, keepdims=True)
    allowed = ulp(want, jnp.dtype(dtype)) + y * (2 * digits * np.abs(cotangent) + 2 * sums)
    allowed += digits * y * np.abs((y * cotangent).sum(1, keepdims=True))
    assert (np.abs(wide(gradient) - want) <= allowed).all()


@pytest.mark.parametrize("columns", [100, 333])
def test_two_derivatives_of_16_bits_in_float32(columns, platform):
    """Of the same values, also where a kernel would have written such rows."""
    shape = (140_000 // columns, columns)
    x, w = rows("normal", shape).astype("bfloat16"), jnp.asarray(rows("equal", shape))

    def made(library, x, w):
        y, pull_back = jax.vjp(lambda x: library.log_softmax(x.astype("float32")), x)
        return (w * y * y).sum(), pull_back(2 * w * y)[0], pull_back(w)[0]

    lowered = jax.jit(partial(made, jax_softmax)).lower(x, w)
    program = lowered.compile()
    assert calls(lowered, "row_pairs") == 1
    assert "jax_softmax.log_softmax" not in program.as_text()
    for got, want in zip(program(x, w), made(jax.nn, x, w), strict=True):
        np.testing.assert_allclose(wide(got), wide(want), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("columns", [333, 512, 1000])
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_what_is_computed_in_float64_stays_so(name, columns, platform):
    """Its float32 logits, which have the result's type, are none that pairs are made of."""
    x, t = (jnp.asarray(rows(kind, (2**18 // columns, columns))) for kind in ("peaked", "normal"))

    def linearized(make, x, t):
        made, push = jax.linearize(lambda x: jnp.square(make(x.astype("float64"))).sum(0), x)
        return made, push(t)

    program = partial(linearized, partial(getattr(jax_softmax, name), dtype="float32"))
    with jax.enable_x64(True):
        lowered = jax.jit(program).lower(x, t)
        assert calls(lowered, "row_pairs") == 0
        expected = linearized(getattr(jax.nn, name), x, t)
        for got, want in zip(lowered.compile()(x, t), expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6 * abs(want).max())


@pytest.mark.parametrize("shape", ["b, 333", "300, n"])
def test_16_bits_in_float32_of_a_symbolic_shape(shape, platform):
    x = rows("normal", (300, 333)).astype("bfloat16")

    def gradient(library):
        return jax.jit(jax.grad(lambda x: (library.log_softmax(x.astype("float32")) ** 2).sum()))

    unchecked = (f"jax_softmax.{op}.v6" for op in ("log_softmax", "log_softmax_cotangent"))
    checks = list(map(export.DisabledSafetyCheck.custom_call, unchecked))
    exported = export.export(gradient(jax_softmax), platforms=[platform], disabled_checks=checks)
    of_any = exported(jax.ShapeDtypeStruct(export.symbolic_shape(shape), x.dtype))
    got, want = of_any.call(x), gradient(jax.nn)(x)
    np.testing.assert_allclose(wide(got), wide(want), rtol=2e-2, atol=2e-2)


def test_16_bits_that_a_kernel_would_have_to_be_given(platform):
    x = jax.ShapeDtypeStruct((300, 512), "float16")

    def loss(make, x):
        return jax_softmax.log_softmax(make(x).astype("float32")).sum()

    for make, expected in {lambda x: x: 1, lambda x: x + x[0]: 0}.items():
        lowered = jax.jit(jax.value_and_grad(partial(loss, make))).lower(x)
        assert calls(lowered, "") == expected


READ_ALONE = {  # without a derivative: of what, and of which columns that is made of pairs
    "picks": ("log_softmax", lambda y, labels: picked(y, labels).sum(), (24, 32, 100, 512, 1001)),
    "picks probabilities": ("softmax", lambda y, labels: picked(y, labels).sum(), ()),
    "a sum": ("log_softmax", lambda y, _: jnp.square(y).sum(), (24, 32, 100, 512, 1001)),
    "a sum of probabilities": ("softmax", lambda y, _: jnp.square(y).sum(), ()),
    "sums of rows": ("log_softmax", lambda y, _: jnp.square(y).sum(1), (100,)),
    "nothing": ("log_softmax", lambda y, _: y[..., None], ()),
    "a cast": ("log_softmax", lambda y, _: y.astype("bfloat16")[..., None], ()),
}


@pytest.mark.parametrize("kind", READ_ALONE)
def test_16_bits_in_float32_that_are_read_without_a_derivative(kind, platform):
    op, read, by_kernel = READ_ALONE[kind]
    for columns in (24, 32, 100, 512, 1001):
        shape = (140_000 // columns, columns)
        x, labels = rows("normal", shape).astype("bfloat16"), jnp.arange(shape[0]) % 9

        def both(x, labels):
            return read(getattr(jax_softmax, op)(x.astype("float32")), labels)

        lowered = jax.jit(both).lower(x, labels)
        assert calls(lowered, "row_pairs") == (columns in by_kernel)
        want = read(jnp.asarray(TRUTH[op](wide(x), 1), "float32"), labels)
        got = lowered.compile()(x, labels)
        np.testing.assert_allclose(wide(got), wide(want), rtol=1e-2 if kind == "a cast" else 1e-5)


def divergence(p, q):
    return (jnp.exp(p) * (p - q)).sum()


TEACHERS = {  # losses of a teacher's log-softmax and another, and how many are made of pairs
    "divergence": (divergence, 2),
    "reverse": (lambda p, q: divergence(q, p), 2),
    "squares": (lambda p, q: jnp.square(p - q).sum(), 2),
    "of a mean": (lambda p, q: jnp.square(p - p.mean(1, keepdims=True) - q).sum(), 2),
    "of a ratio": (lambda p, q: (jnp.exp(p - q.max(1, keepdims=True)) * q).sum(), 2),
    "a product too": (lambda p, q: divergence(p, q) + (p.T @ p).sum(), 1),
}


def test_a_teacher_along_another_axis(platform):
    """Which on a GPU is made in another way where it has fewer rows than these."""
    x, t = rows("normal", (33_000, 16)), rows("peaked", (33_000, 16))

    def both_passes(library):
        def of(x, t):
            return divergence(library.log_softmax(t, axis=0), library.log_softmax(x, axis=1))

        return jax.jit(jax.value_and_grad(of))

    made = both_passes(jax_softmax).lower(x, t)
    assert calls(made, "row_pairs") == 1
    for got, want in zip(made.compile()(x, t), both_passes(jax.nn)(x, t), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize("kind", TEACHERS)
@pytest.mark.parametrize("dtype, columns", [("float32", 512), ("bfloat16", 512), ("bfloat16", 64)])
def test_a_teacher_beside_it(kind, dtype, columns, platform):
    loss, expected = TEACHERS[kind]
    x, t = (rows(kind, (140_000 // columns, columns)) for kind in ("normal", "peaked"))
    x, t = x.astype(dtype), (0.3 * t).astype(dtype)

    def both_passes(library):
        def of(x, t):
            p, q = (library.log_softmax(v.astype("float32")) for v in (t, x))
            return loss(p, q)

        return jax.jit(jax.value_and_grad(of))

    made = both_passes(jax_softmax).lower(x, t)
    if columns == 512:
        assert calls(made, "row_pairs") == expected
    got, want = made.compile()(x, t), both_passes(jax.nn)(x, t)
    np.testing.assert_allclose(got[0], want[0], rtol=2e-5)
    size = np.abs(wide(want[1])).max()
    limit = {"rtol": 2e-2, "atol": 1e-2 * size} if dtype == "bfloat16" else {"atol": 1e-5 * size}
    np.testing.assert_allclose(wide(got[1]), wide(want[1]), **{"rtol": 1e-4} | limit)


def test_what_is_picked_twice_is_one_scatter(platform):
    x, labels = rows("normal", (300, 1000)), jnp.arange(300)

    def focal(library, x):
        y = library.log_softmax(x)
        return -((1 - jnp.exp(picked(y, labels))) ** 2 * picked(y, labels)).mean()

    program = jax.jit(jax.value_and_grad(partial(focal, jax_softmax)))
    assert calls(program.lower(x), "log_softmax_cotangent") == 1
    apart = jax.grad(lambda x: picked(jax_softmax.log_softmax(x), labels).sum() + x[0, 0])
    assert calls(jax.jit(apart).lower(x), "log_softmax_cotangent") == 1
    for got, want in zip(program(x), jax.value_and_grad(partial(focal, jax.nn))(x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("columns", [16, 60, 100, 1000])
def test_kernels_have_what_is_picked_beside_an_entropy(columns, platform):
    x, labels = rows("normal", (140_000 // columns, columns)), jnp.arange(140_000 // columns) % 9

    def loss(library, x):
        y = library.log_softmax(x)
        return -picked(y, labels).mean() + 0.01 * (jnp.exp(y) * y).mean()

    program = jax.jit(jax.value_and_grad(partial(loss, jax_softmax)))
    lowered = program.lower(x)
    for op in ("log_softmax", "log_softmax_cotangent"):
        assert calls(lowered, op) == 1
    if platform == "cpu":  # whose kernels multiply nothing, which these are told to do by 1
        return
    for got, want in zip(program(x), jax.value_and_grad(partial(loss, jax.nn))(x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-8)


# Of which kernels write the result, or would not, and XLA's derivative reads it; or a kernel's.
REDUCED = (16, 33, 100, 128, 136, 264, 512, 1000, 1001, 2056, 4096, 8192)


@pytest.mark.gpu
@pytest.mark.parametrize("scale", [1, 0.25])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
def test_sums_of_squares_and_their_gradients(op, dtype, scale):
    unit = 1 if op == "softmax" else 2**-6  # of which float16 has as many squares

    @jax.jit
    def both_passes(x, g):
        def loss(x):
            logits = x if scale == 1 else scale * x
            return jnp.square(unit * getattr(jax_softmax, op)(logits)).sum(-1)

        value, pull_back = jax.vjp(loss, x)
        return value, pull_back(g)[0]

    eps = float(jnp.finfo(dtype).eps)
    for columns in REDUCED:
        shape = 2**18 // columns + 1, columns
        x = 3 / scale * np.random.default_rng(columns).standard_normal(shape)
        x = x.astype(jnp.dtype(dtype))
        g = np.random.default_rng(1).uniform(0.5, 1, len(x)).astype(jnp.dtype(dtype))
        value, gradient = map(wide, both_passes(x, g))
        y = TRUTH[op](scale * wide(x), 1)
        np.testing.assert_allclose(value, ((unit * y) ** 2).sum(1), rtol=20 * eps)
        p, t = y if op == "softmax" else np.exp(y), 2 * unit**2 * wide(g)[:, None] * y
        derivative = "softmax_tangent" if op == "softmax" else "log_softmax_cotangent"
        want = scale * TRUTH[derivative](y, t, 1)
        sums = np.abs(t).sum(1, keepdims=True)
        size = y * (np.abs(t) + (p * np.abs(t)).sum(1, keepdims=True))
        size = scale * (size if op == "softmax" else np.abs(t) + p * sums)
        # Log-softmax's derivative is of its rounded result.
        assert (np.abs(gradient - want) <= eps * (8 - 2 * np.log(p)) * size + 1e-7).all(), columns


# By element, by row, and across rows.
LENGTHS_READ = (16, 33, 68, 117, 128, 197, 264, 300, 577, 1000, 1001, 2056, 4096, 5001, 7002)
WEIGHED = (lambda y, w: w * y, lambda y, w: (w * y).sum(-1), lambda y, w: (w * y).sum(0))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
def test_gradients_of_weighed_results(op, dtype):
    """XLA may have the tangent within its code, or none of it, by who made the result."""

    @jax.jit
    def gradients(x, w, cotangents):
        def gradient(read, g):
            return jax.vjp(lambda x: read(getattr(jax_softmax, op)(x), w), x)[1](g)[0]

        return [gradient(read, g) for read, g in zip(WEIGHED, cotangents, strict=True)]

    eps = float(jnp.finfo(dtype).eps)
    for columns in LENGTHS_READ:
        shape = 2**18 // columns + 1, columns
        draw = np.random.default_rng(columns)
        x = (3 * draw.standard_normal(shape)).astype(jnp.dtype(dtype))
        w, g = (draw.uniform(0.5, 1, shape).astype(x.dtype) for _ in range(2))
        cotangents, spread = (g, g[:, 0], g[0]), (g, g[:, :1], g[:1])
        y = TRUTH[op](wide(x), 1)
        p = y if op == "softmax" else np.exp(y)
        derivative = "softmax_tangent" if op == "softmax" else "log_softmax_cotangent"
        for got, of_result in zip(gradients(x, w, cotangents), spread, strict=True):
            t = wide(w) * wide(of_result)
            want = TRUTH[derivative](y, t, 1)
            sums = t.sum(1, keepdims=True)
            size = p * (t + (p * t).sum(1, keepdims=True)) if op == "softmax" else t + p * sums
            # Log-softmax's derivative is of its rounded result.
            assert (np.abs(wide(got) - want) <= eps * (8 - 2 * np.log(p)) * size + 1e-7).all()


def halved(x, g):
    """The halves of a log-softmax, which XLA makes of it, and a pull-back through both."""
    y, pull_back = jax.vjp(lambda x: 0.5 * jax_softmax.log_softmax(x), x)
    return y, pull_back(g)[0]


@each_longer
def test_what_is_made_of_a_result(shape, platform):
    """Of each element, so that all digits are seen: small ones are those of sums near 1."""
    x, axis = rows("peaked", shape), len(shape) - 1
    program = jax.jit(halved).lower(x, x)
    assert calls(program, "row_pairs") == 1
    assert_right("log_softmax", 2 * program.compile()(x, x)[0], x, axis=axis)


@pytest.mark.parametrize("shape", [(300, 512), (140, 1000), (70, 4100), (70, 70_001)], ids=str)
@pytest.mark.parametrize("make", [operator.mul, operator.truediv])
def test_logits_times_a_number(shape, make, platform):
    """Rounded, of which the last digits of the largest results are."""
    x, number = rows("peaked", shape), NUMBERS[platform][make is operator.truediv]

    def made(x, g):
        y, pull_back = jax.vjp(lambda x: 0.5 * jax_softmax.log_softmax(make(x, number)), x)
        return y, pull_back(g)[0]

    program = jax.jit(made).lower(x, x)
    # A CPU's kernels multiply nothing, nor do they read what would have to be written for them.
    assert calls(program, "row_pairs") == (platform == "cuda" or shape[1] < 70_000)
    y, gradient = program.compile()(x, x)
    logits = np.asarray(x) * np.float32(make(1.0, number))
    assert_right("log_softmax", 2 * y, logits, axis=1)
    whole = jax.nn.softmax(wide(logits), -1)
    want = make(0.5, number) * (wide(x) - whole * wide(x).sum(-1, keepdims=True))
    np.testing.assert_allclose(gradient, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("columns", [512, 1000, 2048, 4097, 9000])
def test_special_rows(columns, platform):
    x = np.zeros((400, columns), "float32")
    x[0, 3], x[1, 5], x[2], x[3, 11] = np.nan, np.inf, -np.inf, -np.inf
    x[4], x[4, 9] = -np.inf, 2
    x[5], x[6] = -3e38, 3e38
    x[7], x[7, 20] = -3e38, 3e38
    x[8, 7] = 17
    x, g = jnp.asarray(x), jnp.asarray(np.random.default_rng(4).standard_normal(x.shape), "float32")
    program = jax.jit(halved).lower(x, g)
    assert calls(program, "row_pairs") == 1
    y, gradient = program.compile()(x, g)
    assert_right("log_softmax", 2 * y, x, axis=1)
    assert np.isnan(y[:3]).all() and not np.isnan(y[3:]).any()
    assert_right("log_softmax_cotangent", 2 * gradient, 2 * y, g, axis=1)
    assert np.isnan(gradient[:3]).all() and not np.isnan(gradient[3:]).any()


def test_all_that_may_surround_it(platform):
    """Batches, second derivatives, checkpoints and branches are those of plain JAX."""
    x = rows("normal", (3, 60, 1200))
    w = jnp.cos(jnp.arange(x.size, dtype="float32")).reshape(x.shape)

    def made(library):
        def loss(x, w):
            return (w * jnp.square(library.log_softmax(x))).sum()

        def again(x, w):
            saved = jax.checkpoint(lambda x: loss(jnp.sin(x), w))
            return jax.lax.cond(x[0, 0] > 9, saved, jax.checkpoint(lambda x: loss(x, w)), x)

        def product(x, w):
            return jax.jvp(lambda x: jax.grad(loss)(x, w), (x,), (w,))[1]

        programs = jax.value_and_grad(loss), jax.grad(again), product
        return jax.jit(lambda x, w: jax.tree.leaves([jax.vmap(f)(x, w) for f in programs]))

    assert calls(made(jax_softmax).lower(x, w), "row_pairs") >= 1
    for got, want in zip(made(jax_softmax)(x, w), made(jax.nn)(x, w), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())


def pairs(program) -> int:
    """How many calls make two values of each row, for what reads a result and its derivative."""
    x = jax.ShapeDtypeStruct((200, 2100), jnp.dtype("float32"))
    labels = jax.ShapeDtypeStruct((200,), jnp.dtype("int32"))
    return calls(jax.jit(program).lower(x, labels), "row_pairs")


def picked(y, labels):
    return jnp.take_along_axis(y, labels[:, None], 1)


READERS = {  # of a result and labels, and whether these are all that has to be fused
    "a sum": (lambda y, _: y.sum(), True),
    "one hot": (lambda y, labels: (jax.nn.one_hot(labels, 2100) * y).sum(), True),
    "an entropy": (lambda y, _: (jnp.exp(y) * y).sum(), True),
    "a cast": (lambda y, _: y.astype("bfloat16"), True),
    "in a function": (jax.jit(lambda y, _: jnp.square(y).reshape(-1, 500).sum()), True),
    "picks": (lambda y, labels: picked(y, labels).sum(), False),
    "picks and an entropy": (lambda y, n: picked(y, n).sum() + (jnp.exp(y) * y).sum(), False),
    "picks and a sum": (lambda y, labels: picked(y, labels).sum() - 1e-3 * y.sum(), True),
    "nothing": (lambda y, _: y, False),
    "a matrix product": (lambda y, _: y @ jnp.ones((2100, 4)), False),
    "a matrix product and a sum": (lambda y, _: (y @ jnp.ones((2100, 4))).sum() + y.sum(), False),
    "what is in memory": (lambda y, _: jax.lax.optimization_barrier(y).sum(), False),
}


@pytest.mark.parametrize("kind", READERS)
def test_what_reads_a_result_is_seen(kind, platform):
    read, expected = READERS[kind]

    def both(x, labels):
        value, pull_back = jax.vjp(lambda x: read(jax_softmax.log_softmax(x), labels), x)
        return value, pull_back(jax.lax.optimization_barrier(value))

    assert pairs(both) == expected


HOW_READ = {  # of three dimensions
    "by element": (lambda y: 2 * y, "elements"),
    "a cast": (lambda y: y.astype("bfloat16"), "converted"),
    "a sum along the axis": (lambda y: y.sum(-1), "reduced"),
    "a sum of all": (lambda y: y.sum(), "reduced"),
    "an entropy": (lambda y: (jnp.exp(y) * y).sum(), "elements exponentials reduced"),
    "picks": (lambda y: y[0, 1], "picked"),
    "a sum across rows": (lambda y: y.sum(1), "across reduced"),
    "a weighed sum across rows": (lambda y: (2 * y).sum((0, 1)), "across elements reduced"),
    "a sum of a matrix": (lambda y: y.reshape(-1, 1024).sum(0), "across reduced"),
    "a sum of parts": (lambda y: y.reshape(-1, 64).sum(0), "reduced"),
    "both": (lambda y: (y.sum(0), jnp.square(y).sum(-1)), "across elements reduced"),
    "a maximum, and where one is": (
        lambda y: (y.max(-1), (2 * y).argmax(1)),
        "across converted elements reduced",
    ),
    "what is not fused": (lambda y: (y.sum(0), y @ jnp.ones((1024, 2))), ""),
}


@pytest.mark.parametrize("kind", HOW_READ)
def test_how_a_result_is_read(kind, platform, monkeypatch):
    read, expected = HOW_READ[kind]
    seen = []
    choose = _revision.maker_as_read

    def maker_as_read(problem, *, how, **request):
        seen.append(" ".join(sorted(how)))
        return choose(problem, how=how, **request)

    monkeypatch.setattr(_revision, "maker_as_read", maker_as_read)

    def both_passes(x):
        value, pull_back = jax.vjp(lambda x: read(jax_softmax.log_softmax(x)), x)
        return value, pull_back(jax.tree.map(jnp.ones_like, value))

    x = jax.ShapeDtypeStruct((3, 50, 1024), jnp.dtype("float32"))
    jax.jit(both_passes).lower(x)
    assert seen == ([expected] if expected else [])
    seen.clear()
    # What is linear in it nothing reads where its value is not asked for.
    jax.jit(lambda x: jax.vjp(jax_softmax.log_softmax, x)[1](2 * x)).lower(x)
    assert seen == ["unread"]


def test_a_sum_behind_a_function_is_seen(platform):
    """Of so few columns, XLA's code reads single elements of what XLA's code wrote."""
    x = jax.ShapeDtypeStruct((400, 448), jnp.dtype("float32"))

    def made(read):
        def both(x):
            value, pull_back = jax.vjp(lambda x: read(jax_softmax.log_softmax(x)), x)
            return pull_back(jax.lax.optimization_barrier(value))

        return calls(jax.jit(both).lower(x), "row_pairs")

    kept = jax.jit(lambda y: jnp.where(y > -9, y, 0))
    assert made(lambda y: kept(y).sum()) == made(lambda y: y.sum()) == 1
    assert made(kept) == 0


def test_what_makes_the_logits_is_seen(platform):
    """Where anything does, XLA would have to write them for a kernel."""

    def of(make, **options):
        def loss(x):
            return jax_softmax.log_softmax(make(x), **options).sum()

        return pairs(lambda x, _: jax.value_and_grad(loss)(x))

    assert of(lambda x: x) == of(lambda x: x.reshape(-1, 1050)) == 1
    assert of(lambda x: x @ jnp.ones((2100, 1024))) == 1
    assert of(lambda x: x / 0.07) == of(lambda x: 3 * (x @ jnp.ones((2100, 1024)))) == 1
    for make in (jnp.sin, lambda x: -x, lambda x: x + x[0], lambda x: x.astype("bfloat16")):
        assert of(make) == 0
    for options in ({"batch_invariant": True}, {"implementation": platform}, {"axis": 0}):
        assert of(lambda x: x, **options) == 0


def test_a_result_that_is_returned_too(platform):
    """After its derivative. What XLA's code made of the logits is in the program once."""
    x = rows("normal", (300, 1000))

    def loss(x):
        y = jax_softmax.log_softmax(x)
        return jnp.square(y).sum(), y

    program = jax.jit(jax.value_and_grad(loss, has_aux=True)).lower(x)
    assert calls(program, "row_pairs") == 1
    program = program.compile()
    (value, y), _ = program(x)
    assert platform != "cuda" or "maximum(" not in program.as_text()
    assert_right("log_softmax", y, x, axis=1)
    np.testing.assert_allclose(value, np.square(wide(y)).sum(), rtol=1e-6)


def test_what_else_reads_the_logits(platform):
    """As a branch that returns what it subtracts from them does."""
    x, labels = rows("normal", (300, 1000)), jnp.arange(300)

    def made(library):
        def loss(x):
            shifted = jax.lax.cond(x[0, 0] > 9, lambda: x - 1, lambda: x - x[0])
            return picked(library.log_softmax(x), labels).sum() + shifted.sum()

        return jax.jit(jax.value_and_grad(loss))

    assert calls(made(jax_softmax).lower(x), "row_pairs") == 0
    for got, want in zip(made(jax_softmax)(x), made(jax.nn)(x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


TWO = {  # log-softmaxes of the same logits
    "temperatures": [lambda f, x: f(x), lambda f, x: f(0.5 * x)],
    "other temperatures": [lambda f, x: f(0.25 * x), lambda f, x: f(0.5 * x)],
    "axes": [lambda f, x: f(x), lambda f, x: f(x, 0)],
}


@pytest.mark.parametrize("picked_first", [False, True])
@pytest.mark.parametrize("kind", TWO)
def test_another_result_of_the_same_logits(kind, picked_first, platform):
    """What one is made of is not what the other is, whichever derivative comes first."""
    x, labels = rows("normal", (15_000, 12)), jnp.arange(15_000) % 9

    def made(library, one, other):
        def loss(x):
            terms = [
                lambda: jnp.square(one(library.log_softmax, x)).sum(),
                lambda: picked(other(library.log_softmax, x), labels).sum(),
            ]
            return sum(term() for term in (terms[::-1] if picked_first else terms))

        return jax.jit(jax.value_and_grad(loss))

    for both in (TWO[kind], TWO[kind][::-1]):
        for got, want in zip(made(jax_softmax, *both)(x), made(jax.nn, *both)(x), strict=True):
            np.testing.assert_allclose(got, want, atol=1e-4 * np.abs(want).max())


def test_two_results_of_the_same_logits(platform):
    def loss(x, labels):
        del labels
        return (jnp.exp(jax_softmax.log_softmax(x)) * jax_softmax.log_softmax(x)).sum()

    def count(f):
        x = jax.ShapeDtypeStruct((2000, 1000), jnp.dtype("float32"))
        made = jax.jit(f).lower(x, x).compile().as_text()
        return [made.count(f'custom_call_target="jax_softmax.{op}.') for op in FOUND]

    assert count(jax.grad(loss)) == [int(platform == "cuda"), 0]  # what is plain JAX is compiled


def is_anew(read, x, *others):
    """Whether the last step of a loss's gradient has anew what it is made of."""

    def loss(x, *others):
        return read(jax_softmax.log_softmax(x.astype("float32")), *others).sum()

    return "stablehlo.clamp" in jax.jit(jax.value_and_grad(loss)).lower(x, *others).as_text()


def test_exponentials_that_are_summed_are_made_anew(platform):
    """In float32 where the tangent has any, of 16 bits always."""
    wide, narrow = (jax.ShapeDtypeStruct((300, 512), jnp.dtype(d)) for d in ("float32", "bfloat16"))
    entropy = lambda y: jnp.exp(y) * y  # noqa: E731
    assert is_anew(entropy, wide) and is_anew(entropy, narrow)
    assert is_anew(jnp.multiply, narrow, wide) and not is_anew(jnp.multiply, wide, wide)
    # Which XLA may sum slowly.
    assert not is_anew(entropy, wide.update(shape=(300, 1024)))
    assert is_anew(entropy, narrow.update(shape=(300, 1024)))


@pytest.mark.parametrize("kind", ["log_softmax", "both"])
def test_gradients_of_special_rows_made_anew(kind, platform, monkeypatch):
    """As without: where a row holds NaN or +inf, or only -inf."""
    x = rows("normal", (300, 1000)).astype("bfloat16")
    x = x.at[3, 0].set(jnp.nan).at[5, 1].set(jnp.inf).at[7].set(-jnp.inf).at[9, :9].set(-jnp.inf)

    def loss(x):
        x = x.astype("float32")
        y = jax_softmax.log_softmax(x)
        return ((jax_softmax.softmax(x) if kind == "both" else jnp.exp(y)) * y).sum()

    def gradient():
        program = jax.jit(jax.value_and_grad(loss)).lower(x)
        return "stablehlo.clamp" in program.as_text(), wide(program.compile()(x)[1])

    anew, got = gradient()
    monkeypatch.setattr(_revision, "makes_anew", lambda *args, **about: False)
    jax.clear_caches()
    kept, want = gradient()
    assert anew and not kept
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_allclose(got, want, rtol=2e-2, atol=1e-5)
