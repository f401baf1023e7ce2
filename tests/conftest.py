"""Set-up of every test: eight host devices, the `gpu` marker, one implementation at a time."""

import os

# XLA:CPU compiles small programs, which tests are made of, in 0.94 of the time in one piece.
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "")
    + " --xla_force_host_platform_device_count=8 --xla_cpu_parallel_codegen_split_count=1"
)
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # pytest-xdist shares the GPU

import jax
import pytest
from _pairs import know_pairs
from _support import CUDA_STRATEGIES, device_of, has_gpu, native_module

from jax_softmax import _choice

GPU = pytest.mark.gpu
IMPLEMENTATIONS = [
    "xla",
    "cpu:row",
    "cpu:slices",
    "cpu:lanes",
    "cpu:strided",
    *(pytest.param(f"cuda:{strategy}", marks=GPU) for strategy in CUDA_STRATEGIES),
]


def pytest_runtest_setup(item):
    if item.get_closest_marker("gpu") and not has_gpu():
        pytest.skip("needs an NVIDIA GPU, and JAX sees none")


def pytest_terminal_summary(terminalreporter):
    skipped = [r for r in terminalreporter.stats.get("skipped", []) if "gpu" in r.keywords]
    terminalreporter.write_line(f"gpu tests skipped: {len(skipped)}")


@pytest.fixture(params=IMPLEMENTATIONS)
def implementation(request):
    """A value for `implementation=`, with its device as the default one."""
    native_module(request.param.partition(":")[0])
    with jax.default_device(device_of(request.param)):
        yield request.param


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=GPU)])
def backend(request):
    """A platform with kernels, its first device being the default one."""
    native_module(request.param)
    with jax.default_device(device_of(request.param)):
        yield request.param


@pytest.fixture
def on_cpu():
    """The CPU's kernels where a GPU may be present too."""
    native_module("cpu")
    with jax.default_device(device_of("cpu")):
        yield


@pytest.fixture
def platform(backend, monkeypatch):
    """A platform with the rule; on the CPU plain JAX stands for the kernels, and is known by it."""
    monkeypatch.setattr(_choice, "RULES", {backend: _choice.RULES["cuda"]})
    if backend == "cpu":
        know_pairs(monkeypatch)
    return backend


@pytest.fixture(scope="module")
def quickly_compiled():
    """Where there is no GPU, LLVM optimises little of what a module compiles.

    For those whose programs are many, and are calls of kernels and what puts these together.
    """
    name = "jax_disable_most_optimizations"
    before = jax.config.values[name]
    jax.config.update(name, not has_gpu())
    yield
    jax.config.update(name, before)
