"""What `implementation=None` runs: whatever is fastest in a graph, by the tables of _h200.py."""

import functools
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from . import _h200
from ._reference import FEW_COLUMNS, ONE_KERNEL, compute_dtype, filled, is_static
from ._rule import (
    BY_ELEMENTS,
    FAMILY,
    FORWARD,
    SHORT_ROWS,
    WAYS,
    Fused,
    Kinds,
    Longer,
    Rule,
    Slabs,
    any_have,
)

# What is seen of an op's neighbours, see `Context`.
STORED = ("stored", "stored again", "stored apart")
AROUND = ("fused", "narrowed", "scaled", "apart", "product", *STORED)


MOST_ADDED_FIRST = 2**14  # elements of a sum that XLA:GPU does not split


def are_whole(elements: int, size: int) -> bool:
    """Whether so many elements, of so many bytes each, are whole vectors."""
    return elements * size % 16 == 0


@functools.lru_cache
def adds_rows_first(rows: int, columns: int) -> bool:
    """Whether XLA:GPU, where it adds up all elements, first adds up those of each row.

    Its kernel of the rows has that within it then. It splits their number in two factors: the
    largest one up to its root, or a power of two above half of that, and mostly adds up as many as
    the other one first (`tree_reduction_rewriter.cc` of XLA).
    """
    elements = rows * columns
    root = min(math.isqrt(elements), MOST_ADDED_FIRST)
    factors = [n for n in range(root, root // 2, -1) if elements % n == 0]
    if not factors:
        return False  # it adds zeros
    smaller = next((n for n in factors if n.bit_count() == 1), factors[0])
    larger = elements // smaller
    if smaller % 2 == 0:
        swaps = 2 * smaller < larger or larger % 2 == 0
    else:
        swaps = elements % 2 == 0 or larger % 2 == 1
    return columns == (larger if swaps and larger <= MOST_ADDED_FIRST else smaller)


# Platforms without a rule run their kernels.
RULES = {"cuda": _h200.RULE}


class Choice(NamedTuple):
    """`"cuda"`, `"cpu"` (the kernels) or `"xla"`, and why."""

    implementation: str
    reason: str
    batch_invariant: bool = True  # whether the kernels' plan must not depend on the number of rows
    pairs: bool = False  # whether a kernel makes two values of each row, and XLA the rest of these

    def is_batch_invariant(self, asked: bool | None) -> bool:
        """The same, once the caller's `batch_invariant` is heard."""
        return asked is not False and self.batch_invariant


class Problem(NamedTuple):
    """An op, a primitive's name, and its operand, and the platform whose kernels may run it.

    `shape` is that of the whole operand, however an automatic mesh shards it. Dimensions may be
    symbolic, and what is made of them is then.
    """

    op: str
    shape: tuple[Any, ...]
    axis: int
    dtype: Any
    output_dtype: Any
    platform: str

    @property
    def columns(self) -> Any:
        return self.shape[self.axis]

    @property
    def elements(self) -> Any:
        return math.prod(self.shape)

    @property
    def rows(self) -> Any:
        return self.elements // self.columns

    @property
    def inner(self) -> Any:
        """The elements behind the axis, which are as many rows side by side."""
        return math.prod(self.shape[self.axis + 1 :])

    @property
    def outer(self) -> Any:
        return math.prod(self.shape[: self.axis])

    @property
    def is_static(self) -> bool:
        return is_static(self.shape)

    @property
    def is_last(self) -> bool:
        return self.inner == 1

    @property
    def is_of_one_dtype(self) -> bool:
        return self.dtype == self.output_dtype

    @property
    def family(self) -> str:
        return FAMILY.get(self.op, "")

    @property
    def is_derivative(self) -> bool:
        return self.family == "softmax" and self.op not in FORWARD

    @property
    def width(self) -> int:
        """The bytes of the widest element."""
        return max(self.dtype.itemsize, self.output_dtype.itemsize)

    @property
    def case(self) -> tuple[str, int]:
        return self.op, self.width

    @property
    def is_whole(self) -> bool:
        """Whether rows are whole vectors."""
        return are_whole(self.columns, self.width)

    def is_among(self, kinds: Kinds) -> bool:
        return any_have(kinds, self.case, self.columns)

    def most_of(self, limits: Iterable[Fused]) -> int | None:
        """The elements of the first limit that it is within, if there is one."""
        within = (f.elements for f in limits if self.columns <= f.columns)
        return next((most for most in within if self.elements <= most), None)

    def are_few(self, rule: Rule) -> bool:
        """Whether rows are so few that they may be split where nobody says so."""
        rows = rule.split.get(self.op, 0)
        if self.op == "logsumexp":
            rows = max(rows, self.columns // rule.split_columns)
        return 0 < self.elements <= rows * self.columns


class Context(NamedTuple):
    """What `choose` is told beside its problem.

    With `alone` no devices share the operand, or each has whole rows and `shape` is what it has.
    `widened` says that a program has the operand in float32, and 16 bits before that; of a
    derivative, that all is that its result and its tangent, or one of them, are computed from.
    `biased` says that the kernels add a bias to the logits, and `differentiated` that there is a
    derivative too. `read` says, where there is none, how the program seems to read the result
    (`_readers.likely_read`): "returned", as it is, or by code of XLA's alone, "converted" and
    returned, "reduced", maybe "across" its rows, or "summed" with all rows, or in several "sums" of
    some, or "picked" from; or with an array of its shape, by "elements", or "weighed" and reduced,
    or a "weighed sum", or "weighed sums". Behind a matrix product and what XLA may have within it,
    that is "unknown".

    `around` is one of `AROUND`, or None: nothing is known. "fused": XLA may have what made the
    operand within its own code, of a derivative the tangent; "scaled", of a derivative, only what
    is made of it; either, that XLA's code made the result. "stored": a kernel made a derivative's
    result, and XLA may have more within its own code than it would write and read for a kernel;
    with "apart", nothing of the tangent's, with "again", what is made of that result. "apart":
    there is no such thing, forward or around a derivative. "narrowed": what is "fused" reads 32
    bits or more to make the logits, which have 16. Forward, "product": it is "apart", and a matrix
    product made the operand, maybe times a number.
    """

    batch_invariant: bool | None = None  # as the caller asked
    alone: bool = True
    widened: bool = False
    around: str | None = None
    biased: bool = False
    differentiated: bool = False
    read: str | None = None

    @property
    def may_split(self) -> bool:
        """Whether the caller says that plans may depend on the number of rows."""
        return self.batch_invariant is False

    @property
    def is_fused(self) -> bool:
        return self.around in ("fused", "narrowed")

    @property
    def ways(self) -> tuple[str, ...]:
        """How rows are read, and at last how whatever else becomes of what they are reduced to."""
        sums = {"summed": ("summed", "reduced"), "weighed sum": ("weighed sum", "weighed")}
        sums |= {"sums": sums["summed"], "weighed sums": sums["weighed sum"]}
        return sums.get(self.read, (self.read,)) if self.read else ()

    @property
    def way(self) -> str | None:
        return self.ways[-1] if self.read else None

    @property
    def is_apart(self) -> bool:
        return self.around in ("apart", "product")

    @property
    def is_known(self) -> bool:
        """Whether it is known if XLA has what made the operand within its code."""
        return self.is_apart or self.is_fused

    @property
    def is_bare(self) -> bool:
        """Whether it has nothing there, and kernels add no bias."""
        return self.is_apart and not self.biased


UNKNOWN = Context()


def choose(problem: Problem, seen: Context = UNKNOWN) -> Choice:
    """What runs it on a platform that has kernels for these dtypes.

    "selected_" before the name of an op says of a derivative that its tangent and its result are
    selected by a mask, "biased_" of others that kernels would add a bias.
    """
    op, platform, rule = problem.op, problem.platform, RULES.get(problem.platform)
    if is_short(problem):
        return Choice("xla", f"rows of {problem.columns}: XLA's vectors go across them")
    if rule is None:
        return Choice(platform, "the kernels are the faster ones at every size")
    if seen.batch_invariant:
        return Choice(platform, "batch_invariant=True: XLA does not promise it")
    if not problem.is_static:
        return Choice(platform, "the shape is symbolic")
    if op.startswith("selected_"):
        return Choice("xla", "between two selects by a mask, which XLA fuses with it")
    if not problem.is_last and op.startswith("biased_") and problem.columns in rule.biased:
        wide, plain = compute_dtype(problem.dtype, problem.output_dtype), op.removeprefix("biased_")
        return choose(problem._replace(op=plain, dtype=wide))
    steps = (
        _cached,
        _few,
        _returned,
        _widened,
        _small,
        _read,
        _across,
        _terms,
        _around,
        _slabs,
        _derivative,
        _long,
    )
    found = (step(problem, seen, rule) for step in steps)
    return next((choice for choice in found if choice), None) or _short(problem, seen, rule)


SINGLY = "rows that are no whole vectors: XLA reads them singly"

# Each of these says what runs a problem, or None, which leaves it to the next one.


def _returned(problem: Problem, seen: Context, rule: Rule) -> Choice | None:
    returned = seen.read == "returned" and problem.op in FORWARD
    if not (returned and problem.is_last and (seen.is_apart or seen.widened)):
        return None
    dtypes = {str(problem.dtype), str(problem.output_dtype)}
    few = problem.elements <= rule.returned_least.get(problem.width, math.inf)
    if few or dtypes == {"float16", "float32"}:  # which have no tiles
        return None
    if not any(rows.have(problem.columns) for rows in rule.returned):
        return None
    return Choice(problem.platform, "what a program returns: nothing fuses with it")


def _widened(problem: Problem, seen: Context, rule: Rule) -> Choice | None:
    if not seen.widened or problem.output_dtype.itemsize != 4:
        return None
    op, columns, elements = problem.op, problem.columns, problem.elements
    longer = rule.pairs.get(op, Longer(columns, 0))
    rows = max(longer.rows, columns // rule.split_columns)
    too_few = elements <= max(rows * columns, rule.elements)
    if problem.is_last:
        fuses = any_have(rule.widened, op, columns)
    else:
        fuses = columns >= rule.widened_across.get(op, math.inf)
    fuses |= op == "softmax" and too_few
    by_pairs = problem.is_last and columns > longer.columns and not (too_few or fuses)
    case = op, problem.dtype.itemsize, problem.width
    read = problem.is_last and elements > rule.elements
    makers = _makers_of_read(problem, seen, case, rule) if read else set()
    if columns > ONE_KERNEL and too_few:
        makers.discard("pairs")
    if "pairs" in makers or (by_pairs and "xla" not in makers):
        why = "float32 made of 16 bits: a kernel reduces rows, XLA fuses what is made of them"
        return Choice(problem.platform, why, pairs=True)
    if problem.is_derivative or fuses or "xla" in makers:
        why = "float32 made of 16 bits: XLA fuses that, and maybe the way back"
        return Choice("xla", why)
    return None


def _cached(problem: Problem, seen: Context, rule: Rule) -> Choice | None:
    known = seen.is_known and seen.around != "product"
    if not (known and problem.is_last and problem.is_of_one_dtype and seen.way in BY_ELEMENTS):
        return None
    if problem.elements > rule.cached_elements or not problem.is_among(rule.cached):
        return None
    return Choice("xla", "so few elements that XLA's code finds them in the cache once more")


def _few(problem: Problem, seen: Context, rule: Rule) -> Choice | None:
    columns, dtype = problem.columns, problem.dtype
    if seen.widened and problem.is_derivative:
        return None  # which XLA's code fuses with its conversions
    few = seen.may_split and problem.elements <= rule.asked * columns
    held = problem.op in FORWARD and problem.is_of_one_dtype
    held = held and str(dtype) in ("float32", "bfloat16")
    held = held and seen.alone and are_whole(columns, dtype.itemsize)
    long = rule.held if held else rule.long
    if not (few or problem.are_few(rule)) or not problem.is_last or columns < long:
        return None
    if problem.family == "terms":
        return None
    why = f"rows of {long} or more, of which few may be split"
    return Choice(problem.platform, why, batch_invariant=False)


def _small(problem: Problem, seen: Context, rule: Rule) -> Choice | None:
    del seen
    family, elements = problem.family, problem.elements
    if elements <= rule.elements and family != "absmax":  # which is several launches to XLA
        return Choice("xla", f"at most {rule.elements} elements: a launch costs more than they do")
    if family == "logsumexp" and problem.columns <= FEW_COLUMNS:
        return Choice("xla", f"at most {FEW_COLUMNS} columns, of which XLA makes no reduction")
    few = rule.few.get(family)
    if few and problem.columns >= few.columns and elements <= few.rows * problem.columns:
        return Choice("xla", f"at most {few.rows} long rows, which keep few multiprocessors busy")
    return None


def _read(problem: Problem, seen: Context, rule: Rule) -> Choice | None:
    """Where there is no derivative, and it is likely how the result is read."""
    read, platform = seen.way, problem.platform
    unrolled = problem.columns <= rule.interleaved["softmax"] and not problem.is_last
    if unrolled and read == "picked" and problem.is_of_one_dtype:
        return Choice("xla", "what is picked XLA has in no memory, and unrolls its columns")
    # Of what it makes element by element, or reduces, XLA has the logits' makers, too, within its
    # code.
    known = seen.is_bare or (read in WAYS and seen.is_known)
    in_memory = problem.is_last and known and problem.is_of_one_dtype
    if read in (None, "returned") or not in_memory:
        return None
    by = _makers_of_read(problem, seen, problem.case, rule)
    fewest = problem.columns // rule.split_columns
    what = "read by elements" if read == "elements" else read
    if "pairs" in by and seen.is_bare and problem.elements > fewest * problem.columns:
        why = f"a kernel reduces rows, and what is {what} of them is in no memory"
        return Choice(platform, why, pairs=True)
    if "kernel" in by and seen.is_bare:
        return Choice(platform, f"what is {what} would be several kernels of XLA's")
    if "xla" in by and seen.around != "product":
        return Choice("xla", f"what is {what} XLA has in no memory of its own")
    return None


def _makers_of_read(problem: Problem, seen: Context, case: tuple[Any, ...], rule: Rule) -> set[str]:
    """Who would make what is read as it is: "pairs", "kernel" or "xla", or some of them.

    Pairs of products, where XLA's code would be the faster one of others, are "pairs".
    """
    ways, product = seen.ways, seen.around == "product"
    is_sum = seen.read in ("summed", "weighed sum") and not product
    if is_sum and adds_rows_first(problem.rows, problem.columns):
        ways = ways[-1:]  # as if rows' numbers were kept

    def would(maker: str) -> bool:
        tables = (rule.read.get((way, maker), {}) for way in ways)
        kinds = next((kinds for kinds in tables if case in kinds), {})
        return any_have(kinds, case, problem.columns)

    makers = {maker for maker in ("pairs", "kernel", "xla") if would(maker)}
    return makers | {"pairs"} if product and would("pairs of products") else makers


def _across(problem: Problem, seen: Context, rule: Rule) -> Choice | None:
    del seen
    why = None if problem.is_last else _why_not_interleaved(problem, rule)
    return Choice("xla", why) if why else None


def _terms(problem: Problem, seen: Context, rule: Rule) -> Choice | None:
    del seen
    if problem.family != "terms":
        return None
    if problem.columns < rule.terms_columns:
        return Choice("xla", f"masked rows of fewer than {rule.terms_columns}")
    wide = problem.dtype.itemsize == problem.output_dtype.itemsize == 4
    most = problem.most_of(rule.wide_terms if wide else rule.terms)
    return None if most is None else Choice("xla", f"at most {most} elements, which XLA fuses")


def _around(problem: Problem, seen: Context, rule: Rule) -> Choice | None:
    del rule
    if seen.around in STORED:
        return Choice("xla", "XLA fuses more with it than the kernel that stored the result")
    if seen.around == "apart" and problem.is_last and problem.is_derivative:
        return Choice(problem.platform, "XLA would fuse nothing with it")
    return None


def _slabs(problem: Problem, seen: Context, rule: Rule) -> Choice | None:
    del seen
    if problem.is_last or not in_slabs(problem, rule.slabs):
        return None
    if problem.outer <= rule.slabs.few:
        why = f"at most {rule.slabs.few} slabs, which more blocks may share"
        return Choice(problem.platform, why, batch_invariant=False)
    return Choice(problem.platform, "neighbours that blocks keep all together")


def _derivative(problem: Problem, seen: Context, rule: Rule) -> Choice | None:
    if not problem.is_derivative:
        return None
    if problem.is_last and problem.is_of_one_dtype:
        in_both = seen.around is None and problem.is_among(rule.singly_in_both)
        if in_both or problem.is_among(rule.singly):
            return Choice(problem.platform, SINGLY)
    full = filled(problem.columns) >= rule.filled.get(problem.case, 0)
    if problem.case in rule.columns and (seen.is_fused or (seen.around == "scaled" and full)):
        return Choice("xla", "XLA fuses it with its neighbours")
    return None


def _long(problem: Problem, seen: Context, rule: Rule) -> Choice | None:
    """Where XLA has no single kernel, or along another axis."""
    columns, platform, most = problem.columns, problem.platform, rule.columns.get(problem.case, 0)
    if seen.is_fused and problem.is_of_one_dtype and problem.case in rule.fused_across:
        least = most + 1 if problem.is_last else rule.fused_across[problem.case]
        if columns >= least:
            return Choice("xla", "XLA fuses it with what comes before")
    if not most:
        what = f"{problem.op} of {problem.dtype}"
        return Choice(platform, f"XLA has no single kernel at the memory limit for {what}")
    if not problem.is_last:
        return Choice(platform, "the axis is not the last one")
    if columns > most:
        return Choice(platform, f"rows of more than {most}")
    return None


def _short(problem: Problem, seen: Context, rule: Rule) -> Choice:
    """Where XLA has a single kernel, which may fuse."""
    op, columns, platform = problem.op, problem.columns, problem.platform
    whole, same, most = problem.is_whole, problem.is_of_one_dtype, rule.columns[problem.case]
    tangent = f"{op}_tangent", problem.width
    if seen.differentiated and same and any_have(rule.singly, tangent, columns):
        return Choice(platform, SINGLY)
    if seen.biased:
        return Choice("xla", f"rows of at most {most}: one kernel that adds the bias")
    if not whole and problem.is_among(rule.odd):
        return _odd(problem, seen, rule)
    if same and seen.is_apart:
        in_both = seen.differentiated and problem.is_among(rule.singly_in_both)
        if in_both or problem.is_among(rule.singly):
            return Choice(platform, SINGLY)
    padded = not seen.is_fused and filled(columns) < rule.filled.get(problem.case, 0)
    if whole and padded:
        return Choice(platform, "rows with too much padding for XLA")
    if problem.is_among(rule.in_both):
        if seen.around == "product":
            return Choice(platform, "a matrix product's, and with another the faster ones")
        if whole and seen.is_apart and (seen.differentiated or seen.read is None):
            return Choice(platform, "the kernels are the faster ones with the derivative, or alone")
    return Choice("xla", f"rows of at most {most}: one kernel that fuses with its neighbours")


def _odd(problem: Problem, seen: Context, rule: Rule) -> Choice:
    """Of short rows that are no whole vectors, and mostly the kernels'."""
    op, columns, width = problem.op, problem.columns, problem.width
    narrowed, fuses = seen.around == "narrowed", seen.widened
    converted = (op, 4 if narrowed else problem.dtype.itemsize, problem.output_dtype.itemsize)
    if width == 2:
        fuses = seen.is_fused and problem.is_of_one_dtype
    alone_forward = narrowed or not seen.differentiated or columns < rule.terms_columns
    if fuses and alone_forward and any_have(rule.together, converted, columns):
        return Choice("xla", "XLA fuses it with what comes before, and reads some at a time")
    return Choice(problem.platform, SINGLY)


def is_short(problem: Problem) -> bool:
    """Whether rows are too short for the kernels; no symbolic length is."""
    columns, least = problem.columns, SHORT_ROWS.get((problem.platform, problem.op), 0)
    return isinstance(columns, int) and columns <= least


def keeps_neighbours(problem: Problem, rule: Rule) -> bool:
    """Whether the kernels read rows along this axis once, or are the faster ones all the same."""
    op, dtype, columns, inner = problem.op, problem.dtype, problem.columns, problem.inner
    rows, vector = problem.rows, 16 // dtype.itemsize
    if problem.family == "logsumexp":
        if inner == vector and columns > rule.slab_columns:
            return False  # the kernel that keeps them has nothing to do for most of its threads
        few = columns >= rule.few_values.columns and rows <= rule.few_values.rows
        if few and inner % vector != 0:
            return False
        return columns <= rule.streamed_columns or rows >= rule.rows_twice
    inputs = 1 if op in FORWARD else 2
    if in_slabs(problem, rule.slabs):
        return _keeps_slabs(problem, rule.slabs)
    if inner % vector == 0:
        if not problem.is_of_one_dtype:
            fewest = rule.converted_vectors.get(dtype.itemsize, 0)
            few_side_by_side = inner <= 2 * vector and (inputs == 2 or dtype.itemsize == 2)
            if inner == vector or few_side_by_side or columns * inner < fewest * vector:
                return False
        few, narrow = rows < rule.panel_vectors * vector, inner < 4 * vector
        if few and columns > rule.streamed_columns:
            return False
        if narrow and inputs == 2 and columns > rule.slab_columns:
            return False  # half of the threads that would keep them, or more, have nothing to do
        fits = columns * 4 * 16 * inputs <= rule.panel_bytes
        most = 0 if few or narrow else rule.panel_columns[op.removeprefix("masked_")]
        return fits or columns <= most or (inputs == 1 and rows >= rule.rows_twice)
    if not problem.is_of_one_dtype:
        return False
    slab = columns * inner
    together = vector // math.gcd(slab, vector)  # that are whole vectors
    fits = together * slab * dtype.itemsize * inputs <= rule.slabs.tile_bytes
    return fits and problem.outer >= rule.slabs.tiles * together


def in_slabs(problem: Problem, rule: Slabs) -> bool:
    """Whether neighbours along this axis are kept all together, if the kernels run them."""
    columns, inner, dtype = problem.columns, problem.inner, problem.dtype
    narrow = problem.is_of_one_dtype and dtype.itemsize < 8
    if problem.is_last or problem.family != "softmax" or not narrow:
        return False
    places, vector = columns * inner * (1 if problem.op in FORWARD else 2), 16 // dtype.itemsize
    if inner % vector == 0:
        few = inner < 4 * vector
        return few and columns > rule.columns and places > rule.vectors * vector
    small = places * dtype.itemsize <= rule.few_bytes + rule.neighbour_bytes * inner
    return columns > rule.tile_columns or not small


def _keeps_slabs(problem: Problem, rule: Slabs) -> bool:
    columns, inner, size = problem.columns, problem.inner, problem.dtype.itemsize
    slabs, inputs = problem.outer, 1 if problem.op in FORWARD else 2
    slab = columns * inner * size * inputs
    if slabs < rule.fewest[inputs] or slab > rule.most_bytes[size]:
        return False
    period = inner // math.gcd(inner, 16 // size)
    if period > (2 * rule.wide if slab > rule.wide_most_bytes else rule.longest):
        return False
    wide = period > rule.wide * (4 // size) and columns > rule.columns
    if inputs == 1:
        least = rule.forward_bytes[problem.op]
    elif (wide and period > 2 * rule.wide) or (are_whole(inner, size) and slab > rule.whole_bytes):
        return False
    else:
        singly = size == 2 and inner % 2 == 1
        least = rule.odd_bytes if singly else rule.derivative_bytes[size]
    return slabs * slab >= (max(least, rule.wide_bytes[inputs]) if wide else least)


def _why_not_interleaved(problem: Problem, rule: Rule) -> str:
    """Why rows along another axis than the last are XLA's; the empty string if they are not."""
    family, size = problem.family, problem.dtype.itemsize
    if family == "terms":
        return "masks and other terms are fused along the last axis alone"
    converts = family == "softmax" and not problem.is_of_one_dtype
    unrolled = rule.interleaved.get("conversion" if converts else family, 0)
    if family == "softmax" and not converts and are_whole(problem.inner, size) and size < 8:
        unrolled = 1  # two to four are held by a thread of the kernels
    if problem.columns <= unrolled:
        return f"at most {unrolled} columns along another axis, which XLA unrolls"
    narrow = problem.columns <= rule.narrow_columns and problem.elements <= rule.narrow_elements
    if problem.is_derivative and narrow:
        return f"at most {rule.narrow_elements} elements of {rule.narrow_columns} columns"
    known = family in ("softmax", "logsumexp") and size < 8
    if known and not keeps_neighbours(problem, rule):
        return "rows along another axis that are too long, or too few, for the kernels"
    return ""
