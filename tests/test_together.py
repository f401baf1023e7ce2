"""Softmax and log-softmax of the same logits in one program, as an entropy has them."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _truth import FLAT_ULPS, TRUTH, assert_right, wide

import jax_softmax
from jax_softmax import _lowering, _pairs, _revision

pytestmark = pytest.mark.usefixtures("quickly_compiled")

# More than a launch costs: 2^17 elements. The last two, and odd rows, a kernel would write.
SHAPES = [(8000, 18), (1100, 128), (2, 150, 512), (140, 1001), (40, 4096), (50, 8192), (60, 50_257)]
HOW = [("float32", None), ("bfloat16", "cast"), ("float16", "dtype")]
# No kernel keeps so short rows of 16 bits.
CASES = [(shape, *how) for shape in SHAPES for how in HOW if shape[-1] > 18 or not how[1]]
ANYWHERE = [  # a GPU has the others too
    *(((n, columns), *HOW[0]) for n, columns in ((8000, 18), (40, 4096), (60, 50_257))),
    *(((140, 1001), *HOW[1]), ((50, 8192), *HOW[1]), ((2, 150, 512), *HOW[2])),
]
each_case = pytest.mark.parametrize(
    "shape, dtype, how",
    [
        *ANYWHERE,
        *(pytest.param(*case, marks=pytest.mark.gpu) for case in CASES if case not in ANYWHERE),
    ],
)


@pytest.fixture
def found(platform, monkeypatch):
    """Which function found the other one, in the order of a lowering."""
    together, names = _lowering.made_together, []

    def made_together(*args, op, **request):
        made = together(*args, op=op, **request)
        names.extend([] if made is None else [op])
        return made

    monkeypatch.setattr(_lowering, "made_together", made_together)
    return names


def both(x, how=None, library=jax_softmax, **options):
    x = x.astype("float32") if how == "cast" else x
    options |= {"dtype": jnp.dtype("float32")} if how == "dtype" else {}
    return library.softmax(x, **options), library.log_softmax(x, **options)


def entropy(x, how=None, **options):
    p, logs = both(x, how, **options)
    return -(p * logs).sum(-1)


def logits(shape, dtype, kind="normal"):
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    if kind == "peaked":
        x[..., -1] = 14 + 60 * np.random.default_rng(1).random(shape[:-1])
    return jnp.asarray(x, dtype)


def calls_of_rows(program):
    """Of the kernel, or on the CPU what stands for it."""
    return len(
        re.findall(r'(custom_call @jax_softmax|composite "plain)\.row_pairs', program.as_text())
    )


@pytest.mark.parametrize("kind", ["normal", "peaked"])
@each_case
def test_an_entropy_and_its_gradient(shape, dtype, how, kind, found, platform):
    x, axis = logits(shape, dtype, kind), len(shape) - 1
    program = jax.jit(jax.value_and_grad(lambda x: entropy(x, how).sum())).lower(x)
    assert found == ["log_softmax"] and calls_of_rows(program) == 1
    if platform == "cuda":
        assert program.compile().as_text().count('custom_call_target="jax_softmax.') == 1
    value, gradient = program.compile()(x)
    y = TRUTH["log_softmax"](wide(x), axis)
    p, of_rows = np.exp(y), -(np.exp(y) * y).sum(axis, keepdims=True)
    assert abs(wide(value) - of_rows.sum()) <= 2e-6 * of_rows.sum() + 1e-30
    want = -p * (y + of_rows)
    size = p * (np.abs(y) + of_rows + 1)
    eps = float(jnp.finfo(gradient.dtype).eps)
    # Beside what rounding differences from the maximum costs.
    allowed = eps * np.abs(want) + 2.0**-23 * (12 - 2 * y) * size + float(jnp.finfo(dtype).tiny)
    assert gradient.dtype == dtype
    assert (np.abs(wide(gradient) - want) <= allowed).all()


@pytest.mark.parametrize("first", ["softmax", "log_softmax"])
@pytest.mark.parametrize("differentiated", [False, True])
@each_case
def test_their_elements(shape, dtype, how, differentiated, first, found, platform, monkeypatch):
    """Whoever is first; where they are returned no rule would have them made so."""
    monkeypatch.setattr(_revision, "makes_together", lambda *args, **about: True)
    names = (first, "log_softmax" if first == "softmax" else "softmax")

    def made(x):
        x = x.astype("float32") if how == "cast" else x
        options = {"dtype": jnp.dtype("float32")} if how == "dtype" else {}
        return [getattr(jax_softmax, name)(x, **options) for name in names]

    program = jax.jit((lambda x: jax.vjp(made, x)[0]) if differentiated else made)
    program = program.lower(jax.ShapeDtypeStruct(shape, dtype)).compile()
    assert found == [names[1]]
    for kind in ("normal", "peaked"):
        x = logits(shape, dtype, kind)
        got = dict(zip(names, program(x), strict=True))
        assert_right("softmax", got["softmax"], x, axis=len(shape) - 1)
        logs, axis = got["log_softmax"], len(shape) - 1
        if platform == "cuda":
            assert_right("log_softmax", logs, x, axis=axis, flat=FLAT_ULPS)
        else:  # plain JAX loses what rounding differences from the maximum costs
            np.testing.assert_allclose(logs, TRUTH["log_softmax"](wide(x), axis), rtol=1e-5)
        np.testing.assert_allclose(wide(got["softmax"]).sum(-1), 1, atol=5e-7)


def test_of_16_bits_there_is_none(found):
    x = logits((2**15, 64), "bfloat16")
    jax.jit(jax.value_and_grad(lambda x: entropy(x).sum(dtype="float32"))).lower(x)
    assert found == []


def test_a_temperature(found, platform):
    """Kernels multiply: it may be in the program once, or before each of both."""
    x = logits((300, 512), "float32")

    def once(x):
        return entropy(x / 0.7).sum()

    def twice(x):
        p, logs = jax_softmax.softmax(x / 0.7), jax_softmax.log_softmax(x / 0.7)
        return -(p * logs).sum()

    def others(x):
        return -(jax_softmax.softmax(x / 0.7) * jax_softmax.log_softmax(x / 0.8)).sum()

    values = [jax.jit(f).lower(x).compile()(x) for f in (once, twice)]
    assert found == ["log_softmax"] * 2
    np.testing.assert_allclose(*values, rtol=1e-6)
    y = TRUTH["log_softmax"](wide(x / np.float32(0.7)), 1)
    np.testing.assert_allclose(values[0], -(np.exp(y) * y).sum(), rtol=1e-6)
    jax.jit(others).lower(x)
    assert len(found) == 2


def test_who_is_the_other(found):
    """Only what has the same logits, axis and type, here, and was not asked for as it is."""
    x, z = logits((2, 300, 512), "float32")

    def lowered(f, *operands):
        found.clear()
        jax.jit(f).lower(*operands)
        return len(found)

    p, logs = jax_softmax.softmax, jax_softmax.log_softmax
    assert lowered(lambda x: (p(x) * logs(x)).sum(), x) == 1
    assert lowered(lambda x: (logs(x) * p(x)).sum(), x) == 1
    assert lowered(lambda x, z: (p(x) * logs(z)).sum(), x, z) == 0
    square = jnp.zeros((512, 512))
    assert lowered(lambda x: (p(x) * logs(x)).sum(), square) == 1
    assert lowered(lambda x: (p(x, 0) * logs(x)).sum(), square) == 0
    assert lowered(lambda x: (p(x) * logs(x, 0)).sum(), square) == 0
    narrow = x.astype("bfloat16")
    assert lowered(lambda x: (p(x) * logs(x.astype("float32"))).sum(), narrow) == 1
    assert lowered(lambda x: (p(x, dtype="float32") * logs(x)).sum(), narrow) == 0
    assert lowered(lambda x: (p(x + 1) * logs(x + 1)).sum(), x) == 0  # XLA would write that
    assert lowered(lambda x: (p(x) * p(x)).sum() + logs(x).sum(), x) == 1
    assert lowered(lambda x: jax.jit(p)(x).sum() + logs(x).sum(), x) == 0  # that is not here


@pytest.mark.parametrize("asked", ["xla", "kernels", "batch_invariant", "strategy"])
def test_who_asks_is_given_that(asked, found, platform):
    options = {
        "xla": {"implementation": "xla"},
        "kernels": {"implementation": platform},
        "batch_invariant": {"batch_invariant": True},
        "strategy": {"implementation": {"cpu": "cpu:row", "cuda": "cuda:stream"}[platform]},
    }[asked]
    x = jax.ShapeDtypeStruct((300, 512), jnp.dtype("float32"))
    names = ("softmax", "log_softmax")
    for (first, a), (second, b) in (
        ((names[0], options), (names[1], {})),
        ((names[0], {}), (names[1], options)),
        ((names[1], options), (names[0], {})),
        ((names[1], {}), (names[0], options)),
    ):
        f, g = getattr(jax_softmax, first), getattr(jax_softmax, second)
        program = jax.jit(lambda x, f=f, g=g, a=a, b=b: (f(x, **a) * g(x, **b)).sum()).lower(x)
        assert found == []
        kernels = program.as_text().count("custom_call @jax_softmax.")
        assert asked == "xla" or kernels > 0


def test_a_teacher_that_was_asked_for(found):
    """It stays XLA's beside a log-softmax that is made of pairs as it is differentiated."""
    x = logits((300, 512), "float32")

    def calls(**options):
        def loss(x, teacher):
            q = jax_softmax.log_softmax(teacher, **options)
            return (jnp.exp(q) * (q - jax_softmax.log_softmax(x))).sum()

        return calls_of_rows(jax.jit(jax.value_and_grad(loss)).lower(x, x + 1))

    assert calls() == 2
    assert calls(implementation="xla") == 1


def shifted(x, **options):
    return x - jnp.max(x, -1, initial=-jnp.inf, **{"keepdims": True} | options)


def rounded_and_shifted(x):
    x = x.astype("bfloat16")
    # How many are the largest, whose derivatives these are, depends on whether XLA has rounded.
    return x - jax.lax.stop_gradient(jnp.max(x, -1, keepdims=True))


LOOKALIKES = {  # what is as softmax, or log-softmax, but of one thing
    "over the maximum": lambda x: (e := jnp.exp(shifted(x))) / jnp.max(e, -1, keepdims=True),
    "less others' maxima": lambda x: (e := jnp.exp(shifted(x.T).T)) / jnp.sum(e, -1, keepdims=True),
    "less maxima of columns": lambda x: (
        (e := jnp.exp(shifted(x, keepdims=False))) / jnp.sum(e, -1, keepdims=True)
    ),
    "less 200 or more": lambda x: (
        (e := jnp.exp(x - jnp.maximum(jnp.max(x, -1, keepdims=True), 200)))
        / jnp.sum(e, -1, keepdims=True)
    ),
    "over others' sums": lambda x: (e := jnp.exp(shifted(x))) / jnp.sum(e, 0, keepdims=True),
    "over sums of columns": lambda x: (e := jnp.exp(shifted(x))) / jnp.sum(e, -1),
    "times inverses of columns' sums": lambda x: (e := jnp.exp(shifted(x))) * (1 / jnp.sum(e, -1)),
    "over more than the sum": lambda x: (
        (e := jnp.exp(shifted(x))) / jnp.sum(e, -1, keepdims=True, initial=1.0)
    ),
    "in 16 bits": lambda x: (
        (e := jnp.exp(rounded_and_shifted(x))) / jnp.sum(e, -1, keepdims=True)
    ).astype("float32"),
    "other logarithm": lambda x: (d := shifted(x)) - jnp.log1p(jnp.exp(d).sum(-1, keepdims=True)),
}


@pytest.mark.parametrize("kind", LOOKALIKES)
def test_what_only_looks_like_a_softmax(kind, found):
    x = logits((512, 512), "float32")
    f, names = LOOKALIKES[kind], ("log_softmax", "softmax")
    name = names[kind == "other logarithm"]

    def loss(library):
        return lambda x: (f(x) * getattr(library, name)(x)).sum()

    (got, gradient), (want, others) = (
        jax.jit(jax.value_and_grad(loss(library)))(x) for library in (jax_softmax, jax.nn)
    )
    assert found == []
    np.testing.assert_allclose(got, want, rtol=1e-5)
    digits = 2e-2 if kind == "in 16 bits" else 1e-5
    np.testing.assert_allclose(gradient, others, atol=digits * np.abs(others).max())


SOURCES = {  # what logits are that are made of others by a softmax, or the like
    "softmax": lambda nn, x: nn.softmax(x),
    "log-softmax along another axis": lambda nn, x: nn.log_softmax(x, -2),
    "less the others' maximum": lambda nn, x: x - x.max(-2, keepdims=True, initial=-jnp.inf),
    "transposed": lambda nn, x: jnp.swapaxes(nn.softmax(x @ x.T), -1, -2),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_logits_that_are_made_of_others(kind, found):
    """As a softmax of a matrix product, which XLA may have with what reads it."""
    q, k = logits((2100, 8), "float32"), logits((64, 8), "float32")

    def loss(library, q, k):
        x = SOURCES[kind](library, q @ k.T)
        return -(library.softmax(x) * (library.log_softmax(x) - 0.5)).sum(-1).mean()

    with jax.default_matmul_precision("float32"):  # a GPU's products have fewer digits
        (got, gradients), (want, others) = (
            jax.jit(jax.value_and_grad(partial(loss, library), (0, 1)))(q, k)
            for library in (jax_softmax, jax.nn)
        )
    assert found == ["log_softmax"]
    np.testing.assert_allclose(got, want, rtol=1e-5)
    for gradient, other in zip(gradients, others, strict=True):
        np.testing.assert_allclose(gradient, other, atol=2e-5 * np.abs(other).max())


def test_two_results_of_a_barrier(found):
    a, b = logits((600, 512), "bfloat16"), logits((600, 512), "bfloat16", "peaked")

    def loss(library, a, b):
        a, b = jax.lax.optimization_barrier((a, b))
        p, logs = library.softmax(a.astype("float32")), library.log_softmax(b.astype("float32"))
        return (p * logs).sum()

    got, want = (jax.jit(partial(loss, library))(a, b) for library in (jax_softmax, jax.nn))
    assert found == []
    np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize("columns", [512, 10_000])
@pytest.mark.parametrize("dtypes", [("float16", "bfloat16"), ("bfloat16", "float16")], ids=str)
def test_16_bits_of_others(dtypes, columns, found):
    """Which are what is read; also by a kernel that the first result was to be written by."""
    a, b = logits((2**18 // columns, 32), dtypes[0]), logits((32, columns), dtypes[0])

    def made(library, rounded):
        wide = rounded.astype("float32")
        first = library.softmax(rounded, dtype="float32") if library is jax_softmax else None
        first = library.softmax(wide) if first is None else first
        return -(first * library.log_softmax(wide)).sum(-1)

    rounded = jax.jit(lambda a, b: (a @ b).astype(dtypes[1]))
    got = jax.jit(lambda a, b: made(jax_softmax, (a @ b).astype(dtypes[1])))(a, b)
    np.testing.assert_allclose(got, made(jax.nn, rounded(a, b)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("backend", [pytest.param("cuda", marks=pytest.mark.gpu)], indirect=True)
def test_a_temperature_of_a_product(found):
    """In float32, of longer rows, which a kernel would multiply as it writes the first result."""
    a, b = (jax.ShapeDtypeStruct(s, jnp.dtype("bfloat16")) for s in ((256, 64), (64, 32_000)))

    def entropy_of(a, b):
        return entropy((a @ b).astype("float32") / 0.7)

    for f in (entropy_of, jax.grad(lambda a, b: entropy_of(a, b).sum())):
        found.clear()
        jax.jit(f).lower(a, b)
        assert found == ["log_softmax"]


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_float64_between(name, found):
    with jax.enable_x64(True):
        x = logits((600, 512), "float32")
        other = {"softmax": "log_softmax", "log_softmax": "softmax"}[name]

        def product(x):
            wide = getattr(jax_softmax, name)(x, dtype="float64").astype("float32")
            return (wide * getattr(jax_softmax, other)(x)).sum()

        got = jax.jit(product)(x)
    assert found == []
    y = TRUTH["log_softmax"](wide(x), 1)
    np.testing.assert_allclose(got, (np.exp(y) * y).sum(), rtol=1e-5)


def test_what_they_are_within(found):
    """A map, or a loop, of which nothing is seen of what made the logits."""
    x = logits((3, 300, 512), "float32")

    def scanned(x):
        return jax.lax.scan(lambda total, rows: (total + entropy(rows).sum(), None), 0.0, x)[0]

    mapped = jax.vmap(lambda rows: entropy(rows).sum())
    want = sum(entropy(rows, library=jax.nn).sum() for rows in x)
    assert abs(jax.jit(scanned)(x) - want) <= 1e-5 * want
    assert found == []
    assert abs(jax.jit(mapped)(x).sum() - want) <= 1e-5 * want
    assert found == ["log_softmax"]


@pytest.mark.parametrize("order", ["forward over back", "back over forward", "back over back"])
def test_second_derivatives(order, found):
    x = logits((270, 512), "float32")
    t = jnp.cos(x)

    def derivative(library):
        def loss(x):
            return jnp.square(entropy(x, library=library)).sum()

        if order == "forward over back":
            return jax.jit(lambda x: jax.jvp(jax.grad(loss), (x,), (t,))[1])
        if order == "back over forward":
            return jax.jit(jax.grad(lambda x: jax.jvp(loss, (x,), (t,))[1]))
        return jax.jit(jax.grad(lambda x: (jax.grad(loss)(x) * t).sum()))

    got, want = derivative(jax_softmax)(x), derivative(jax.nn)(x)
    assert found == ["log_softmax"]
    np.testing.assert_allclose(got, want, atol=2e-5 * np.abs(want).max())


def test_what_else_is_read_of_them(found):
    """XLA's code has both where they are returned, or a number for each of many rows is kept."""
    short, long = ((2**18 // n, n) for n in (64, 1000))

    def lowered(f, shape, *others):
        found.clear()
        jax.jit(f).lower(jax.ShapeDtypeStruct(shape, jnp.float32), *others)
        return len(found)

    assert lowered(both, long) == lowered(lambda x: both(x)[0] * both(x)[1], long) == 0
    assert lowered(entropy, short) == 0
    assert lowered(entropy, long) == 1
    weights = jnp.zeros(short[0])
    assert lowered(lambda x, w: (entropy(x) * w).sum(), short, weights) == 0
    assert lowered(jax.grad(lambda x, w: (entropy(x) * w).sum()), short, weights) == 0
    assert lowered(jax.grad(lambda x: entropy(x).sum()), short) == 1
    assert lowered(lambda x: entropy(x).sum(), (2, 2**17)) == 0  # which one block has each
    assert lowered(lambda x: entropy(x).sum(), (10, 512)) == 0
    # Which XLA may sum slowly.
    assert lowered(lambda x: entropy(x).sum(), (256, 1024)) == 0
    assert lowered(jax.grad(lambda x: entropy(x).sum()), (256, 1024)) == 0


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(
    "columns",
    [1, 9, 18, 33, 64, 100, 200, 333, 512, 777, 1000, 1001, 2050, 2816, 4096, 8192, 50_257],
)
def test_three_values_of_each_row(columns, dtype):
    """The first two as they are without the third one; of a row with NaN or +inf, NaN."""
    request = {"axis": 1, "logical_axis": 1, "dtype": jnp.dtype("float32"), "workspace": 0}
    request |= {"strategy": "auto", "batch_invariant": True, "scale": 1.0, "log_sums": True}
    for kind in ("normal", "peaked"):
        x = logits((140, columns), dtype, kind)
        x = x.at[3, 0].set(jnp.nan).at[5, 0].set(jnp.inf).at[7].set(-jnp.inf)
        largest, log_sums, factors = jax.jit(partial(_pairs.row_triples_p.bind, **request))(x)
        two = jax.jit(partial(_pairs.row_pairs_p.bind, **request))(x)
        np.testing.assert_array_equal(two, (largest, log_sums))
        assert np.isnan(factors)[jnp.array([3, 5])].all()
        rest = np.delete(np.arange(140), [3, 5, 7])
        y = np.exp(wide(x)[rest] - wide(largest)[rest, None])
        np.testing.assert_allclose(wide(factors)[rest], 1 / y.sum(1), rtol=4e-7)
