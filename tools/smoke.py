"""Runs every CUDA strategy, op and pair of dtypes once, on small shapes, for compute-sanitizer.

compute-sanitizer --tool memcheck python tools/smoke.py
"""

import jax
import jax.numpy as jnp

import jax_softmax

# The largest take the most registers, or shared memory, that a row of any dtype may.
STRATEGIES = {
    "warp": (5, 250, 33),
    "registers": (1000, 4095),
    "tile": (10, 21, 201),
    "block": (1, 1000, 4097, 14000),
    "cluster": (5, 30001, 32768),
    "split": (7, 30001, 65536),
    "stream": (7, 4099),
    "panel": (9, 65, 700),
    "strided": (9, 65),
}
ALONG_AXIS_0 = ("panel", "strided")
# Those of the operand and of the result.
PAIRS = [(d, d) for d in ("float32", "float64", "float16", "bfloat16")]
PAIRS += [(a, b) for d in ("float16", "bfloat16") for a, b in ((d, "float32"), ("float32", d))]


def run(strategy: str, columns: int, dtype: str, output_dtype: str) -> None:
    """Forward and backward of both functions on an odd number of rows."""
    axis = 0 if strategy in ALONG_AXIS_0 else 1
    shape = (columns, 40) if axis == 0 else (37, columns)
    x = jax.random.normal(jax.random.key(columns), shape).astype(dtype)
    for f in (jax_softmax.softmax, jax_softmax.log_softmax):
        try:
            jax_softmax.plan(
                shape, dtype, axis, f.__name__, strategy=strategy, output_dtype=output_dtype
            )
        except ValueError:  # float64, a conversion or this length is too much for some
            continue

        def forced(x: jax.Array, f=f) -> jax.Array:
            return f(x, axis, dtype=output_dtype, implementation=f"cuda:{strategy}")

        y, pull_back = jax.vjp(forced, x)
        (dx,) = pull_back(y)
        assert jnp.isfinite(jnp.exp(y)).all() and jnp.isfinite(dx).all()


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    for strategy, sizes in STRATEGIES.items():
        for columns in sizes:
            for pair in PAIRS:
                run(strategy, columns, *pair)
        print(f"{strategy}: ran", flush=True)


if __name__ == "__main__":
    main()
