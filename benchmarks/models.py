"""What train.py trains, in plain JAX: a GPT-2 and a classifier, each with data it can learn.

Parameters are float32, activations bfloat16. What differs between the runs of a model is an `Ops`;
`PARTS` are the named scopes by which a profile is told.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

Params = Any
Batch = tuple[jax.Array, jax.Array]
PARTS = ("attention_weights", "cross_entropy", "layer_norm", "optimizer")


class Ops(NamedTuple):
    """All that differs between the runs of a model."""

    # Attention's weights of scores [..., T, T], from a scale and in a dtype.
    attention_weights: Callable[[jax.Array, float, DTypeLike], jax.Array]
    # One loss per row, from bfloat16 logits and integer labels.
    cross_entropy: Callable[[jax.Array, jax.Array], jax.Array]


class Model(Protocol):
    def init(self, key: jax.Array) -> Params: ...
    def draw(self, key: jax.Array) -> Batch: ...
    def logits(self, params: Params, inputs: jax.Array, ops: Ops) -> jax.Array: ...


def mean_loss(model: Model, params: Params, batch: Batch, ops: Ops) -> jax.Array:
    inputs, labels = batch
    logits = model.logits(params, inputs, ops)
    with jax.named_scope("cross_entropy"):
        return ops.cross_entropy(logits, labels).mean(dtype=jnp.float32)


def _dense_params(key: jax.Array, inputs: int, outputs: int, deviation: float) -> Params:
    weights = deviation * jax.random.normal(key, (inputs, outputs))
    return {"weights": weights, "bias": jnp.zeros(outputs)}


def _dense(p: Params, x: jax.Array) -> jax.Array:
    return x @ p["weights"].astype(x.dtype) + p["bias"].astype(x.dtype)


def _norm_params(width: int) -> Params:
    return {"scale": jnp.ones(width), "bias": jnp.zeros(width)}


@jax.named_scope("layer_norm")
def _layer_norm(p: Params, x: jax.Array) -> jax.Array:
    wide = jax.nn.standardize(x.astype(jnp.float32), epsilon=1e-5)
    return (wide * p["scale"] + p["bias"]).astype(x.dtype)


class Gpt2(NamedTuple):
    """GPT-2 (small, by default) without dropout; its text is a Markov chain over a few tokens."""

    batch: int = 8
    layers: int = 12
    width: int = 768
    heads: int = 12
    length: int = 1024
    vocabulary: int = 50257
    scores: str = "bfloat16"  # the dtype that attention's scores are stored in
    tokens: int = 256  # of the vocabulary, that the text has
    successors: int = 4  # that a token has in the text

    def init(self, key: jax.Array) -> Params:
        keys = iter(jax.random.split(key, 2 + 4 * self.layers))
        deviation = 0.02
        residual = deviation * (2 * self.layers) ** -0.5

        def block() -> Params:
            width = self.width
            return {
                "norm1": _norm_params(width),
                "qkv": _dense_params(next(keys), width, 3 * width, deviation),
                "project": _dense_params(next(keys), width, width, residual),
                "norm2": _norm_params(width),
                "up": _dense_params(next(keys), width, 4 * width, deviation),
                "down": _dense_params(next(keys), 4 * width, width, residual),
            }

        return {
            "tokens": deviation * jax.random.normal(next(keys), (self.vocabulary, self.width)),
            "positions": deviation * jax.random.normal(next(keys), (self.length, self.width)),
            "blocks": [block() for _ in range(self.layers)],
            "norm": _norm_params(self.width),
        }

    def draw(self, key: jax.Array) -> Batch:
        follow = jax.random.randint(
            jax.random.key(0), (self.tokens, self.successors), 0, self.tokens
        )
        first_key, choice_key = jax.random.split(key)
        first = jax.random.randint(first_key, (self.batch,), 0, self.tokens)
        choices = jax.random.randint(choice_key, (self.length, self.batch), 0, self.successors)

        def follower(at: jax.Array, choice: jax.Array) -> tuple[jax.Array, jax.Array]:
            token = follow[at, choice]
            return token, token

        _, rest = jax.lax.scan(follower, first, choices)
        # Spread over the vocabulary, as a text's tokens are.
        text = jnp.concatenate([first[None], rest]).T * (self.vocabulary // self.tokens)
        return text[:, :-1], text[:, 1:]

    def logits(self, params: Params, inputs: jax.Array, ops: Ops) -> jax.Array:
        x = (params["tokens"][inputs] + params["positions"]).astype(jnp.bfloat16)
        for block in params["blocks"]:
            x = x + self._attend(block, _layer_norm(block["norm1"], x), ops)
            hidden = jax.nn.gelu(_dense(block["up"], _layer_norm(block["norm2"], x)))
            x = x + _dense(block["down"], hidden)
        return _layer_norm(params["norm"], x) @ params["tokens"].astype(x.dtype).T

    def _attend(self, block: Params, x: jax.Array, ops: Ops) -> jax.Array:
        size = self.width // self.heads
        qkv = _dense(block["qkv"], x).reshape(self.batch, self.length, 3, self.heads, size)
        query, key, value = jnp.moveaxis(qkv, 2, 0)
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key, preferred_element_type=self.scores)
        with jax.named_scope("attention_weights"):
            weights = ops.attention_weights(scores, size**-0.5, x.dtype)
        seen = jnp.einsum("bhqk,bkhd->bqhd", weights, value)
        return _dense(block["project"], seen.reshape(x.shape))


class Classifier(NamedTuple):
    """A multilayer perceptron of few classes, which scarcely has a softmax."""

    batch: int = 4096
    layers: int = 3
    inputs: int = 784
    width: int = 1024
    classes: int = 10

    def init(self, key: jax.Array) -> Params:
        widths = (self.inputs, *(self.layers - 1) * (self.width,), self.classes)
        keys = jax.random.split(key, self.layers)
        return [
            _dense_params(k, n, m, n**-0.5)
            for k, n, m in zip(keys, widths[:-1], widths[1:], strict=True)
        ]

    def draw(self, key: jax.Array) -> Batch:
        # About two deviations of the noise from one another, so that no loss comes near 0.
        spread = 1.5 * self.inputs**-0.5
        centres = spread * jax.random.normal(jax.random.key(0), (self.classes, self.inputs))
        label_key, noise_key = jax.random.split(key)
        labels = jax.random.randint(label_key, (self.batch,), 0, self.classes)
        noise = jax.random.normal(noise_key, (self.batch, self.inputs))
        return (centres[labels] + noise).astype(jnp.bfloat16), labels

    def logits(self, params: Params, inputs: jax.Array, ops: Ops) -> jax.Array:
        del ops
        x = inputs
        for layer in params[:-1]:
            x = jax.nn.gelu(_dense(layer, x))
        return _dense(params[-1], x)


# What two cores train in seconds.
SMALL_GPT2 = Gpt2(2, layers=2, width=128, heads=4, length=128, vocabulary=5000)
SMALL_CLASSIFIER = Classifier(batch=256, width=256)
