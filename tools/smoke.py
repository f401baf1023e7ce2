"""Runs every CUDA kernel on small shapes, for compute-sanitizer: all, or those of some strategies.

    compute-sanitizer --tool memcheck python tools/smoke.py
    compute-sanitizer --tool racecheck python tools/smoke.py warp tile others

"others" are the ops with kernels of their own.
"""

import argparse
import itertools
from typing import Any

import jax
import jax.numpy as jnp

import jax_softmax

# The largest take the most registers, or shared memory, that a row of any dtype may.
STRATEGIES = {
    "warp": (5, 250, 33),
    "registers": (1000, 4095, 4096, 8001),
    "tile": (10, 21, 64, 201, 777, 1300),
    "block": (1, 1000, 4097, 14000),
    # The first one, in float32, takes all the shared memory there is without asking for more.
    "cluster": (11904, 5, 30001, 32768),
    "ring": (1000, 5, 7105, 30001, 65536),
    "split": (7, 30001, 65536),
    "stream": (7, 4099),
    "panel": (9, 65, 700, 1500),
    "strided": (2, 3, 4, 9, 65, 2050),
}
TERMS_STRATEGIES = {
    "warp": (33, 256, 512),
    "registers": (512, 1000, 1536, 2003, 2048, 4096, 8192),
    "tile": (29, 33, 49, 65, 95, 165, 255, 385, 577, 785),
    "block": (9000, 20001),
    "cluster": (9001, 60000),
    "stream": (4099,),
    "strided": (9,),
}
AXES = {"panel": (0,), "strided": (0,), "split": (0, 1), "tile": (0, 1)}
# Those of the operand and of the result.
DTYPES = ("float32", "float64", "float16", "bfloat16")
PAIRS = [(d, d) for d in DTYPES]
PAIRS += [(a, b) for d in ("float16", "bfloat16") for a, b in ((d, "float32"), ("float32", d))]


def accepts(op: str, shape: tuple, dtype: str, axis: int, strategy: str, output_dtype: str) -> bool:
    """False where float64, a conversion or the length is too much for the strategy."""
    try:
        jax_softmax.plan(shape, dtype, axis, op, strategy=strategy, output_dtype=output_dtype)
    except ValueError:
        return False
    return True


def run(strategy: str, axis: int, columns: int, dtype: str, output_dtype: str) -> None:
    """Forward and backward of both functions on an odd number of rows."""
    shape = (columns, 40) if axis == 0 else (37, columns)
    x = jax.random.normal(jax.random.key(columns), shape).astype(dtype)
    for f in (jax_softmax.softmax, jax_softmax.log_softmax):
        if not accepts(f.__name__, shape, dtype, axis, strategy, output_dtype):
            continue

        def forced(x: jax.Array, f=f) -> jax.Array:
            return f(x, axis, dtype=output_dtype, implementation=f"cuda:{strategy}")

        y, pull_back = jax.vjp(forced, x)
        (dx,) = pull_back(y)
        assert jnp.isfinite(jnp.exp(y)).all() and jnp.isfinite(dx).all()


def run_terms(strategy: str, columns: int, dtype: str) -> None:
    """A mask and causality, then a bias and a scale alone, then every term at once."""
    shape = (3, 19, columns)
    key = jax.random.key(columns)
    x = jax.random.normal(key, shape).astype(dtype)
    mask = jax.random.bernoulli(key, 0.5, (19, columns))
    axis = 1 if strategy == "strided" else -1
    if not accepts("masked_softmax", shape, dtype, axis, strategy, dtype):
        return
    everything: dict[str, Any] = {
        "bias": jax.random.normal(key, (3, 1, columns)).astype(dtype),
        "scale": jnp.float32(0.5),
        "softcap": 9.0,
        "sink": jnp.ones((3, 1)),
    }
    few: dict[str, Any] = {"causal": axis == -1}
    biased = {name: everything[name] for name in ("bias", "scale")}
    for terms in (few, biased, everything):
        for log in (False, True):
            # Other terms than masks leave less room, log-softmax of 16 bits half as much.
            room = 2048 if log and x.dtype.itemsize == 2 else 4096
            if strategy == "registers" and terms is everything and columns > room:
                continue
            y = jax_softmax.masked_softmax(
                x,
                None if terms is biased else mask,
                axis=axis,
                log=log,
                implementation=f"cuda:{strategy}",
                **terms,
            )
            assert not jnp.isnan(y).any()


def run_others(columns: int, dtype: str) -> None:
    """Ops with a kernel, and no strategy, of their own."""
    rows = 4097 if columns < 5000 else 301
    x = jax.random.normal(jax.random.key(columns), (rows, columns)).astype(dtype)
    loss = jax_softmax.softmax_cross_entropy_with_integer_labels
    labels = jnp.arange(len(x)) % columns
    assert jnp.isfinite(jax.grad(lambda x: loss(x, labels).sum())(x)).all()
    assert jnp.isfinite(jax_softmax.logsumexp(x)).all()
    if dtype != "float64":
        run_absmax(x)


def run_absmax(x: jax.Array) -> None:
    """Each type of a row's quantized elements."""
    assert jnp.isfinite(jax_softmax.absmax_scale(x)[0]).all()
    for quantized in (jnp.float8_e4m3fn, jnp.float8_e5m2, jnp.int8):
        _, scale = jax_softmax.absmax_quantize(x, quantized)
        assert (scale > 0).all()


def run_pairs(columns: int, dtype: str) -> None:
    """Two or three values of each row in float32, of which XLA makes a loss and its gradient."""
    x = jax.random.normal(jax.random.key(columns), (2**17 // columns + 131, columns), dtype)

    def squares(x: jax.Array) -> jax.Array:
        return jnp.square(jax_softmax.log_softmax(x.astype("float32"))).sum()

    def entropy(x: jax.Array) -> jax.Array:
        x = x.astype("float32")
        return -(jax_softmax.softmax(x) * jax_softmax.log_softmax(x)).sum()

    for loss in (squares, entropy) if columns > 16 else (squares,):
        program = jax.jit(jax.value_and_grad(loss))
        assert program.lower(x).as_text().count("custom_call @jax_softmax.row_pairs") == 1
        assert all(jnp.isfinite(made).all() for made in program(x))


def run_part(part: str) -> None:
    """All kernels of a strategy, or "others"."""
    if part == "others":
        for columns in (12, 64, 777, 1500, 3000, 3001, 70_001):
            run_pairs(columns, "float32")
        narrow = (10, 64, 100, 264, 333, 777, 1001, 2000, 4096)
        for columns, dtype in itertools.product(narrow, DTYPES[2:]):
            run_pairs(columns, dtype)
    for dtype in DTYPES:
        for columns in TERMS_STRATEGIES.get(part, ()):
            run_terms(part, columns, dtype)
        if part == "others":
            for columns in (21, 33, 1000, 40001):
                run_others(columns, dtype)
            if dtype != "float64":  # rows of which a cluster cannot keep all
                run_absmax(jnp.linspace(-1, 1, 9 * 300_007).reshape(9, -1).astype(dtype))
    for axis, columns in itertools.product(AXES.get(part, (1,)), STRATEGIES.get(part, ())):
        for pair in PAIRS:
            run(part, axis, columns, *pair)
    print(f"{part}: ran", flush=True)


def main() -> None:
    parts = [*STRATEGIES, "others"]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="part", help=", ".join(parts), default=parts)
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - set(parts):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    jax.config.update("jax_enable_x64", True)
    for part in arguments.parts:
        run_part(part)


if __name__ == "__main__":
    main()
