"""What was measured on an H200: where XLA's code is the faster one in a graph.

Fields, and which files they are from, are `_rule.Rule`'s.
"""

import itertools
import math

from ._reference import ONE_KERNEL
from ._rule import (
    BY_ELEMENTS,
    FORWARD,
    LOG_DERIVATIVES,
    LOG_SOFTMAX,
    SOFTMAX,
    UNREDUCED,
    WAYS,
    Cached,
    Few,
    Fewest,
    Fused,
    Kinds,
    Longer,
    Masks,
    Read,
    Rows,
    Rule,
    Slabs,
    Slow,
    Together,
)


def _of_both(by_width: dict[int, tuple[Rows, ...]]) -> Kinds:
    """The same of softmax and of log-softmax."""
    both = itertools.product(("softmax", "log_softmax"), by_width.items())
    return {(op, width): rows for op, (width, rows) in both}


# Rows of log-softmax that are no whole vectors, and XLA's where there is no derivative.
ODD_LOG_ROWS = (Rows(range(9, 2**9, 2), least=0.75), Rows(range(2**9 + 1, ONE_KERNEL + 1, 2)))

# Those of softmax that are read by element, or not at all.
ODD_ROWS = (Rows(range(83, 2**8, 2)), Rows(range(263, 2**14, 2)))
# The same of 16 bits: longer ones that four does not divide.
UNEVEN_LONG_ROWS = (Rows(range(6001, 2**13, 2)), Rows(range(6002, 2**13, 4)))

# Longer ones that XLA writes one by one what is made of, in place of a kernel's result.
UNEVEN_LONGEST_ROWS = (Rows(range(2**14 + 1, 2**31, 2)), Rows(range(2**14 + 2, 2**31, 4)))


def _cached_uneven(over: int) -> tuple[Cached, ...]:
    """The same of fewer elements, which are read with another array."""
    return tuple(Cached(rows.columns, over, 2**22, ("elements",)) for rows in UNEVEN_LONGEST_ROWS)


# Longer ones that are one kernel of XLA's with what it makes of each element.
LONGER_KERNELS: Kinds = {
    ("softmax", 2): (Rows(range(ONE_KERNEL + 1, 2**14)),),
    ("softmax", 4): (Rows(range(ONE_KERNEL + 1, 2**14 + 1)),),
    ("log_softmax", 2): (Rows(range(ONE_KERNEL + 1, 2**14), least=0.6),),
    ("log_softmax", 4): (Rows(range(ONE_KERNEL + 1, 2**14 + 1)),),
}
# And those that are none, of which it makes them of two values for each row; after a bias it does
# without.
LONGEST_ROWS = Rows(range(2**14 + 1, 2**31))
PAIRS_OF_LONGEST_ROWS: Kinds = {("log_softmax", 4): (LONGEST_ROWS,)}
# Of 16 bits in float32: whole vectors that kernels keep; shorter rows that are none; all as long;
# those, and shorter whole ones, which XLA would sum in several kernels; and those that XLA pads.
KEPT_NARROW = Rows(range(32, ONE_KERNEL + 1, 8))
ODD_NARROW = (Rows(range(11, 1000, 2)), Rows(range(10, 1000, 4)), Rows(range(12, 1000, 8)))
LONG_NARROW = Rows(range(1000, ONE_KERNEL + 1))
SUMMED_NARROW = (Rows(range(16, ONE_KERNEL + 1, 8)), *ODD_NARROW, LONG_NARROW)
PADDED_NARROW = Rows(range(1032, ONE_KERNEL + 1, 8), less=0.8)

# Of 16 bits in float32, the shortest: 4 and 8 fall into the same banks of a tile.
FEW_WIDENED = (Rows(range(3, 4)), Rows(range(5, 8)), Rows(range(9, 16)))
# Those that four does not divide.
UNEVEN_WIDENED = (Rows(range(17, 2**9, 2)), Rows(range(18, 2**9, 4)))
# And longer ones than tiles convert.
LONGER_WIDENED = {
    "softmax": (Rows(range(1300, ONE_KERNEL + 1), least=0.58),),
    "log_softmax": (
        Rows(range(2**10 + 1, 2**11, 2)),
        Rows(range(1300, 1980)),
        Rows(range(2056, ONE_KERNEL + 1, 8)),
    ),
}

# Longer rows of those: that are one kernel of XLA's as it writes them, or several; and all.
ODD_LONGER_WIDENED = Rows(range(14_001, 2**14 + 1, 2))
EVEN_LONGER_WIDENED = Rows(range(14_002, 2**14 + 1, 2))
KEPT_LONGER_WIDENED = Rows(range(ONE_KERNEL + 1, 14_001))
LONGER_WIDENED_ROWS = Rows(range(ONE_KERNEL + 1, 2**14 + 1))

# Rows of 16 bits that are reduced across them.
ACROSS = dict.fromkeys(
    [(op, 2) for op in FORWARD],
    (Rows(range(16, ONE_KERNEL + 1, 8)), Rows(range(2**8 + 2, ONE_KERNEL + 1, 2))),
)

RULE = Rule(
    slabs=Slabs(
        columns=2**8,
        vectors=2**9,
        tile_columns=2**10,
        few_bytes=10 * 2**10,
        neighbour_bytes=200,
        tile_bytes=2**16,
        tiles=2**7,
        fewest={1: 4, 2: 6},
        few=33,
        most_bytes={2: 3 * 2**20, 4: 9 * 2**18},
        forward_bytes={"softmax": 2**21, "log_softmax": 2**18},
        derivative_bytes={2: 2**23, 4: 12 * 2**20},
        odd_bytes=3 * 2**20,
        whole_bytes=2**19,
        longest=2**8,
        wide=2**5,
        wide_bytes={1: 2**23, 2: 48 * 2**20},
        wide_most_bytes=1_400_000,
    ),
    slab_columns=1024,
    panel_bytes=225 * 2**10,
    panel_columns={
        "softmax": 2**14,
        "log_softmax": 2**14,
        "softmax_tangent": 2**13,
        "log_softmax_tangent": 2**12,
        "log_softmax_cotangent": 2**12,
    },
    converted_vectors={2: 64, 4: 40},
    streamed_columns=2**11,
    rows_twice=2**14,
    few_values=Few(2**9, 2**10),
    panel_vectors=2**6,
    elements=2**17,
    terms=(Fused(ONE_KERNEL, 2**20),),
    wide_terms=(Fused(ONE_KERNEL, 3 * 2**20), Fused(2**14, 2**20)),
    widened={
        "softmax": (Rows(range(14_001)), ODD_LONGER_WIDENED),
        "masked_softmax": (Rows(range(2**13 + 1)),),
        "masked_log_softmax": (Rows(range(ONE_KERNEL + 1)),),
    },
    widened_across={"log_softmax": 2**7, "softmax": 0},
    pairs={"softmax": Longer(14_000, 2**7), "log_softmax": Longer(ONE_KERNEL, 0)},
    pairs_read={("log_softmax", 4): Read(reduced=9, both=2**6, elements=2**9, picked=1000)},
    widened_read={"log_softmax": Fewest(2**5, by_rows=2**9, odd=10, odd_by_rows=10)},
    widened_read_longer={
        "again": {("softmax", 4): (LONGER_WIDENED_ROWS,)},
        "reduced": {("softmax", 4): (LONGER_WIDENED_ROWS,)},
        "picked": {("softmax", 4): (Rows(range(10_000, 2**14 + 1, 4)),)},
        "elements": {("softmax", 4): (Rows(range(2**13, 2**14 + 1, 4)),)},
        "converted": {("softmax", 4): (Rows(range(10_000, 2**14 + 1, 4)),)},
    },
    both={
        **dict.fromkeys(
            [(d, 4, 4) for d in (False, True)],
            Together(Fewest(2**5, by_rows=2**9, odd=2**4, odd_by_rows=2**9)),
        ),
        **dict.fromkeys(
            [(d, 2, 4) for d in (False, True)],
            Together(Fewest(2**5, by_rows=2**9, odd=10, odd_by_rows=10)),
        ),
        # Of odd rows XLA's code makes both, or kernels one and the other.
        (True, 2, 2): Together(Fewest(2**5, 2**5, odd=2**31, odd_by_rows=2**31), most=2**8),
        (False, 2, 2): Together(Fewest(1000, 1000, odd=2**31, odd_by_rows=2**31)),
    },
    anew={
        (2, 4, 2): (Rows(range(1, 2**31)),),
        (2, 4, 3): (Rows(range(2**9, 2**31)),),
        (4, 4, 2): (Rows(range(1, 2**31)),),
    },
    slow_sums=Slow(columns=2**10, forward=0, differentiated=2**15),
    reduced={
        ("softmax", 2): (Rows(range(16, ONE_KERNEL + 1, 8)),),
        ("softmax", 4): (Rows(range(2**7 + 1, ONE_KERNEL + 1)),),
        ("log_softmax", 2): (Rows(range(2**7 + 8, ONE_KERNEL + 1, 8)),),
        ("log_softmax", 4): (Rows(range(2**6 + 1, ONE_KERNEL + 1)),),
    },
    unwritten={
        ("apart", "elements"): {
            ("softmax", 2): (
                Rows(range(52, ONE_KERNEL + 1, 2), least=0.63),
                Rows(range(5800, 6001, 4)),
                *UNEVEN_LONG_ROWS,
                Rows(range(10_501, 2**14, 2)),
            ),
            ("softmax", 4): (
                *ODD_ROWS,
                Rows(range(ONE_KERNEL + 1, 2**13)),
            ),
            ("log_softmax", 2): (Rows(range(2**9, ONE_KERNEL + 1, 8), least=0.6),),
            ("log_softmax", 4): ODD_LOG_ROWS,
        },
        ("apart", "unread"): {
            ("softmax", 2): (
                Rows(range(52, 2**13 + 1, 2), least=0.6),
                Rows(range(6001, 2**13, 2)),
                Rows(range(10_501, 2**14, 2)),
            ),
            ("softmax", 4): (
                *ODD_ROWS,
                Rows(range(ONE_KERNEL + 1, 2**13 + 1)),
            ),
            ("log_softmax", 4): ODD_LOG_ROWS,
        },
        ("multiplied", "unread"): {
            ("softmax", 2): (Rows(range(52, 2**13 + 1, 2), least=0.76),),
            ("softmax", 4): (Rows(range(2**9, 2**13 + 1)),),
        },
        ("fused", "unread"): {
            ("softmax", 2): (Rows(range(52, 2**13 + 1, 2), least=0.6),),
            ("softmax", 4): (Rows(range(2**9, 2**13 + 1)),),
        },
        ("apart", "again"): {("softmax", 4): (Rows(range(65, 2**7, 2), least=0.85),)},
        ("apart", "converted"): {
            ("softmax", 4): (
                Rows(range(65, 2**7, 2), least=0.85),
                Rows(range(2**7 + 1, 2**8, 2), least=0.55),
                Rows(range(257, 2**9, 2), least=0.7),
                Rows(range(2**9 + 1, ONE_KERNEL + 1, 2)),
            ),
            ("log_softmax", 4): ODD_LOG_ROWS,
            ("log_softmax", 2): (
                Rows(range(2**9, 2**11 + 1, 8), least=0.6),
                Rows(range(2**11, ONE_KERNEL + 1, 8), least=0.8),
            ),
        },
        ("multiplied", "elements"): {
            ("softmax", 2): (
                Rows(range(52, ONE_KERNEL + 1, 2), least=0.76),
                Rows(range(5800, 6001, 4)),
                *UNEVEN_LONG_ROWS,
                Rows(range(12_001, 2**14, 2)),
            ),
            ("softmax", 4): (
                Rows(range(ONE_KERNEL + 1, 2**13), least=0.53),
                Rows(range(2**13 + 1, 2**14, 2)),
            ),
            ("log_softmax", 2): (Rows(range(2**9, ONE_KERNEL + 1, 8), least=0.6),),
        },
        ("fused", "elements"): {
            ("softmax", 2): (
                Rows(range(52, 2**9, 2), least=0.63),
                Rows(range(1002, ONE_KERNEL + 1, 2), least=0.9),
                Rows(range(5400, 6001, 4)),
                *UNEVEN_LONG_ROWS,
            ),
            ("softmax", 4): (
                Rows(range(ONE_KERNEL + 1, 2**13), least=0.53),
                Rows(range(2**13 + 1, 2**14, 2)),
            ),
            ("log_softmax", 2): (Rows(range(84, ONE_KERNEL + 1, 2), least=0.6),),
            ("log_softmax", 4): (Rows(range(2**9, 2000, 4)),),
        },
    },
    across=ACROSS,
    stored={
        "across": {**ACROSS, ("softmax", 4): (Rows(range(2**8 + 1, ONE_KERNEL + 1, 2)),)},
        "reduced": {
            ("softmax", 2): (Rows(range(66, ONE_KERNEL + 1, 2)),),
            ("softmax", 4): (Rows(range(2**9 + 1, ONE_KERNEL + 1, 2)),),
        },
        "converted": {},
        "elements": {("softmax", 2): (Rows(range(65, ONE_KERNEL + 1)),)},
    },
    of_operand=dict.fromkeys(
        [(op, 2) for op in LOG_DERIVATIVES], (Rows(range(2**11, ONE_KERNEL + 1, 8), least=0.8),)
    ),
    reread={
        ("softmax", 2): 2**7 + 1,
        ("softmax", 4): 2**7 + 1,
        ("log_softmax", 2): math.inf,
        ("log_softmax", 4): 2**6 + 1,
    },
    terms_columns=32,
    biased=range(32, 2**9 + 1),
    long=2**15,
    held=2**14,
    asked=16,
    few={
        "softmax": Few(2**15, 8),
        "logsumexp": Few(2**15, 8),
        "terms": Few(2**14, 12),
    },
    split={"softmax": 16, "log_softmax": 16, "logsumexp": 64},
    split_columns=2**10,
    interleaved={"softmax": 4, "logsumexp": 8, "conversion": 8},
    narrow_columns=8,
    narrow_elements=2**20,
    columns={
        ("softmax", 2): 4096,
        ("softmax", 4): 4096,
        ("log_softmax", 2): 4096,
        ("log_softmax", 4): 4096,
        ("softmax_tangent", 2): 256,
        ("softmax_tangent", 4): 4096,
        ("log_softmax_tangent", 2): 2048,
        ("log_softmax_tangent", 4): 4096,
        ("log_softmax_cotangent", 2): 2048,
        ("log_softmax_cotangent", 4): 4096,
        # By its kernel alone (benchmarks/results/h200-bias.json). In 16 bits the first that are
        # not fewer than terms_columns are ours: of 961,834 rows of 32, XLA's code takes 40 us
        # and ours 31 (h200-survey-31.json).
        ("biased_softmax", 4): 64,
        ("biased_log_softmax", 4): 64,
        # By its kernel alone (benchmarks/results/h200-columns-float64.json).
        ("softmax", 8): 16,
        ("log_softmax", 8): 16,
    },
    odd={
        **dict.fromkeys([(op, 2) for op in (*SOFTMAX, "log_softmax")], (Rows(range(5, 2**11)),)),
        ("softmax_tangent", 4): (Rows(range(5, 2**6), less=0.57),),
        **dict.fromkeys([(op, 2) for op in LOG_DERIVATIVES], (Rows(range(ONE_KERNEL)),)),
        **dict.fromkeys([(op, 4) for op in LOG_SOFTMAX], (Rows(range(5, 2**9), less=0.75),)),
        **dict.fromkeys([(f"biased_{op}", 4) for op in FORWARD], (Rows(range(ONE_KERNEL)),)),
    },
    odd_elements=2**20,
    odd_columns=2**9,
    together={
        ("softmax", 2, 2): (Rows(range(10, 2**10, 2), least=0.55),),
        ("log_softmax", 2, 2): (Rows(range(12, 2**10, 4), least=0.55),),
        ("softmax", 4, 2): (Rows(range(5, 2**11), least=0.55), Rows(range(8, 2**11, 4))),
        ("log_softmax", 4, 2): (
            Rows(range(6, 2**9, 2), least=0.55),
            Rows(range(8, 2**9, 4)),
            Rows(range(2**9, 2**11), least=0.55),
        ),
        ("log_softmax", 2, 4): (Rows(range(6, 2**9, 2), least=0.53),),
    },
    filled={
        ("softmax_tangent", 2): 0.8,
        **dict.fromkeys([(op, 2) for op in LOG_SOFTMAX], 0.55),
    },
    fused_filled={("softmax_tangent", 2): 0.55},
    scaled_filled={("softmax_tangent", 2): 0.8},
    rounded={("softmax_tangent", 2): (Rows(range(68, ONE_KERNEL + 1, 4)),)},
    apart={
        ("softmax", 2): (Rows(range(256, ONE_KERNEL + 1), less=0.55),),
        ("log_softmax", 2): (Rows(range(512, ONE_KERNEL + 1), less=0.99),),
    },
    singly={
        ("softmax", 4): (Rows(range(17, 2**9, 2), less=0.55),),
        ("softmax_tangent", 4): (Rows(range(65, 2**7, 2), less=0.64),),
    },
    singly_in_both={
        **dict.fromkeys([(op, 4) for op in SOFTMAX], (Rows(range(65, ONE_KERNEL + 1, 2)),)),
        **dict.fromkeys([(op, 4) for op in LOG_SOFTMAX], ODD_LOG_ROWS),
    },
    scores={
        ("softmax", 2): (
            Rows(range(2**6, 2**9), less=0.8),
            Rows(range(2**9, ONE_KERNEL + 1)),
        ),
        ("softmax", 4): (Rows(range(65, 2**7, 2), less=0.77),),
    },
    in_both={
        ("softmax", 2): (
            Rows(range(128, 2**9), less=0.7),
            Rows(range(2**9, ONE_KERNEL + 1)),
        )
    },
    in_both_multiplied={
        ("softmax", 4): (Rows(range(2**9, ONE_KERNEL + 1)),),
        ("log_softmax", 2): (Rows(range(2**9, ONE_KERNEL + 1)),),
    },
    added={("log_softmax", 2): range(600, ONE_KERNEL + 1)},
    added_in_both={
        **dict.fromkeys([(op, 2) for op in FORWARD], range(2**9, ONE_KERNEL + 1)),
        **dict.fromkeys([(op, 4) for op in FORWARD], range(2**9, 2000)),
    },
    returned={
        ("softmax", 2, 2): (
            Rows(range(3, 8)),
            Rows(range(9, 16)),
            Rows(range(17, ONE_KERNEL + 1)),
        ),
        ("log_softmax", 2, 2): (Rows(range(3, 8)), Rows(range(9, ONE_KERNEL + 1))),
        ("softmax", 4, 4): (
            Rows(range(3, 116, 2)),
            Rows(range(10, 116, 4)),
            Rows(range(64, 116), less=0.57),
            Rows(range(8, 116), least=0.9),
            Rows(range(116, ONE_KERNEL + 1)),
        ),
        ("log_softmax", 4, 4): (
            Rows(range(3, 8)),
            Rows(range(9, 32)),
            Rows(range(33, ONE_KERNEL + 1)),
        ),
        ("softmax", 2, 4): (
            *FEW_WIDENED,
            *UNEVEN_WIDENED,
            Rows(range(20, 2**9, 4), less=0.77),
            Rows(range(2**9 + 1, 2**10 + 1)),
            *LONGER_WIDENED["softmax"],
            Rows(range(ONE_KERNEL + 1, 2**31)),
        ),
        ("log_softmax", 2, 4): (
            *FEW_WIDENED,
            Rows(range(16, 17)),
            *UNEVEN_WIDENED,
            Rows(range(20, 2**9, 4), less=0.7),
            Rows(range(32, 33)),
            Rows(range(64, 129, 64)),
            Rows(range(2**9 + 1, 2**10 + 1)),
            *LONGER_WIDENED["log_softmax"],
            Rows(range(ONE_KERNEL + 1, 2**31)),
        ),
        **dict.fromkeys([(op, 4, 2) for op in FORWARD], (*FEW_WIDENED, Rows(range(17, 2**31)))),
    },
    returned_half={
        ("softmax", 2, 4): (
            Rows(range(17, 2**9, 2)),
            Rows(range(750, 2**10, 4)),
            Rows(range(751, 2**10, 2)),
            *LONGER_WIDENED["softmax"],
        ),
        ("log_softmax", 2, 4): (
            Rows(range(17, 2**9, 2)),
            Rows(range(18, 2**9, 4), less=0.62),
            Rows(range(738, 2**10, 4)),
            Rows(range(2**9 + 1, 2**10, 2)),
            *LONGER_WIDENED["log_softmax"],
        ),
    },
    returned_biased={
        ("softmax", 2, 2): (
            Rows(range(33, ONE_KERNEL + 1, 2)),
            Rows(range(34, 500, 4), less=0.8),
            Rows(range(36, 500, 8), less=0.6),
            Rows(range(500, ONE_KERNEL + 1)),
        ),
        ("log_softmax", 2, 2): (
            Rows(range(33, 177, 2)),
            Rows(range(34, 177, 4), less=0.9),
            Rows(range(36, 177, 4), less=0.6),
            Rows(range(44, 177, 8), less=0.7),
            Rows(range(177, ONE_KERNEL + 1)),
        ),
        ("softmax", 4, 4): (
            Rows(range(33, ONE_KERNEL + 1, 2)),
            Rows(range(66, 257), less=0.6),
            Rows(range(128, 577, 4), least=0.9),
            Rows(range(750, ONE_KERNEL + 1)),
        ),
        ("log_softmax", 4, 4): (
            Rows(range(33, 2**11, 2)),
            Rows(range(66, 257), less=0.62),
            Rows(range(257, 577), less=0.53),
            Rows(range(128, 577, 4), least=0.9),
            Rows(range(577, 2**11 + 1)),
            Rows(range(2050, ONE_KERNEL + 1, 2), less=0.53),
            Rows(range(2052, ONE_KERNEL + 1, 4)),
        ),
    },
    returned_few={
        ("softmax", 2, 2): (Fused(2**11, 2**19),),
        ("log_softmax", 2, 2): (Fused(999, 2**16),),
        **dict.fromkeys(
            [(op, 4, 4) for op in FORWARD],
            (Fused(2**11, 2**22), Fused(ONE_KERNEL, 2**19)),
        ),
        **dict.fromkeys(
            [(op, *sizes) for op in FORWARD for sizes in ((2, 4), (4, 2))],
            (Fused(2**31, 2**22),),
        ),
    },
    returned_singly={
        ("softmax", 4, 4): (Rows(range(21, 2**7, 2)),),
        ("log_softmax", 4, 4): (Rows(range(9, 2**7, 2)),),
    },
    read={
        ("picked", "pairs"): {
            ("log_softmax", 4): (Rows(range(9, 2**31)),),
            ("log_softmax", 2, 4): SUMMED_NARROW,
            ("softmax", 2, 4): (
                KEPT_NARROW,
                *ODD_NARROW,
                LONGER_WIDENED_ROWS,
            ),
        },
        ("picked", "kernel"): {
            ("softmax", 2): (Rows(range(65, ONE_KERNEL + 1)),),
            ("softmax", 4): (Rows(range(197, ONE_KERNEL + 1)),),
            ("log_softmax", 2): (Rows(range(16, ONE_KERNEL + 1)),),
        },
        ("summed", "pairs"): {
            ("log_softmax", 4): (Rows(range(16, 2**31)),),
            ("log_softmax", 2, 4): SUMMED_NARROW,
            ("softmax", 2, 4): (KEPT_NARROW, *ODD_NARROW, LONGER_WIDENED_ROWS),
        },
        ("summed", "xla"): {("log_softmax", 2, 4): ()},  # not what is reduced
        ("reduced", "pairs"): {
            ("log_softmax", 4): (
                Rows(range(129, 600, 2)),
                Rows(range(600, 2000)),
                Rows(range(ONE_KERNEL + 1, 2**14 + 1), less=0.54),
                LONGEST_ROWS,
            ),
            ("log_softmax", 2, 4): (*ODD_NARROW, PADDED_NARROW),
        },
        ("reduced", "pairs of products"): {
            ("log_softmax", 4): (Rows(range(ONE_KERNEL + 1, 2**14 + 1)),),
        },
        ("reduced", "kernel"): {
            ("log_softmax", 2): (
                Rows(range(33, 300), less=0.66),
                Rows(range(300, 2100)),
                Rows(range(2100, ONE_KERNEL + 1), less=0.9),
            ),
        },
        ("reduced", "xla"): {
            ("softmax", 2): (Rows(range(ONE_KERNEL + 1, 2**14 + 1)),),
            ("softmax", 4): (Rows(range(ONE_KERNEL + 1, 2**14 + 1)),),
            ("log_softmax", 2): (Rows(range(ONE_KERNEL + 1, 2**14 + 1), least=0.6),),
            ("log_softmax", 4): (Rows(range(ONE_KERNEL + 1, 2**14 + 1), least=0.54),),
            ("softmax", 2, 4): (LONGER_WIDENED_ROWS,),
            ("log_softmax", 2, 4): (LONGER_WIDENED_ROWS._replace(least=0.6),),
        },
        ("elements", "xla"): {
            **{case: (*rows, *UNEVEN_LONGEST_ROWS) for case, rows in LONGER_KERNELS.items()},
            ("log_softmax", 2, 4): (KEPT_LONGER_WIDENED, ODD_LONGER_WIDENED),
        },
        ("elements", "pairs"): PAIRS_OF_LONGEST_ROWS,
        ("converted", "xla"): {
            **LONGER_KERNELS,
            ("log_softmax", 2, 4): (KEPT_LONGER_WIDENED, ODD_LONGER_WIDENED),
        },
        ("converted", "pairs"): PAIRS_OF_LONGEST_ROWS,
        ("weighed", "xla"): {
            ("softmax", 2): (Rows(range(ONE_KERNEL + 1, 2**14 + 1)),),
            ("softmax", 4): (
                Rows(range(ONE_KERNEL + 1, 2**14 + 1)),
                Rows(range(20_000, 2**31)),
            ),
            ("log_softmax", 2): (Rows(range(ONE_KERNEL + 1, 2**14 + 1), least=0.6),),
            ("log_softmax", 4): (Rows(range(ONE_KERNEL + 1, 2**14 + 1)),),
            ("softmax", 2, 4): (EVEN_LONGER_WIDENED,),
            ("log_softmax", 2, 4): (
                Rows(range(ONE_KERNEL + 1, 14_001), least=0.6),
                EVEN_LONGER_WIDENED,
            ),
        },
        ("weighed", "pairs"): {
            ("log_softmax", 4): (Rows(range(500, 2000)), LONGEST_ROWS),
            ("log_softmax", 2, 4): (Rows(range(17, 1000, 2)), PADDED_NARROW),
        },
        ("weighed sum", "pairs"): {
            ("log_softmax", 4): (
                Rows(range(17, 2**5)),
                Rows(range(2**5 + 1, 2**10)),
                Rows(range(2**10 + 1, 2**31)),
            ),
            ("log_softmax", 2, 4): (
                KEPT_NARROW,
                *ODD_NARROW,
                LONG_NARROW,
                LONGER_WIDENED_ROWS,
            ),
            ("softmax", 2, 4): (KEPT_NARROW, *ODD_NARROW, LONGER_WIDENED_ROWS),
        },
        ("across", "xla"): {("log_softmax", 2, 4): (Rows(range(2**13, 2**13 + 1)),)},
        ("across", "pairs"): {
            ("log_softmax", 4): (Rows(range(ONE_KERNEL + 1, 2**31)),),
            ("softmax", 2, 4): (
                Rows(range(ONE_KERNEL + 1, 2**13)),
                Rows(range(2**13 + 1, 2**14 + 1)),
            ),
        },
        ("across", "kernel"): ACROSS,
    },
    cached={
        ("softmax", 2): (
            Cached(range(ONE_KERNEL + 1, 2**14), 0, 2**22),
            Cached(range(2**14, 2**14 + 1), 2**17, 2**20, fused=True),
            *_cached_uneven(2**20),
        ),
        ("softmax", 4): (
            Cached(range(ONE_KERNEL + 1, 2**14), 0, 2**22),
            Cached(range(2**14, 2**14 + 1), 0, 2**22, UNREDUCED),
            Cached(range(2**14, 2**14 + 1), 2**18, 2**22, ("weighed",)),
            Cached(range(2**14 + 1, 2**31), 2**19, 2**24, WAYS, fused=True),
            Cached(range(2**14 + 1, 2**15), 2**21, 2**23, ("weighed",), fused=False),
            Cached(range(2**15, 2**31), 2**20, 2**23, WAYS, fused=False),
            *_cached_uneven(2**19),
        ),
        ("log_softmax", 2): (
            Cached(range(ONE_KERNEL + 1, 2**14), 0, 2**21, rows=2**6),
            Cached(range(ONE_KERNEL + 1, 2**14), 2**21, 2**22, UNREDUCED),
            Cached(range(ONE_KERNEL + 1, 2**14), 2**22, 2**23, UNREDUCED, fused=False),
            Cached(range(ONE_KERNEL + 1, 2**14), 2**21, 2**24, least=0.54),
        ),
        ("log_softmax", 4): (
            Cached(range(ONE_KERNEL + 1, 2**14 + 1), 0, 2**22, fused=False),
            Cached(range(ONE_KERNEL + 1, 2**14), 0, 2**22, fused=True, least=0.58),
            Cached(range(2**15, 2**31), 2**22, 2**24, WAYS, fused=True),
            Cached(range(2**16, 2**31), 2**22, 2**23, ("reduced",), fused=False),
            *_cached_uneven(2**20),
        ),
    },
    gated_across={
        **dict.fromkeys([("softmax", 2), ("softmax", 4)], (Rows(range(2**11)),)),
        ("log_softmax", 2): (Rows(range(9)), Rows(range(2**8, 2**11))),
        ("log_softmax", 4): (Rows(range(9)), Rows(range(2**7, 2**31))),
    },
    read_least={
        ("picked", "softmax", 4): 2**22,
        ("reduced", "log_softmax", 2): 2**20,
        ("reduced", "log_softmax", 4): 2**21,
        # Of fewer, `cached` has what is XLA's, but for long rows that are weighed.
        **dict.fromkeys(itertools.product(BY_ELEMENTS, FORWARD, (2, 4)), 2**22),
        ("weighed", "log_softmax", 2): 2**21,
        ("weighed sum", "log_softmax", 4): 2**21,
        ("picked", "softmax", 2, 4): 2**21,
        **dict.fromkeys(itertools.product(("summed", "weighed sum"), FORWARD, (2,), (4,)), 2**21),
    },
    read_least_odd={
        ("summed", "log_softmax", 2, 4): 2**19,
        ("weighed sum", "log_softmax", 2, 4): 2**19,
    },
    read_rows=2**6,
    fused_across={("softmax", 4): 2**7, ("log_softmax", 4): 2**8},
    masks_tiled=Masks(
        whole=_of_both(
            {
                2: (Rows(range(32, 2**31)),),
                4: (Rows(range(32, 2**8 + 1)), Rows(range(384, 2**31))),
            }
        ),
        odd=_of_both({2: (Rows(range(33, 2**31)),), 4: (Rows(range(33, 2**8)),)}),
    ),
    masks=Masks(
        whole=_of_both(
            {
                2: (Rows(range(2**8, 2**31)),),
                4: (Rows(range(2**7, 1000), least=0.9), Rows(range(1000, 2**31))),
            }
        ),
        odd=_of_both(
            {
                2: (Rows(range(33, ONE_KERNEL, 2)), Rows(range(ONE_KERNEL + 1, 2**31))),
                4: (Rows(range(ONE_KERNEL + 1, 2**31)),),
            }
        ),
    ),
    terms_of_scores=dict.fromkeys([("softmax", 2), ("softmax", 4)], (Rows(range(48, 2**31)),)),
    masks_few={4: 2**22},
    masks_apart=Masks(
        whole={
            ("softmax", 2): (Rows(range(2**8 + 1)), Rows(range(2**31), least=1)),
            ("log_softmax", 2): (Rows(range(2**31)),),
        }
        | _of_both({4: (Rows(range(2**6, 2**9 + 1), least=1),)}),
        odd=dict.fromkeys([("softmax", 2), ("softmax", 4)], (Rows(range(129, 2**8, 2)),)),
    ),
)
