"""The kernels that apply masks and other terms, by strategy, beside the definition in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _support import accepts, count_calls, native_module
from test_masked import called, each_form, naive

from jax_softmax import masked_softmax

# Rows of a warp, of a block's registers, of neither; whole vectors and not.
KERNEL_SHAPES = [(2, 3, 7, 40), (3, 9, 33), (2, 2, 5, 600), (3, 2, 1333), (2, 4096), (3, 20_001)]
KERNEL_OPTIONS = [
    ("mask", "causal"),
    ("mask per row", "bias"),
    ("mask per column", "scale"),
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
    if "sink" in options:
        given["sink"] = rng.standard_normal(
            [d for i, d in enumerate(shape) if i != axis % len(shape)][-1:]
        )
    given |= {"causal": True} if "causal" in options else {}
    given |= {"softcap": 4.0} if "softcap" in options else {}
    given |= {"scale": 0.6} if "scale" in options else {}
    floats = ("x", "bias", "sink")
    return {k: jnp.asarray(v, dtype) if k in floats else v for k, v in given.items()}


@pytest.mark.gpu
@each_form
@pytest.mark.parametrize("options", KERNEL_OPTIONS, ids="+".join)
@pytest.mark.parametrize("pair", PAIRS, ids=str)
@pytest.mark.parametrize("strategy", ["warp", "registers", "stream", "strided"])
def test_kernels(strategy, pair, options, log):
    native_module("cuda")
    dtype, output_dtype = (pair, pair) if isinstance(pair, str) else pair
    if strategy == "registers" and dtype == "float64":
        pytest.skip("it takes no float64")
    op = "masked_log_softmax" if log else "masked_softmax"
    axis = -2 if strategy == "strided" else -1
    options = [o for o in options if o != "causal" or axis == -1]
    ran = 0
    with jax.enable_x64(True), jax.default_device(jax.devices("cuda")[0]):
        for shape in KERNEL_SHAPES:
            given = kernel_operands(shape, options, dtype, axis)
            implementation = f"cuda:{strategy}"
            if not accepts(op, shape, dtype, axis, implementation, output_dtype):
                continue
            arrays = {k: v for k, v in given.items() if k in ("x", "mask", "bias", "sink")}
            rest = {k: v for k, v in given.items() if k not in arrays}
            kernels = functools.partial(
                masked_softmax, log=log, dtype=output_dtype, implementation=implementation, **rest
            )
            program = jax.jit(functools.partial(called, kernels))
            assert count_calls(program.lower(arrays).compile().as_text(), op) == 1
            got = program(arrays)
            assert got.dtype == jnp.dtype(output_dtype)
            with jax.default_device(jax.devices("cpu")[0]):
                host = jax.device_get(arrays)
                wide = {k: v if k == "mask" else v.astype(np.float64) for k, v in host.items()}
                want = naive(**wide, **rest, log=log)
            rounding = 2 * float(jnp.finfo(output_dtype).eps)
            error = 100 * float(jnp.finfo("float64" if dtype == "float64" else "float32").eps)
            np.testing.assert_allclose(
                got.astype(np.float64), want, rtol=rounding + error, atol=error, err_msg=str(shape)
            )
            ran += 1
    assert ran >= 2


@pytest.mark.gpu
@each_form
@pytest.mark.parametrize("options", KERNEL_OPTIONS, ids="+".join)
def test_gradients_of_kernels(options, log):
    """Those of float32 kernels beside autodiff of the definition in float64."""
    with jax.enable_x64(True), jax.default_device(jax.devices("cuda")[0]):
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

        kernels = functools.partial(masked_softmax, implementation="cuda")
        got = jax.jit(jax.grad(functools.partial(loss, kernels)))(operands)
        wide = {k: v.astype(np.float64) for k, v in operands.items()}
        want = jax.grad(functools.partial(loss, naive))(wide)
        for name in operands:
            scale = float(abs(want[name]).max())
            np.testing.assert_allclose(got[name], want[name], rtol=2e-4, atol=1e-5 * max(scale, 1))
