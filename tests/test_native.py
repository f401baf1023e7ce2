"""The extensions: what happens without one, with one that is too new, and with bad calls."""

import os
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _support import both, native_module
from _truth import FORWARD


def python(code: str, *args: str) -> str:
    """What `code` prints in a fresh interpreter on the CPU."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", textwrap.dedent(code), *args],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


WITHOUT = """
    import sys
    sys.modules["jax_softmax._cpu"] = sys.modules["jax_softmax._cuda"] = None
"""
TOO_NEW = """
    import pathlib, sys, jax
    folder = pathlib.Path(sys.argv[1])
    header = folder / "xla/ffi/api/c_api.h"
    header.parent.mkdir(parents=True)
    header.write_text("#define XLA_FFI_API_MAJOR 0\\n#define XLA_FFI_API_MINOR 0\\n")
    jax.ffi.include_dir = lambda: str(folder)
"""
FALL_BACK = """
    import warnings
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        import jax, jax_softmax, numpy as np
    print([str(w.message) for w in caught if str(w.message).startswith("jax_softmax:")])
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    got = jax.vjp(jax_softmax.softmax, x)[1](x)[0]
    np.testing.assert_allclose(got, jax.vjp(jax.nn.softmax, x)[1](x)[0], rtol=1e-5, atol=1e-7)
    assert "custom_call" not in jax.jit(jax_softmax.softmax).lower(x).as_text()
    for call in (lambda: jax_softmax.softmax(x, implementation="cpu"),
                 lambda: jax_softmax.plan(x.shape, x.dtype)):
        try:
            call()
        except ValueError as error:
            print(error)
"""


def test_without_an_extension_xla_runs():
    warned, unavailable, no_plan = python(WITHOUT + FALL_BACK).splitlines()
    assert warned == "[]"
    assert "implementation='cpu' is not available: the cpu extension was not built" in unavailable
    assert "the cpu extension was not built" in no_plan


def test_without_an_extension_a_derivative_has_no_call_for_two_values():
    run = """
    import jax, jax_softmax
    from jax_softmax import _choice, _pairs
    _choice.RULES = {"cpu": _choice.RULES["cuda"]}
    _pairs.of_rows = None  # which nothing may call
    f = jax.value_and_grad(lambda x: jax.numpy.square(jax_softmax.log_softmax(x)).sum())
    jax.jit(f).lower(jax.numpy.ones((300, 2100)))
    print("lowered")
    """
    assert python(WITHOUT + run).splitlines()[-1] == "lowered"


def test_an_extension_newer_than_jaxlib_is_left_out_with_one_warning(tmp_path):
    warned, unavailable, no_plan = python(TOO_NEW + FALL_BACK, str(tmp_path)).splitlines()
    assert warned.count("kernels are off") == 1
    for message in (warned, unavailable, no_plan):
        assert "this jaxlib has 0.0; rebuild jax-softmax" in message


@pytest.mark.parametrize("broken", [WITHOUT, TOO_NEW], ids=["without", "too new"])
def test_the_command_line_still_reports(broken, tmp_path):
    run = """
    import runpy, warnings
    warnings.simplefilter("ignore")
    runpy.run_module("jax_softmax", run_name="__main__")
    """
    out = python(broken + run, str(tmp_path))
    assert "backend cpu: " in out and "backend cpu: registered" not in out


def test_handlers_run_once_per_call(backend):
    module = native_module(backend)
    forward = jax.jit(both("softmax")[0])
    backward = jax.jit(lambda x: jax.vjp(both("log_softmax")[0], x)[1](x))
    x = jnp.ones((8, 128))
    for f, calls in ((forward, 1), (backward, 2)):
        jax.block_until_ready(f(x))
        before = module.handler_calls()
        for i in range(1, 4):
            jax.block_until_ready(f(x))
            assert module.handler_calls() == before + i * calls


RIGHT = {
    "axis": np.int64(1),
    "logical_axis": np.int64(1),
    "strategy": "auto",
    "batch_invariant": True,
}
TANGENT = {"op": "softmax_tangent", "scale": np.float64(1), "zeros_are_masked": False}
BAD_CALLS = {
    "axis": {"axis": np.int64(2)},
    "negative axis": {"axis": np.int64(-1)},
    "logical axis": {"logical_axis": np.int64(5)},
    "strategy": {"strategy": "magic"},
    "no strategy": {"strategy": None},
    "no batch_invariant": {"batch_invariant": None},
    "attribute type": {"axis": np.float32(0.5)},
    "flag type": {"batch_invariant": "yes"},
    "result shape": {"result": ((4, 9), "float32")},
    "result rank": {"result": ((32,), "float32")},
    "result dtype": {"result": ((4, 8), "int32")},
    "operand dtype": {"operands": ["int32"]},
    "no kernel for this pair": {"operands": ["float16"], "result": ((4, 8), "bfloat16")},
    "operands": {"operands": ["float32"] * 2},
    "operands of two shapes": TANGENT | {"shapes": [(4, 8), (8, 4)]},
    "operands of two dtypes": TANGENT | {"operands": ["float32", "bfloat16"]},
}


def call(op="softmax", operands=None, shapes=None, result=((4, 8), "float32"), **attributes):
    """A handler called as XLA would, operands of ones; an attribute that is None is left out."""
    shapes = shapes or [(4, 8)] * len(operands or [0])
    xs = [jnp.ones(*x) for x in zip(shapes, operands or ["float32"] * len(shapes), strict=True)]
    attributes = {k: v for k, v in (RIGHT | attributes).items() if v is not None}
    f = jax.ffi.ffi_call(f"jax_softmax.{op}.v6", jax.ShapeDtypeStruct(*result))
    on_gpu = any(d.platform == "gpu" for d in xs[0].devices())
    more = {"scale": np.float64(1)} if on_gpu and op in FORWARD else {}
    return jax.block_until_ready(f(*xs, **more | attributes))


@pytest.mark.parametrize("case", BAD_CALLS)
def test_a_handler_refuses_a_bad_call(case, backend):
    """No such call comes from this package; the process must survive it all the same."""
    np.testing.assert_array_equal(call(), 1 / 8)
    with pytest.raises(jax.errors.JaxRuntimeError, match="INVALID_ARGUMENT"):
        call(**BAD_CALLS[case])


def test_a_handler_says_which_pair_of_dtypes_it_has_no_kernel_for(backend):
    with pytest.raises(jax.errors.JaxRuntimeError, match="no kernels from float16 to bfloat16"):
        call(**BAD_CALLS["no kernel for this pair"])


CANNOT_RUN = {"cpu": "row", "cuda": "warp"}  # where other dimensions follow the softmax axis


def test_a_handler_obeys_the_strategy_it_is_given(backend):
    first_axis = {"axis": np.int64(0), "logical_axis": np.int64(0)}
    first_axis |= {"shapes": [(4, 9)], "result": ((4, 9), "float32")}
    call(**first_axis)
    with pytest.raises(jax.errors.JaxRuntimeError, match=CANNOT_RUN[backend]):
        call(**first_axis, strategy=CANNOT_RUN[backend])


ISAS = pytest.mark.parametrize("isa", ["baseline", "avx2", "avx512"])


def run_on(isa, code, tmp_path):
    """Runs `code`, which prints its instruction set, in a process of its own: the choice is made
    once. It gets a file with a matrix."""
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((33, 1001)))
    os.environ["JAX_SOFTMAX_CPU_ISA"] = isa
    try:
        ran = python(code, str(tmp_path / "x.npy")).strip()
    finally:
        del os.environ["JAX_SOFTMAX_CPU_ISA"]
    if ran != isa:
        pytest.skip(f"this processor does not run {isa}")


@ISAS
def test_every_instruction_set_is_right(isa, tmp_path):
    code = """
        import sys, jax, numpy as np, jax_softmax
        from jax_softmax import _native
        x = np.load(sys.argv[1])
        for strategy, axis in (("row", 1), ("slices", 1), ("lanes", 1), ("strided", 0)):
            for f in (jax_softmax.softmax, jax_softmax.log_softmax):
                for dtype in ("float32", "float16", "bfloat16"):
                    y = f(jax.numpy.asarray(x, dtype), axis, implementation=f"cpu:{strategy}")
                    want = f(jax.numpy.asarray(x, dtype), axis, implementation="xla")
                    rtol = 2e-6 if dtype == "float32" else 2 * float(jax.numpy.finfo(dtype).eps)
                    np.testing.assert_allclose(*(np.asarray(a, float) for a in (y, want)), rtol)
        for strategy, x in (("row", x), ("lanes", x[:, :21])):
            for dtype in ("float32", "float16", "bfloat16"):
                y, want = (
                    jax_softmax.masked_softmax(
                        jax.numpy.asarray(x, dtype), x > -1, x[0], softcap=2.0, implementation=i
                    )
                    for i in (f"cpu:{strategy}", "xla")
                )
                rtol = 2e-6 if dtype == "float32" else 2 * float(jax.numpy.finfo(dtype).eps)
                np.testing.assert_allclose(*(np.asarray(a, float) for a in (y, want)), rtol)
        print(_native.load("cpu").describe())
    """
    run_on(isa, code, tmp_path)


@ISAS
def test_every_instruction_set_has_the_ops_without_a_strategy(isa, tmp_path):
    code = """
        import functools, sys, jax, numpy as np, jax_softmax
        from jax_softmax import _absmax, _native, _reductions, _reference
        jax.config.update("jax_enable_x64", True)
        def values(results):
            return [np.asarray(v, float) for v in jax.tree.leaves(results)]
        for dtype in ("float32", "float16", "bfloat16", "float64"):
            x = jax.numpy.asarray(np.load(sys.argv[1]), dtype)
            rows = jax.numpy.arange(33.0, dtype=_reference.compute_dtype(x.dtype))
            labels = 31 * jax.numpy.arange(-1, 32, dtype="int32")
            operands = x, rows + 1, rows, rows - 3, 2 * rows, labels
            params = {"axis": 1, "dtype": x.dtype}
            got = jax.jit(functools.partial(_reductions.cross_entropy_gradient_p.bind, **params))
            want = functools.partial(_reference.cross_entropy_gradient, **params)
            rtol = max(2 * float(jax.numpy.finfo(dtype).eps), 1e-14)
            for g, w in zip(values(got(*operands)), values(want(*operands)), strict=True):
                np.testing.assert_allclose(g, w, rtol, 100 * rtol if x.dtype.itemsize > 2 else 1e-5)
            for quantized in ("float8_e4m3fn", "float8_e5m2", "int8", dtype):
                params = {"dtype": jax.numpy.dtype(quantized), "quantizes": quantized != dtype}
                got = values(jax.jit(functools.partial(_absmax.absmax_p.bind, **params))(x))
                want = values(jax.jit(functools.partial(_absmax._plain, **params))(x))
                np.testing.assert_allclose(got[1], want[1], 2e-7)
                # XLA multiplies by reciprocals, which here and there ends at a neighbour.
                same = np.isclose(got[0], want[0], 2e-7)
                assert same.mean() > 0.998
                np.testing.assert_allclose(got[0], want[0], 0.25, 1)
        print(_native.load("cpu").describe())
    """
    run_on(isa, code, tmp_path)
