from collections.abc import Sequence

def ffi_api_version() -> tuple: ...
def handler_calls() -> int:
    """How often any handler has run in this process."""

def type_pairs() -> list:
    """The dtypes (of the operands, of the result) that there are kernels for."""

def handlers() -> dict:
    """The FFI handlers by op."""

def describe() -> str: ...
def cuda_plan(
    op: str,
    shape: Sequence[int],
    axis: int,
    dtype: str,
    out_dtype: str,
    strategy: str,
    batch_invariant: bool,
    limits: dict,
) -> dict: ...
def cpu_plan(
    op: str,
    shape: Sequence[int],
    axis: int,
    dtype: str,
    out_dtype: str,
    strategy: str,
    batch_invariant: bool,
) -> dict: ...
def takes_terms(
    op: str,
    shape: Sequence[int],
    axis: int,
    dtype: str,
    out_dtype: str,
    strategy: str,
    batch_invariant: bool,
    platform: str,
    terms: Sequence[Sequence[int]],
) -> bool:
    """Whether a platform's kernels apply terms of these shapes, by that strategy."""

def known_device(name: str) -> dict:
    """The limits of a GPU by name."""
