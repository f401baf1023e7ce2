"""The shapes that benchmarks time and tests draw from. Imports nothing but the standard library."""

import math
from typing import NamedTuple

# Row lengths: powers of two, around which strategies change; 1000 and 50257 for what does not
# divide evenly; the vocabularies of GPT-2 (50257), Llama 3 (128256) and Qwen 2.5 (151936).
COLUMNS = (
    *(16, 64, 128, 256, 512, 1000, 1024, 2048, 4096, 8192, 16384, 32768),
    *(50257, 65536, 128256, 151936, 262144, 1048576),
)
# Row lengths that no vector divides or that fill no power of two of threads, and class counts
# people have: digits, VOC, CIFAR, ImageNet; 577 is what a vision transformer has of tokens.
ODD_COLUMNS = (10, 21, 33, 100, 200, 577, 640, 777, 1001, 1100)

# The size of an element in bytes, by dtype name.
DTYPES = {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}

# 512 MiB on a GPU, several times any L2 cache; on a CPU, what two cores time in seconds.
GPU_BYTES = 2**29
CPU_ELEMENTS = 2**24


class Case(NamedTuple):
    """An operand's shape and the axis that is normalised."""

    shape: tuple[int, ...]
    axis: int = -1

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


# Few rows, where launch and latency count; then an axis that is not the last one, with many
# neighbours in memory (segmentation, attention over keys) and with few.
OTHER_SHAPES = (
    Case((1, 128256)),
    Case((8, 128256)),
    Case((64, 128256)),
    Case((256, 128256)),
    Case((32, 10)),
    Case((128, 1000)),
    Case((32, 21, 512, 512), axis=1),
    Case((64, 1024, 1024), axis=1),
    Case((64, 256, 4096), axis=1),
    Case((64, 100, 8192), axis=1),
    Case((524288, 64, 2), axis=1),
    Case((131072, 64, 8), axis=1),
    Case((32768, 64, 33), axis=1),
    Case((32768, 1024, 2), axis=1),
    Case((64, 4096, 1024), axis=1),
    Case((2048, 4096, 33), axis=1),
)


def default_elements(platform: str, dtype: str) -> int:
    """How many elements an operand has on `platform` ("gpu" or "cpu") unless the caller says."""
    return GPU_BYTES // DTYPES[dtype] if platform == "gpu" else CPU_ELEMENTS


def column_cases(
    elements: int, columns: tuple[int, ...] = COLUMNS, together: int = 1
) -> list[Case]:
    """Matrices of about `elements` elements, one for each row length, of so many rows together."""
    return [Case((max(1, elements // cols // together) * together, cols)) for cols in columns]


# The shapes between neighbours: fewer, since every one takes more than a hundred programs.
GRAPH_COLUMNS = (16, 64, 128, 256, 512, 1024, 4096, 32000, 50257)
GRAPH_ELEMENTS = {"gpu": 2**25, "cpu": 2**21}
# Rows along the last axis, small arrays, few long rows, another axis.
KINDS = ("last", "small", "few", "other")


def graph_cases(
    elements: int, columns: tuple[int, ...], kinds: tuple[str, ...]
) -> list[tuple[str, Case]]:
    """The shapes of `kinds`, each but the small and few ones of about `elements` elements.

    Rows come in eights, as batches do: XLA vectorises no loop over an odd number of elements.
    """
    cases = {
        "last": column_cases(elements, columns, together=8),
        "small": [Case((32, 10)), Case((128, 1000))],
        "few": [Case((rows, n)) for n in (32768, 50257, 128256) for rows in (1, 8)],
        "other": [
            Case((max(1, elements // math.prod(inner)), *inner), axis=1)
            for inner in ((21, 256, 256), (1024, 512))
        ],
    }
    return [(kind, case) for kind in kinds for case in cases[kind]]


def ideal_bytes(direction: str, elements: int, dtype: str, output_dtype: str | None = None) -> int:
    """Bytes that must move: forward reads x and writes y, backward reads y and g and writes dx."""
    read = {"forward": 1, "backward": 2}[direction] * DTYPES[dtype]
    return elements * (read + DTYPES[output_dtype or dtype])
