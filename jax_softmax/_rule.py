"""Where XLA's code is the faster one in a graph: what was measured, by device.

A custom call does not fuse with its neighbours; XLA's own code does. Thresholds are measured by
benchmarks/graph.py (benchmarks/results/h200-graph-short.json, h200-graph-long.json,
h200-graph-odd.json of rows of 16 bits that are no whole vectors, h200-graph-lengths-16bit.json and
-float32 of those that are no powers of two) and derived by choose.py, where the gain is more than a
hundredth and XLA's kernel alone, in the same files, takes no more than a third longer than ours
(other forms of softmax's backward pass: benchmarks/results/h200-graph-forms.json). What is `fused`,
`scaled` and `apart` is by `choose.py --around` of the same files and of h200-graph-across.json, in
most of which each is the faster one at each length. What depends on masks, on few or short rows and
on other axes than the last is set by hand where benchmarks/survey.py's random problems are on
either side (benchmarks/results/h200-survey.json, -11, -21, -22 and -31; float64 follows the
narrower types).
"""

import itertools
import math
from typing import Any, NamedTuple

from ._reference import ONE_KERNEL, filled

# How code reads a result, that XLA may have what makes it within.
UNREDUCED = ("converted", "elements")  # what it makes of it is as large
BY_ELEMENTS = (*UNREDUCED, "weighed")
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
    elements: int  # elsewhere, of whole vectors
    picked: int  # where a kernel would write what labels pick from, too


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


class Together(NamedTuple):
    """Of softmax and log-softmax of the same logits, made of three values for each row."""

    fewest: Fewest
    most: int = 2**31


class Slow(NamedTuple):
    """So many columns, and the fewest rows of them, forward and where there is a derivative."""

    columns: int
    forward: int
    differentiated: int


class Rows(NamedTuple):
    """So many columns, and filling so much, or less, of the power of two that XLA pads them to."""

    columns: range
    least: float = 0
    less: float = math.inf

    def have(self, columns: int) -> bool:
        return columns in self.columns and self.least <= filled(columns) < self.less


class Cached(NamedTuple):
    """So many columns, more elements and rows, but at most so many elements, read in these ways."""

    columns: range
    over: int
    most: int
    ways: tuple[str, ...] = BY_ELEMENTS
    fused: bool | None = None  # whether XLA makes the logits, too; None: whoever does
    rows: int = 0
    least: float = 0  # that rows fill of a power of two

    def has(self, columns: int, elements: int, way: str | None, fused: bool) -> bool:
        few = elements <= max(self.over, self.rows * columns)
        some = columns in self.columns and not few and elements <= self.most
        some = some and filled(columns) >= self.least
        return some and way in self.ways and self.fused in (None, fused)


Kinds = dict[Any, tuple[Rows, ...]]  # by the op, and the bytes of an element


def any_have(kinds: Kinds, case: tuple[Any, ...], columns: int) -> bool:
    return any(rows.have(columns) for rows in kinds.get(case, ()))


class Masks(NamedTuple):
    """Rows that a mask puts a number in, which kernels do as they read them."""

    whole: Kinds
    odd: Kinds  # of no whole vectors


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
    # The same of longer rows, by how such code reads a result that XLA's code would make: what is
    # "reduced" and comes back "again", or not, what is "picked", and what is read by "elements" or
    # "converted" alone. Softmax with its gradient has 1.0 to 1.8 times the speed so
    # (h200-mixed-longer.json; of odd columns and rows in eights h200-mixed-longer-rows.json).
    widened_read_longer: dict[str, Kinds]
    # By whether the second one is differentiated, and the bytes of what logits are read from and of
    # the results: softmax and log-softmax of the same logits, of which a kernel makes three values
    # for each row, and XLA the elements where its code reads both, as in entropies. That reads the
    # logits twice, and once more for the gradient; else each is made by whom it would be alone. In
    # geometric mean over seven lengths of three losses it has 1.6 and 1.4 times the speed, forward
    # and with gradients, in float32, 1.5 and 1.5 times of 16 bits in float32
    # (h200-together-before.json, h200-together.json and -widened.json), 2.3 and 2.5 times of rows
    # of those that are no whole vectors (h200-widened-odd.json). Of fewer columns than 512 where a
    # number for each row is kept whole vectors take up to 1.5 times as long, those of 16 bits to
    # 256 columns without a derivative 1.6 to 1.8 times (h200-together-forms.json).
    both: dict[tuple[bool, int, int], Together]
    # By the bytes of what logits are read from and of the result, and how many values for each row
    # these are: the derivatives whose last step has all elements made anew. XLA:GPU has summed them
    # by rows before, and would store float32 exponentials for it, and what reads more of them. Of
    # 16 bits in float32 this takes 0.66 to 0.77 of the time of entropies' gradients, and, from 512
    # columns on, of divergences' and of a soft actor-critic's, in float32 0.71 to 0.84 of
    # entropies' and 0.79 to 1.02 of divergences'. Where there are no exponentials in the tangent it
    # takes 1.0 to 1.15 times as long in float32 (h200-anew.json).
    anew: Kinds
    # Float32 rows a sum of whose elements XLA:GPU makes by other tiles than of any others, up to 4
    # times as slowly where these are made of values of each row. Of fewer rows what `both` and
    # `anew` choose takes 0.44 to 0.57 of the time with gradients, as everywhere, and of two values
    # 0.74 to 1.08; forward 0.41 to 0.83, but of a divergence 1.8 to 2.0
    # (h200-together-1024.json).
    slow_sums: Slow
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
    reread: dict[tuple[str, int], float]
    # And what XLA's code makes in place of a kernel, where it has it within a derivative's too: by
    # what it would fuse of what made the logits, nothing ("apart") or a product with a number at
    # most ("multiplied"), or more ("fused"), and how the result is read, that is reduced and comes
    # back ("again") or by each of its ways. It is neither written nor read then: 0.50 to 1.04 of
    # the time (h200-graph-unwritten.json, -elements.json). After a scale XLA makes three kernels of
    # softmax that is mostly padding, which took up to 1.5 times as long. What nothing reads but its
    # derivative, as where a gradient is asked for without its loss, takes 0.38 to 0.89 of the time
    # so, other rows 0.44 (a cast behind 333 float32 columns of log-softmax) to 2.2
    # (h200-graph-unread.json).
    unwritten: dict[tuple[str, str], Kinds]
    # The same of what reduces a result across its rows, which XLA has not in one kernel with these,
    # whatever the tangent is made of. A mean over rows takes 0.45 to 0.83 of the time of XLA's
    # code, a weighed one 0.70 to 1.14 (h200-graph-readers.json; of float32 0.86 to 1.13).
    across: Kinds
    # Results that a kernel wrote, by the first of these ways that XLA's code has read them in,
    # whose derivative is XLA's, with what made the tangent. By element and in weighed sums it takes
    # 0.84 to 0.98 of the time of a kernel's, which that is written for, in 16 bits, of plain sums
    # and across rows 0.64 to 0.80, and of odd float32 rows 0.75 to 1.05 (of plain sums 1.2). Behind
    # a cast alone, or weighed sums of odd rows that are shorter, or of 16 bits, it takes 1.03 to
    # 1.66 times as long (h200-graph-readers.json).
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
    # The most elements of rows of so many of these columns or more, forward, that are XLA's all the
    # same: a warp has several rows, and few have any (benchmarks/results/h200-small.json).
    odd_elements: int
    odd_columns: int
    # Those of them that XLA's code is fast with all the same where it has what comes before within
    # it, by the op and the bytes that it reads and writes: of 16 bits what it reads by fours, or
    # softmax's by twos (benchmarks/results/h200-graph-fours.json), of conversions more
    # (h200-graph-narrowed.json, -widened.json). But for what is rounded, kernels that add a bias
    # themselves are as fast where there is a derivative; rows of fewer columns have none.
    together: Kinds
    # Rows of whole vectors that fill less of the power of two that XLA pads them to are the
    # kernels': what XLA makes of them is several kernels, or one for which padding costs too much.
    filled: dict[tuple[str, int], float]
    # The same where XLA may fuse a derivative with what makes its tangent, or the forward pass with
    # what comes before it, and a derivative with what comes after it alone.
    fused_filled: dict[tuple[str, int], float]
    scaled_filled: dict[tuple[str, int], float]
    # The same whatever they fill, where wider logits are "narrowed": between float32 and back 0.83
    # to 0.86 of the time (h200-graph-elements.json), with a product by element behind 0.66 to 0.77.
    rounded: Kinds
    # Without anything that XLA may fuse before them, forward, more of them are the kernels': as
    # fast in geometric mean over all that may follow, or faster.
    apart: Kinds
    # The same of an odd number of columns, which XLA reads singly: 0.66 to 1.00 of the time over
    # all that follows, but 1.2 to 2 times as long where that is element by element. What fills
    # more, or is even, mostly takes longer (benchmarks/results/h200-graph-singly.json), and so do
    # both passes of some where the kernels multiply the logits. Derivatives of those for which
    # XLA's code is slowest are kernels whatever they may be fused with, and then the forward pass
    # (-singly-both.json): of 65 to 79 columns both take 0.53 to 1.09 of the time, and 1.18 to 1.22
    # with a bias before and a product by element behind (-singly-sums.json).
    singly: Kinds
    # More of them where there is a derivative, and nothing multiplies the logits: 0.60 to 1.00 of
    # the time with nothing or a product behind (-singly-longer.json), but up to 2 times as long
    # where that is element by element, which is `unwritten` then. Derivatives of those are the
    # kernels', too, unless XLA knows more of the result than that it is in memory: with a cast
    # behind 107 to 357 columns take 0.75 to 0.86 of the time (-singly-default.json, and by this
    # rule h200-graph-unwritten.json), with picked and smoothed labels others 0.70 to 0.93.
    singly_in_both: Kinds
    # Scores, which a matrix product made and what follows mostly does not fuse with: another one,
    # as in attention, or nothing. With both the kernels take 0.82 to 1.00 of the time, products
    # included (benchmarks/results/h200-graph-products.json). With products that are tuned, as they
    # are by default, rows that are no whole vectors are the kernels', too, though these rows are
    # padded to products and cut in a pass before a kernel: attention takes 0.47 to 0.95 of the time
    # then, 1.2 times as long where its weights are multiplied (h200-attention-lengths.json,
    # -sweep.json).
    scores: Kinds
    # The same where there is a derivative, which is the kernels' but for some of what follows: both
    # took 1.00 to 1.12 times as long by the rule before it (benchmarks/results/h200-graph-both.json
    # beside h200-graph-short.json, -long and -lengths-16bit).
    in_both: Kinds
    # More of them where kernels multiply the logits, and the derivative is XLA's, which multiplies
    # that. Of 512 to 4,096 columns log-softmax of 16 bits took 0.87 to 0.99 times as long, softmax
    # of float32 0.90 to 1.02 (benchmarks/results/h200-graph-stored.json).
    in_both_multiplied: Kinds
    # Columns where kernels add a bias to logits that nothing made which XLA may fuse: without a
    # derivative, but for what is read by elements, and with it, in 32 bits of whole vectors. Of
    # most others, up to those that are one kernel to XLA, its code is the faster one
    # (benchmarks/results/h200-graph-biased.json).
    added: dict[tuple[str, int], range]
    added_in_both: dict[tuple[str, int], range]
    # What a program returns, or so it seems, forward, after nothing that XLA may fuse, by the op
    # and the bytes that it reads and writes; where kernels add a bias; and so few of these columns
    # and elements or less that XLA's code is as fast. 948 of 1,916 programs are other ones by
    # these, and take 0.85 of the time, 0.22 to 1.17 (benchmarks/results/h200-graph-returned.json;
    # of conversions since then: h200-conversion-strategies.json).
    returned: Kinds
    returned_half: Kinds  # of float16 made float32, or back, which have no tiles
    returned_biased: Kinds
    returned_few: dict[tuple[str, int, int], tuple[Fused, ...]]
    # But for these of more than `elements`, which XLA reads singly: 345,000 elements of log-softmax
    # in rows of 9 take a kernel 0.50 of its time (h200-survey.json), 3 million in rows of 29 0.53
    # (h200-programs-fixed.json), 2 million of softmax in rows of 33 0.51, in rows of 129 as long
    # (h200-small.json).
    returned_singly: Kinds
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
    # times jax.nn's speed by pairs, and 1.3 by kernels or XLA's code, softmax 1.5 and 1.0; but 0.6
    # to 0.8, of 10, 12 and 100 columns, with a weighed sum for each row that is kept
    # (h200-widened-odd.json; of fewer elements h200-widened-odd-few.json).
    read: dict[tuple[str, str], Kinds]
    # Along another axis, read by elements with such an array, and with what XLA may fuse before it:
    # 0.76 to 0.94 of the time, or 1.08 of softmax of 64 bfloat16 columns (the same file).
    gated_across: Kinds
    # And so few elements that XLA's code finds most of them in the cache when it reads them again,
    # or that a launch more is most of the time (benchmarks/results/h200-graph-cached-before.json,
    # -cached.json).
    cached: dict[tuple[str, int], tuple[Cached, ...]]
    # At most so many elements of some, and so few rows of pairs, go by the other rules; of rows of
    # 16 bits in float32 that are no whole vectors, fewer.
    read_least: dict[tuple[Any, ...], int]
    read_least_odd: dict[tuple[Any, ...], int]
    read_rows: int
    # With what XLA may fuse before it, forward, rows of any length are XLA's, and along another
    # axis those of so many columns or more.
    fused_across: dict[tuple[str, int], int]
    # As `jnp.where` does before a softmax: by a mask that is tiled, as a causal one that the batch
    # shares, which costs XLA's code up to five times as much; and by any other, of which, by the
    # bytes of an element, at most so many elements are XLA's. Biases of scores go by the same, but
    # tiled ones are the kernels' of more lengths, and so are scores' masks that are not. And where
    # the derivative is a kernel's all the same, behind tiled masks of whole vectors and any of odd
    # rows, and what comes back of it a pass of XLA's: 0.58 to 0.97 of the time, of 384 to 1,536
    # columns that are no power of two up to 1.4 times as long (h200-graph-filled.json; of scores
    # h200-attention-lengths.json and -sweep.json).
    masks_tiled: Masks
    masks: Masks
    terms_of_scores: Kinds
    masks_few: dict[int, int]
    masks_apart: Masks


def _of_both(by_width: dict[int, tuple[Rows, ...]]) -> Kinds:
    """The same of softmax and of log-softmax."""
    both = itertools.product(("softmax", "log_softmax"), by_width.items())
    return {(op, width): rows for op, (width, rows) in both}


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

# Platforms without a rule run their kernels.
RULES = {
    "cuda": Rule(
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
            **dict.fromkeys(
                [(op, 2) for op in (*SOFTMAX, "log_softmax")], (Rows(range(5, 2**11)),)
            ),
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
            **dict.fromkeys(
                itertools.product(("summed", "weighed sum"), FORWARD, (2,), (4,)), 2**21
            ),
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
}
