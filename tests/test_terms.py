"""The kernels that apply masks and other terms, by strategy, beside the definition in float64."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _cases import skip_refused
from _support import accepts, compiled, count_calls, device_of, native_module, operations
from _truth import TRUTH
from test_masked import called, each_form, naive

from jax_softmax import _calls, log_softmax, masked_softmax, plan, softmax
from jax_softmax._canonicalize import request
from jax_softmax._primitives import softmax_tangent_p

pytestmark = pytest.mark.usefixtures("quickly_compiled")

# Rows of a warp, of a block's registers, of neither; whole vectors and not.
KERNEL_SHAPES = [
    (2, 3, 7, 40),
    (3, 9, 33),
    (3, 5, 512),
    (2, 2, 5, 600),
    (3, 2, 1333),
    (2, 4096),
    (3, 20_001),
    (2, 60_000),
    (21, 5),
]
GPU = pytest.mark.gpu
IMPLEMENTATIONS = [
    "cpu:row",
    "cpu:lanes",
    *(
        pytest.param(f"cuda:{strategy}", marks=GPU)
        for strategy in ("warp", "registers", "tile", "block", "cluster", "stream", "strided")
    ),
]
KERNEL_OPTIONS = [
    ("mask", "causal"),
    ("mask per row", "bias"),
    ("mask per column", "scale"),
    ("bias",),
    ("full bias", "scale"),
    ("wide bias",),
    ("mask", "bias per row", "sink"),
    ("softcap", "sink"),
    ("mask", "bias", "causal", "scale", "softcap", "sink"),
]
PAIRS = [
    "float32",
    "float64",
    "float16",
    "bfloat16",
    ("bfloat16", "float32"),
    ("float32", "float16"),
]


def kernel_operands(shape, options, dtype, axis):
    """Operands that a kernel takes as they are, a fifth of the logits under the mask not finite."""
    rng = np.random.default_rng(len(shape) + shape[axis])
    mask = rng.random(shape[-2:]) < 0.8
    mask[0] = False
    if "mask per row" in options:
        mask = rng.random((*shape[:-1], 1)) < 0.8
    if "mask per column" in options:
        mask = rng.random((shape[0], *[1] * (len(shape) - 2), shape[-1])) < 0.8
    given = {"x": 3 * rng.standard_normal(shape), "axis": axis}
    if any(o.startswith("mask") for o in options):
        given["mask"] = mask
        given["x"] = np.where(mask | (rng.random(shape) < 0.5), given["x"], np.nan)
    if "bias" in options:
        given["bias"] = rng.standard_normal(shape[-2:])
    if "full bias" in options:
        given["bias"] = rng.standard_normal(shape)
    if "wide bias" in options:
        given["wide"] = rng.standard_normal(shape[-2:])
    if "bias per row" in options:
        given["bias"] = rng.standard_normal((*shape[:-1], 1))
    if "sink" in options:
        given["sink"] = rng.standard_normal(
            [d for i, d in enumerate(shape) if i != axis % len(shape)][-1:]
        )
    given |= {"causal": True} if "causal" in options else {}
    given |= {"softcap": 4.0} if "softcap" in options else {}
    given |= {"scale": 0.6} if "scale" in options else {}
    floats = ("x", "bias", "sink")
    given = {k: v.astype(jnp.dtype(dtype)) if k in floats else v for k, v in given.items()}
    if "wide" in given:  # as wide as the arithmetic
        given["bias"] = given.pop("wide").astype(jnp.promote_types(dtype, "float32"))
    return given


def split(given):
    """The operands that are arrays, and the rest."""
    arrays = {k: v for k, v in given.items() if k in ("x", "mask", "bias", "sink")}
    return arrays, {k: v for k, v in given.items() if k not in arrays}


def run(given, dtype, log, implementation):
    """The result of one call, and that of the definition in float64."""
    arrays, rest = split(given)
    kernels = functools.partial(
        masked_softmax, log=log, dtype=dtype, implementation=implementation, **rest
    )
    program = jax.jit(functools.partial(called, kernels)).lower(arrays).compile()
    op = "masked_log_softmax" if log else "masked_softmax"
    assert count_calls(program.as_text(), op) == 1
    got = jax.device_get(program(arrays))
    host = jax.device_get(arrays)
    wide = {k: v if k == "mask" else v.astype(np.float64) for k, v in host.items()}
    with np.errstate(all="ignore"):
        return got, naive(**wide, **rest, log=log, jnp=np)


def assert_close(got, want, dtype, what=""):
    """As near as the rounding to the result's dtype, and a sum in that of the arithmetic, allow."""
    rounding = 2 * float(jnp.finfo(got.dtype).eps)
    error = 100 * float(jnp.finfo("float64" if dtype == "float64" else "float32").eps)
    np.testing.assert_allclose(
        got.astype(np.float64), want, rtol=rounding + error, atol=error, err_msg=what
    )


def kernel_shapes(op, dtypes, axis, implementation, *, others):
    """Those that an implementation takes, with `others` than masks and a scale or without."""
    dtype, output_dtype = dtypes
    # The plan is that of masks and a scale; log-softmax of 16 bits has less room beside the rest.
    narrow = jnp.dtype(dtype).itemsize == 2
    narrow_logs = implementation == "cuda:registers" and op == "masked_log_softmax" and narrow
    most = 2048 if narrow_logs and others else math.inf
    return [
        shape
        for shape in KERNEL_SHAPES
        if accepts(op, shape, dtype, axis, implementation, output_dtype) and shape[-1] <= most
    ]


def kernels_of(implementation, pair, log):
    """Their op, dtypes and axis, where there are any."""
    native_module(implementation.partition(":")[0])
    dtype, output_dtype = (pair, pair) if isinstance(pair, str) else pair
    op = "masked_log_softmax" if log else "masked_softmax"
    skip_refused(op, dtype, implementation, output_dtype)
    return op, dtype, output_dtype, -2 if implementation == "cuda:strided" else -1


@each_form
@pytest.mark.parametrize("options", KERNEL_OPTIONS, ids="+".join)
@pytest.mark.parametrize("pair", PAIRS, ids=str)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_kernels(implementation, pair, options, log):
    op, dtype, output_dtype, axis = kernels_of(implementation, pair, log)
    options = [o for o in options if o != "causal" or axis == -1]
    others = any("bias" in o or o in ("softcap", "sink") for o in options)
    ran = 0
    with jax.enable_x64(True), jax.default_device(device_of(implementation)):
        for shape in kernel_shapes(op, (dtype, output_dtype), axis, implementation, others=others):
            given = kernel_operands(shape, options, dtype, axis)
            got, want = run(given, output_dtype, log, implementation)
            assert got.dtype == jnp.dtype(output_dtype)
            assert_close(got, want, dtype, str(shape))
            ran += 1
    assert ran >= 2


def filled(given, fill, log):
    """The definition in float64, of logits that are `fill` where they are masked."""
    z = given["x"].astype(np.float64) * given.get("scale", 1.0)
    z = np.where(given["mask"], z + given.get("bias", np.zeros(1)).astype(np.float64), fill)
    with np.errstate(all="ignore"):
        return TRUTH["log_softmax" if log else "softmax"](z, given["axis"])


@each_form
@pytest.mark.parametrize(
    "options", [("mask",), ("mask per column", "scale"), ("mask", "bias", "scale")], ids="+".join
)
@pytest.mark.parametrize("pair", PAIRS, ids=str)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_masked_logits_may_be_a_number(implementation, pair, options, log):
    """As `jnp.where` makes them: rows without any other are as any rows of one number are."""
    op, dtype, output_dtype, axis = kernels_of(implementation, pair, log)
    if axis == -2 and "mask per column" in options:
        pytest.skip("that is a mask of whole rows along this axis")
    biased = "bias" in options
    request = {"dtype": jnp.dtype(output_dtype), "strategy": implementation.partition(":")[2]}
    request |= {"batch_invariant": True}
    ran = 0
    with jax.enable_x64(True), jax.default_device(device_of(implementation)):
        for shape in kernel_shapes(op, (dtype, output_dtype), axis, implementation, others=biased):
            given = kernel_operands(shape, options, dtype, axis)
            rank = len(shape)
            terms = [
                given[name].reshape((1,) * (rank - given[name].ndim) + given[name].shape)
                for name in ("mask", "bias")
                if name in given
            ]
            given["x"][..., -1, :] = -np.inf  # where some of a last row take part, too
            fills = (float(jnp.finfo(dtype).min), -np.inf, 0.0, -40.0)
            request |= {"axis": axis % rank, "factor": given.get("scale", 1.0)}
            names = "mb"[: len(terms)]
            calls = [_calls.call_with_terms(op, names, fill=f, **request) for f in fills]
            results = jax.jit(lambda *v, calls=calls: [call(*v) for call in calls])
            for fill, got in zip(fills, results(given["x"], *terms), strict=True):
                with np.errstate(over="ignore"):  # of logarithms, to float16
                    want = filled(given, fill, log).astype(got.dtype).astype(np.float64)
                assert_close(np.asarray(got), want, dtype, f"{shape} {fill}")
            ran += 1
    assert ran >= 2


@GPU
@each_form
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("lanes", [2, 4, 8, 16, 32])
def test_every_count_of_a_tiles_lanes(lanes, dtype, log):
    """All places of a lane taken, and as few as its plan leaves it."""
    options = KERNEL_OPTIONS[-1]
    lengths = {lanes * held - fewer for held in (15, 16, 20, 24, 28) for fewer in (0, lanes - 1)}
    lengths |= {lanes * held + 1 for held in (16, 20, 24)}
    op = "masked_log_softmax" if log else "masked_softmax"
    ran = 0
    with jax.enable_x64(True):
        for columns in sorted(lengths):
            shape = (3, 37, columns)
            if accepts(op, shape, dtype, -1, "cuda:tile"):
                chosen = plan(shape, dtype, op=op, device="H200", strategy="tile")
                assert chosen.lanes_per_row == lanes
                given = kernel_operands(shape, options, dtype, -1)
                assert_close(*run(given, dtype, log, "cuda:tile"), dtype, str(shape))
                ran += 1
    assert ran >= 6


@GPU
@each_form
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(
    "options", [("mask", "causal"), ("mask per column", "scale")], ids="+".join
)
def test_every_block_of_masked_rows(options, dtype, log):
    """Those whose size is compiled: full, and with their last lanes idle."""
    op = "masked_log_softmax" if log else "masked_softmax"
    lengths = {held * lanes for held in (16, 24, 32) for lanes in range(32, 257, 32)}
    blocks = set()
    for columns in sorted({n - fewer for n in lengths for fewer in (0, 8) if n - fewer > 512}):
        shape = (2, 5, columns)
        blocks.add(plan(shape, dtype, op=op, device="H200", strategy="registers").threads)
        with jax.enable_x64(True):
            given = kernel_operands(shape, options, dtype, -1)
            assert_close(*run(given, dtype, log, "cuda:registers"), dtype, str(shape))
    assert blocks == set(range(32, 257, 32))


@GPU
@pytest.mark.parametrize("rows", [0, 1], ids=["whole tiles", "odd"])
@pytest.mark.parametrize("columns, strategy", [(577, "tile"), (256, "warp"), (2048, "registers")])
def test_rows_that_share_a_large_operand_take_turns(columns, strategy, rows):
    """What no cache keeps is read once: neighbours in time are not neighbours in memory."""
    rows += 2**23 // columns // 32 * 32 + 32  # 16 MB of a bias
    make = jax.jit(lambda: jax.random.normal(jax.random.key(0), (4, rows, columns), jnp.bfloat16))
    bias, x = jnp.split(make(), [1])
    chosen = plan(x.shape, x.dtype, op="masked_softmax", device="H200", strategy=strategy)
    assert rows % 2 == 1 or rows % chosen.rows_per_block == 0
    f = jax.jit(functools.partial(masked_softmax, implementation=f"cuda:{strategy}"))
    together = f(x, bias=bias)
    for i in range(len(x)):
        np.testing.assert_array_equal(together[i], f(x[i], bias=bias[0]))


@each_form
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", ("bfloat16", "float32")], ids=str)
@pytest.mark.parametrize("columns", [9216, 30_003, 32_000, 50_257, 128_256, 155_000, 262_145])
@pytest.mark.parametrize("backend", ["cpu", pytest.param("cuda", marks=GPU)])
def test_masks_alone_leave_16_bits(backend, columns, dtype, log):
    """Rows that are kept as they are: infinities and NaN among them, under masks too."""
    dtype, output_dtype = (dtype, dtype) if isinstance(dtype, str) else dtype
    rng = np.random.default_rng(columns)
    x = 3 * rng.standard_normal((7, columns))
    mask = rng.random((7, columns)) < 0.8
    x[1, ::7], x[2, mask[2]] = -np.inf, -np.inf
    x[3, 5], mask[3, 5] = np.nan, True
    x[4, 5], mask[4, 5] = np.nan, False
    x[5, 6], mask[5, 6] = np.inf, False
    mask[6] = False
    native_module(backend)
    with jax.enable_x64(True), jax.default_device(device_of(backend)):
        given = {"x": jnp.asarray(x, dtype), "mask": mask, "axis": -1}
        got, want = run(given, output_dtype, log, backend)
        plain = masked_softmax(**given, log=log, dtype=output_dtype, implementation="xla")
        # A row of -inf, not all of them masked, is not what the definition is made for.
        np.testing.assert_array_equal(np.isnan(got[2]), np.isnan(plain[2]))
        others = np.arange(7) != 2
        assert_close(got[others], want[others], dtype)
        if not log:  # whose results are small: as near where they are normal
            tiny = float(jnp.finfo(got.dtype).tiny)
            rounding = 2 * float(jnp.finfo(got.dtype).eps) + 1e-5
            np.testing.assert_allclose(
                got[others].astype(np.float64), want[others], rtol=rounding, atol=tiny
            )


@each_form
@pytest.mark.parametrize(
    "dtype", ["float32", "bfloat16", "float16", ("bfloat16", "float32")], ids=str
)
@pytest.mark.parametrize(
    "backend, columns",
    [
        *(("cpu", n) for n in (129, 4099)),
        *(
            pytest.param("cuda", n, marks=GPU)
            for n in (129, 512, 513, 1000, 2046, 2048, 4099, 8185, 8192, 8200, 12_011, 40_001)
        ),
    ],
)
def test_a_bias_alone(backend, columns, dtype, log):
    """One for all rows, for each, and from another address on than its row: not finite, too."""
    dtype, output_dtype = (dtype, dtype) if isinstance(dtype, str) else dtype
    rng = np.random.default_rng(columns)
    x = 3 * rng.standard_normal((2, 9, columns))
    bias = rng.standard_normal((1, 9, columns))
    x[0, 1, ::7], bias[0, 2, ::5] = -np.inf, -np.inf
    x[0, 3], bias[0, 4], bias[0, 5, 1:] = -np.inf, -np.inf, -np.inf
    x[1, 6, 5], bias[0, 7, columns - 1], x[1, 8, 0] = np.nan, np.nan, np.inf
    native_module(backend)
    empty = 0
    # Infinities of both signs meet.
    quiet = np.errstate(invalid="ignore")
    with jax.enable_x64(True), jax.default_device(device_of(backend)), quiet:
        for given in (bias, np.broadcast_to(bias, x.shape), bias[:, 2:3], bias[:, 5:6]):
            for scale in (0.5, -0.5):
                operands = {"x": jnp.asarray(x, dtype), "bias": jnp.asarray(given, dtype)}
                got, want = run(operands | {"axis": -1, "scale": scale}, output_dtype, log, backend)
                # A row of -inf is not what the definition is made for.
                of_none = np.all(scale * x + given == -np.inf, -1)
                assert np.isnan(got[of_none]).all()
                empty += of_none.sum()
                assert_close(got[~of_none], want[~of_none], dtype, f"{given.shape} {scale}")
    assert empty > 0


@each_form
@pytest.mark.parametrize("columns", [5, 40, 500, 700, 9000])
@pytest.mark.parametrize("sink", [False, True], ids=["", "sink"])
@pytest.mark.parametrize(
    "implementation",
    ["cpu:row", "cpu:lanes", *(pytest.param(f"cuda:{s}", marks=GPU) for s in ("warp", "tile"))],
    indirect=True,
)
def test_rows_that_are_special_among_others(implementation, sink, columns, log):
    """Where vectors or warps reduce several rows: none of these may reach its neighbours."""
    op = "masked_log_softmax" if log else "masked_softmax"
    rng = np.random.default_rng(columns)
    x = rng.standard_normal((21, columns)).astype(np.float32)
    mask = rng.random(x.shape) < 0.7
    mask[:, 0], mask[:, 1] = True, False
    mask[2] = False  # nothing takes part
    x[~mask] = np.nan  # does not count
    x[4] = -np.inf
    x[6, 0] = np.inf
    x[8, 0] = np.nan
    x[10] = np.where(mask[10], -np.inf, 3.0)
    x[12] = 3e38
    x[14] = np.where(np.arange(columns) == 0, 0, -np.inf)
    given = {"x": x, "mask": mask} | ({"sink": np.full(21, 0.5, np.float32)} if sink else {})
    if not accepts(op, x.shape, "float32", -1, implementation):
        pytest.skip("it has no room for the row")
    got, want = run(given, "float32", log, implementation)
    masked = -np.inf if log else 0
    want = np.array(want)
    # In the definition, NaN and what is not masked in a row of -inf spread over all of a row.
    for row in (6, 8, *([] if sink else [4, 10])):
        want[row] = np.where(mask[row], np.nan, masked)
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-7)
    assert (got[2] == masked).all() and (got[:, 1] == masked).all()


PROGRAMS = {
    "mask": lambda x, m, b: masked_softmax(x, m),
    "where": lambda x, m, b: softmax(x, where=m),
    "log where": lambda x, m, b: log_softmax(x, where=m),
    "bias": lambda x, m, b: masked_softmax(x, bias=b),
    "all": lambda x, m, b: masked_softmax(x, m, b, scale=0.1, causal=True, softcap=9.0),
    "vmap": lambda x, m, b: jax.vmap(lambda x: masked_softmax(x, m, b))(x),
}


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_on_the_cpu_is_one_call(name, dtype):
    """And nothing else: no mask or bias is broadcast, no element is selected outside."""
    x, bias = jnp.ones((2, 3, 64, 64), dtype), jnp.ones((3, 64, 64), dtype)
    mask = jnp.tri(64, dtype=bool)
    hlo = compiled(PROGRAMS[name], x, mask, bias)
    assert count_calls(hlo) == 1
    assert operations(hlo) <= {"custom-call", "parameter", "bitcast"}


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("order", [1, 2])
@each_form
def test_derivatives_on_the_cpu_go_through_kernels(log, order):
    def f(x, mask, bias):
        return jnp.sum(masked_softmax(x, mask, bias, log=log, softcap=3.0) ** 2, where=mask)

    for _ in range(order):
        f = functools.partial(lambda g, *a: jnp.sum(jnp.sin(jax.grad(g)(*a))), f)
    arrays = jnp.ones((3, 8, 8)), jnp.tri(8, dtype=bool), jnp.ones((8, 8))
    op = "masked_log_softmax" if log else "masked_softmax"
    hlo = compiled(f, *arrays)
    assert count_calls(hlo, op) >= 1 and count_calls(hlo) >= 2


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize(
    "shape, axis", [((21, 40), 1), ((9, 700), 1), ((3, 40, 5), 1), ((3, 20_001), 1)]
)
@pytest.mark.parametrize("implementation", ["cpu:row", "cpu:slices", "cpu:lanes", "cpu:strided"])
def test_the_derivative_looks_at_no_tangent_under_a_mask(implementation, shape, axis):
    if not accepts("softmax_tangent", shape, "float32", axis, implementation):
        pytest.skip("it cannot run this shape")
    rng = np.random.default_rng(shape[axis])
    y = np.asarray(jax.nn.softmax(rng.standard_normal(shape), axis))
    kept = rng.random(shape) < 0.7
    y, t = np.where(kept, y, 0), np.where(kept, rng.standard_normal(shape), np.nan)
    params = request(
        "softmax_tangent",
        jnp.zeros(shape, jnp.float32),
        axis=axis,
        dtype=jnp.dtype("float32"),
        implementation=implementation,
        batch_invariant=False,
    )
    f = functools.partial(softmax_tangent_p.bind, scale=0.25, zeros_are_masked=True, **params)
    operands = jnp.asarray(y, jnp.float32), jnp.asarray(t, jnp.float32)
    assert operations(compiled(f, *operands)) <= {"custom-call", "parameter", "bitcast"}
    t = np.where(kept, t, 0)
    want = 0.25 * y * (t - (y * t).sum(axis, keepdims=True))
    np.testing.assert_allclose(jax.jit(f)(*operands), want, rtol=1e-5, atol=1e-9)


@pytest.mark.usefixtures("on_cpu")
def test_what_has_no_kernel_on_the_cpu_is_plain_jax_around_softmax():
    """Another axis than the last, a strategy without masks, masks in five groups of dimensions."""
    x = jnp.asarray(np.random.default_rng(0).standard_normal((2, 3, 2, 3, 2, 48)), jnp.float32)
    mask = jnp.asarray(np.random.default_rng(1).random((2, 1, 2, 1, 2, 48)) < 0.7)
    for given in (
        {"axis": 1},
        {"implementation": "cpu:slices"},
        {"implementation": "cpu:strided", "axis": 2},
        {},
    ):
        f = functools.partial(masked_softmax, **given)
        given.pop("implementation", None)
        hlo = compiled(f, x, mask)
        assert count_calls(hlo, "masked_softmax") == 0 and count_calls(hlo, "softmax") == 1
        np.testing.assert_allclose(
            jax.jit(f)(x, mask), naive(x, mask, **given), rtol=1e-5, atol=1e-7
        )
    assert count_calls(compiled(masked_softmax, x, mask[:, :, :, :, :1]), "masked_softmax") == 1


@each_form
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("moved", ["bias", "full bias", "scale"])
def test_wide_terms_of_16_bit_logits_have_wide_gradients(moved, dtype, log):
    """Whose digits, and whose range, are not those of the logits."""
    x = jnp.asarray(np.random.default_rng(0).standard_normal((64, 8)), dtype)
    weights = jnp.arange(8, dtype="float32") * 1000
    value = {"bias": jnp.zeros(8), "full bias": jnp.zeros((64, 8)), "scale": jnp.float32(0.5)}[
        moved
    ]
    name = moved.removeprefix("full ")

    def loss(f, x, v):
        return jnp.sum(weights * f(x, log=log, **{name: v}))

    kernels = functools.partial(masked_softmax, dtype="float32")
    got, want = (
        jax.grad(functools.partial(loss, f), 1)(z, value)
        for f, z in ((kernels, x), (naive, x.astype("float32")))
    )
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6 * float(abs(want).max()))


@each_form
@pytest.mark.parametrize(
    "options",
    [{"scale": 0.01}, {"scale": 0.01, "softcap": 50.0}, {"scale": np.float32(0.01)}],
    ids=["constant", "capped", "operand"],
)
def test_a_scale_keeps_gradients_of_float16_in_range(options, log):
    x, weights = jnp.asarray([[1, 2, -1, 3]], "float16"), jnp.asarray([[1e6, 0, 0, -1e6]])

    def loss(x):
        return jnp.sum(weights * masked_softmax(x, dtype="float32", log=log, **options))

    f = jax.nn.log_softmax if log else jax.nn.softmax
    want = jax.grad(lambda x: jnp.sum(weights * f(0.01 * x)))(x.astype("float32"))
    np.testing.assert_allclose(jax.grad(loss)(x), want, rtol=2e-3, atol=2)


@each_form
@pytest.mark.parametrize("options", KERNEL_OPTIONS, ids="+".join)
def test_gradients_of_kernels(backend, options, log):
    """Those of float32 kernels beside autodiff of the definition in float64."""
    with jax.enable_x64(True):
        given = kernel_operands((2, 3, 70, 64), options, "float32", -1)
        weights = np.random.default_rng(3).standard_normal((2, 3, 70, 64))
        operands = {k: v for k, v in given.items() if k in ("x", "bias", "sink")}
        rest = {k: v for k, v in given.items() if k not in operands}
        if "scale" in rest:
            operands["scale"] = jnp.float32(rest.pop("scale"))
        if "mask" in rest:
            operands["x"] = jnp.where(rest["mask"], operands["x"], 0)

        def loss(f, operands):
            y = f(**operands, **rest, log=log)
            return jnp.sum(jnp.sin(jnp.where(jnp.isfinite(y), y, 0)) * weights)

        kernels = functools.partial(masked_softmax, implementation=backend)
        got = jax.jit(jax.grad(functools.partial(loss, kernels)))(operands)
        wide = {k: v.astype(np.float64) for k, v in operands.items()}
        want = jax.grad(functools.partial(loss, naive))(wide)
        for name in operands:
            scale = float(abs(want[name]).max())
            np.testing.assert_allclose(got[name], want[name], rtol=2e-4, atol=1e-5 * max(scale, 1))
