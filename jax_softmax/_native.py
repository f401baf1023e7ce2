"""The compiled backends: which are built, whether XLA can load them, and what they plan."""

import functools
import importlib
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import jax

# Backend, which is also JAX's name for the platform -> XLA's name for it in the FFI registry.
BACKENDS = {"cpu": "cpu", "cuda": "CUDA"}
# jax.Device, which its own annotations make a variable instead of a type.
Device = Any


def target(op: str) -> str:
    """The custom call's name. Its version changes with its meaning or attributes: the persistent
    compilation cache sees the name, not the shared library behind it."""
    return f"jax_softmax.{op}.v6"


@functools.cache
def load(backend: str) -> ModuleType | str:
    """The backend's extension with its handlers registered, or why there is none."""
    try:
        module = importlib.import_module(f"jax_softmax._{backend}")
    except ImportError as error:
        # A source folder hides an installed package from a Python started in it.
        in_sources = (Path(__file__).parents[1] / "CMakeLists.txt").exists()
        hint = "; run outside the source folder, or install with pip -e" if in_sources else ""
        return f"the {backend} extension was not built or cannot be loaded ({error}{hint})"
    mismatch = _version_mismatch(module.ffi_api_version())
    if mismatch:
        return mismatch
    for op, handler in module.handlers().items():
        jax.ffi.register_ffi_target(target(op), handler, platform=BACKENDS[backend])
        jax.ffi.register_ffi_target_as_batch_partitionable(target(op))
    return module


def _runtime_ffi_api_version() -> tuple[int, int]:
    header = (Path(jax.ffi.include_dir()) / "xla/ffi/api/c_api.h").read_text()
    major, minor = (
        re.search(rf"#define XLA_FFI_API_{part} (\d+)", header) for part in ("MAJOR", "MINOR")
    )
    assert major and minor
    return int(major[1]), int(minor[1])


@functools.cache  # one warning for both backends, which are built together
def _version_mismatch(built: tuple[int, int]) -> str | None:
    """Newer handlers than the runtime's would take the whole XLA backend down with them."""
    runtime = _runtime_ffi_api_version()
    if built[0] == runtime[0] and built[1] <= runtime[1]:
        return None
    mismatch = (
        f"built with XLA FFI API {built[0]}.{built[1]}, but this jaxlib has "
        f"{runtime[0]}.{runtime[1]}; rebuild jax-softmax against it or upgrade jaxlib"
    )
    warnings.warn(f"jax_softmax: native kernels are off: {mismatch}", stacklevel=2)
    return mismatch


def module(backend: str) -> ModuleType | None:
    loaded = load(backend)
    return None if isinstance(loaded, str) else loaded


def has_handler(backend: str, op: str) -> bool:
    loaded = module(backend)
    return loaded is not None and op in loaded.handlers()


@functools.cache
def _type_pairs(backend: str) -> dict[str, list[str]]:
    """The dtypes that `backend` has kernels for, and those that each may become."""
    loaded = module(backend)
    pairs = {} if loaded is None else loaded.type_pairs()
    return {x: [y for other, y in pairs if other == x] for x, _ in pairs}


def has_kernels(backend: str, dtype: Any, output_dtype: Any) -> bool:
    return str(output_dtype) in _type_pairs(backend).get(str(dtype), ())


def why_unavailable(backend: str, dtype: Any, output_dtype: Any) -> str | None:
    """Why `backend` cannot run `dtype` to `output_dtype` here, or None if it can."""
    loaded = load(backend)
    if isinstance(loaded, str):
        return loaded
    if backend == "cuda":
        try:
            jax.devices("cuda")
        except RuntimeError as error:
            return f"JAX sees no CUDA device ({error})"
    if has_kernels(backend, dtype, output_dtype):
        return None
    pairs = _type_pairs(backend)
    if str(dtype) not in pairs:
        return f"its kernels take {', '.join(pairs)}, not {dtype}"
    return f"its kernels turn {dtype} into {', '.join(pairs[str(dtype)])}, not {output_dtype}"


def check_strategy(backend: str, op: str, shape: tuple[int, ...], dtype: Any, **rest: Any) -> None:
    """Raises ValueError if the strategy does not exist or cannot run this problem."""
    device = cuda_device(jax.devices("cuda")[0]) if backend == "cuda" else "cpu"
    plan(op, shape, dtype, device=device, **rest)


def cuda_device(device: Device) -> Mapping[str, int]:
    """The limits of an attached GPU that the plan depends on."""
    cuda = module("cuda")
    if cuda is None:
        raise ValueError(str(load("cuda")))
    return cuda.device(device.local_hardware_id)


def _problem(
    op: str,
    shape: tuple[int, ...],
    dtype: Any,
    *,
    output_dtype: Any,
    axis: int,
    strategy: str,
    batch_invariant: bool,
) -> tuple[Any, ...]:
    """A request as the extension takes it."""
    return op, shape, axis, str(dtype), str(output_dtype), strategy, batch_invariant


def workspace(op: str, shape: tuple[int, ...], dtype: Any, **request: Any) -> int:
    """The bytes of scratch memory that a call on a GPU is given for each row."""
    cpu = module("cpu")
    return 0 if cpu is None else cpu.cuda_workspace(*_problem(op, shape, dtype, **request))


def takes_terms(
    backend: str,
    op: str,
    shape: tuple[int, ...],
    dtype: Any,
    *,
    terms: Sequence[tuple[int, ...]],
    **request: Any,
) -> bool:
    """Whether the backend's kernels apply terms of these shapes, by that strategy."""
    cpu = module("cpu")
    if cpu is None:
        return False
    return cpu.takes_terms(*_problem(op, shape, dtype, **request), backend, terms)


def plan(
    op: str,
    shape: tuple[int, ...],
    dtype: Any,
    *,
    device: str | Mapping[str, int],
    **request: Any,
) -> dict[str, Any]:
    """The plan the C++ handlers would choose; ValueError if the request cannot run."""
    cpu = module("cpu")
    if cpu is None:
        raise ValueError(str(load("cpu")))
    problem = _problem(op, shape, dtype, **request)
    if device == "cpu":
        return cpu.cpu_plan(*problem)
    limits = cpu.known_device(device) if isinstance(device, str) else device
    return cpu.cuda_plan(*problem, limits)
