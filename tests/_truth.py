"""What every op should return, in wider arithmetic, and how far from it a result may be."""

import dataclasses

import jax.numpy as jnp
import numpy as np


def wide(x) -> np.ndarray:
    """`x` in float64, or long double if it is float64 already."""
    x = np.asarray(x)
    return x.astype(np.longdouble if x.dtype == np.float64 else np.float64)


def _shifted(x, axis):
    top = np.max(x, axis, keepdims=True)
    # A row with NaN or +inf, or of only -inf, is NaN as a whole.
    return np.where(np.isfinite(top), x - top, np.nan)


def softmax(x, axis):
    e = np.exp(_shifted(x, axis))
    return e / np.sum(e, axis, keepdims=True)


def log_softmax(x, axis):
    d = _shifted(x, axis)
    return d - np.log1p(np.sum(_without_top(d, axis), axis, keepdims=True))


def _without_top(d, axis):
    """exp(d) with the row's first maximum left out."""
    e = np.exp(d)
    np.put_along_axis(e, np.argmax(d, axis, keepdims=True), 0, axis)
    return e


def logsumexp(x, axis):
    top = np.max(x, axis, initial=-np.inf)
    return np.where(np.isfinite(top), top + log_sum(x, axis), top)


def log_sum(x, axis):
    """log(sum(exp(x - max))); NaN where the maximum is not finite."""
    if x.shape[axis] == 0:
        return np.full(np.delete(x.shape, axis), np.nan)
    return np.log1p(np.sum(_without_top(_shifted(x, axis), axis), axis))


def softmax_tangent(y, t, axis):
    return y * (t - np.sum(y * t, axis, keepdims=True))


def log_softmax_tangent(y, t, axis):
    return t - np.sum(np.exp(y) * t, axis, keepdims=True)


def log_softmax_cotangent(y, g, axis):
    return g - np.exp(y) * np.sum(g, axis, keepdims=True)


TRUTH = {
    f.__name__: f
    for f in (
        softmax,
        log_softmax,
        softmax_tangent,
        log_softmax_tangent,
        log_softmax_cotangent,
        logsumexp,
    )
}
FORWARD = ("softmax", "log_softmax")
PER_ROW = ("logsumexp",)  # one value for each row: the result lacks the axis
GRADIENT = ("softmax_tangent", "log_softmax_tangent", "log_softmax_cotangent")
# Whose result a gradient op takes as its first operand.
RESIDUAL = {op: "softmax" if op.startswith("softmax") else "log_softmax" for op in GRADIENT}
# What a pull-back runs.
BACKWARD = {"softmax": "softmax_tangent", "log_softmax": "log_softmax_cotangent"}
DTYPES = tuple(map(jnp.dtype, ("float32", "float64", "float16", "bfloat16")))
# Those of the operands and of the result, where they differ.
CONVERSIONS = tuple(
    (jnp.dtype(a), jnp.dtype(b))
    for a, b in (
        ("float32", "float16"),
        ("float32", "bfloat16"),
        ("float16", "float32"),
        ("bfloat16", "float32"),
    )
)
PAIRS = (*((d, d) for d in DTYPES), *CONVERSIONS)


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """How far a result may be from the truth."""

    ulps: float  # of the result
    ulps_per_distance: float  # of the result, per unit of |x - max|: rounding it costs that much
    eps: float  # of the gradient ops' compute dtype, ...
    eps_count: float = 8  # ... so many of them, of the sum of |terms| behind each element


EPS32, EPS64 = 2.0**-23, 2.0**-52
TOLERANCES = {
    jnp.dtype("float32"): Tolerance(ulps=6, ulps_per_distance=1, eps=EPS32),
    jnp.dtype("float64"): Tolerance(ulps=6, ulps_per_distance=1, eps=EPS64),
    jnp.dtype("float16"): Tolerance(ulps=1, ulps_per_distance=0, eps=EPS32),
    jnp.dtype("bfloat16"): Tolerance(ulps=1, ulps_per_distance=0, eps=EPS32),
}


FLAT_ULPS = 6  # of float32 and float64 results that do not lose what rounding |x - max| costs


def assert_right(op: str, got, *operands, axis: int, flat: float | None = None, context="") -> None:
    """`got` is `op(*operands)` within the tolerance of its dtype and `flat` ULP, if any."""
    got = np.asarray(got)
    operands = [wide(x) for x in operands]
    with np.errstate(all="ignore"):
        want = TRUTH[op](*operands, axis)
        allowed = _allowed(op, want, operands, axis, got.dtype, flat)
        _assert_within(got, want, allowed, f"{op} {got.dtype}{got.shape} axis={axis} {context}")


def _allowed(op, want, operands, axis, dtype, flat):
    tolerance = TOLERANCES[dtype]
    if op in GRADIENT:
        # The result's own rounding (of a subnormal one too), and a few roundings of every term
        # behind it, in which a probability below the smallest normal number counts as 0.
        rounding = 1 if dtype.itemsize == 2 else 0
        smallest = float(jnp.finfo(dtype).smallest_subnormal)
        underflow = float(np.finfo(np.float32 if dtype.itemsize < 8 else np.float64).tiny)
        lost = underflow * np.sum(abs(operands[1]), axis, keepdims=True)
        scale = _terms(op, *operands, axis)
        eps = tolerance.eps_count * tolerance.eps
        return rounding * ulp(want, dtype) + smallest + lost + eps * scale
    if op in PER_ROW:
        # A maximum plus a logarithm: where they cancel, the larger one's digits are what is left;
        # and the logarithm is one of a number of at least 1.
        compute = np.dtype(np.float32 if dtype.itemsize < 8 else np.float64)
        largest = np.maximum(np.maximum(abs(want), log_sum(operands[0], axis)), 1)
        lost = 4 * ulp(largest, compute)
        return lost if dtype == compute else ulp(want, dtype) + lost
    ulps = tolerance.ulps
    if tolerance.ulps_per_distance and (op == "softmax" or flat is None):
        ulps = ulps + tolerance.ulps_per_distance * _distance(op, operands[0], axis)
    if flat is not None:
        ulps = np.minimum(ulps, flat)
    return ulps * ulp(want, dtype)


def _terms(op, y, t, axis):
    """The sum of the absolute values of the terms that make up each element."""
    if op == "softmax_tangent":
        return y * (abs(t) + np.sum(y * abs(t), axis, keepdims=True))
    if op == "log_softmax_tangent":
        return abs(t) + np.sum(np.exp(y) * abs(t), axis, keepdims=True)
    return abs(t) + np.exp(y) * np.sum(abs(t), axis, keepdims=True)


def _distance(op, x, axis):
    """|x - max|; for a logarithm, that of the row's other elements, by their weight in its sum."""
    d = _shifted(x, axis)
    if op == "softmax":
        return np.minimum(-d, 1e3)  # exp underflows in every dtype long before
    e = _without_top(d, axis)
    weighted = np.sum(np.where(e > 0, -d * e, 0), axis, keepdims=True)
    return weighted / np.maximum(np.sum(e, axis, keepdims=True), np.finfo(e.dtype).tiny)


def ulp(value, dtype):
    """The distance between neighbours of `dtype` at `value`."""
    info = jnp.finfo(dtype)
    smallest = np.frexp(float(info.tiny))[1]
    exponent = np.frexp(value)[1]
    exponent = np.where(np.isfinite(value) & (value != 0), exponent, smallest)
    return np.ldexp(value.dtype.type(info.eps), np.maximum(exponent, smallest) - 1)


def _assert_within(got, want, allowed, context):
    assert got.shape == want.shape, context
    rounded = want.astype(got.dtype).astype(want.dtype)  # past the largest number: an infinity
    error = abs(got.astype(want.dtype) - want)
    flushed = (got == 0) & (abs(want) < float(jnp.finfo(got.dtype).tiny))
    fine = np.where(
        np.isfinite(rounded),
        (error <= allowed) | flushed,
        (got == rounded) | (np.isnan(got) & np.isnan(rounded)),
    )
    if not fine.all():
        where = np.unravel_index(np.argmin(fine), fine.shape)
        ulps = error[where] / ulp(want, got.dtype)[where]
        bound = np.broadcast_to(allowed, want.shape)[where] / ulp(want, got.dtype)[where]
        raise AssertionError(
            f"{context}: {np.sum(~fine)} of {fine.size} wrong; at {where} got {got[where]}, "
            f"want {want[where]}: {ulps:.3g} ulp, {bound:.3g} allowed"
        )
