"""Running one op on one implementation, the limits of its plans, and compiled programs."""

import contextlib
import functools
import re

import jax
import jax.numpy as jnp

import jax_softmax
from jax_softmax import _canonicalize, _choice, _native, _primitives, _reductions

# Along the last axis, and along any.
ROW_STRATEGIES = ("warp", "registers", "tile", "block", "ring", "cluster", "split", "stream")
AXIS_STRATEGIES = ("panel", "slab", "strided")
CUDA_STRATEGIES = (*ROW_STRATEGIES, *AXIS_STRATEGIES)


def axis_of(implementation: str) -> int:
    """The axis of a matrix along which a test of any strategy reduces."""
    return 0 if implementation.removeprefix("cuda:") in AXIS_STRATEGIES else 1


COLLECTIVES = {"all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter"}
MOVES = {"copy", "transpose"}


@functools.cache
def has_gpu() -> bool:
    with contextlib.suppress(RuntimeError):
        return bool(jax.devices("cuda"))
    return False


def choice_of(*problem, **seen) -> _choice.Choice:
    """What runs an op, by the fields of its problem and what is seen beside it."""
    return _choice.choose(_choice.Problem(*problem), _choice.Context(**seen))


def native_module(backend: str):
    """The backend's extension; a test that needs it fails without it. None for XLA."""
    if backend == "xla":
        return None
    loaded = _native.load(backend)
    assert not isinstance(loaded, str), loaded
    return loaded


def device_of(implementation: str) -> jax.Device:
    return jax.devices("cuda" if implementation.startswith("cuda") else "cpu")[0]


def precision(dtype):
    """A context in which `dtype` exists: 64 bits are off by default."""
    return jax.enable_x64(dtype.itemsize == 8)


def bind(
    op: str,
    *operands,
    axis: int,
    dtype=None,
    implementation: str | None = None,
    batch_invariant: bool | None = True,
):
    """One primitive, derivatives included, which public functions reach only through autodiff."""
    params = _canonicalize.request(
        op.removesuffix("_parts"),
        operands[0],
        axis=axis,
        dtype=jnp.dtype(operands[0].dtype if dtype is None else dtype),
        implementation=implementation,
        batch_invariant=batch_invariant,
    )
    home = _reductions if op.startswith("logsumexp") else _primitives
    return getattr(home, f"{op}_p").bind(*operands, **params)


def both(name: str):
    """Our function, run by kernels wherever there are any, and jax.nn's."""
    kernels = functools.partial(getattr(jax_softmax, name), batch_invariant=True)
    return kernels, getattr(jax.nn, name)


def accepts(op: str, shape, dtype, axis: int, implementation: str, output_dtype=None) -> bool:
    """Whether the plan takes this problem; and if so, that it is the strategy asked for."""
    backend, _, strategy = implementation.partition(":")
    if backend == "xla":
        return True
    device = "cpu" if backend == "cpu" else device_of(implementation)
    try:
        plan = jax_softmax.plan(
            shape, dtype, axis, op, device=device, strategy=strategy, output_dtype=output_dtype
        )
    except ValueError:
        return False
    assert plan.strategy == strategy
    return True


def changes(key, lengths: range) -> list[int]:
    """The n among `lengths`, at most one an octave, whose successor has another `key`."""
    found, low = [], 0
    while low < len(lengths) - 1:
        high = min(2 * low + 1, len(lengths) - 1)
        if key(lengths[low]) != key(lengths[high]):
            found.append(lengths[_last_like(key, lengths, low, high)])
        low = high
    return found


def _last_like(key, lengths: range, low: int, high: int) -> int:
    first = key(lengths[low])
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if key(lengths[middle]) == first else (low, middle)
    return low


def compiled(f, *args) -> str:
    """The optimised HLO of `f`."""
    return jax.jit(f).lower(*args).compile().as_text()


def instructions(hlo: str) -> list[str]:
    """The kind of every instruction in a program, inside its fusions too."""
    instruction = r"^ *(?:ROOT )?%\S+ = (?:\(.*?\)|\S+) ([a-z][a-z0-9-]*)\("
    return [name.removesuffix("-start") for name in re.findall(instruction, hlo, re.M)]


def operations(hlo: str) -> set[str]:
    return set(instructions(hlo))


def count_calls(hlo: str, op: str | None = None) -> int:
    """How many of this package's custom calls (of one op) a program makes."""
    return len(re.findall(rf'custom_call_target="jax_softmax\.{op or "[a-z_]+"}\.v6"', hlo))
