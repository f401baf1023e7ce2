"""The calls that are compared: this package, XLA's own and a plain copy, compiled and checked."""

import functools
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from shapes import Case
from timing import Call

import jax_softmax
from jax_softmax import _canonicalize, _primitives

OURS = "jax_softmax"
Function = Callable[..., Any]
NATIVE = {"gpu": "cuda", "cpu": "cpu"}

# How far a result may be from jax.nn in float32 or wider, relative to the largest value. Loose on
# purpose: it keeps garbage from being timed; accuracy is the tests' affair. Log-softmax's gradient
# makes of a rounded log-probability of -12 one that is 2 % off.
TOLERANCE = {"bfloat16": 1e-1, "float16": 1e-2, "float32": 1e-3, "float64": 1e-6}


class Comparison(NamedTuple):
    """What to time for one case, compiled."""

    calls: dict[str, Call]
    # Bytes that each pull-back keeps from its forward pass.
    residual_bytes: dict[str, int]


@functools.partial(jax.jit, static_argnums=(0, 1))
def random_normal(size: int, dtype: str) -> jax.Array:
    """Draws in float32 and rounds: a 16-bit draw takes few distinct values."""
    return jax.random.normal(jax.random.key(0), (size,), jnp.float32).astype(dtype)


@functools.lru_cache(maxsize=1)
def _copy_of(size: int) -> Call:
    x = random_normal(size // 4, "float32")
    return functools.partial(jax.jit(jnp.negative).lower(x).compile(), x)


def copy_call(size: int) -> Call:
    """The yardstick: reads `size` bytes of float32 and writes as many.

    The size is rounded up by less than half a percent, so that row lengths which do not divide
    the operand evenly share one compiled copy.
    """
    unit = max(4, 2 ** (size.bit_length() - 9))
    return _copy_of(-(-size // unit) * unit)


# The primitive that carries out each direction; backward takes the result and the cotangent.
PRIMITIVES = {
    ("softmax", "forward"): "softmax",
    ("softmax", "backward"): "softmax_tangent",
    ("log_softmax", "forward"): "log_softmax",
    ("log_softmax", "backward"): "log_softmax_cotangent",
}


def bind(
    op: str,
    direction: str,
    axis: int,
    implementation: str,
    *xs: jax.Array,
    dtype: str | None = None,
    batch_invariant: bool = True,
) -> jax.Array:
    """One pass alone, as no public function asks for it, or for a strategy of it.

    The result's `dtype` is the operands' unless it is said.
    """
    name = PRIMITIVES[op, direction]
    params = _canonicalize.request(
        name,
        xs[0],
        axis=axis % xs[0].ndim,
        dtype=jnp.dtype(dtype or xs[0].dtype),
        implementation=implementation,
        batch_invariant=batch_invariant,
    )
    return getattr(_primitives, f"{name}_p").bind(*xs, **params)


def _backward_formula(op: str, axis: int, y: jax.Array, g: jax.Array) -> jax.Array:
    if op == "softmax":
        return y * (g - jnp.sum(y * g, axis, keepdims=True))
    return g - jnp.exp(y) * jnp.sum(g, axis, keepdims=True)


# Functions of few shapes, so that a sweep compiles them once for several cases.
@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _expected(op: str, axis: int, direction: str, sample: jax.Array) -> jax.Array:
    y, pull_back = jax.vjp(functools.partial(getattr(jax.nn, op), axis=axis), sample)
    return y if direction == "forward" else pull_back(sample)[0]


@functools.partial(jax.jit, static_argnums=1)
def _head(x: jax.Array, rows: int) -> jax.Array:
    return x[:rows].astype(jnp.promote_types(x.dtype, jnp.float32))


@jax.jit
def _distance(got: jax.Array, want: jax.Array, whole: jax.Array) -> jax.Array:
    distance = jnp.max(jnp.abs(got - want)) / jnp.max(jnp.abs(want))
    return jnp.where(jnp.isfinite(whole).all(), distance, jnp.inf)


def check(op: str, axis: int, direction: str, x: jax.Array, result: jax.Array) -> None:
    """Raises if the first rows are far from jax.nn in wide floats, or any value is not finite."""
    rows = 64 if x.ndim == 2 else 1
    want = _expected(op, axis, direction, _head(x, rows))
    distance = float(_distance(_head(result, rows), want, result))
    if not distance <= max(TOLERANCE[str(a.dtype)] for a in (x, result)):
        raise ValueError(f"differs from jax.nn by {distance:.2g} of the largest value: not timed")


def _compile(lowered: Mapping[str, jax.stages.Lowered]) -> dict[str, jax.stages.Compiled]:
    """Compiles side by side: most of a sweep's time is compilation."""
    with ThreadPoolExecutor() as pool:
        compiled = pool.map(lambda program: program.compile(), lowered.values())
        return dict(zip(lowered, compiled, strict=True))


def _forward(functions: Mapping[str, Function], x: jax.Array) -> Comparison:
    compiled = _compile({name: jax.jit(f).lower(x) for name, f in functions.items()})
    return Comparison({name: functools.partial(f, x) for name, f in compiled.items()}, {})


def _backward(functions: Mapping[str, Function], formula: Function, x: jax.Array) -> Comparison:
    """Pull-backs alone. One is a pytree whose leaves are its residuals, so it may enter jit."""
    lowered = {"formula": jax.jit(formula).lower(x, x)}
    for name, f in functions.items():
        forward = jax.jit(functools.partial(jax.vjp, f)).trace(x)
        _, vjp = forward.out_info
        lowered[f"{name} forward"] = forward.lower()
        lowered[f"{name} backward"] = jax.jit(lambda vjp, g: vjp(g)[0]).lower(vjp, x)
    compiled = _compile(lowered)

    y, ours = compiled[f"{OURS} forward"](x)
    _, theirs = compiled["xla forward"](x)
    calls = {
        OURS: functools.partial(compiled[f"{OURS} backward"], ours, x),
        "xla": functools.partial(compiled["formula"], y, x),
        "xla_vjp": functools.partial(compiled["xla backward"], theirs, x),
    }
    residual_bytes = {
        name: sum(leaf.nbytes for leaf in jax.tree.leaves(vjp))
        for name, vjp in ((OURS, ours), ("xla_vjp", theirs))
    }
    return Comparison(calls, residual_bytes)


def compare(op: str, case: Case, direction: str, x: jax.Array, platform: str) -> Comparison:
    """Compiles what is to be timed on `x`, which is also the cotangent, and checks our result."""
    ours = functools.partial(getattr(jax_softmax, op), implementation=NATIVE[platform])
    functions = {
        OURS: functools.partial(ours, axis=case.axis),
        "xla": functools.partial(getattr(jax.nn, op), axis=case.axis),
    }
    if direction == "forward":
        comparison = _forward(functions, x)
    else:
        formula = functools.partial(_backward_formula, op, case.axis)
        comparison = _backward(functions, formula, x)
    check(op, case.axis, direction, x, comparison.calls[OURS]())
    comparison.calls["copy"] = copy_call(x.nbytes)
    return comparison
