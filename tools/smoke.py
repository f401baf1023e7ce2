"""Runs every CUDA strategy, op and dtype once, on small shapes: the program for compute-sanitizer.

compute-sanitizer --tool memcheck python tools/smoke.py
"""

import jax
import jax.numpy as jnp

import jax_softmax

# The largest take the most registers, or shared memory, that a row of any dtype may.
STRATEGIES = {
    "warp": (5, 250, 33),
    "block": (1, 1000, 4097, 14000),
    "stream": (7, 4099),
    "strided": (9, 65),
}


def run(strategy: str, columns: int, dtype: str) -> None:
    """Forward and backward of both functions on an odd number of rows."""
    axis = 0 if strategy == "strided" else 1
    shape = (columns, 37) if axis == 0 else (37, columns)
    x = jax.random.normal(jax.random.key(columns), shape).astype(dtype)
    for f in (jax_softmax.softmax, jax_softmax.log_softmax):

        def forced(x: jax.Array, f=f) -> jax.Array:
            return f(x, axis, implementation=f"cuda:{strategy}")

        y, pull_back = jax.vjp(forced, x)
        (dx,) = pull_back(x)
        assert jnp.isfinite(jnp.exp(y)).all() and jnp.isfinite(dx).all()


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    for strategy, sizes in STRATEGIES.items():
        for columns in sizes:
            for dtype in ("float32", "float64", "float16", "bfloat16"):
                run(strategy, columns, dtype)
        print(f"{strategy}: ran", flush=True)


if __name__ == "__main__":
    main()
