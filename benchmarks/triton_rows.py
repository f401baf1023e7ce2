"""Row softmax as one writes it in Triton: a tile of whole rows per program, read and written once.

The yardstick of what little code achieves; nothing is tuned. Imported only where Triton is there.
"""
# pyright: reportMissingImports=false

import torch
import triton
import triton.language as tl

# Elements of a tile; longer rows get a tile of their own, up to the most that one holds.
TILE = 4096
LONGEST = 65536


@triton.jit
def _forward(x, y, rows, columns, log: tl.constexpr, height: tl.constexpr, width: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * height + tl.arange(0, height)[:, None]
    column = tl.arange(0, width)[None, :]
    inside = (row < rows) & (column < columns)
    at = row * columns + column
    v = tl.load(x + at, mask=inside, other=float("-inf")).to(tl.float32)
    v -= tl.max(v, 1)[:, None]
    e = tl.exp(v)
    total = tl.sum(e, 1)[:, None]
    result = v - tl.log(total) if log else e / total
    tl.store(y + at, result.to(y.dtype.element_ty), mask=inside)


@triton.jit
def _backward(
    y, g, dx, rows, columns, log: tl.constexpr, height: tl.constexpr, width: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64) * height + tl.arange(0, height)[:, None]
    column = tl.arange(0, width)[None, :]
    inside = (row < rows) & (column < columns)
    at = row * columns + column
    a = tl.load(y + at, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(g + at, mask=inside, other=0.0).to(tl.float32)
    total = tl.sum(b if log else a * b, 1)[:, None]
    result = b - tl.exp(a) * total if log else a * (b - total)
    tl.store(dx + at, result.to(dx.dtype.element_ty), mask=inside)


def _launch(kernel, op: str, *operands: torch.Tensor) -> torch.Tensor:
    columns = operands[0].shape[-1]
    rows = operands[0].numel() // columns
    width = triton.next_power_of_2(columns)
    if width > LONGEST:
        raise ValueError(f"takes rows of up to {LONGEST}")
    height = max(1, TILE // width)
    result = torch.empty_like(operands[0])
    # 16 values per thread, within what a block may have.
    warps = min(32, max(4, height * width // 512))
    launch = kernel[(triton.cdiv(rows, height),)]
    launch(*operands, result, rows, columns, op == "log_softmax", height, width, num_warps=warps)
    return result


def forward(op: str, x: torch.Tensor) -> torch.Tensor:
    return _launch(_forward, op, x)


def backward(op: str, y: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    return _launch(_backward, op, y, g)
