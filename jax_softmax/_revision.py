"""What becomes of a result once it is seen what reads it, or what is beside it: _h200.py's tables.

`_choice.choose` says who makes it at first, with less to go by.
"""

import math
from collections.abc import Collection

from . import _choice
from ._choice import Context, Problem, are_whole, choose
from ._reference import ONE_KERNEL, is_static
from ._rule import Fewest, Rule


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
    within = "apart" if before == "apart" and not multiplied else "fused"
    fuses = by_kernel and fused and not (multiplied and before != "apart")
    again = comes_back and "reduced" in how
    if before == "widened":
        return "pairs" if _reduces_narrow(problem, how, by_rows=by_rows, rule=rule) else None
    if again and not multiplied and keeps_picked(problem, how=how):
        return "kernel" if before and not by_kernel else None
    how = set(how) - {"exponentials"}  # beside which there is another
    if how == {"picked"}:
        return None
    made = [rule.unwritten.get((within, way), {}) for way in how]
    if fuses and not again and all(map(problem.is_among, made)):
        return "xla"
    if "unread" in how:
        return None
    read = rule.pairs_read.get(case)
    if read and before == "apart" and rows > columns // rule.split_columns:  # one block has each
        shorter = "picked" not in how if by_kernel else "reduced" in how
        of_pairs = columns >= (read.reduced if shorter else read.elements)
        of_pairs &= shorter or problem.is_whole
        if of_pairs:
            return "pairs"
    if by_kernel:
        return None
    of_kernel = again and problem.is_among(rule.reduced)
    of_kernel |= "across" in how and problem.is_among(rule.read["across", "kernel"])
    return "kernel" if before and of_kernel else None


def _reduces_narrow(problem: Problem, how: Collection[str], *, by_rows: bool, rule: Rule) -> bool:
    """Whether a kernel reduces rows of 16 bits whose float32 XLA's code reads."""
    columns, least = problem.columns, rule.widened_read.get(problem.op)
    few = problem.rows <= columns // rule.split_columns  # one block has each
    if least is None or few or columns > ONE_KERNEL or not {"picked", "reduced"} & set(how):
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
    if tiled or not masked:
        return True
    # XLA may have what reads the result within its code.
    alone = product or read == "returned" or problem.columns > ONE_KERNEL
    alone = alone or (differentiated and problem.width == 2)
    few = _choice.RULES[problem.platform].masks_few.get(problem.width, 0)
    return alone and problem.elements > few


def makes_together(
    problem: Problem,
    *,
    by_kernel: bool,
    by_rows: bool = False,
    read: str | None = None,
) -> bool:
    """Whether a kernel makes three values for each row, and XLA softmax and log-softmax of these.

    They are float32, of the same logits, of `dtype` where these were brought to float32, and the
    first one would be by a kernel, or is XLA's. `by_rows` says whether there is another number for
    each row, that the program returns or that may be part of what comes back, `read` how it seems
    to read what is not differentiated, as `Context.read` has it.
    """
    columns, size = problem.columns, problem.dtype.itemsize
    if problem.output_dtype.itemsize != 4 or read in ("returned", "across", "converted"):
        return False
    rule = _rule_of_last(problem._replace(dtype=problem.output_dtype))
    fewest = rule and rule.both.get(size)
    if not rule or not fewest or problem.elements <= columns**2 // rule.split_columns:
        return False  # or one block has each row
    if by_kernel and problem.axis != len(problem.shape) - 1:
        return False
    slow = size == 4 and columns == rule.slow_sums
    return columns >= _least_columns(fewest, columns, size, by_rows=by_rows) and not slow


def makes_anew(problem: Problem, *, read: int, values: int, exponentials: bool) -> bool:
    """Whether the last step of a derivative has the elements anew that it is made of.

    XLA's code makes these of so many `values` for each row, of logits of so many bytes that it
    reads, results of the problem's dtype and tangents that there may be `exponentials` in.
    """
    rule, columns = _choice.RULES[problem.platform], problem.columns
    least = rule.anew.get((read, values), math.inf)
    known = isinstance(columns, int) and problem.dtype.itemsize == 4
    if not known or columns < least or not (exponentials or read == 2):
        return False
    return read == 2 or columns != rule.slow_sums


def keeps_masked(problem: Problem, *, tiled: bool) -> bool:
    """Whether the derivative is a kernel's, behind a mask that may be `tiled`."""
    kinds = _choice.RULES[problem.platform].masks_apart
    known = isinstance(problem.columns, int)
    return known and tiled and problem.is_whole and problem.is_among(kinds)


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
    least = _choice.RULES[problem.platform].reread
    if problem.width > 4 or not is_static(problem.shape[problem.axis :]):
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
