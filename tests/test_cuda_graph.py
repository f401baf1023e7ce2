"""Kernels are captured in CUDA graphs: their handlers run once, and the graph many times."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _support import CUDA_STRATEGIES, axis_of, device_of, native_module

import jax_softmax

RUNS = 20
# Enough rows for a queue of them, and rows long enough to be cut into parts.
SHAPES = {"cluster": [(64, 512), (2048, 512)], "stream": [(64, 512), (2048, 512)]}
# The last one's blocks start together.
SHAPES["ring"] = [(64, 512), (300, 8192), (4, 65_536), (2, 2_000_000)]
SHAPES["split"] = [(64, 512), (4, 65_536)]
SHAPES["panel"] = [(64, 512), (2048, 64), (16_384, 64)]  # the last one's are clusters of 16
CALLS = 8  # XLA starts a graph at five consecutive operations it can capture


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize(
    "strategy, shape",
    [(s, shape) for s in ("auto", *CUDA_STRATEGIES) for shape in SHAPES.get(s, [(64, 512)])],
)
def test_consecutive_calls_run_as_a_graph(name, strategy, shape):
    module = native_module("cuda")
    implementation = "cuda" if strategy == "auto" else f"cuda:{strategy}"
    axis = axis_of(strategy)

    @jax.jit
    def chain(x):
        for _ in range(CALLS):
            x = getattr(jax_softmax, name)(x, axis, implementation=implementation)
        return x

    x = jax.device_put(jnp.asarray(np.random.default_rng(0).random(shape)), device_of("cuda"))
    for _ in range(3):  # the first run captures
        first = np.asarray(chain(x))
    before = module.handler_calls()
    for _ in range(RUNS):
        np.testing.assert_array_equal(chain(x), first)
    # XLA records a graph anew when its buffers have moved, which a few of the first runs see.
    assert module.handler_calls() - before <= CALLS * RUNS // 4
