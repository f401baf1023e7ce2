"""Every op, dtype and strategy against wider arithmetic, at lengths around each plan limit."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _cases import operands, problems, rows, skip_refused
from _support import accepts, axis_of, bind, compiled, count_calls, operations, precision
from _truth import (
    CONVERSIONS,
    DTYPES,
    FLAT_ULPS,
    FORWARD,
    GRADIENT,
    PAIRS,
    PER_ROW,
    assert_right,
    log_sum,
    ulp,
    wide,
)

from jax_softmax import _reference

OPS = (*FORWARD, *GRADIENT, *PER_ROW)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
each_pair = pytest.mark.parametrize("dtype, output_dtype", PAIRS, ids=str)
each_op = pytest.mark.parametrize("op", OPS)
each_forward = pytest.mark.parametrize("op", (*FORWARD, *PER_ROW))


def run(op, inputs, axes, implementation, output_dtype=None):
    """`op` over a list of inputs, as one program: compiling them one by one is slow."""

    @jax.jit
    def program(inputs):
        return [
            bind(op, *x, axis=axis, dtype=output_dtype, implementation=implementation)
            for x, axis in zip(inputs, axes, strict=True)
        ]

    with precision(inputs[0][0].dtype):
        return jax.device_get(program(inputs))


def flat_ulps(op, implementation):
    """The bound however far elements are from the maximum, which plain JAX does not promise."""
    if implementation == "xla":
        return None
    # A cluster multiplies each warp's terms by what they were shifted by in vain. A ring does in
    # float32, too, within the same bound in these rows.
    return FLAT_ULPS + (op == "softmax" and implementation == "cuda:cluster")


@each_op
@each_pair
def test_matches_wider_arithmetic(op, dtype, output_dtype, implementation):
    shapes, axes = zip(*problems(op, dtype, implementation, output_dtype), strict=True)
    inputs = [operands(op, *case, dtype) for case in zip(shapes, axes, strict=True)]
    results = run(op, inputs, axes, implementation, output_dtype)
    for got, x, axis in zip(results, inputs, axes, strict=True):
        assert got.dtype == output_dtype
        if got.size:
            flat = flat_ulps(op, implementation)
            assert_right(op, got, *x, axis=axis, flat=flat, context=implementation)


@each_op
def test_the_forced_strategy_is_part_of_the_program(op, implementation):
    skip_refused(op, "float32", implementation)
    axis = axis_of(implementation)
    x = operands(op, (9, 40), axis, np.dtype("float32"))
    assert accepts(op, (9, 40), x[0].dtype, axis, implementation)
    hlo = compiled(lambda *x: bind(op, *x, axis=axis, implementation=implementation), *x)
    backend, _, strategy = implementation.partition(":")
    assert count_calls(hlo) == count_calls(hlo, op) == (backend != "xla")
    assert backend == "xla" or f'strategy = "{strategy}"' in hlo


@each_op
@pytest.mark.parametrize("dtype, output_dtype", CONVERSIONS, ids=str)
def test_a_conversion_is_part_of_the_kernel(op, dtype, output_dtype, implementation):
    skip_refused(op, dtype, implementation, output_dtype)
    axis = axis_of(implementation)
    x = operands(op, (9, 40), axis, dtype)
    hlo = compiled(
        lambda *x: bind(op, *x, axis=axis, dtype=output_dtype, implementation=implementation), *x
    )
    assert count_calls(hlo, op) == (implementation != "xla")
    assert ("convert" in operations(hlo)) == (implementation == "xla")


def special_rows(n, dtype):
    """Rows with a special value, alone and with others: at an end, in the middle, in a half."""
    base = rows(1, n, dtype)[0]
    specials = [np.nan, np.inf, -np.inf]
    made = [np.full(n, value, dtype) for value in specials]
    for value in specials:
        for position in {0, n // 2, n - 1}:
            made.append(base.copy())
            made[-1][position] = value
    for a, b in ((np.inf, -np.inf), (np.nan, -np.inf), (np.nan, np.inf)):
        made.append(base.copy())
        made[-1][0], made[-1][-1] = a, b
    # What a part of a row is reduced to that has nothing.
    for half in (slice(n // 2), slice(n // 2, n)):
        made.append(base.copy())
        made[-1][half] = -np.inf
    # Whole vectors of rows, where they lie side by side.
    return np.stack([*made, *[base] * (-len(made) % 8)])


@each_forward
@each_pair
def test_special_values(op, dtype, output_dtype, implementation):
    skip_refused(op, dtype, implementation, output_dtype)
    inputs = [special_rows(n, dtype) for n in (1, 2, 7, 33, 257, 1000, 1537)]
    across = [np.ascontiguousarray(x.T) for x in inputs]
    chosen = [
        (x, axis)
        for x, axis in (*((x, 1) for x in inputs), *((x, 0) for x in across))
        if accepts(op, x.shape, dtype, axis, implementation, output_dtype)
    ]
    assert len(chosen) >= 4  # a warp holds 256 float64
    xs, axes = zip(*chosen, strict=True)
    results = run(op, [[x] for x in xs], axes, implementation, output_dtype)
    for got, x, axis in zip(results, xs, axes, strict=True):
        assert_right(op, got, x, axis=axis, context=implementation)


@each_pair
@pytest.mark.parametrize(
    "shape, axis, short",
    [((300, 7), 0, True), ((2, 40, 21), 1, True), ((40_000, 2), 0, False), ((21, 5, 1), 1, False)],
)
def test_pairs_of_sums_lose_no_digits(shape, axis, short, dtype, output_dtype):
    """XLA's code along another axis than the last, on one GPU: in float32 one complex sum."""
    f = functools.partial(_reference.log_softmax, axis=axis, dtype=output_dtype, in_pairs=True)
    (x,) = operands("log_softmax", shape, axis, dtype)
    if x.ndim == 2:
        x = np.concatenate([x, special_rows(len(x), dtype).T], 1)
    with precision(dtype):
        program = jax.jit(f)
        assert ("complex" in program.lower(x).as_text()) == (short and dtype.itemsize < 8)
        assert_right("log_softmax", program(x), x, axis=axis)


@pytest.mark.parametrize("columns", [2, 333, 520, 1000, 4096])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("narrowed", [False, True])
@pytest.mark.parametrize("forward_alone", [False, True])
def test_few_terms_beside_a_maximum_keep_the_digits_of_bfloat16(
    dtype, columns, narrowed, forward_alone
):
    """XLA's code of fewer operations; of rows that are mostly padding it has the others."""
    request = {"forward_alone": forward_alone, "narrowed": narrowed}
    request |= {"axis": 1, "dtype": jnp.dtype("bfloat16")}
    program = jax.jit(functools.partial(_reference.log_softmax, **request))
    # Around 2**-9 the two forms meet.
    rest = np.concatenate([np.geomspace(2.0**-14, 1, 200), np.geomspace(2.0**-9.5, 2.0**-8, 400)])
    once = np.log(rest[:, None] / (columns - 1)) * np.ones(columns)
    once = once.astype(jnp.dtype(dtype))
    once[:, 0] = 0
    twice = once.copy()
    twice[:, -1] = 0
    few_operations = forward_alone and columns != 520
    assert ("log_plus_one" in program.lower(once).as_text()) == (not few_operations)
    for x in (once, twice):
        assert_right("log_softmax", program(x), x, axis=1)


@pytest.mark.parametrize("columns", [1, 33, 64, 264, 1000, 5000])
@pytest.mark.parametrize("form", ["plain", "fused", "again", "in_one_kernel"])
def test_forms_of_the_derivative_by_xla(columns, form):
    """Each by what its neighbours are; rows that are mostly padding or short have others."""
    request = {"axis": 1, "dtype": jnp.dtype("float32")} | ({form: True} if form != "plain" else {})
    program = jax.jit(functools.partial(_reference.softmax_tangent, **request))
    y, t = operands("softmax_tangent", (40, columns), 1, jnp.dtype("float32"))
    sums = program.lower(y, t).as_text().count("stablehlo.reduce(")
    short = form == "fused" and columns in (64, 264)
    one_more = columns <= 4096 and (form in ("plain", "in_one_kernel") or short)
    assert sums == 1 + one_more
    assert_right("softmax_tangent", program(y, t), y, t, axis=1)


@each_pair
def test_a_logarithm_near_zero(dtype, output_dtype, implementation):
    """Of a sum that is one maximum, 0, and little else; and of one that cancels the maximum."""
    if implementation == "xla":
        pytest.skip("XLA's plain sum may lose some of them")
    skip_refused("logsumexp", dtype, implementation, output_dtype)
    axis = axis_of(implementation)
    distance, column = np.ogrid[1:81, :33]
    x = np.where(column == distance % 33, 0, -distance).astype(dtype)
    inputs = [
        [np.ascontiguousarray(np.moveaxis(a, 1, axis))]
        for a in (x, (x + np.log(1 / 33)).astype(dtype))
    ]
    for got, x in zip(
        run("logsumexp", inputs, [axis] * 2, implementation, output_dtype), inputs, strict=True
    ):
        assert_right("logsumexp", got, *x, axis=axis, context=implementation)


@pytest.mark.parametrize("dtype, output_dtype", [p for p in PAIRS if p[1].itemsize > 2], ids=str)
def test_the_terms_of_logsumexp(dtype, output_dtype, implementation):
    """The largest element, and what the rows' distance from 0 takes no digits from."""
    shapes, axes = zip(*problems("logsumexp", dtype, implementation, output_dtype), strict=True)
    inputs = [operands("logsumexp", *case, dtype) for case in zip(shapes, axes, strict=True)]
    wholes, parts = (
        run(op, inputs, axes, implementation, output_dtype)
        for op in ("logsumexp", "logsumexp_parts")
    )
    for whole, (largest, second), (x,), axis in zip(wholes, parts, inputs, axes, strict=True):
        assert largest.dtype == second.dtype == output_dtype
        # Of XLA's code these are two programs, which may add in another order.
        ulps = 2 if implementation == "xla" else 0
        np.testing.assert_array_max_ulp(largest + second, whole, maxulp=ulps)
        if x.shape[axis]:
            np.testing.assert_array_equal(largest, np.max(x, axis).astype(output_dtype))
            want = log_sum(wide(x), axis)
            lost = abs(wide(second) - want) / ulp(np.maximum(want, 1), output_dtype)
            assert np.max(lost, initial=0) <= 4, f"{x.shape} {axis}"


@each_pair
def test_a_log_softmax_near_zero(dtype, output_dtype, implementation):
    """Of a maximum that outweighs the rest, once or twice: no digits of the rest are lost."""
    skip_refused("log_softmax", dtype, implementation, output_dtype)
    axis = axis_of(implementation)
    distance, column = np.ogrid[1:81, :33]
    once = np.where(column == distance % 33, 0, -distance).astype(dtype)
    twice = np.where(column == 32, 0, once).astype(dtype)
    inputs = [[np.ascontiguousarray(np.moveaxis(a, 1, axis))] for a in (once, twice)]
    for got, x in zip(
        run("log_softmax", inputs, [axis] * 2, implementation, output_dtype), inputs, strict=True
    ):
        assert_right("log_softmax", got, *x, axis=axis, context=implementation)


@each_pair
def test_a_log_softmax_far_from_zero(dtype, output_dtype, implementation):
    """Of logits whose neighbours in their dtype may be far apart, one or several the largest."""
    skip_refused("log_softmax", dtype, implementation, output_dtype)
    axis = axis_of(implementation)
    info = jnp.finfo(dtype)
    largest = np.ldexp(1.0, np.arange(128) % (info.maxexp - 1))[:, None]
    inputs = [
        [np.moveaxis((largest * (1 - steps * float(info.eps))).astype(dtype), 1, axis)]
        for steps in (np.arange(33), np.arange(33) % 5)
    ]
    for got, x in zip(
        run("log_softmax", inputs, [axis] * 2, implementation, output_dtype), inputs, strict=True
    ):
        assert_right("log_softmax", got, *x, axis=axis, context=implementation)


@pytest.mark.parametrize("op", GRADIENT)
@each_dtype
def test_nan_in_a_cotangent_reaches_its_whole_row_only(op, dtype, implementation):
    skip_refused(op, dtype, implementation)
    axis = axis_of(implementation)
    y, t = operands(op, (16, 40), 1, dtype)
    t[3, 17] = np.nan
    y, t = (np.ascontiguousarray(np.moveaxis(a, 1, axis)) for a in (y, t))
    (got,) = run(op, [[y, t]], [axis], implementation)
    nan_rows = np.isnan(np.moveaxis(got, axis, 1))
    assert nan_rows[3].all() and nan_rows.sum() == 40


@each_op
@each_dtype
def test_same_bits_from_run_to_run(op, dtype, implementation):
    skip_refused(op, dtype, implementation)
    axis = axis_of(implementation)
    x = [np.moveaxis(a, 1, axis) for a in operands(op, (304, 199), 1, dtype)]
    first, second = (run(op, [x], [axis], implementation)[0].tobytes() for _ in range(2))
    assert first == second


@pytest.mark.parametrize("n", [1000, 65_537, 1_000_000])
def test_rows_sum_to_one(n, implementation):
    axis = axis_of(implementation)
    x = np.moveaxis(rows(6, n, np.float32), 1, axis)
    if not accepts("softmax", x.shape, x.dtype, axis, implementation):
        pytest.skip(f"{implementation} ends below rows of {n}")
    (got,) = run("softmax", [[x]], [axis], implementation)
    np.testing.assert_allclose(got.sum(axis, dtype=np.float64), 1, rtol=0, atol=5e-7)


@each_dtype
@pytest.mark.parametrize("n", [1, 7, 300, 5000, 70_000])
def test_the_only_finite_logit_of_a_row_gets_exactly_one(n, dtype, implementation):
    axis = axis_of(implementation)
    rng = np.random.default_rng(n)
    x = np.full((40, n), -np.inf)
    x[np.arange(40), rng.integers(n, size=40)] = rng.uniform(-200, 200, 40)
    operand = np.moveaxis(x.astype(dtype), 1, axis)
    if not accepts("softmax", operand.shape, dtype, axis, implementation):
        pytest.skip(f"{implementation} takes no rows of {n} in {dtype}")
    (got,) = run("softmax", [[operand]], [axis], implementation)
    want = np.isfinite(x).astype(np.float64)
    np.testing.assert_array_equal(np.moveaxis(got, axis, 1).astype(np.float64), want)


@pytest.mark.parametrize("shift", [-1024.0, 0.5, 4096.0])
def test_shifting_a_row_changes_its_last_digits_at_most(shift, implementation):
    axis = axis_of(implementation)
    # Multiples of 1/64 stay exact under these shifts.
    x = np.round(64 * np.random.default_rng(0).standard_normal((100, 100))) / 64
    x = x.astype(np.float32)
    plain, shifted = run("softmax", [[x], [x + shift]], [axis] * 2, implementation)
    np.testing.assert_array_max_ulp(plain, shifted, maxulp=2 * FLAT_ULPS)


@pytest.mark.parametrize("output_dtype", ["float32", "bfloat16"])
def test_rows_that_start_anywhere(output_dtype, implementation):
    """The operand is a part of a larger array, its rows on no vector's boundary."""
    skip_refused("softmax", "float32", implementation, np.dtype(output_dtype))
    shape = (23, 37) if axis_of(implementation) else (23, 37, 8)
    axis = 1
    whole = rows(int(np.prod(shape)) // 37, 37, np.float32).reshape(shape)

    @jax.jit
    def parts(x):
        params = {"axis": axis, "dtype": output_dtype, "implementation": implementation}
        return [bind("softmax", x[i:], **params) for i in range(5)]

    for i, got in enumerate(parts(whole)):
        assert_right("softmax", got, whole[i:], axis=axis, context=f"from row {i}")


@each_op
@each_pair
@pytest.mark.parametrize("n", [17, 199, 4099])
def test_a_rows_bits_do_not_depend_on_the_batch(op, dtype, output_dtype, n, backend):
    skip_refused(op, dtype, backend, output_dtype)
    whole = operands(op, (500, n), 1, dtype)
    inputs = [[x[:count] for x in whole] for count in (500, 1, 33)]
    want, *parts = run(op, inputs, [1] * 3, backend, output_dtype)
    for part in parts:
        assert part.tobytes() == want[: len(part)].tobytes()


@pytest.mark.gpu
@pytest.mark.parametrize("shape, axis", [((2**21 + 3, 1024), 1), ((3, 17, 2**27), 1)])
def test_more_than_two_to_the_31_elements(shape, axis):
    last = (-1, slice(None), *(-1,) * (len(shape) - 2))  # of all rows
    row = rows(1, shape[axis], jnp.bfloat16)

    @jax.jit
    def last_result(row):
        x = jnp.zeros(shape, jnp.bfloat16).at[last].set(row)
        return bind("softmax", x, axis=axis, implementation="cuda")[last]

    assert_right("softmax", last_result(row[0])[None], row, axis=1)
