"""What was measured on an H200: where XLA's code is the faster one in a graph.

Fields, and which files they are from, are `_rule.Rule`'s.
"""

from ._reference import ONE_KERNEL
from ._rule import (
    FORWARD,
    LOG_DERIVATIVES,
    LOG_SOFTMAX,
    SOFTMAX,
    Few,
    Fewest,
    Fused,
    Kinds,
    Longer,
    Read,
    Rows,
    Rule,
    Slabs,
)

# Rows of log-softmax that are no whole vectors, and XLA's where there is no derivative.
ODD_LOG_ROWS = (Rows(range(9, 2**9, 2), least=0.75), Rows(range(2**9 + 1, ONE_KERNEL + 1, 2)))

# Those of softmax, and longer ones of 16 bits.
ODD_ROWS = (Rows(range(83, 2**8, 2)), Rows(range(263, 2**14, 2)))
ODD_LONG_ROWS = Rows(range(6001, 2**14, 2))
# What XLA has within the code that reads it by elements, after nothing that it may fuse, and of
# softmax in 16 bits what nothing reads.
BY_ELEMENTS_APART: Kinds = {
    ("softmax", 2): (Rows(range(52, ONE_KERNEL + 1, 2), least=0.63), ODD_LONG_ROWS),
    ("softmax", 4): (*ODD_ROWS, Rows(range(ONE_KERNEL + 1, 2**13))),
    ("log_softmax", 2): (Rows(range(2**9, ONE_KERNEL + 1, 8), least=0.6),),
    ("log_softmax", 4): ODD_LOG_ROWS,
}
UNREAD_ROWS = Rows(range(52, 2**13 + 1, 2), least=0.6)

# Longer rows that XLA writes one by one what is made of, in place of a kernel's result.
UNEVEN_LONGEST_ROWS = (Rows(range(2**14 + 1, 2**31, 2)), Rows(range(2**14 + 2, 2**31, 4)))

# All longer ones that XLA may have one kernel of; and which are one with what it makes of each
# element.
LONGER_ROWS = Rows(range(ONE_KERNEL + 1, 2**14 + 1))
LONGER_KERNELS: Kinds = {
    ("softmax", 2): (Rows(range(ONE_KERNEL + 1, 2**14)),),
    ("softmax", 4): (LONGER_ROWS,),
    ("log_softmax", 2): (Rows(range(ONE_KERNEL + 1, 2**14), least=0.6),),
    ("log_softmax", 4): (LONGER_ROWS,),
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

# Longer rows of those: that are one kernel of XLA's as it writes them, or several.
ODD_LONGER_WIDENED = Rows(range(14_001, 2**14 + 1, 2))
EVEN_LONGER_WIDENED = Rows(range(14_002, 2**14 + 1, 2))
KEPT_LONGER_WIDENED = Rows(range(ONE_KERNEL + 1, 14_001))

# Rows of 16 bits that are reduced across them.
ACROSS = dict.fromkeys([(op, 2) for op in FORWARD], (Rows(range(16, ONE_KERNEL + 1)),))

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
    pairs_read={("log_softmax", 4): Read(reduced=9, both=2**6, elements=2**9)},
    widened_read={"log_softmax": Fewest(2**5, by_rows=2**9, odd=10, odd_by_rows=10)},
    both={
        4: Fewest(2**5, by_rows=2**9, odd=2**4, odd_by_rows=2**9),
        2: Fewest(2**5, by_rows=2**9, odd=10, odd_by_rows=10),
    },
    anew={(2, 2): 1, (2, 3): 2**9, (4, 2): 1},
    slow_sums=2**10,
    reduced={
        **dict.fromkeys([(op, 2) for op in FORWARD], (Rows(range(72, ONE_KERNEL + 1, 8)),)),
        **dict.fromkeys([(op, 4) for op in FORWARD], (Rows(range(65, ONE_KERNEL + 1)),)),
    },
    unwritten={
        ("apart", "elements"): BY_ELEMENTS_APART,
        ("apart", "unread"): {
            ("softmax", 2): (UNREAD_ROWS, ODD_LONG_ROWS),
            ("softmax", 4): (*ODD_ROWS, Rows(range(ONE_KERNEL + 1, 2**13 + 1))),
            ("log_softmax", 4): ODD_LOG_ROWS,
        },
        ("apart", "converted"): {
            ("log_softmax", 2): (
                Rows(range(2**9, 2**11 + 1, 8), least=0.6),
                Rows(range(2**11, ONE_KERNEL + 1, 8), least=0.8),
            ),
            ("log_softmax", 4): ODD_LOG_ROWS,
        },
        ("fused", "elements"): BY_ELEMENTS_APART
        | {
            ("softmax", 4): (
                Rows(range(ONE_KERNEL + 1, 2**13)),
                Rows(range(2**13 + 1, 2**14, 2)),
            ),
            ("log_softmax", 4): (),
        },
        ("fused", "unread"): {
            ("softmax", 2): (UNREAD_ROWS,),
            ("softmax", 4): (Rows(range(2**9, 2**13 + 1)),),
        },
    },
    stored={
        "reduced": dict.fromkeys(
            [(op, 2) for op in FORWARD], (Rows(range(66, ONE_KERNEL + 1, 2)),)
        ),
        "converted": {},
        "elements": {("softmax", 2): (Rows(range(65, ONE_KERNEL + 1)),)},
    },
    reread=2**7 + 1,
    of_operand=dict.fromkeys(
        [(op, 2) for op in LOG_DERIVATIVES], (Rows(range(2**11, ONE_KERNEL + 1, 8), least=0.8),)
    ),
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
        **dict.fromkeys([(op, 2) for op in FORWARD], 4096),
        **dict.fromkeys([(op, 4) for op in (*SOFTMAX, *LOG_SOFTMAX)], 4096),
        ("softmax_tangent", 2): 256,
        **dict.fromkeys([(op, 2) for op in LOG_DERIVATIVES], 2048),
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
        **dict.fromkeys([(op, 2) for op in LOG_DERIVATIVES], (Rows(range(ONE_KERNEL)),)),
        **dict.fromkeys([(op, 4) for op in LOG_SOFTMAX], (Rows(range(5, 2**9), less=0.75),)),
        **dict.fromkeys([(f"biased_{op}", 4) for op in FORWARD], (Rows(range(ONE_KERNEL)),)),
    },
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
    singly={
        ("softmax", 4): (Rows(range(17, 2**9, 2), less=0.55),),
        ("softmax_tangent", 4): (Rows(range(65, 2**7, 2), less=0.64),),
    },
    singly_in_both={
        **dict.fromkeys([(op, 4) for op in SOFTMAX], (Rows(range(65, ONE_KERNEL + 1, 2)),)),
        **dict.fromkeys([(op, 4) for op in LOG_SOFTMAX], ODD_LOG_ROWS),
    },
    in_both={
        ("softmax", 2): (
            Rows(range(128, 2**9), less=0.7),
            Rows(range(2**9, ONE_KERNEL + 1)),
        ),
        ("log_softmax", 2): (Rows(range(2**9, ONE_KERNEL + 1), less=0.99),),
    },
    # 4 and 8 columns fall into the same banks of a tile.
    returned=(Rows(range(3, 4)), Rows(range(5, 8)), Rows(range(9, 2**31))),
    returned_least={2: 2**16, 4: 2**22},
    read={
        ("picked", "pairs"): {
            ("log_softmax", 4): (Rows(range(9, 2**31)),),
            ("log_softmax", 2, 4): SUMMED_NARROW,
        },
        ("picked", "kernel"): {
            ("softmax", 2): (Rows(range(65, ONE_KERNEL + 1)),),
            ("softmax", 4): (Rows(range(197, ONE_KERNEL + 1)),),
            ("log_softmax", 2): (Rows(range(16, ONE_KERNEL + 1)),),
        },
        ("summed", "pairs"): {
            ("log_softmax", 4): (Rows(range(16, 2**31)),),
            ("log_softmax", 2, 4): SUMMED_NARROW,
        },
        ("summed", "xla"): {("log_softmax", 2, 4): ()},  # not what is reduced
        ("reduced", "pairs"): {
            ("log_softmax", 4): (
                Rows(range(129, 600, 2)),
                Rows(range(600, 2000)),
                LONGER_ROWS._replace(less=0.54),
                LONGEST_ROWS,
            ),
            ("log_softmax", 2, 4): (*ODD_NARROW, PADDED_NARROW),
        },
        ("reduced", "pairs of products"): {
            ("log_softmax", 4): (LONGER_ROWS,),
        },
        ("reduced", "kernel"): {
            ("log_softmax", 2): (
                Rows(range(33, 300), less=0.66),
                Rows(range(300, 2100)),
                Rows(range(2100, ONE_KERNEL + 1), less=0.9),
            ),
        },
        ("reduced", "xla"): {
            ("softmax", 2): (LONGER_ROWS,),
            ("softmax", 4): (LONGER_ROWS,),
            ("log_softmax", 2): (LONGER_ROWS._replace(least=0.6),),
            ("log_softmax", 4): (LONGER_ROWS._replace(least=0.54),),
            ("softmax", 2, 4): (EVEN_LONGER_WIDENED,),
            ("log_softmax", 2, 4): (LONGER_ROWS._replace(least=0.6),),
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
            ("softmax", 2): (LONGER_ROWS,),
            ("softmax", 4): (
                LONGER_ROWS,
                Rows(range(20_000, 2**31)),
            ),
            ("log_softmax", 2): (LONGER_ROWS._replace(least=0.6),),
            ("log_softmax", 4): (LONGER_ROWS,),
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
                LONGER_ROWS,
            ),
        },
        ("across", "xla"): {("log_softmax", 2, 4): (Rows(range(2**13, 2**13 + 1)),)},
        ("across", "pairs"): {
            ("log_softmax", 4): (Rows(range(ONE_KERNEL + 1, 2**31)),),
        },
        ("across", "kernel"): ACROSS,
    },
    cached=LONGER_KERNELS | {("log_softmax", 2): LONGER_KERNELS["softmax", 2]},
    cached_elements=2**22,
    fused_across={("softmax", 4): 2**7, ("log_softmax", 4): 2**8},
    masks_few={4: 2**22},
    masks_apart={
        ("softmax", 2): (Rows(range(2**8 + 1)), Rows(range(2**31), least=1)),
        ("log_softmax", 2): (Rows(range(2**31)),),
        **dict.fromkeys([(op, 4) for op in FORWARD], (Rows(range(2**6, 2**9 + 1), least=1),)),
    },
)
