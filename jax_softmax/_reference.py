"""What each op computes, in plain JAX: the default lowering, and what the kernels are held to.

Every function reduces along `axis`; its operands and its result have one shape, or, `logsumexp`
and its derivatives alone, that of the rows, which lacks `axis`. The result has `dtype`, the
operands may each have another; the widest of them all is computed in, or float32.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def compute_dtype(*dtypes: Any) -> Any:
    """The widest of `dtypes`, which are all real or all complex, and at least float32."""
    float32 = jnp.dtype("float32")
    return max((float32 if d.itemsize < 4 else d for d in dtypes), key=lambda d: d.itemsize)


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


@_in_compute_dtype
def softmax(x: jax.Array, *, axis: int) -> jax.Array:
    e = jnp.exp(_shifted(x, axis))
    return e * (1 / jnp.sum(e, axis, keepdims=True))


def _log_of_sum(e: jax.Array, axis: int) -> jax.Array:
    """The logarithm of the sum of `e`, whose largest is 1.

    Ones have a sum of their own: where one term outweighs the rest, the logarithm keeps its digits.
    XLA:GPU reduces side by side what does not depend on each other: a reduction more on the sum of
    all took 1.7 times as long (after a bias, 512 bf16 columns, H200, 2026-11).
    """
    ones = jnp.round(e)
    count = jnp.sum(ones, axis, keepdims=True)
    return jnp.log1p(jnp.sum(e - ones, axis, keepdims=True) + (count - 1))


@_in_compute_dtype
def log_softmax(x: jax.Array, *, axis: int) -> jax.Array:
    d = _shifted(x, axis)
    e = jnp.exp(d)
    if jnp.iscomplexobj(x):
        return d - jnp.log(jnp.sum(e, axis, keepdims=True))
    return d - _log_of_sum(e, axis)


@_in_compute_dtype
def logsumexp(x: jax.Array, *, axis: int) -> jax.Array:
    """Written so that XLA:GPU makes as few kernels of it as it can, one for a few columns."""
    top = jnp.max(x, axis, initial=-jnp.inf)
    # Where it is infinite, the sum is, or is 0.
    shift = jnp.where(jnp.isfinite(top), top, 0)
    return shift + jnp.log(jnp.sum(jnp.exp(x - jnp.expand_dims(shift, axis)), axis))


@_in_compute_dtype
def softmax_tangent(
    y: jax.Array,
    t: jax.Array,
    *,
    axis: int,
    scale: float = 1.0,
    zeros_are_masked: bool = False,
) -> jax.Array:
    """With `zeros_are_masked`, what `t` holds where `y` is 0 is not looked at."""
    if zeros_are_masked:
        t = jnp.where(y == 0, 0, t)
    d = y * (t - jnp.sum(y * t, axis, keepdims=True))
    return d if scale == 1 else scale * d


def _from_memory(f: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """Lets `f` read a large residual as it was stored. XLA would make it anew of what made it.

    The gradient of log-softmax with its forward pass took 252 us so, and takes 110 (65,536 rows of
    512 bf16 columns, H200, 2026-11). Small arrays are faster in fewer kernels.
    """

    @functools.wraps(f)
    def wrapped(y: jax.Array, *operands: jax.Array, **parameters: Any) -> jax.Array:
        is_small = all(isinstance(d, int) for d in y.shape) and y.size <= 2**17
        return f(y if is_small else jax.lax.optimization_barrier(y), *operands, **parameters)

    return wrapped


@_from_memory
@_in_compute_dtype
def log_softmax_tangent(y: jax.Array, t: jax.Array, *, axis: int) -> jax.Array:
    return t - jnp.sum(jnp.exp(y) * t, axis, keepdims=True)


@_from_memory
@_in_compute_dtype
def log_softmax_cotangent(y: jax.Array, g: jax.Array, *, axis: int) -> jax.Array:
    return g - jnp.exp(y) * jnp.sum(g, axis, keepdims=True)


@_in_compute_dtype
def logsumexp_tangent(x: jax.Array, lse: jax.Array, t: jax.Array, *, axis: int) -> jax.Array:
    return jnp.sum(jnp.exp(x - jnp.expand_dims(lse, axis)) * t, axis)


def cross_entropy_gradient(
    x: jax.Array,
    lse: jax.Array,
    factor: jax.Array,
    everywhere: jax.Array,
    at_label: jax.Array,
    labels: jax.Array,
    *,
    axis: int,
    dtype: Any,
) -> jax.Array:
    """`exp(x - lse) * factor + everywhere`, and `at_label` more in the label's column.

    All but `x` have a value for each row. A label of `NO_GRADIENT` makes the whole row 0, another
    one out of range counts nowhere.
    """
    wide = lse.dtype
    labels, lse, factor, everywhere, at_label = (
        jnp.expand_dims(v, axis) for v in (labels, lse, factor, everywhere, at_label)
    )
    d = jnp.exp(x.astype(wide) - lse) * factor + everywhere
    d = d + jnp.where(columns(x, axis, labels.dtype) == labels, at_label, 0)
    return jnp.where(labels == NO_GRADIENT, 0, d).astype(dtype)


NO_GRADIENT = -(2**31)


def columns(x: jax.Array, axis: int, dtype: Any) -> jax.Array:
    """The index along `axis`, to be broadcast against `x`."""
    n = x.shape[axis]
    return jnp.arange(n, dtype=dtype).reshape(*[1] * axis, n, *[1] * (x.ndim - axis - 1))


@_in_compute_dtype
def logsumexp_cotangent(x: jax.Array, lse: jax.Array, g: jax.Array, *, axis: int) -> jax.Array:
    return jnp.exp(x - jnp.expand_dims(lse, axis)) * jnp.expand_dims(g, axis)
