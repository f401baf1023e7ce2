"""Where kernels find the elements of an operand that is broadcast against the logits."""

import itertools

import numpy as np
import pytest
from _support import native_module


def expected(dims, shape, axis):
    """Offsets of the rows, and the stride along them; the last dimension lies at `axis`."""
    order = [*range(len(dims) - 1)]
    order.insert(axis, len(dims) - 1)
    full, own = ([of[d] for d in order] for of in (dims, shape))
    at = np.broadcast_to(np.arange(np.prod(own)).reshape(own), full)
    rows = np.moveaxis(at, axis, -1).reshape(-1, dims[-1])
    return rows[:, 0].tolist(), int(rows[0, 1] - rows[0, 0])


@pytest.mark.parametrize("dims", [(3, 4, 5, 6), (2, 1, 7, 3), (5, 2), (1, 9), (2, 3, 2, 2, 3, 4)])
def test_every_shape_that_broadcasts(dims):
    offsets = native_module("cpu").broadcast_offsets
    refused = 0
    for kept in itertools.product([False, True], repeat=len(dims)):
        shape = [d if k else 1 for d, k in zip(dims, kept, strict=True)]
        for axis in range(len(dims)):
            got = offsets(dims, shape, len(dims) - 1, axis)
            if got is None:
                refused += 1
            else:
                assert got == expected(dims, shape, axis), (shape, axis)
    assert (refused > 0) == (len(dims) > 5)


@pytest.mark.parametrize("divisor", [1, 2, 3, 7, 641, 65_535, 65_537, 2**20, 2**30 + 1, 2**31 - 1])
def test_division_by_a_multiplication(divisor):
    quotient = native_module("cpu").quotient
    most = 2**31 - 1
    random = np.random.default_rng(0).integers(0, most, 2000).tolist()
    edges = [k * divisor + d for k in (0, 1, 2, most // divisor) for d in (-1, 0, 1)]
    for n in (*random, *(n for n in edges if 0 <= n <= most)):
        assert quotient(n, divisor) == n // divisor, n
