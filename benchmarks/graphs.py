"""Softmax between neighbours: the graphs that are compared, and the implementations of the op."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from cases import bind
from shapes import Case

import jax_softmax

Function = Callable[..., jax.Array]
Operands = Mapping[str, jax.Array]

# The inner dimension of the producing matrix product and the width of the consuming one, as in a
# head of attention.
FEATURES = 64


class Graph(NamedTuple):
    """What makes the operand of softmax, and what takes its result."""

    producer: str
    consumer: str


# Each neighbour alone, then pairs that models have: temperature and entropy, attention, gating;
# then mixed precision; then sums of each row and of each column.
GRAPHS = (
    Graph("none", "none"),
    Graph("scale", "none"),
    Graph("bias", "none"),
    Graph("matmul", "none"),
    Graph("none", "cast"),
    Graph("none", "elementwise"),
    Graph("none", "reduction"),
    Graph("none", "matmul"),
    Graph("scale", "reduction"),
    Graph("matmul", "matmul"),
    Graph("bias", "elementwise"),
    Graph("cast", "none"),
    Graph("cast", "cast"),
    Graph("none", "weighted"),
    Graph("none", "mean"),
)


def _cast(x: jax.Array) -> jax.Array:
    return x.astype(jnp.float32 if x.dtype.itemsize == 2 else jnp.bfloat16)


PRODUCERS: dict[str, Callable[[jax.Array, Operands], jax.Array]] = {
    "none": lambda x, _: x,
    "cast": lambda x, _: _cast(x),
    "scale": lambda x, _: x * 0.125,
    "bias": lambda x, to: x + to["bias"],
    "matmul": lambda x, to: x @ to["keys"],
}
CONSUMERS: dict[str, Callable[[jax.Array, Operands, int], jax.Array]] = {
    "none": lambda y, _, axis: y,
    "cast": lambda y, _, axis: _cast(y),
    "elementwise": lambda y, to, axis: y * to["weights"],
    "reduction": lambda y, _, axis: jnp.sum(jnp.square(y), axis),
    "weighted": lambda y, to, axis: jnp.sum(y * to["weights"], axis),
    "mean": lambda y, _, axis: jnp.mean(y, [d for d in range(y.ndim) if d != axis % y.ndim]),
    "matmul": lambda y, to, axis: y @ to["values"],
}


def graphs_around(case: Case) -> list[Graph]:
    """All graphs, but products only where the operands of the softmax are the larger ones."""
    return [g for g in GRAPHS if "matmul" not in g or case.shape[-1] >= FEATURES]


def operands(graph: Graph, case: Case, make: Callable[..., jax.Array]) -> dict[str, jax.Array]:
    """What `graph` takes around a softmax of `case`, as `make(name, shape, scale)` makes it.

    Of these, x is differentiated.
    """
    *outer, last = case.shape
    made = {}
    if graph.producer == "matmul":
        made["x"] = make("x", (*outer, FEATURES), 1.0)
        # Keeps the logits' variance at one, as attention does.
        made["keys"] = make("keys", (FEATURES, last), FEATURES**-0.5)
    else:
        made["x"] = make("x", case.shape, 1.0)
    if graph.producer == "bias":
        made["bias"] = make("bias", (last,), 1.0)
    if graph.consumer in ("elementwise", "weighted"):
        made["weights"] = make("weights", case.shape, 1.0)
    if graph.consumer == "matmul":
        made["values"] = make("values", (last, FEATURES), 1.0)
    return made


def program(graph: Graph, softmax: Function, axis: int, direction: str) -> Callable[..., Any]:
    """A function of the operands, and unless it is "forward" of the cotangent of the result."""

    def forward(x: jax.Array, others: Operands) -> jax.Array:
        y = softmax(PRODUCERS[graph.producer](x, others))
        return CONSUMERS[graph.consumer](y, others, axis)

    def value_and_pull_back(
        x: jax.Array, others: Operands, cotangent: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        value, pull_back = jax.vjp(lambda x: forward(x, others), x)
        return value, pull_back(cotangent)[0]

    def pull_back(x: jax.Array, others: Operands, cotangent: jax.Array) -> jax.Array:
        return value_and_pull_back(x, others, cotangent)[1]

    by_direction = {"forward": forward, "gradient": value_and_pull_back, "pull-back": pull_back}
    return by_direction[direction]


def _xla_forward(op: str, axis: int, native: str) -> Function:
    """The forward pass of XLA and our backward pass, which no `implementation=` asks for."""

    @jax.custom_vjp
    def f(x: jax.Array) -> jax.Array:
        return getattr(jax_softmax, op)(x, axis, implementation="xla")

    def forward(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        y = f(x)
        return y, y

    def backward(y: jax.Array, g: jax.Array) -> tuple[jax.Array]:
        return (bind(op, "backward", axis, native, y, g),)

    f.defvjp(forward, backward)
    return f


def implementations(
    op: str, axis: int, direction: str, native: str, few: bool
) -> dict[str, Function]:
    """The op by the name of its implementation, see graph.py."""
    ours = functools.partial(getattr(jax_softmax, op), axis=axis)
    functions: dict[str, Function] = {
        "native": functools.partial(ours, implementation=native),
        "xla": functools.partial(ours, implementation="xla"),
        "default": ours,
        "jax_nn": functools.partial(getattr(jax.nn, op), axis=axis),
    }
    if few:
        functions["split"] = functools.partial(ours, implementation=native, batch_invariant=False)
    if direction != "forward":
        functions["xla_forward"] = _xla_forward(op, axis, native)
    return functions
