"""What becomes of a result once it is seen what reads it, or what is beside it: _h200.py's tables.

`_choice.choose` says who makes it at first, with less to go by.
"""

import math
from collections.abc import Collection

from . import _choice
from ._choice import Context, Problem, adds_rows_first, are_whole, choose
from ._reference import ONE_KERNEL, is_static
from ._rule import Fewest, Rule, any_have


def maker_as_read(
    problem: Problem,
    *,
    how: Collection[str],
    by_kernel: bool,
    before: str | None,
    multiplied: bool,
    comes_back: bool,
    fused: bool,
    by_rows: bool = False,
) -> str | None:
    """Who makes the result of an op, once it is known `how` code reads it that XLA may have it in.

    There is a derivative. "pairs": a kernel makes two values of each row, and XLA the elements
    where it reads them; "kernel": one writes what XLA's code would have made; "xla": its code makes
    what a kernel would have written; None: as it was decided without.

    `by_kernel` says that a kernel wrote it. `before` is "apart" where XLA would fuse nothing that
    made the logits, "biased" where they are such with a bias that a kernel adds, "widened" where
    they are float32 made of such 16 bits, or None; with `multiplied` they are multiplied by a
    number before that. `comes_back` says that the tangent is made of what reads the result,
    `fused` that XLA may have what makes it within its code, and `by_rows` that a number for each
    row is part of it.
    """
    rule = _rule_of_last(problem)
    if rule is None:
        return None
    case, columns, rows = problem.case, problem.columns, problem.rows
    within = "multiplied" if multiplied else "apart" if before == "apart" else "fused"
    fuses = by_kernel and fused and not (multiplied and before != "apart")
    again = comes_back and "reduced" in how
    if before == "widened":
        reduces = _reduces_narrow(problem, how, again=again, by_rows=by_rows, rule=rule)
        return "pairs" if reduces else None
    if again and not multiplied and keeps_picked(problem, how=how):
        return "kernel" if before and not by_kernel else None
    how = set(how) - {"exponentials"}  # beside which there is another
    if how == {"picked"}:
        return None
    ways = {"again"} if again else how
    made = [rule.unwritten.get((within, way), {}) for way in ways]
    if fuses and all(map(problem.is_among, made)):
        return "xla"
    if "unread" in how:
        return None
    read = rule.pairs_read.get(case)
    if read and before == "apart" and rows > columns // rule.split_columns:  # one block has each
        if by_kernel and "picked" in how:
            of_pairs = columns >= read.picked and problem.is_whole
        elif by_kernel or "reduced" in how:
            of_pairs = columns >= read.reduced
        else:
            of_pairs = columns >= read.elements and problem.is_whole
        if of_pairs:
            return "pairs"
    if by_kernel:
        return None
    of_kernel = again and problem.is_among(rule.reduced)
    of_kernel |= "across" in how and problem.is_among(rule.across)
    return "kernel" if before and of_kernel else None


def _reduces_narrow(
    problem: Problem, how: Collection[str], *, again: bool, by_rows: bool, rule: Rule
) -> bool:
    """Whether a kernel reduces rows of 16 bits whose float32 XLA's code reads."""
    columns, rows, reads = problem.columns, problem.rows, {"picked", "reduced"} & set(how)
    fewest = columns // rule.split_columns  # one block has each
    if columns > ONE_KERNEL and problem.op in rule.pairs:
        fewest = max(fewest, rule.pairs[problem.op].rows)
    if rows <= fewest or "unread" in how:
        return False
    if columns > ONE_KERNEL:
        by_elements = "elements" if "elements" in how else "converted"
        ways = {"again"} if again else reads or {by_elements}
        # XLA sums odd rows as it makes them, or pads their sums, and keeps their numbers as well.
        odd = columns % 2 == 1
        if by_rows or (odd and (rows % 2 == 1 or adds_rows_first(rows, columns))):
            ways -= {"reduced"}
        return any(problem.is_among(rule.widened_read_longer[way]) for way in ways)
    least = rule.widened_read.get(problem.op)
    if least is None or not reads:
        return False
    return columns >= _least_columns(least, columns, 2, by_rows=by_rows)


def _least_columns(fewest: Fewest, columns: int, size: int, *, by_rows: bool) -> int:
    """The fewest columns, elements of so many bytes, of rows as these are."""
    if are_whole(columns, size):
        return fewest.by_rows if by_rows else fewest.whole
    return fewest.odd_by_rows if by_rows else fewest.odd


def _rule_of_last(problem: Problem) -> Rule | None:
    """The rule, of rows along the last axis, of one dtype, and more than costs a launch alone."""
    rule = _choice.RULES.get(problem.platform)
    if rule is None or not problem.is_static:
        return None
    if not (problem.is_of_one_dtype and problem.is_last):
        return None
    return rule if problem.elements > rule.elements else None


def reads_operand(problem: Problem, batch_invariant: bool | None) -> bool:
    """Whether XLA's code anywhere may make a derivative of what the result is of.

    Whatever the problem's platform is.
    """
    for platform, rule in _choice.RULES.items():
        # Neighbours make these XLA's.
        some = (rule.of_operand, rule.singly_in_both)
        fused = isinstance(problem.columns, int) and any(map(problem.is_among, some))
        seen = Context(batch_invariant=batch_invariant, around="fused" if fused else None)
        if choose(problem._replace(platform=platform), seen).implementation == "xla":
            return True
    return False


def prefers_terms(
    problem: Problem,
    *,
    masked: bool,
    tiled: bool,
    product: bool,
    read: str | None,
    differentiated: bool,
) -> bool:
    """Whether a kernel puts in what a mask does before an op, of what XLA could fuse nothing with.

    Or adds a bias to what a matrix product made, where nothing is `masked`. `tiled` says that mask
    or bias has several rows and is repeated, `product` that a matrix product made the logits,
    `read` how the result is, as `Context.read` has it; masks alone go by that and the derivative.
    """
    rule = _choice.RULES[problem.platform]
    terms = rule.masks_tiled if tiled else rule.masks
    some = problem.is_among(terms.whole if problem.is_whole else terms.odd)
    of_scores = product and masked != tiled
    some |= of_scores and problem.is_among(rule.terms_of_scores)
    if not some or not masked:
        return some
    # XLA may have what reads the result within its code.
    alone = product or read == "returned" or problem.columns > ONE_KERNEL
    alone = alone or (differentiated and problem.width == 2)
    return tiled or (alone and problem.elements > rule.masks_few.get(problem.width, 0))


def makes_together(
    problem: Problem,
    *,
    differentiated: bool,
    by_kernel: bool,
    by_rows: bool = False,
    read: str | None = None,
) -> bool:
    """Whether a kernel makes three values for each row, and XLA softmax and log-softmax of these.

    They are of the same logits, of `dtype` where these were brought to another, and the first one
    would be by a kernel, or is XLA's. `by_rows` says whether there is another number for each row,
    that the program returns or that may be part of what comes back, `read` how it seems to read
    what is not differentiated, as `Context.read` has it.
    """
    columns = problem.columns
    size, output_size = problem.dtype.itemsize, problem.output_dtype.itemsize
    rule = _rule_of_last(problem._replace(dtype=problem.output_dtype))
    both = rule and rule.both.get((differentiated, size, output_size))
    if not rule or not both or problem.elements <= columns**2 // rule.split_columns:
        return False  # or one block has each row
    if not differentiated and read in ("returned", "across", "converted"):
        return False
    moved = problem.axis != len(problem.shape) - 1
    if by_kernel and (moved or (differentiated and output_size == 2)):
        return False
    least = _least_columns(both.fewest, columns, size, by_rows=by_rows)
    if not least <= columns <= both.most:
        return False
    return not _sums_slowly(problem, size, rule, differentiated=differentiated)


def _sums_slowly(problem: Problem, size: int, rule: Rule, *, differentiated: bool) -> bool:
    """Whether XLA's sums of all elements, made of logits of `size` bytes each, may be slow."""
    slow, axis = rule.slow_sums, problem.axis
    if size != 4 or problem.columns != slow.columns:
        return False
    others = problem.shape[:axis] + problem.shape[axis + 1 :]
    fewest = slow.differentiated if differentiated else slow.forward
    return not is_static(others) or math.prod(others) >= fewest


def makes_anew(problem: Problem, *, read: int, values: int, exponentials: bool) -> bool:
    """Whether the last step of a derivative has the elements anew that it is made of.

    XLA's code makes these of so many `values` for each row, of logits of so many bytes that it
    reads, results of the problem's dtype and tangents that there may be `exponentials` in.
    """
    rule, case = _choice.RULES[problem.platform], (read, problem.dtype.itemsize, values)
    kinds = rule.anew if isinstance(problem.columns, int) else {}
    if not (exponentials or read == 2) or not any_have(kinds, case, problem.columns):
        return False
    return not _sums_slowly(problem, read, rule, differentiated=True)


def keeps_masked(problem: Problem, *, tiled: bool) -> bool:
    """Whether the derivative is a kernel's, behind a mask that may be `tiled`."""
    if not isinstance(problem.columns, int):
        return False
    kinds, whole = _choice.RULES[problem.platform].masks_apart, problem.is_whole
    return problem.is_among(kinds.whole if whole else kinds.odd) and (tiled or not whole)


def keeps_picked(problem: Problem, *, how: Collection[str]) -> bool:
    """Whether kernels write, and differentiate, what labels pick from and what is reduced too."""
    read = _choice.RULES[problem.platform].pairs_read.get(problem.case)
    known = isinstance(problem.columns, int)
    if read is None or not {"picked", "reduced"} <= set(how) or not known:
        return False
    return "exponentials" in how or problem.columns < read.both


def rereads(problem: Problem, *, multiplied: bool) -> bool:
    """Whether XLA's derivative reads a result that a kernel wrote, and its tangent is of.

    The kernel may have multiplied the logits.
    """
    least = _choice.RULES[problem.platform].reread.get(problem.case)
    if least is None or not is_static(problem.shape[problem.axis :]):
        return False
    return problem.is_last and (multiplied or problem.is_whole or problem.columns >= least)


def reads_stored(problem: Problem, *, how: Collection[str]) -> bool:
    """Whether XLA's derivative reads a result that a kernel wrote, whatever is made of it.

    XLA may have what made its tangent within it, and it is known `how` its code reads the result.
    """
    columns, kinds = problem.columns, _choice.RULES[problem.platform].stored
    if not isinstance(columns, int) or not problem.is_last:
        return False
    most = next((way for way in kinds if way in how), None)
    return (most is not None and problem.is_among(kinds[most])) or columns > ONE_KERNEL
