from collections.abc import Sequence

def ffi_api_version() -> tuple: ...
def handler_calls() -> int:
    """How often any handler has run in this process."""

def type_pairs() -> list:
    """The dtypes (of the operands, of the result) that there are kernels for."""

def handlers() -> dict:
    """The FFI handlers by op."""

def describe() -> str: ...
def device(ordinal: int) -> dict:
    """The limits of an attached GPU."""

def resident_blocks(
    op: str,
    shape: Sequence[int],
    axis: int,
    dtype: str,
    out_dtype: str,
    strategy: str,
    batch_invariant: bool,
    ordinal: int,
) -> int:
    """Blocks of the planned kernel per multiprocessor, as CUDA counts them."""
