"""Two or three values for each row by a kernel, of which XLA makes a softmax or log-softmax."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import mlir

from ._calls import call_primitive
from ._reference import row_pairs


def lower_by_pairs(
    ctx: Any, operand: Any, *, op: str, axis: int, dtype: Any, scale: float = 1.0
) -> Any:
    """Softmax or log-softmax in float32, of which a call makes two values for each row.

    XLA computes the elements with what reads them: of 16 bits, they would be twice their logits in
    memory. A difference from a product it may round once, where the call has rounded the product:
    hence the smaller one of it and the largest, which it is.
    """
    log = op == "log_softmax"
    request = {"axis": axis, "dtype": dtype, "scale": scale, "log_sums": log}

    def lowered(x: jax.Array) -> jax.Array:
        shifted, second = of_rows(row_pairs_p, x, **request)
        return shifted - second if log else jnp.exp(shifted) * second

    return mlir.lower_fun(lowered, multiple_results=False)(ctx, operand)


def of_rows(
    call_p: Primitive, x: jax.Array, *, axis: int, dtype: Any, scale: float, log_sums: bool
) -> list[jax.Array]:
    """`scale * x` less its rows' maxima, and the other values for each row that a call makes."""
    request = {"axis": axis, "dtype": dtype, "strategy": "auto", "batch_invariant": True}
    request |= {"logical_axis": x.ndim - 1, "workspace": 0, "log_sums": log_sums, "scale": scale}
    made = call_p.bind(jnp.moveaxis(x, axis, -1), **request)
    largest, *others = (jnp.expand_dims(values, axis) for values in made)
    x = x.astype(dtype)
    return [(x if scale == 1 else jnp.minimum(scale * x, largest)) - largest, *others]


def _lower_row_pairs(ctx: Any, x: Any, *, log_sums: bool, scale: float, **params: Any) -> Any:
    del params
    function = partial(row_pairs, log_sums=log_sums, scale=scale, values=len(ctx.avals_out))
    return mlir.lower_fun(function, multiple_results=True)(ctx, x)


# Calls on a GPU. Elsewhere, where only tests have the rule that asks for them, plain JAX.
row_pairs_p, row_triples_p = (
    call_primitive("row_pairs", per_row=True, values=n, platform="cuda") for n in (2, 3)
)
for _call_p in (row_pairs_p, row_triples_p):
    mlir.register_lowering(_call_p, _lower_row_pairs)
