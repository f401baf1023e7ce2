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
from _support import CUDA_STRATEGIES, device_of, has_gpu, native_module

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
