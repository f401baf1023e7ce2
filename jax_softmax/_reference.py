"""What each op computes, in plain JAX: the default lowering, and what the kernels are held to.

Every function reduces along `axis`; its operands and its result have one shape, or, `logsumexp`
and its derivatives alone, that of the rows, which lacks `axis`. The result has `dtype`, the
operands may each have another; the widest of them all is computed in, or float32.
"""

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp

# The most columns of which XLA:GPU makes a single kernel, whatever is fused into it.
ONE_KERNEL = 2**12
# The same of softmax or its derivative alone, and conversions.
ONE_KERNEL_ALONE = 2**14
# How much of a power of two rows fill of which log-softmax to bfloat16 by fewer operations is one
# kernel (compiled for an H200, 34 to 2,056 columns of less are five by jax 0.10.2, and 516 to 2,200
# by 0.11.2 if what reads them multiplies).
LEAST_FILLED = 0.6
# The most columns that `logsumexp` takes one by one.
FEW_COLUMNS = 4
# The most columns whose log-softmax along another axis than the last sums pairs: 16,668 take 0.9 of
# the time of two sums, 100,167 1.4 times that.
LONGEST_OF_PAIRS = 2**15
# The most columns, whole vectors, whose softmax's derivative XLA:GPU is faster with where it fuses
# it with what makes its tangent and rows are brought to a sum of 1 (h200-graph-sums.json).
LONGEST_OF_SUM_1 = 2**7
# The fewest columns along another axis of which softmax's derivative takes two sums at a time: of
# [200, 21, 4096] in float32 these took 128 us in place of 54, of [100, 40, 4096], back in 16 bits,
# 54 in place of 45, though of others less (benchmarks/results/h200-mixed-parts.json).
FEWEST_OF_PARTS = 128


def filled(columns: int) -> float:
    """How much rows fill of the power of two that XLA:GPU pads them to in a kernel of its own."""
    return columns / 2 ** (columns - 1).bit_length()


def compute_dtype(*dtypes: Any) -> Any:
    """The widest of `dtypes`, which are all real or all complex, and at least float32."""
    float32 = jnp.dtype("float32")
    return max((float32 if d.itemsize < 4 else d for d in dtypes), key=lambda d: d.itemsize)


def dtype_of_rows(dtype: Any, output_dtype: Any) -> Any:
    """What kernels give one value for each row in, which what reads it rounds to another dtype."""
    return dtype if dtype == output_dtype else compute_dtype(dtype, output_dtype)


def is_static(shape: Iterable[Any]) -> bool:
    """Whether no dimension is symbolic."""
    return all(isinstance(d, int) for d in shape)


def is_sharded(x: Any, axis: int) -> bool:
    """Whether an explicit mesh shards that axis of the abstract value."""
    names = x.sharding.spec[axis]
    names = (names,) if isinstance(names, str) else names or ()
    return math.prod(x.sharding.mesh.shape[name] for name in names) > 1


def as_stored(x: jax.Array) -> jax.Array:
    """16 bits as kernels read them, for plain JAX that goes with what these computed.

    XLA may drop the rounding of what it computes `x` from: of 2,048 logits `x * 1.7 + b` in
    bfloat16, a loss of probabilities was -0.5 so, as its logsumexp was that of the rounded ones.
    """
    return _in_memory(x) if x.dtype.itemsize == 2 else x


@jax.custom_jvp
def _in_memory(x: jax.Array) -> jax.Array:
    return jax.lax.optimization_barrier(x)


@_in_memory.defjvp
def _in_memory_jvp(primals: tuple[jax.Array], tangents: tuple[Any]) -> tuple[jax.Array, Any]:
    return _in_memory(*primals), tangents[0]


def kept(where: jax.Array | None, x: jax.Array) -> jax.Array:
    """0 where it is masked: NaN there would reach derivatives of what it is multiplied with."""
    return x if where is None else jnp.where(where, x, 0)


def _in_compute_dtype(f: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    @functools.wraps(f)
    def wrapped(*operands: jax.Array, axis: int, dtype: Any, **parameters: Any) -> jax.Array:
        wide = compute_dtype(dtype, *(x.dtype for x in operands))
        return f(*(x.astype(wide) for x in operands), axis=axis, **parameters).astype(dtype)

    return wrapped


def _shifted(x: jax.Array, axis: int) -> jax.Array:
    """`x - max(x)`, rounded: that costs up to |x - max| units in the last place of the exponential.

    The kernels put the rounding error back. In XLA:GPU's fused kernel that is 8 instructions an
    element more, on 23 (float32, 512 columns), and with a reduction after it those are its time.
    """
    return x - jnp.max(x, axis, keepdims=True, initial=-jnp.inf)


def softmax(x: jax.Array, *, axis: int, dtype: Any) -> jax.Array:
    """Divides as jax.nn does, and has its kernels then, but where reciprocals are faster.

    After a product with 0.125 these took 86 us in place of 65 (524,288 rows of 64 float32 columns);
    for 16 bits they save up to 3 % in geometric mean over all neighbours (benchmarks/graph.py,
    H200, 2026-11).
    """
    e = jnp.exp(_shifted(x.astype(compute_dtype(dtype, x.dtype)), axis))
    total = jnp.sum(e, axis, keepdims=True)
    return (e * (1 / total) if x.dtype.itemsize == 2 else e / total).astype(dtype)


def _log_of_sum(
    d: jax.Array, e: jax.Array, axis: int, *, narrow: bool, in_pairs: bool
) -> jax.Array:
    """The logarithm of the sum of `e`, which is `exp(d)` and whose largest is 1.

    Ones have a sum of their own: where one term outweighs the rest, the logarithm keeps its digits.
    What counts as one is what XLA:GPU is faster with. In 16 bits the maxima: of both passes, with a
    sum of squares between them, it makes three kernels in place of six. In float32 what rounds to
    one, by up to 3 % in geometric mean over all neighbours, but in small arrays
    (benchmarks/results/h200-graph-log.json).

    XLA:GPU reduces side by side what does not depend on each other: a reduction more on the sum of
    all took 1.7 times as long (after a bias, 512 bf16 columns, H200, 2026-11). Along another axis
    that is as slow: with `in_pairs`, for an axis that no devices share, both are one sum of complex
    numbers then. That takes 0.6 to 1.0 of the time, of very long rows more
    (benchmarks/results/h200-log-forms.json); those of float64 XLA:GPU would write to memory.
    """
    if narrow and is_one_kernel(e, axis):
        # So maxima are counted with the fewest operations. It makes several kernels where padding
        # to a power of two would cost too many: of 136 bf16 columns 67 us, not 116, of others the
        # same (benchmarks/results/h200-log-counts.json).
        rest = jnp.sum(jnp.where(d == 0, 0, e), axis, keepdims=True)
        count = jnp.round(jnp.sum(e, axis, keepdims=True) - rest)
        return jnp.log1p(rest + (count - 1))
    ones = (d == 0).astype(e.dtype) if narrow else jnp.round(e)
    rest, columns = e - ones, e.shape[axis]
    short = isinstance(columns, int) and columns <= LONGEST_OF_PAIRS
    if in_pairs and short and e.dtype == jnp.float32 and not is_last(e, axis):
        pairs = jnp.sum(jax.lax.complex(rest, ones), axis, keepdims=True)
        return jnp.log1p(pairs.real + (pairs.imag - 1))
    count = jnp.sum(ones, axis, keepdims=True)
    return jnp.log1p(jnp.sum(rest, axis, keepdims=True) + (count - 1))


def _log_of_sum_in_bfloat16(e: jax.Array, axis: int) -> jax.Array:
    """The same of few digits, by fewer operations: a maximum's `e - e**2` is 0.

    Where the terms beside one that is 1 are small, their sum is that of these to half of its
    square. Where they are not, the logarithm of the sum of all has the digits, if few are added one
    after the other: each addition may cost 1/256 ULP of the result. Threads of XLA:GPU's kernel
    for rows along the last axis add 32 or so; what sums along another may add 255 by one.
    """
    rest, total = (jnp.sum(terms, axis, keepdims=True) for terms in (e - e * e, e))
    return jnp.where(total < 1 + 2**-9, rest, jnp.log(total))


def is_last(x: jax.Array, axis: int) -> bool:
    return all(d == 1 for d in x.shape[axis + 1 :])


def log_softmax(
    x: jax.Array,
    *,
    axis: int,
    dtype: Any,
    in_pairs: bool = False,
    forward_alone: bool = False,
    narrowed: bool = False,
) -> jax.Array:
    """With `forward_alone`, which no derivative reads, to bfloat16 by fewer operations.

    That took 0.94 of the time in geometric mean over 20 lengths and six kinds of neighbours
    (benchmarks/results/h200-log-forms-bfloat16.json); where the derivative reads it, too, up to
    twice, and XLA:GPU makes five kernels of long rows that would mostly be padding if what reads
    them multiplies. With `narrowed`, what is wider is rounded to 16 bits just before: of rows that
    are mostly padding XLA:GPU makes five kernels then if maxima are counted as in memory, and one
    with what rounds to one.
    """
    columns, d = x.shape[axis], _shifted(x.astype(compute_dtype(dtype, x.dtype)), axis)
    e = jnp.exp(d)
    if jnp.iscomplexobj(x):
        return (d - jnp.log(jnp.sum(e, axis, keepdims=True))).astype(dtype)
    one_kernel = is_one_kernel(e, axis)
    if forward_alone and dtype == jnp.bfloat16 and one_kernel and filled(columns) >= LEAST_FILLED:
        log_of_sum = _log_of_sum_in_bfloat16(e, axis)
    else:
        narrow = _are_narrow(x.dtype, dtype) and not (narrowed and one_kernel)
        log_of_sum = _log_of_sum(d, e, axis, narrow=narrow, in_pairs=in_pairs)
    return (d - log_of_sum).astype(dtype)


def is_one_kernel(x: jax.Array, axis: int, most: int = ONE_KERNEL) -> bool:
    """Whether XLA:GPU makes one kernel of a reduction of `x` and what depends on it."""
    columns = x.shape[axis]
    return isinstance(columns, int) and columns <= most and is_last(x, axis)


def _are_narrow(*dtypes: Any) -> bool:
    return all(jnp.dtype(d).itemsize == 2 for d in dtypes)


def row_pairs(
    x: jax.Array, *, log_sums: bool, scale: float, values: int = 2
) -> tuple[jax.Array, ...]:
    """Of `scale * x`, in rows along the last axis: the maxima, and `1 / sum(exp(. - max))`.

    With `log_sums` not these, of which softmax is made, but the sums' logarithms, for log-softmax;
    or these three `values`. In float32.
    """
    x = x.astype(jnp.float32) if scale == 1 else scale * x.astype(jnp.float32)
    d = _shifted(x, -1)
    e = jnp.exp(d)
    of_rows = [jnp.max(x, -1, initial=-jnp.inf)]
    if log_sums:
        of_rows.append(jnp.squeeze(_log_of_sum(d, e, -1, narrow=False, in_pairs=False), -1))
    if len(of_rows) < values:
        of_rows.append(1 / jnp.sum(e, -1))
    return tuple(of_rows)


def logsumexp(x: jax.Array, *, axis: int, dtype: Any, one_by_one: bool = False) -> jax.Array:
    wide = compute_dtype(x.dtype, dtype)
    largest, log_sum = logsumexp_parts(x, axis=axis, dtype=wide, one_by_one=one_by_one)
    return (largest + log_sum).astype(dtype)


def logsumexp_parts(
    x: jax.Array, *, axis: int, dtype: Any, one_by_one: bool = False
) -> tuple[jax.Array, jax.Array]:
    """The largest elements, which are clipped to what is finite, and the logarithms of the sums.

    Of a row of only -inf, or without columns, the first is any finite number (0 by kernels).

    Written so that XLA:GPU makes as few kernels of it as it can, one for a few columns.

    With `one_by_one`, for an axis that no devices share, these are no reductions, which would be
    kernels of their own: 125,595 rows of 4 columns take 1.7 us in place of 4.2, [8000, 2, 1024] in
    float32 25 in place of 56. What is subtracted is clipped: where 0 is chosen for what is not
    finite, [192, 4096, 5] in float16 takes 21 us, not 9, and other shapes 0.98 to 1.03 times as
    long (H200, 2026-11: benchmarks/results/h200-few-columns.json).
    """
    x = x.astype(dtype)
    columns, largest = x.shape[axis], jnp.finfo(dtype).max
    if one_by_one and isinstance(columns, int) and 0 < columns <= FEW_COLUMNS:
        each = [jax.lax.index_in_dim(x, i, axis) for i in range(columns)]
        # Where it is infinite, the sum is, or is 0.
        shift = jnp.clip(functools.reduce(jnp.maximum, each), -largest, largest)
        total = functools.reduce(jnp.add, [jnp.exp(column - shift) for column in each])
    else:
        shift = jnp.clip(jnp.max(x, axis, keepdims=True, initial=-jnp.inf), -largest, largest)
        total = jnp.sum(jnp.exp(x - shift), axis, keepdims=True)
    return jnp.squeeze(shift, axis), jnp.squeeze(jnp.log(total), axis)


def softmax_tangent(
    y: jax.Array,
    t: jax.Array,
    x: jax.Array | None = None,
    mask: jax.Array | None = None,
    *,
    axis: int,
    dtype: Any,
    scale: float = 1.0,
    zeros_are_masked: bool = False,
    in_one_kernel: bool = False,
    fused: bool = False,
    again: bool = False,
    anew: tuple[jax.Array, ...] = (),
) -> jax.Array:
    """With `zeros_are_masked`, what `t` holds where `y` is 0 is not looked at.

    With `x`, of which `y` is the softmax, 0 where it is masked: `y` is not read, but made anew.
    XLA:GPU would store its exponentials in float32 where `x` was 16 bits and all that is wanted of
    `y` is: with the value [524288, 64] takes 86 us, not 170, jax.nn's 112, [32768, 1024] 92, not
    209, jax.nn's 210 (benchmarks/results/h200-mixed-softmax.json).

    Short rows of float32 are brought to a sum of 1, which they have but for rounding: of a row, a
    reduction of it and their quotient XLA:GPU makes one kernel, and then of all else. With the
    forward pass 197 us in place of 224 (65,536 rows of 512 columns; H200, 2026-11). Where that is
    `fused` with what makes the tangent, and nothing else reads it, XLA:GPU makes no more kernels
    without, which take 0.93 of the time in geometric mean over 80 graphs, but for some whole
    vectors (h200-graph-sums.json, without casts both ways). It has tiles of fewer rows then if a
    sum is not subtracted, but its negative added: with a product by element behind, and no bias
    before it, powers of two up to 2,048 take 0.80 to 0.85 of the time (h200-graph-negated.json).
    Whole vectors that are mostly padding have a sum of 1 and subtract; what is read `again`, as a
    kernel wrote it, just subtracts. So does what is made `anew`: see `made_anew`.

    With `in_one_kernel`, of what a kernel stored, it is one as 0 times the sum is added, which no
    digit of 16 bits is changed by. With the forward pass, after a scale, 664 and 2,048 bfloat16
    columns take 93 and 91 us in place of 120 and 117, 512 and 1,024 the same; where XLA makes the
    tangent of the result, up to 1.5 times as long (benchmarks/results/h200-graph-stored.json).
    """
    if x is not None:
        y = kept(mask, softmax(made_anew(x), axis=axis, dtype=y.dtype))
    if zeros_are_masked:
        t = jnp.where(y == 0, 0, t)
    if anew:
        again_y, again_t = anew
        anew = again_y, (jnp.where(again_y == 0, 0, again_t) if zeros_are_masked else again_t)
        return _tangent_of_any_sum(y, t, *anew, axis=axis, dtype=dtype, scale=scale)
    if x is not None or zeros_are_masked:
        return _tangent_of_any_sum(y, t, axis=axis, dtype=dtype, scale=scale)
    one_device = not is_sharded(jax.typeof(y), axis)  # a sum more is one more that devices exchange
    tangent, request = _tangent_of_any_sum, {"axis": axis, "dtype": dtype, "scale": scale}
    if is_one_kernel(y, axis) and one_device and not again:
        columns, whole = y.shape[axis], y.shape[axis] % 4 == 0
        padded = whole and filled(columns) < LEAST_FILLED
        if in_one_kernel:
            tangent = _tangent_in_one_kernel
        elif y.dtype == jnp.float32:
            request["negated"] = fused and not padded
            if not fused or padded or (whole and columns <= LONGEST_OF_SUM_1):
                tangent = _tangent_of_sum_1
    return tangent(y, t, **request)


@_in_compute_dtype
def _tangent_of_any_sum(
    y: jax.Array, t: jax.Array, *anew: jax.Array, axis: int, scale: float, negated: bool = False
) -> jax.Array:
    mean = jnp.sum(y * t, axis, keepdims=True)
    y, t = anew or (y, t)
    d = y * (t + -mean if negated else t - mean)
    return d if scale == 1 else scale * d


@_in_compute_dtype
def _tangent_of_sum_1(y: jax.Array, t: jax.Array, *, axis: int, **request: Any) -> jax.Array:
    y = y * (1 / jnp.sum(y, axis, keepdims=True))
    return _tangent_of_any_sum(y, t, axis=axis, dtype=y.dtype, **request)


@_in_compute_dtype
def _tangent_in_one_kernel(y: jax.Array, t: jax.Array, *, axis: int, scale: float) -> jax.Array:
    y = y + 0 * jnp.sum(y, axis, keepdims=True)
    return _tangent_of_any_sum(y, t, axis=axis, dtype=y.dtype, scale=scale)


@_in_compute_dtype
def tangent_of_parts(
    y: jax.Array,
    t: jax.Array,
    e: jax.Array,
    total: jax.Array,
    *,
    axis: int,
) -> jax.Array:
    """Softmax's, of the exponentials and the rows' sums of them that `y` is the quotient of.

    `y` is not read, so that XLA:GPU does not store it, or its exponentials, while it reduces, and
    both sums are one pass: in float32 made of 16 bits, with the value, [128, 256, 2048] takes
    352 us in place of 494, with a cast behind 233 in place of 275 and [16, 256, 2048] 32 in place
    of 67 (benchmarks/results/h200-mixed-parts.json). A sum of `e * t` is as many times larger than
    one of `y * t` as `total` is, and so much earlier infinite.
    """
    del y
    factor = 1 / jnp.expand_dims(total, axis)
    mean = jnp.sum(e * t, axis, keepdims=True) * factor
    return e * (factor * (t - mean))


def log_softmax_tangent(
    y: jax.Array, t: jax.Array, x: jax.Array | None = None, **request: Any
) -> jax.Array:
    """With `x`, of which `y` is the log-softmax: see `log_softmax_cotangent`."""
    return _at_result_or_logits(_tangent_at_result, _tangent_at_logits, y, t, x, **request)


def log_softmax_cotangent(
    y: jax.Array, g: jax.Array, x: jax.Array | None = None, **request: Any
) -> jax.Array:
    """With `x`, of which `y` is the log-softmax, as the cotangent at `x`, or at `y`.

    XLA:GPU makes one kernel of that and its neighbours, as of jax.nn's, where `exp(y)` alone takes
    two. With the forward pass 159 us in place of 196 (524,288 rows of 64 float32 columns), with a
    sum of squares after it 147 in place of 208 (H200, 2026-11).

    With `stored=False` the forward pass is XLA's and of what was 16 bits, half of what `y` has:
    `y` is not read, but made anew (benchmarks/results/h200-mixed-log.json).
    """
    return _at_result_or_logits(_cotangent_at_result, _cotangent_at_logits, y, g, x, **request)


def _at_result_or_logits(
    at_result: Callable[..., jax.Array],
    at_logits: Callable[..., jax.Array],
    y: jax.Array,
    t: jax.Array,
    x: jax.Array | None,
    *,
    axis: int,
    dtype: Any,
    stored: bool = True,
    anew: tuple[jax.Array, ...] = (),
) -> jax.Array:
    if x is None:
        return at_result(_from_memory(y) if stored else y, t, *anew, axis=axis, dtype=dtype)
    softmax = not stored or _wants_softmax(x, y, axis)
    return at_logits(_logits(x, y, axis, stored), t, axis=axis, dtype=dtype, softmax=softmax)


def _logits(x: jax.Array, y: jax.Array, axis: int, stored: bool) -> jax.Array:
    """`x`, of which `y` is the log-softmax.

    Where both have 16 bits, in float32 and negated twice, which XLA does not undo across a
    conversion: seeing the forward pass's exponentials, it would store them in float32 for both if a
    sum of squares follows, 263 us in place of 158 (65,536 rows of 512 bf16 columns). From the
    stored `y` that takes 139, and 109 in place of 154 after a bias, but 169 in place of 121 with a
    cast after log-softmax, as `y` is then stored and read once more; in geometric mean up to 10 %
    more of up to 256 columns, and 1 % less of longer rows (benchmarks/results/h200-graph-log.json).
    The float32 of mixed precision is clamped to all that there is, for the same reason: of 192
    columns, which stored float32 exponentials, both passes take 90 us, not 167, of 104 columns 100,
    not 83, and of powers of two the same (benchmarks/results/h200-mixed-log-rows.json).

    Devices that share rows have exchanged maximum and sum already.
    """
    if is_sharded(jax.typeof(x), axis):
        return x
    if not stored:
        return made_anew(x)
    return -((-x).astype("float32")) if _are_narrow(x.dtype, y.dtype) else x


def made_anew(x: jax.Array) -> jax.Array:
    """`x`, which XLA does not know to be that: what is computed of it is not what was before.

    What a derivative is made of, element by element, XLA:GPU would store in float32 where it makes
    exponentials of it, as it reads them for a sum of each row and once more after that.
    """
    infinity = jnp.asarray(jnp.inf, x.dtype)
    return jax.lax.clamp(-infinity, x, infinity)


def unchanged(y: jax.Array, *, op: str) -> jax.Array:
    """`y`, by the last operation of `op` in plain JAX, which can be made to read something else.

    Of what a kernel wrote, where XLA's code makes the result: see `_operations.make_like`.
    """
    if y.dtype.itemsize == 2:
        return y.astype("float32").astype(y.dtype)
    return y / jnp.ones((), y.dtype) if op == "softmax" else y - jnp.zeros((), y.dtype)


def _from_memory(y: jax.Array) -> jax.Array:
    """A large residual as it was stored. XLA would make it anew of what made it.

    The gradient of log-softmax with its forward pass took 252 us so, and takes 110 (65,536 rows of
    512 bf16 columns, H200, 2026-11). Small arrays are faster in fewer kernels.
    """
    return y if _is_small(y) else jax.lax.optimization_barrier(y)


def _is_small(y: jax.Array) -> bool:
    return all(isinstance(d, int) for d in y.shape) and y.size <= 2**17


@_in_compute_dtype
def _tangent_at_result(y: jax.Array, t: jax.Array, *anew: jax.Array, axis: int) -> jax.Array:
    total = jnp.sum(jnp.exp(y) * t, axis, keepdims=True)
    y, t = anew or (y, t)
    return t - total


def _wants_softmax(x: jax.Array, y: jax.Array, axis: int) -> bool:
    """Whether the derivative at logits is of their softmax, or has a quotient for each row.

    The quotient is of two reductions, for rows alone: XLA:GPU makes up to eight kernels of both
    passes then, not two, where padding costs too much. 664 bf16 columns take 228 us so and 126 with
    softmax, other lengths of 16 bits 0.95 to 1.02 times as long; 512 float32 columns take 174 us
    with a quotient and 217 with softmax, in larger tiles (33 million elements, H200, 2026-11).
    """
    columns = x.shape[axis]
    padded = isinstance(columns, int) and columns > 0 and filled(columns) < 0.65
    return _are_narrow(x.dtype, y.dtype) or padded


@_in_compute_dtype
def _tangent_at_logits(x: jax.Array, t: jax.Array, *, axis: int, softmax: bool) -> jax.Array:
    e = jnp.exp(_shifted(x, axis))
    total = jnp.sum(e, axis, keepdims=True)
    if softmax:
        return t - jnp.sum(e * (1 / total) * t, axis, keepdims=True)
    return t - jnp.sum(e * t, axis, keepdims=True) / total


@_in_compute_dtype
def _cotangent_at_result(y: jax.Array, g: jax.Array, *anew: jax.Array, axis: int) -> jax.Array:
    total = jnp.sum(g, axis, keepdims=True)
    y, g = anew or (y, g)
    return g - jnp.exp(y) * total


@_in_compute_dtype
def _cotangent_at_logits(x: jax.Array, g: jax.Array, *, axis: int, softmax: bool) -> jax.Array:
    e = jnp.exp(_shifted(x, axis))
    total, of_row = jnp.sum(e, axis, keepdims=True), jnp.sum(g, axis, keepdims=True)
    return g - (e * (1 / total) * of_row if softmax else e * (of_row / total))


@_in_compute_dtype
def logsumexp_tangent(
    x: jax.Array, largest: jax.Array, log_sum: jax.Array, t: jax.Array, *, axis: int
) -> jax.Array:
    return jnp.sum(softmax_of_parts(x, largest, log_sum, axis) * t, axis)


def softmax_of_parts(x: jax.Array, largest: jax.Array, log_sum: jax.Array, axis: int) -> jax.Array:
    """The softmax of `x` along `axis`, by logsumexp's terms."""
    return jnp.exp(x - jnp.expand_dims(largest, axis) - jnp.expand_dims(log_sum, axis))


def cross_entropy_gradient(
    x: jax.Array,
    shift: jax.Array,
    factor: jax.Array,
    everywhere: jax.Array,
    at_label: jax.Array,
    labels: jax.Array,
    *,
    axis: int,
    dtype: Any,
) -> jax.Array:
    """`exp(x - shift) * factor + everywhere`, and `at_label` more in the label's column.

    All but `x` have a value for each row. A label of `NO_GRADIENT` makes the whole row 0, another
    one out of range counts nowhere.
    """
    wide = shift.dtype
    labels, shift, factor, everywhere, at_label = (
        jnp.expand_dims(v, axis) for v in (labels, shift, factor, everywhere, at_label)
    )
    d = jnp.exp(x.astype(wide) - shift) * factor + everywhere
    d = d + jnp.where(columns(x, axis, labels.dtype) == labels, at_label, 0)
    return jnp.where(labels == NO_GRADIENT, 0, d).astype(dtype)


NO_GRADIENT = -(2**31)


def columns(x: jax.Array, axis: int, dtype: Any) -> jax.Array:
    """The index along `axis`, to be broadcast against `x`."""
    n = x.shape[axis]
    return jnp.arange(n, dtype=dtype).reshape(*[1] * axis, n, *[1] * (x.ndim - axis - 1))


@_in_compute_dtype
def logsumexp_cotangent(
    x: jax.Array, largest: jax.Array, log_sum: jax.Array, g: jax.Array, *, axis: int
) -> jax.Array:
    return softmax_of_parts(x, largest, log_sum, axis) * jnp.expand_dims(g, axis)
