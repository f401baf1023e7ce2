"""Checks which layer may include which: the rules of README, "How it works"."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent

# (files, what they and all that they include must not include, why)
RULES = [
    (["cuda/plan.h", "cpu/plan.h"], r"cuda_|xla/|nanobind|\.cuh", "plans run on any machine"),
    (
        [
            *("cuda/ops/*.h", "cuda/strategies/*.cuh"),
            *("cpu/kernels.cc", "cpu/absmax.cc", "cpu/cross_entropy.cc"),
        ],
        r"xla/|nanobind|Python\.h",
        "ops and strategies know neither XLA nor Python",
    ),
    (["cuda/*.cc", "cpu/*.cc"], r"\.cuh", "only nvcc compiles device code"),
    (["cuda/*.cu", "cuda/*.cuh"], r"nanobind|python\.h", "nvcc never sees nanobind"),
]
INCLUDE = re.compile(r'^\s*#include [<"]([^>"]+)[>"]', re.MULTILINE)


def closure(path: Path) -> set[str]:
    """Every include reached from `path`, as written."""
    reached: set[str] = set()
    pending = [path]
    while pending:
        current = pending.pop()
        for name in INCLUDE.findall(current.read_text()):
            if name not in reached:
                reached.add(name)
                local = current.parent / name
                if local.exists():
                    pending.append(local.resolve())
    return reached


def main() -> None:
    broken = [
        f"{path.relative_to(ROOT)} includes {name}: {why}"
        for patterns, forbidden, why in RULES
        for pattern in patterns
        for path in sorted(ROOT.glob(pattern))
        for name in sorted(closure(path))
        if re.search(forbidden, name)
    ]
    print("\n".join(broken))
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
