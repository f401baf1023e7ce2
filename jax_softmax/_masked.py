"""`masked_softmax`: softmax with what attention puts around it."""

from functools import partial
from typing import Any

import jax
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, Bool, Float

from . import _canonicalize, _reference, _terms


def masked_softmax(
    x: Float[ArrayLike, "*shape"],
    mask: Bool[ArrayLike, "..."] | None = None,
    bias: Float[ArrayLike, "..."] | None = None,
    *,
    scale: float | Float[ArrayLike, ""] = 1.0,
    causal: bool = False,
    axis: int = -1,
    log: bool = False,
    dtype: DTypeLike | None = None,
    softcap: float | None = None,
    sink: Float[ArrayLike, "..."] | None = None,
    implementation: str | None = None,
    batch_invariant: bool | None = None,
) -> Float[Array, "*shape"]:
    """Computes the softmax of `cap(scale * x) + bias` along `axis`, over what masks let through.

    Everything before the rounding to `dtype` is in float32 at least. Differentiable in both modes
    and to any order, in `x`, `bias`, `scale` and `sink`.

    Args:
      x: real logits of any shape.
      mask: boolean, broadcast against `x` by NumPy's rules; elements where it is False take no
        part, whatever they hold, and come out as 0 (`log`: `-inf`).
      bias: added to the scaled logits; broadcast against `x` as `mask` is.
      scale: a number or a scalar array that the logits are multiplied by.
      causal: True to let row i of the last two dimensions see columns up to i + columns - rows, so
        that the last row sees all. Wants the last axis.
      axis: one axis.
      log: True for the logarithm, as by `log_softmax`.
      dtype: the result's dtype, or None for `x`'s.
      softcap: a number c, 1e-37 to 1e37, for which `cap(z) = c * tanh(z / c)`, as in Gemma 2; None
        for none.
      sink: a logit that takes part in every row's sum and has no result (attention sinks, Xiao et
        al. 2023); broadcast against `x` without `axis`.
      implementation: of the softmax, as in `softmax`.
      batch_invariant: as in `softmax`.

    Returns:
      An array of `x`'s shape and of `dtype`. A row that is masked as a whole is 0 (`log`: `-inf`),
      with zero gradients; other rows that hold NaN, `+inf` or only `-inf` are NaN.

    Raises:
      TypeError: `x`, `bias`, `scale` or `sink` is not real, `mask` is not boolean, `axis` is not
        one int, `dtype` is not floating, `softcap` is no number known at compile time, or
        `implementation` or `batch_invariant` is of another type.
      ValueError: something does not broadcast against `x`, `axis` or `softcap` is out of range,
        `causal` meets another axis than the last or fewer than two dimensions, or `implementation`
        cannot run here.

    One kernel does it all; the mask and the bias are read as they are, never broadcast in memory.
    Along another axis than the last, and on several devices of an automatic mesh, plain JAX
    surrounds the softmax. Reverse mode saves the result, and the operands only where a derivative
    needs them: the logits for a traced `scale`, `softcap` and `sink`, the mask for these and for
    `log`.
    """
    causal = _canonicalize.flag("causal", causal)
    x, axis, operands, factor = _canonicalize.masked(
        x, axis, mask, causal, bias, scale, softcap, sink
    )
    return _masked_softmax(
        x,
        operands,
        log=_canonicalize.flag("log", log),
        axis=axis,
        dtype=_canonicalize.hashable_dtype(dtype),
        factor=factor,
        softcap=0.0 if softcap is None else float(softcap),
        causal=causal,
        implementation=_canonicalize.name_or_none(implementation),
        batch_invariant=_canonicalize.three_state(batch_invariant),
    )


@partial(
    jax.jit,
    static_argnames=(
        *("log", "axis", "dtype", "factor", "softcap", "causal"),
        *("implementation", "batch_invariant"),
    ),
    inline=_canonicalize.EARLY,
)
def _masked_softmax(
    x: jax.Array, operands: dict[str, jax.Array], *, axis: int, dtype: Any, **options: Any
) -> jax.Array:
    dtype = _canonicalize.result_dtype(x, dtype)
    wide = _reference.compute_dtype(x.dtype, dtype)
    for name, operand in operands.items():
        # A kernel takes a bias in the logits' dtype too.
        if name != "mask" and not (name == "bias" and operand.dtype == x.dtype):
            operands[name] = operand.astype(wide)
    return _terms.bind(x, operands, axis=axis, dtype=dtype, **options)
