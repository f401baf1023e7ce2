"""The rows that lose digits, and the shapes at which plans change."""

import jax
import numpy as np
import pytest
from _support import accepts, changes, device_of
from _truth import FORWARD, GRADIENT, PER_ROW, RESIDUAL, TRUTH, wide

import jax_softmax

SMALL = (0, 1, 2, 3, 5, 8, 15, 16, 17, 31, 33, 127, 257)
LARGE = {"cpu": 50_257, "cuda": 262_147}
# Where a kernel goes another way under the same plan: a CPU block is 4096 columns, a thread of a
# cluster holds 13 vectors, a warp of "ring" 256 and a part of a row there up to 1776, a little less
# in the last one, or 2368, which is more than a team holds at a time (test_shared_rows.py), one of
# "registers" 16 or 32 elements, and a tile's lane so many, all of them or not.
WITHIN_A_PLAN = {
    "cpu": (255, 256, 257, 2049, 4095, 4096, 4097),
    "cuda": (),
    "cuda:registers": (2049, 3001, 3072, 4001, 4096, 5001, 8001, 8192),
    "cuda:ring": (1023, 1024, 1025, 6144, 7104, 7105, 12_289, 14_211, 50_257, 65_544, 131_073),
    "cuda:cluster": (26_623, 26_624, 26_625, 32_769, 65_537),
    "cuda:tile": (
        *(lanes * 20 - fewer for lanes in (1, 2, 4, 8, 16) for fewer in (0, 1, 4 * lanes - 1)),
        *(
            32 * elements - fewer
            for elements in (12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 56, 64)
            for fewer in (0, 16, 127)
        ),
    ),
}
# One full vector of lanes in any CPU instruction set, and a remainder; one row for each kind of
# input where they are long, as wider arithmetic takes longest there.
ROWS, ROWS_IF_LONG, LONG = 21, 7, 8192
# The columns and neighbours of panels that a cluster's blocks share, in whole and in unequal parts.
SHARED = ((850, 64), (1731, 8), (1800, 40), (2048, 64), (3001, 72), (4099, 24), (9001, 16))
# Panels that start together, in 16 bits an odd number of them: more than a device has room for.
ABREAST = (201, 769, 96)
# The same of rows that are split: vectors that begin and end inside a row's neighbours, parts of a
# thread's sum, and neighbours for more than one block.
SPLIT = ((30_001, 5), (6538, 29), (4097, 3), (2049, 2), (999, 1000), (300, 2056), (40_003, 16))
# The same of slabs: these, and rows that are most of what threads have in common.
SLABS = (*SPLIT, (513, 157), (64, 255), (5003, 33), (20_001, 12), (1000, 250))
INNER = (1, 2, 3, 4, 8, 20, 33, 40, 64)
INNER_LENGTHS = (1, 2, 3, 4, 7, 16, 17, 21, 24, 32, 64, 100, 200, 257, 600)


def rows(count: int, n: int, dtype, *, huge: bool = True, seed: int = 0) -> np.ndarray:
    """`count` rows that go through every kind of input in turn."""
    rng = np.random.default_rng([n, seed])
    largest = float(jax.numpy.finfo(dtype).max)
    kinds = [
        rng.standard_normal,
        lambda shape: np.where(np.arange(n) % 2, -0.1, np.zeros(shape)),
        lambda shape: 10 * rng.standard_normal(shape),
        lambda shape: np.full(shape, 0.3),
        lambda shape: rng.choice([0.0, -0.1], shape),
        lambda shape: rng.standard_normal(shape) + 30 * (np.arange(n) == n // 3),
    ]
    if huge:
        kinds.append(lambda shape: rng.choice([-0.9, 0.9], shape) * largest)
    made = np.empty((count, n), dtype)
    for i, kind in enumerate(kinds):
        these = made[(i - seed) % len(kinds) :: len(kinds)]
        these[:] = kind(these.shape)
    return made


def operands(op: str, shape, axis: int, dtype) -> list[np.ndarray]:
    """What `op` takes: logits, or a result and a tangent."""
    x = _with_rows(shape, axis, lambda count, n: rows(count, n, dtype))
    if op not in GRADIENT:
        return [x]
    if x.size == 0:
        return [x, x]
    with np.errstate(all="ignore"):
        y = TRUTH[RESIDUAL[op]](wide(x), axis).astype(dtype)
    return [y, _with_rows(shape, axis, lambda count, n: rows(count, n, dtype, huge=False, seed=1))]


def _with_rows(shape, axis, make):
    outer = [d for i, d in enumerate(shape) if i != axis % len(shape)]
    made = make(int(np.prod(outer)), shape[axis]) if np.prod(outer) else np.zeros((0, shape[axis]))
    return np.moveaxis(made.reshape(*outer, shape[axis]), -1, axis)


def problems(
    op: str, dtype, implementation: str, output_dtype=None
) -> list[tuple[tuple[int, ...], int]]:
    """(shape, axis) pairs this implementation can run, around each limit of its plans."""
    if op in PER_ROW:
        skip_refused(op, dtype, implementation, output_dtype)
    if implementation == "xla":  # it has no plans, and each shape takes it long to compile
        return [
            *(((ROWS, n), 1) for n in SMALL),
            ((3, 64, 33), 1),
            ((3, 21, 2), 1),
            ((ROWS_IF_LONG, 50_257), 1),
        ]
    backend = implementation.partition(":")[0]
    limits = _around_limits(op, dtype, implementation, output_dtype)
    lengths = {*SMALL, *limits, *WITHIN_A_PLAN.get(implementation, WITHIN_A_PLAN[backend])}
    last = [((ROWS if n <= LONG else ROWS_IF_LONG, n), 1) for n in sorted(lengths)]
    inner = [((3, n, i), 1) for i in INNER for n in INNER_LENGTHS]
    few = [((ROWS_IF_LONG, LARGE[backend]), 1)]
    many = [((5003, 17), 1), ((1009, 640), 1), ((1009, 9, 3), 1)]
    many += [((3, 2050, 8), 1), ((2, 5003, 40), 1), ((2, 3001, 33), 1), ((17, 6, 2064), 1)]
    many += [((1009, 3, 40), 1)]
    if implementation == "cuda:panel":
        many += [((2, n, i), 1) for n, i in SHARED]
        many += [(ABREAST, 1)]
    if implementation == "cuda:split":
        many += [((3, n, i), 1) for n, i in SPLIT]
    if implementation == "cuda:slab":
        many += [((3, n, i), 1) for n, i in SLABS]
    found = [
        (shape, axis)
        for shape, axis in (*last, *inner, *few, *many)
        if accepts(op, shape, dtype, axis, implementation, output_dtype)
    ]
    if refusal(op, dtype, implementation, output_dtype):
        assert not found, f"{implementation} accepts {found}"
        skip_refused(op, dtype, implementation, output_dtype)
    assert len(found) >= 20, f"{implementation} accepts only {found}"
    return found


def refusal(op: str, dtype, implementation: str, output_dtype) -> str | None:
    """Why a strategy takes no problem at all of this kind, if it does not."""
    strategy = implementation.removeprefix("cuda:")
    if strategy == "registers" and op in GRADIENT:
        return "it takes one input"
    if strategy in ("registers", "tile", "slab") and dtype.itemsize == 8:
        return "it takes 32 bits at most"
    if strategy in ("ring", "cluster", "slab") and op in PER_ROW:
        return "it keeps rows to write them"
    if np.dtype(output_dtype or dtype) != dtype:
        if strategy == "slab":
            return "it converts nothing"
        half = "float16" in (np.dtype(dtype).name, np.dtype(output_dtype).name)
        if strategy == "tile" and (op not in FORWARD or half):
            return "it converts to and from bfloat16, forward"
    return None


def skip_refused(op: str, dtype, implementation: str, output_dtype=None) -> None:
    if op in PER_ROW and np.dtype(output_dtype or dtype).itemsize < np.dtype(dtype).itemsize:
        pytest.skip("what reads a row's one value rounds it")
    if why := refusal(op, np.dtype(dtype), implementation, output_dtype):
        pytest.skip(f"{implementation}: {why}")


def _around_limits(op, dtype, implementation, output_dtype) -> list[int]:
    backend = implementation.partition(":")[0]
    device = "cpu" if backend == "cpu" else device_of(implementation)

    def geometry(n):
        p = jax_softmax.plan((ROWS, n), dtype, 1, op, device=device, output_dtype=output_dtype)
        return p.strategy, p.lanes_per_row, p.threads

    def accepted(n):
        return accepts(op, (ROWS, n), dtype, 1, implementation, output_dtype)

    # Rows of whole 16-byte vectors, and odd ones, have limits of their own.
    domains = range(16, LARGE[backend], 16), range(1, LARGE[backend], 2)
    limits = {n for key in (geometry, accepted) for d in domains for n in changes(key, d)}
    return sorted({n + d for n in limits for d in (-1, 0, 1, 2)} - set(SMALL))
