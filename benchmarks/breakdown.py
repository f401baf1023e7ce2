"""Where the kernel time of a program goes: our kernels, matrix products, and XLA's own by scope."""

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from report import Entry

OURS, PRODUCTS, OTHER = "jax_softmax", "matrix_products", "other"
# What a library's kernel has in its name. XLA calls its own Triton products gemm_fusion_*.
LIBRARIES = {OURS: ("jax_softmax",), PRODUCTS: ("gemm", "nvjet", "cutlass", "cublas", "xmma")}
TOP = 10


class Launch(NamedTuple):
    kernel: str
    microseconds: float


def scopes_of(hlo: str, scopes: Iterable[str]) -> dict[str, str]:
    """The scope that an optimised program's instructions stem from, by the names of their kernels.

    A fusion is counted where its root stems from.
    """
    found = {}
    for line in hlo.splitlines():
        named = re.match(r'\s*(?:ROOT )?%?([\w.-]+) = .*op_name="([^"]*)"', line)
        if named:
            instruction, path = named.groups()
            scope = next((scope for scope in scopes if scope in path), OTHER)
            found[re.sub(r"\W", "_", instruction)] = scope
    return found


def part_of(kernel: str, scopes: dict[str, str]) -> str:
    for part, names in LIBRARIES.items():
        if any(name in kernel for name in names):
            return part
    return scopes.get(kernel, OTHER)


def _totals(keyed: Iterable[tuple[tuple[str, ...], float]]) -> list[tuple[tuple[str, ...], Entry]]:
    """Launches and time by key, longest first."""
    times: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for key, microseconds in keyed:
        times[key].append(microseconds)
    totals = [(key, {"launches": len(t), "microseconds": sum(t)}) for key, t in times.items()]
    return sorted(totals, key=lambda total: -total[1]["microseconds"])


def breakdown(launches: Iterable[Launch], scopes: dict[str, str]) -> Entry:
    """The time of one run's kernels by part, and the kernels that take most of it.

    Kernels that differ in XLA's trailing number alone, as in layer after layer, are one.
    """
    parts = [(part_of(kernel, scopes), kernel, time) for kernel, time in launches]
    by_part = _totals(((part,), time) for part, _, time in parts)
    by_kernel = _totals(
        ((part, re.sub(r"(_\d+)+$", "", kernel)), time) for part, kernel, time in parts
    )
    return {
        "parts": {part: total for (part,), total in by_part},
        "top": [{"kernel": k, "part": part} | total for (part, k), total in by_kernel[:TOP]],
    }


def lines(name: str, got: Entry) -> list[str]:
    """The table of one breakdown."""
    parts = (f"{part} {t['microseconds']:.0f}us" for part, t in got["parts"].items())
    top = (
        f"    {t['microseconds']:9.1f}us {t['launches']:4}x {t['part']:17} {t['kernel'][:80]}"
        for t in got["top"]
    )
    return [f"  {name}: {', '.join(parts)}", *top]
