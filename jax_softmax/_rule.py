"""Where XLA's code is the faster one in a graph: of what a rule for a device consists.

The values are _h200.py's. A custom call does not fuse with its neighbours; XLA's own code does.
Thresholds are measured by benchmarks/graph.py (benchmarks/results/h200-graph-short.json,
h200-graph-long.json, h200-graph-odd.json of rows of 16 bits that are no whole vectors,
h200-graph-lengths-16bit.json and -float32 of those that are no powers of two) and derived by
choose.py, where the gain is more than a hundredth and XLA's kernel alone, in the same files, takes
no more than a third longer than ours (other forms of softmax's backward pass:
benchmarks/results/h200-graph-forms.json). What is fused, scaled or apart is by `choose.py
--around` of the same files and of h200-graph-across.json, in most of which each is the faster one
at each length. What depends on masks, on few or short rows and on other axes than the last is set
by hand where benchmarks/survey.py's random problems are on either side
(benchmarks/results/h200-survey.json, -11, -21, -22 and -31; float64 follows the narrower types).
There were twice as many ranges: those that decide little are gone (h200-rule-fewer.json), and new
ones have to be worth their lines over all graphs that these files have, not one of them.
"""

import math
from typing import Any, NamedTuple

from ._reference import filled

# How code reads a result, that XLA may have what makes it within.
BY_ELEMENTS = ("converted", "elements", "weighed")
WAYS = (*BY_ELEMENTS, "reduced")


class Few(NamedTuple):
    """So many columns or more, so few rows: XLA's code, which spreads each over the device."""

    columns: int
    rows: int


class Longer(NamedTuple):
    """More columns, and more rows."""

    columns: int
    rows: int


class Read(NamedTuple):
    """The fewest columns, by what is made of a result, of which XLA has two values for each row.

    XLA's kernel of both is as fast where rows are short and a result is read element by element: a
    cast behind 400 float32 columns of log-softmax has 0.9 of that speed so, behind 512 1.2 times, a
    sum of squares 2.1 and 1.3 times (benchmarks/results/h200-graph-pairs-everywhere.json); or where
    they are no whole vectors: behind 1,999 columns 0.5 and 1.3 times (h200-graph-pairs-odd.json).
    Labels that pick from it, too, are faster by kernels both ways, where these have the result:
    smoothed ones of 333 columns 1.3 times (h200-losses-by-hand.json).
    """

    reduced: int  # where that is reduced, or a kernel would write the result
    both: int  # where labels pick from it, too; never where exponentials are made of it, besides
    elements: int  # elsewhere, and where labels pick from what a kernel would write: whole vectors


class Fused(NamedTuple):
    """So many columns and elements or less: XLA's code, a launch of which is most of its time."""

    columns: int
    elements: int


class Fewest(NamedTuple):
    """The fewest columns, of rows that are whole vectors, and of others.

    And of both where a number for each row is part of what comes back.
    """

    whole: int
    by_rows: int
    odd: int
    odd_by_rows: int


class Rows(NamedTuple):
    """So many columns, and filling so much, or less, of the power of two that XLA pads them to."""

    columns: range
    least: float = 0
    less: float = math.inf

    def have(self, columns: int) -> bool:
        return columns in self.columns and self.least <= filled(columns) < self.less


Kinds = dict[Any, tuple[Rows, ...]]  # by the op, and the bytes of an element


def any_have(kinds: Kinds, case: Any, columns: int) -> bool:
    return any(rows.have(columns) for rows in kinds.get(case, ()))


class Slabs(NamedTuple):
    """Neighbours that blocks keep all together, one stretch of memory for each.

    They are few, or no whole vectors. Of fewer of them, or of fewer bytes of all operands in all,
    XLA's kernels are the faster ones (benchmarks/results/h200-slabs.json).
    """

    # What tiles bring instead (PrefersSlab in cuda/plans/slab.h; test_choice.py compares): of
    # whole vectors so many columns, and vectors of a slab's inputs; of others so many columns and,
    # of all inputs, bytes, and more for each neighbour.
    columns: int
    vectors: int
    tile_columns: int
    few_bytes: int
    neighbour_bytes: int
    # Of others, the most bytes of the slabs that make whole vectors, and the fewest of these that
    # keep the device busy.
    tile_bytes: int
    tiles: int
    fewest: dict[int, int]  # by the number of inputs
    few: int  # that leave half of the multiprocessors to more blocks for each
    most_bytes: dict[int, int]  # that clusters are fast with, by the bytes of an element
    # The fewest in all: forward by the op, of derivatives by the bytes of an element.
    forward_bytes: dict[str, int]
    derivative_bytes: dict[int, int]
    odd_bytes: int  # of 16 bits and an odd number of neighbours, which XLA reads one by one
    # Derivatives are XLA's where whole vectors make slabs of more bytes.
    whole_bytes: int
    # At most so many vectors make a period, after which elements are of the same rows again: blocks
    # have no more threads.
    longest: int
    # Periods of more than this, or in 16 bits of twice as many, have many statistics. With fewer
    # bytes than those, by the number of inputs, they are XLA's, and derivatives of more than twice
    # as many with any; slabs of more bytes are not kept.
    wide: int
    wide_bytes: dict[int, int]
    wide_most_bytes: int


class Rule(NamedTuple):
    """Where XLA's code is the faster one in a graph, and what a block of the kernels may keep.

    Along another axis than the last, rows that blocks have no room for are read twice. XLA's code
    takes 0.35 to 0.84 of the time then, where neighbours are no whole vectors of 16 bytes. Bytes,
    columns and numbers are an H200's: others' blocks may have room for less.
    """

    slabs: Slabs
    slab_columns: int  # the most columns where neighbours are one vector, of values for each row
    panel_bytes: int  # the most of all inputs, of four whole vectors side by side
    # By op: the most columns for which panels of a cluster, of four such vectors or more, are the
    # faster ones (benchmarks/results/h200-panel-strategies.json).
    panel_columns: dict[str, int]
    # By the bytes of an element: the fewest vectors of neighbours, of all columns, of which kernels
    # that convert keep enough threads busy. With fewer, and with two side by side of 16 bits, XLA's
    # code takes 0.2 to 1.0 of the time, in derivatives of two mostly 0.3 to 0.9
    # (benchmarks/results/h200-conversions-across.json, of softmax).
    converted_vectors: dict[int, int]
    streamed_columns: int  # the most that a few threads may read once, for a value each row
    rows_twice: int  # the fewest rows that keep the device busy when they are read twice
    # Too little for blocks to share out (benchmarks/results/h200-small.json): of values each row,
    # where neighbours are no whole vectors; fewer vectors of neighbours than these, of rows that
    # blocks keep, of more than streamed_columns.
    few_values: Few
    panel_vectors: int

    elements: int  # up to which a launch is all that an op costs
    # The same with masks or other terms, of rows that are one kernel to XLA, and of 32 bits: of
    # twelve problems of one to three million masked elements the kernels took 1.14 times as long as
    # jax.nn in geometric mean, three times less, of five of less than one and 5,656 to 16,384
    # columns 1.19 times, once less, and of two with a bias 1.08 and 1.7 times (the surveys).
    terms: tuple[Fused, ...]
    wide_terms: tuple[Fused, ...]
    # By op: the columns along the last axis that XLA's code reads as 16 bits, where these were
    # brought to float32 for the softmax and its result may go back, which no kernel sees. With that
    # the kernels take 1.8 to 2.5 times as long, without it XLA 1.0 to 1.13 times
    # (benchmarks/results/h200-mixed-rows.json), with masks 1.2 to 1.6 times (h200-mixed.json), of
    # 5,000 and 8,192 columns 1.6 to 2.1 times, with their gradient 0.76 to 1.18, where jax.nn takes
    # up to 1.4 times as long as XLA's code here (h200-mixed-masks.json). XLA has the one kernel of
    # odd rows up to 16,384 columns, and of others up to some 14,000 (h200-mixed-longer.json).
    widened: dict[str, tuple[Rows, ...]]
    # The same along another axis, from so many columns on: of 1,024 XLA takes 0.7 of the time of
    # kernel and cast, 1.2 of the kernel's, of 21 columns 0.9 and 1.9, and fuses with derivatives
    # (benchmarks/results/h200-graph-casts.json). Softmax by kernels has 0.3 to 1.0 times jax.nn's
    # speed with a cast back, without it 0.4 to 2.1 times (h200-mixed-across.json).
    widened_across: dict[str, int]
    # By op: longer rows along the last axis, of 16 bits in float32, are two values each by a
    # kernel, and XLA makes the elements of these with what reads them, where there are more rows
    # than one for `split_columns` of theirs: one block has each. That has 1.0 to 3.4 times jax.nn's
    # speed, 0.5 to 2.0 for log-softmax of up to 14,000 columns or few rows, and 0.5 where squares
    # of 16,384 columns are summed. The kernels that write a result, twice the bytes of what it is
    # made of, take 1.1 to 1.8 times as long with a cast back, and without it 0.3 to 1.0 times
    # (benchmarks/results/h200-mixed-pairs.json).
    pairs: dict[str, Longer]
    # Of what is differentiated, and read by code of XLA's alone: it is not written then, nor read
    # again for the derivative.
    pairs_read: dict[tuple[str, int], Read]
    # By op: of 16 bits in float32, whose softmax XLA's code would make where it is differentiated,
    # or its readers are likely, the fewest columns of which a kernel makes two values for each row,
    # where such code reduces the result, or labels pick from it. Log-softmax with its gradient has
    # 1.45 times the speed so, 0.95 to 2.3 but where a number for each row is part of what comes
    # back: of fewer than 512 columns that has 0.78 to 0.91 (h200-widened-pairs.json). 16 and 24
    # columns have 0.7 to 1.5. Of 10 to 999 columns that are no whole vectors it has 1.7 times
    # jax.nn's speed, and 2.0 where a number for each row is part of what comes back; by XLA's code,
    # or kernels of some of these lengths, 1.0 and 1.1 (h200-widened-odd.json).
    widened_read: dict[str, Fewest]
    # By the bytes of what logits are read from: softmax and log-softmax of the same logits, in
    # float32, of which a kernel makes three values for each row, and XLA the elements where its
    # code reads both, as in entropies. That reads the logits twice, and once more for the gradient;
    # else each is made by whom it would be alone. In geometric mean over seven lengths of three
    # losses it has 1.6 and 1.4 times the speed, forward and with gradients, in float32, 1.5 and 1.5
    # times of 16 bits in float32 (h200-together-before.json, h200-together.json and
    # -widened.json), 2.3 and 2.5 times of rows of those that are no whole vectors
    # (h200-widened-odd.json). Of fewer columns than 512 where a number for each row is kept whole
    # vectors take up to 1.5 times as long (h200-together-forms.json).
    both: dict[int, Fewest]
    # By the bytes of what logits are read from, and how many values for each row these are: the
    # fewest columns of derivatives whose last step has all elements made anew. XLA:GPU has summed
    # them by rows before, and would store float32 exponentials for it, and what reads more of them.
    # Of 16 bits in float32 this takes 0.66 to 0.77 of the time of entropies' gradients, and, from
    # 512 columns on, of divergences' and of a soft actor-critic's, in float32 0.71 to 0.84 of
    # entropies' and 0.79 to 1.02 of divergences'. Where there are no exponentials in the tangent it
    # takes 1.0 to 1.15 times as long in float32 (h200-anew.json).
    anew: dict[tuple[int, int], int]
    # Float32 rows a sum of whose elements XLA:GPU makes by other tiles than of any others, up to 4
    # times as slowly where these are made of values of each row, as `both` and `anew` choose of
    # others. Of fewer rows than some ten thousand they would take 0.44 to 1.08 of the time, and of
    # a divergence, forward, 1.8 to 2.0 (h200-together-1024.json).
    slow_sums: int
    # By the op and the bytes of an element: what a kernel writes the result of, and not XLA, where
    # what reads that reduces it, and what is made of it comes back to its derivative, XLA's; all
    # that XLA may do before it is to add a bias, which the kernel adds then. That is one pass over
    # the result for each reduction, or both, and one for the gradient: a sum of squares behind 512
    # to 2,048 columns takes 0.49 to 0.88 of the time of XLA's code for all, and 0.75 to 0.92 of
    # that of the kernels, which the tangent would be written for
    # (benchmarks/results/h200-graph-reduced.json; of odd float32 rows 0.66 to 1.01 of XLA's,
    # h200-graph-reduced-odd.json, and after a bias 0.17 to 1.03, 0.65 in geometric mean,
    # h200-graph-reduced-biased.json).
    reduced: Kinds
    # The same of any result that a kernel wrote: the fewest columns of rows that are no whole
    # vectors. Where the kernel multiplied, XLA's derivative does too, of all.
    reread: int
    # And what XLA's code makes in place of a kernel, where it has it within a derivative's too: by
    # whether it would fuse nothing of what made the logits ("apart") or something ("fused"), and by
    # each of the ways in which the result is read. It is neither written nor read then: 0.50 to
    # 1.04 of the time (h200-graph-unwritten.json, -elements.json). What nothing reads but its
    # derivative, as where a gradient is asked for without its loss, takes 0.38 to 0.89 of the time
    # so, other rows 0.44 (a cast behind 333 float32 columns of log-softmax) to 2.2
    # (h200-graph-unread.json).
    unwritten: dict[tuple[str, str], Kinds]
    # Results that a kernel wrote, by the first of these ways that XLA's code has read them in,
    # whose derivative is XLA's, with what made the tangent. By element and in weighed sums it takes
    # 0.84 to 0.98 of the time of a kernel's, which that is written for, in 16 bits, of plain sums
    # and across rows 0.64 to 0.80. Behind a cast alone, or weighed sums of odd rows that are
    # shorter, or of 16 bits, it takes 1.03 to 1.66 times as long (h200-graph-readers.json).
    stored: dict[str, Kinds]
    # Longer rows whose derivative XLA's code makes of the operand, fused with neighbours, as of all
    # where its code is the faster one without any. Of the result it is two kernels: 3,504 to 4,096
    # columns of log-softmax in 16 bits with a product by element or a cast behind take 0.66 to 0.81
    # of the time, after a bias 0.92 to 0.99 (h200-graph-of-operand.json; of 2,504 and 3,000 0.96 to
    # 1.3 times as long).
    of_operand: Kinds
    terms_columns: int  # fewer are read one by one
    # Columns along another axis, where XLA's one kernel makes float32 logits with their bias and
    # ours take it from there: 0.6 to 1.0 of the time of XLA's code for all of it, with fewer or
    # more columns 1.0 to 1.5 (the surveys).
    biased: range
    long: int  # columns from which few rows may be split
    # The same of those that clusters may keep (SplitClusterBlocks in cuda/plans/split.h, and
    # benchmarks/results/h200-graph-few-shorter.json), where no devices share them.
    held: int
    asked: int  # the most rows that are split only where the caller says so (kSplitRows there)
    few: dict[str, Few]  # by family
    # By op: the most rows, where kernels that may split them take less time than XLA's code takes,
    # in geometric mean over all neighbours (benchmarks/results/h200-graph-few.json); of more than
    # eight, or for a value each, alone (h200-split-rows.json). XLA's derivatives of a result are
    # two kernels, which are as fast and fuse.
    split: dict[str, int]
    split_columns: int  # of a value each: or a row for so many of its columns
    # By family, or of what is converted: the most columns along another axis that XLA unrolls. That
    # is slower where a thread of the kernels holds its rows, vectors of neighbours, but forward,
    # where labels pick from these (0.56 and 0.74 of the time of two classes,
    # h200-programs-fixed.json).
    interleaved: dict[str, int]
    # The most columns along another axis, and elements, of derivatives that are XLA's single kernel
    # (softmax's, benchmarks/results/h200-small.json: 0.66 to 0.79 of the time).
    narrow_columns: int
    narrow_elements: int
    # The rest goes by (op, bytes of the widest element): columns up to which XLA's one kernel is
    # the faster one in geometric mean over all neighbours.
    columns: dict[tuple[str, int], int]
    # Rows of no more columns that are the kernels' again, being no whole vectors: XLA reads these
    # singly.
    odd: Kinds
    # Those of them that XLA's code is fast with all the same where it has what comes before within
    # it, by the op and the bytes that it reads and writes: of 16 bits what it reads by fours, or
    # softmax's by twos (benchmarks/results/h200-graph-fours.json), of conversions more
    # (h200-graph-narrowed.json, -widened.json). Of what is not rounded, rows of `terms_columns` or
    # more are the kernels' where there is a derivative.
    together: Kinds
    # Rows of whole vectors that fill less of the power of two that XLA pads them to are the
    # kernels': what XLA makes of them is several kernels, or one for which padding costs too much.
    # Not where XLA may fuse a derivative with what makes its tangent, or the forward pass with what
    # comes before it.
    filled: dict[tuple[str, int], float]
    # The same of an odd number of columns, which XLA reads singly: 0.66 to 1.00 of the time over
    # all that follows, but 1.2 to 2 times as long where that is element by element. What fills
    # more, or is even, mostly takes longer (benchmarks/results/h200-graph-singly.json), and so may
    # both passes where the kernels multiply the logits. Derivatives of those for which
    # XLA's code is slowest are kernels whatever they may be fused with, and then the forward pass
    # (-singly-both.json): of 65 to 79 columns both take 0.53 to 1.09 of the time, and 1.18 to 1.22
    # with a bias before and a product by element behind (-singly-sums.json).
    singly: Kinds
    # More of them where there is a derivative: 0.60 to 1.00 of the time with nothing or a product
    # behind (-singly-longer.json), but up to 2 times as long where that is element by element,
    # which is `unwritten` then. Derivatives of those are the kernels', too, unless XLA knows more
    # of the result than that it is in memory: with a cast behind 107 to 357 columns take 0.75 to
    # 0.86 of the time (-singly-default.json, and by this rule h200-graph-unwritten.json), with
    # picked and smoothed labels others 0.70 to 0.93.
    singly_in_both: Kinds
    # And where there is a derivative, or it is not likely how the result is read, as by a product
    # that follows. The derivative is the kernels' but for some of what follows: both took
    # 1.00 to 1.12 times as long by the rule before it (benchmarks/results/h200-graph-both.json
    # beside h200-graph-short.json, -long and -lengths-16bit). So are scores, which a matrix product
    # made and what follows mostly does not fuse with: another one, as in attention, or nothing.
    # With both the kernels take 0.82 to 1.00 of the time, products included
    # (benchmarks/results/h200-graph-products.json). With products that are tuned, as they are by
    # default, rows that are no whole vectors are the kernels', too, though these rows are padded to
    # products and cut in a pass before a kernel: attention takes 0.47 to 0.95 of the time then, 1.2
    # times as long where its weights are multiplied (h200-attention-lengths.json, -sweep.json).
    in_both: Kinds
    # What a program returns, or so it seems, forward, after nothing that XLA may fuse but a bias
    # that kernels add; and, by the bytes of the widest element, so few elements or less that XLA's
    # code is as fast. By rules like it, with more exceptions, 948 of 1,916 programs were other ones
    # than without, and took 0.85 of the time, 0.22 to 1.17
    # (benchmarks/results/h200-graph-returned.json; of conversions since then:
    # h200-conversion-strategies.json).
    returned: tuple[Rows, ...]
    returned_least: dict[int, int]
    # What the program seems to read in those ways, by who makes it: two values for each row by a
    # kernel and the elements by XLA ("pairs"), a kernel, or XLA's code: 0.28 to 1.60 of the time,
    # and 0.63 in geometric mean of the 305 of 571 programs whose time changes by over 2 %
    # (benchmarks/results/h200-graph-read.json). With an array of the result's shape, by elements or
    # in weighed sums, rows of over 4,096 columns take XLA 0.66 of the time in geometric mean (0.44
    # to 1.34) of a kernel, which may add a bias, and what reads its result: XLA writes that in its
    # place, one by one where four divides no row. By pairs these take 0.54 to 0.86. Of 192 such
    # programs of 33 million elements the default had 0.73 times jax.nn's speed before, and has 1.00
    # by these times (h200-graph-gated-before.json). After a bias, or what else XLA has within its
    # code, what is reduced of these takes 0.40 to 0.77 of the time, where they do not fill too
    # little of a power of two (h200-graph-biased-reduced.json).
    # Where no number for each row is kept, what is "summed" or a "weighed sum" is two kernels to
    # XLA, or more: log-softmax by pairs has 1.4 and 1.3 times jax.nn's speed there, XLA's code 0.9;
    # and 0.6 where it is kept, of whole vectors of 16 bits in float32, of which XLA has one kernel.
    # XLA sums what is made of two values for each row of 1,024 columns at a third of the speed, if
    # that is more than a product; divergences of 32 it has in one kernel, too, and any sum that it
    # begins with rows (`_choice.adds_rows_first`): pairs take 1.1 to 1.8 times as long there, of
    # 512 to 16,384 columns, and 0.5 to 0.8 of the time where it does not (h200-rows-first.json).
    # Of 16 bits in float32, log-softmax of 10 to 999 columns that are no whole vectors has 1.8
    # times jax.nn's speed by pairs, and 1.3 by kernels or XLA's code; but 0.6 to 0.8, of 10, 12 and
    # 100 columns, with a weighed sum for each row that is kept (h200-widened-odd.json; of fewer
    # elements h200-widened-odd-few.json). What is read "across" rows, XLA has not in one kernel
    # with these, with a derivative neither: a mean over rows takes 0.45 to 0.83 of the time of
    # XLA's code, a weighed one 0.70 to 1.14 (h200-graph-readers.json; of float32 0.86 to 1.13).
    read: dict[tuple[str, str], Kinds]
    # Or read by elements, converted or weighed, and so few that XLA's code finds most of them in
    # the cache when it reads them again, or that a launch more is most of the time
    # (benchmarks/results/h200-graph-cached-before.json, -cached.json).
    cached: Kinds
    cached_elements: int
    # With what XLA may fuse before it, forward, rows of any length are XLA's, and along another
    # axis those of so many columns or more.
    fused_across: dict[tuple[str, int], int]
    # Kernels do what `jnp.where` does before a softmax, from `terms_columns` on: by a mask that is
    # tiled, as a causal one that the batch shares, which costs XLA's code up to five times as much;
    # and by any other, of which, by the bytes of an element, at most so many elements are XLA's.
    # Biases of scores are as tiled masks are (h200-attention-lengths.json and -sweep.json).
    masks_few: dict[int, int]
    # And behind a tiled mask the derivative is a kernel's all the same, of whole vectors, and what
    # comes back of it a pass of XLA's: 0.58 to 0.97 of the time, of 384 to 1,536 columns that are
    # no power of two up to 1.4 times as long (h200-graph-filled.json).
    masks_apart: Kinds


# (platform, op): columns up to which XLA's code is the faster one for any number of rows: a CPU's
# kernels start a vector for each row, XLA's vectors go across rows (EPYC 9004, 2026-11: the
# gradient at 2 columns 0.5-1.0 of XLA's speed, at 3 1.3-1.6; absmax at 8 0.8-1.6, at 10 1.7-2.6).
SHORT_ROWS = {("cpu", "cross_entropy_gradient"): 2, ("cpu", "absmax"): 8}

# Those of softmax's family that read one operand; the others are derivatives, and read two.
FORWARD = ("softmax", "log_softmax")
SOFTMAX = ("softmax", "softmax_tangent")
LOG_DERIVATIVES = ("log_softmax_tangent", "log_softmax_cotangent")
LOG_SOFTMAX = ("log_softmax", *LOG_DERIVATIVES)
FAMILIES = {
    "softmax": (
        *SOFTMAX,
        *LOG_SOFTMAX,
        # Where a zero may stand for a masked logit, as in softmax's derivatives under masks and
        # other terms, and where the logits are not at hand: XLA makes two kernels of any length.
        "masked_softmax_tangent",
        "masked_log_softmax_tangent",
        "masked_log_softmax_cotangent",
    ),
    "logsumexp": ("logsumexp",),
    # "biased": where a bias, and maybe a scale, is all that there is.
    "terms": ("masked_softmax", "masked_log_softmax", "biased_softmax", "biased_log_softmax"),
    "absmax": ("absmax",),
}
FAMILY = {op: family for family, ops in FAMILIES.items() for op in ops}
