"""Reads ptxas' report in a build log: fails on register spills, keeps cuda/registers.h true.

    python tools/check_kernels.py build.log            # check
    python tools/check_kernels.py build.log --write    # refresh cuda/registers.h

The log is that of a build with JAX_SOFTMAX_PTXAS_REPORT=ON for sm_90.
"""

import argparse
import re
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
DTYPES = {"f": "F32", "d": "F64", "6__half": "F16", "13__nv_bfloat16": "BF16"}
BYTES = {"F32": 4, "F64": 8, "F16": 2, "BF16": 2}
REPORT = re.compile(
    r"Compiling entry function '(?P<name>\S+)' for 'sm_90'.*?"
    r"(?P<spilled>\d+) bytes spill stores.*?Used (?P<registers>\d+) registers",
    re.DOTALL,
)
NAME = re.compile(
    r"device\d+(?P<strategy>(?:[A-Z][a-z]+)+?)KernelINS0_\d+(?P<op>[A-Za-z]+?)INS0_\d+\w*?Math.*?"
    r"(?:Direct|Scaled|Terms)LoadIS\d?_(?P<dtype>\w+?)(?:LNS0_\d+TermsKindE\dE)?E"
    r"ENS0_\d+(?:Direct|Masked)StoreIS\d?_(?P<out>\w+?)EE"
)
# A kernel that is no op's for strategies.
MAP_NAME = re.compile(
    r"\d+(?P<op>[A-Z][A-Za-z]+)KernelINS\d_\d+\w+?"
    r"(?:I(?P<inner>\w+?)EE|E)(?P<dtype>S\d?_|f|d|6__half|13__nv_bfloat16)(?:Li\d|E)"
)


@dataclass(frozen=True)
class Kernel:
    strategy: str
    op: str
    dtype: str  # of the inputs
    out: str  # dtype of the result
    parameters: tuple[int, ...]  # vector width, and packs per lane for "Warp"
    masked: bool  # rows that are not whole vectors
    registers: int
    spilled: int


def kernels_in(log: str) -> list[Kernel]:
    """Every kernel that the log reports on."""
    found = []
    for report in REPORT.finditer(log):
        name = NAME.search(report["name"])
        own = MAP_NAME.search(report["name"]) if name is None else name
        if own is None:
            raise SystemExit(f"cannot read the kernel name {report['name']}")
        # A type that the name holds twice is a reference the second time.
        dtype = own["inner"] if own["dtype"].startswith("S") else own["dtype"]
        out = dtype if name is None or re.fullmatch(r"S\d+_", name["out"]) else name["out"]
        found.append(
            Kernel(
                "Map" if name is None else name["strategy"],
                own["op"],
                DTYPES[dtype],
                DTYPES[out],
                tuple(map(int, re.findall(r"Li(\d+)E", report["name"]))),
                "Lb0E" in report["name"],
                int(report["registers"]),
                int(report["spilled"]),
            )
        )
    return found


def ops() -> list[tuple[str, str]]:
    """The ops as (primitive, struct), in the order of their enumerators."""
    return re.findall(r"JS_OP\((\w+), (\w+), \d\)", (ROOT / "cuda/ops/list.h").read_text())


def type_pairs() -> list[tuple[str, str]]:
    """The pairs of dtypes that kernels are built for, in the order of the table's columns."""
    header = (ROOT / "cuda/types.h").read_text()
    return re.findall(r"JS_PAIR\((\w+), (\w+), context\)", header)


def without_kernels() -> int:
    """How many pairs of types ops with one value for each row have no kernels for."""
    per_row = re.findall(
        r"IsPerRow\(OpKind op\) { return op == OpKind::k(\w+); }",
        (ROOT / "cuda/ops/list.h").read_text(),
    )
    return len(per_row) * sum(BYTES[out] < BYTES[dtype] for dtype, out in type_pairs())


def register_table(kernels: list[Kernel]) -> str:
    """The rows of kBlockRegisters: block kernels with full vectors, rows being these or not."""
    full = max(k.parameters[0] for k in kernels if k.strategy == "Block" and k.dtype == "BF16")
    registers = {
        (k.op, k.dtype, k.out, k.masked): k.registers
        for k in kernels
        if k.strategy == "Block" and k.parameters[0] == full // (BYTES[k.dtype] // 2)
    }

    def cell(op: str, dtype: str, out: str) -> str:
        """Zeros for an op that "block" has no kernels of."""
        return f"{{{', '.join(str(registers.get((op, dtype, out, m), 0)) for m in (False, True))}}}"

    return "".join(
        f"    // {name}\n    {{{', '.join(cell(op, *pair) for pair in type_pairs())}}},\n"
        for name, op in ops()
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("log", type=Path)
    parser.add_argument("--write", action="store_true", help="refresh cuda/registers.h")
    arguments = parser.parse_args()

    kernels = kernels_in(arguments.log.read_text())
    # Others, as RowPairs, are no op of their own.
    structs = {op for _, op in ops()}
    reported = {(k.op, k.dtype, k.out) for k in kernels if k.op in structs}
    if len(reported) != len(ops()) * len(type_pairs()) - without_kernels():
        raise SystemExit("the log does not report on every op and dtypes: build from scratch")
    # float64 is left out: its exponential is a function call that saves registers on the stack.
    spilling = [k for k in kernels if k.spilled and k.dtype != "F64"]
    for k in spilling:
        print(f"spills {k.spilled} bytes: {k}")

    header = ROOT / "cuda/registers.h"
    old = header.read_text()
    new = re.sub(r"(?<=\[2\] = {\n).*?(?=};)", register_table(kernels), old, flags=re.DOTALL)
    if arguments.write:
        header.write_text(new)
    elif new != old:
        print(f"{header} is out of date: run this with --write")
    print(f"{len(kernels)} kernels, {len(spilling)} spilling")
    sys.exit(bool(spilling) or (new != old and not arguments.write))


if __name__ == "__main__":
    main()
