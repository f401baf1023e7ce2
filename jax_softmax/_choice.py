"""What `implementation=None` runs: whatever is fastest in a graph.

A custom call does not fuse with its neighbours; XLA's own code does. Thresholds are measured by
benchmarks/graph.py (benchmarks/results/h200-graph.json, and h200-graph-short.json of short rows)
and derived from that by choose.py, where the gain is more than a hundredth and XLA's kernel alone,
in the same files, takes no more than a third longer than ours.
"""

import math
from typing import Any, NamedTuple


class Choice(NamedTuple):
    """`"cuda"`, `"cpu"` (the kernels) or `"xla"`, and why."""

    implementation: str
    reason: str


class Rule(NamedTuple):
    """Where XLA's code is the faster one in a graph, and what a block of the kernels may keep.

    Along another axis than the last, rows that a block has no room for are read twice. XLA's code
    takes 0.35 to 0.84 of the time where neighbours are no whole vectors of 16 bytes, and 0.88 to
    0.99 in derivatives (`[2048, 4096, 33]` and `[64, 4096, 1024]` in
    benchmarks/results/h200-shapes.json). The bytes are an H200's.
    """

    slab_bytes: int  # the most of all inputs, where neighbours are no whole vectors
    slab_columns: int  # the most columns then
    panel_bytes: int  # the most of all inputs, of four whole vectors side by side
    rows_twice: int  # the fewest rows that keep the device busy when they are read twice

    elements: int  # up to which a launch is all that an op costs
    long: int  # columns from which few rows may be split, where the caller allows it
    few: int  # such rows that XLA is the faster one for, which spreads each over the device
    # (op, bytes of the widest element): columns up to which XLA's one kernel is the faster one in
    # geometric mean over all neighbours. Most derivatives are two kernels to XLA.
    columns: dict[tuple[str, int], int]


# (platform, op): columns up to which XLA's code is the faster one for any number of rows: a CPU's
# kernels start a vector for each row, XLA's vectors go across rows (EPYC 9004, 2026-11: the
# gradient at 2 columns 0.5-1.0 of XLA's speed, at 3 1.3-1.6; absmax at 8 0.8-1.6, at 10 1.7-2.6).
SHORT_ROWS = {("cpu", "cross_entropy_gradient"): 2, ("cpu", "absmax"): 8}

SOFTMAX = {"softmax", "log_softmax"}
SOFTMAX |= {"softmax_tangent", "log_softmax_tangent", "log_softmax_cotangent"}

# Platforms without a rule run their kernels.
RULES = {
    "cuda": Rule(
        slab_bytes=2**16,
        slab_columns=1024,
        panel_bytes=225 * 2**10,
        rows_twice=2**14,
        elements=2**17,
        long=2**15,
        few=8,
        columns={
            ("softmax", 2): 4096,
            ("softmax", 4): 4096,
            ("log_softmax", 2): 4096,
            ("log_softmax", 4): 4096,
            ("softmax_tangent", 2): 256,
            # By its kernel alone (benchmarks/results/h200-columns-float64.json).
            ("softmax", 8): 16,
            ("log_softmax", 8): 16,
        },
    )
}


def is_short(op: str, columns: Any, platform: str) -> bool:
    """Whether rows are too short for the kernels; no symbolic length is."""
    return isinstance(columns, int) and columns <= SHORT_ROWS.get((platform, op), 0)


def keeps_neighbours(
    op: str, shape: tuple[int, ...], axis: int, dtype: Any, output_dtype: Any, rule: Rule
) -> bool:
    """Whether the kernels read rows along this axis once, or are the faster ones all the same."""
    inner, vector = math.prod(shape[axis + 1 :]), 16 // dtype.itemsize
    inputs = 1 if op in ("softmax", "log_softmax") else 2
    if inner % vector == 0:
        fits = shape[axis] * 4 * 16 * inputs <= rule.panel_bytes
        return fits or (inputs == 1 and math.prod(shape) // shape[axis] >= rule.rows_twice)
    if shape[axis] > rule.slab_columns or dtype != output_dtype:
        return False
    slab = shape[axis] * inner
    together = vector // math.gcd(slab, vector)  # that are whole vectors
    return together * slab * dtype.itemsize * inputs <= rule.slab_bytes


def choose(
    op: str,
    shape: tuple[Any, ...],
    axis: int,
    dtype: Any,
    output_dtype: Any,
    platform: str,
    *,
    batch_invariant: bool | None = None,
) -> Choice:
    """What runs `op`, a primitive's name, on a platform that has kernels for these dtypes.

    `shape` is that of the whole operand, however it is sharded.
    """
    rule = RULES.get(platform)
    if is_short(op, shape[axis], platform):
        return Choice("xla", f"rows of {shape[axis]}: XLA's vectors go across them")
    if rule is None:
        return Choice(platform, "the kernels are the faster ones at every size")
    if batch_invariant:
        return Choice(platform, "batch_invariant=True: XLA does not promise it")
    if not all(isinstance(d, int) for d in shape):
        return Choice(platform, "the shape is symbolic")
    if batch_invariant is False and shape[axis] >= rule.long:
        return Choice(platform, f"rows of {rule.long} or more, of which few are split")
    elements = math.prod(shape)
    if elements <= rule.elements:
        return Choice("xla", f"at most {rule.elements} elements: a launch costs more than they do")
    # Kernels that keep to a plan for any number of rows give one row to a few multiprocessors: 8
    # rows of 128,256 take 1.1 to 1.3 times as long (benchmarks/results/h200-shapes.json).
    few = elements <= rule.few * shape[axis]
    if op in SOFTMAX and shape[axis] >= rule.long and few:
        return Choice("xla", f"at most {rule.few} long rows, which must not be split")
    last = math.prod(shape[axis + 1 :]) == 1
    narrow = op in SOFTMAX and dtype.itemsize < 8
    if not last and narrow and not keeps_neighbours(op, shape, axis, dtype, output_dtype, rule):
        return Choice("xla", "rows along another axis that a block cannot keep are read twice")
    width = max(dtype.itemsize, output_dtype.itemsize)
    most = rule.columns.get((op, width), 0)
    if not most:
        return Choice(platform, f"XLA has no single kernel at the memory limit for {op} of {dtype}")
    if not last:
        return Choice(platform, "the axis is not the last one")
    if shape[axis] > most:
        return Choice(platform, f"rows of more than {most}")
    return Choice("xla", f"rows of at most {most}: one kernel that fuses with its neighbours")
