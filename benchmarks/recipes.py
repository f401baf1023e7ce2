"""Layers, losses and decoders around a softmax, as programs of models have them.

A recipe takes `nn`, which has `softmax` and `log_softmax` as jax.nn has, and arrays by name.
"""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from cases import random_normal

Array = jax.Array


class Operand(NamedTuple):
    """An array to be drawn: "normal", "mask" or "integers", less than the dimension `below`."""

    dimensions: str  # a letter each, or a digit for as many
    kind: str = "normal"
    below: str = ""


class Recipe(NamedTuple):
    name: str
    function: Callable[..., Any]
    operands: Mapping[str, Operand]
    sizes: Mapping[str, int]  # of each letter
    differentiated: tuple[str, ...]  # none: forward alone


RECIPES: list[Recipe] = []


def recipe(differentiated: str = "", *sizes: Mapping[str, int], **operands: Any) -> Any:
    """Registers a function, once for each of `sizes`; operands are "BTD", or what Operand takes."""
    drawn = {
        name: Operand(given) if isinstance(given, str) else Operand(*given)
        for name, given in operands.items()
    }

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for size in sizes:
            asked = tuple(differentiated.split())
            RECIPES.append(Recipe(function.__name__, function, drawn, size, asked))
        return function

    return register


HEADS = {"B": 4, "H": 16, "T": 1024, "D": 64}
IMAGE = {"B": 64, "H": 12, "T": 197, "D": 64}
QKV = {"q": "BHTD", "k": "BHTD", "v": "BHTD"}


def _scores(q: Array, k: Array) -> Array:
    return jnp.einsum("bhqd,bhkd->bhqk", q, k) * q.shape[-1] ** -0.5


def _weigh(weights: Array, v: Array) -> Array:
    return jnp.einsum("bhqk,bhkd->bhqd", weights, v)


@recipe("q k v", HEADS, IMAGE, **QKV)
def attention(nn: Any, q: Array, k: Array, v: Array) -> Array:
    return _weigh(nn.softmax(_scores(q, k)), v)


@recipe("q k v", HEADS, **QKV)
def causal_attention(nn: Any, q: Array, k: Array, v: Array) -> Array:
    seen = jnp.tri(q.shape[2], dtype=bool)
    scores = _scores(q, k)
    return _weigh(nn.softmax(jnp.where(seen, scores, jnp.finfo(scores.dtype).min)), v)


@recipe("q k v", HEADS, **QKV)
def float32_attention(nn: Any, q: Array, k: Array, v: Array) -> Array:
    seen = jnp.tri(q.shape[2], dtype=bool)
    scores = jnp.where(seen, _scores(q, k).astype(jnp.float32), -1e9)
    return _weigh(nn.softmax(scores).astype(v.dtype), v)


@recipe("q k v", HEADS, **QKV, mask=("BT", "mask"))
def padded_attention(nn: Any, q: Array, k: Array, v: Array, mask: Array) -> Array:
    bias = jnp.where(mask, 0.0, -1e9).astype(q.dtype)
    return _weigh(nn.softmax(_scores(q, k) + bias[:, None, None]), v)


@recipe("q k v", HEADS, **QKV, mask=("BT", "mask"))
def masked_attention(nn: Any, q: Array, k: Array, v: Array, mask: Array) -> Array:
    scores = _scores(q, k)
    lowest = jnp.finfo(scores.dtype).min
    return _weigh(nn.softmax(jnp.where(mask[:, None, None], scores, lowest)), v)


@recipe("q k v bias", HEADS, **QKV, bias="HTT")
def relative_attention(nn: Any, q: Array, k: Array, v: Array, bias: Array) -> Array:
    return _weigh(nn.softmax(_scores(q, k) + bias), v)


@recipe("q k v bias", {"B": 4096, "H": 4, "T": 49, "D": 32}, **QKV, bias="HTT")
def window_attention(nn: Any, q: Array, k: Array, v: Array, bias: Array) -> Array:
    return _weigh(nn.softmax(_scores(q, k) + bias), v)


@recipe("q k v", HEADS, **QKV)
def alibi_attention(nn: Any, q: Array, k: Array, v: Array) -> Array:
    heads, length = q.shape[1:3]
    slopes = 2.0 ** (-8.0 * (jnp.arange(heads) + 1) / heads)
    distance = jnp.arange(length)[None] - jnp.arange(length)[:, None]
    bias = jnp.where(distance <= 0, distance * slopes[:, None, None], -1e9)
    return _weigh(nn.softmax(_scores(q, k) + bias.astype(q.dtype)), v)


@recipe("q k v", HEADS, **QKV)
def capped_attention(nn: Any, q: Array, k: Array, v: Array) -> Array:
    scores = 50.0 * jnp.tanh(_scores(q, k) / 50.0)
    seen = jnp.tri(q.shape[2], dtype=bool)
    return _weigh(nn.softmax(jnp.where(seen, scores, -1e9)), v)


@recipe("q k v", HEADS, **QKV, mask=("BHTT", "mask"))
def dropped_attention(nn: Any, q: Array, k: Array, v: Array, mask: Array) -> Array:
    weights = nn.softmax(_scores(q, k))
    return _weigh(jnp.where(mask, weights / 0.9, 0).astype(v.dtype), v)


@recipe(
    "q k v",
    {"B": 8, "H": 8, "T": 4096, "S": 77, "D": 64},
    q="BHTD",
    k="BHSD",
    v="BHSD",
)
def cross_attention(nn: Any, q: Array, k: Array, v: Array) -> Array:
    return _weigh(nn.softmax(_scores(q, k)), v)


@recipe(
    "", {"B": 32, "H": 32, "S": 4096, "D": 128}, q="BH1D", k="BHSD", v="BHSD", mask=("BS", "mask")
)
def one_token_attention(nn: Any, q: Array, k: Array, v: Array, mask: Array) -> Array:
    scores = jnp.where(mask[:, None, None], _scores(q, k).astype(jnp.float32), -1e9)
    return _weigh(nn.softmax(scores).astype(v.dtype), v)


@recipe("q k v sink", HEADS, **QKV, sink="H")
def sink_attention(nn: Any, q: Array, k: Array, v: Array, sink: Array) -> Array:
    scores = _scores(q, k)
    sinks = jnp.broadcast_to(sink[:, None, None], (*scores.shape[:3], 1))
    weights = nn.softmax(jnp.concatenate([scores, sinks], -1))[..., :-1]
    return _weigh(weights, v)


@recipe("q k v", HEADS, **QKV)
def attention_by_vmap(nn: Any, q: Array, k: Array, v: Array) -> Array:
    def head(q: Array, k: Array, v: Array) -> Array:
        return nn.softmax(q @ k.T / jnp.sqrt(q.shape[-1]).astype(q.dtype)) @ v

    return jax.vmap(jax.vmap(head))(q, k, v)


@recipe("q k v", HEADS, **QKV)
def efficient_attention(nn: Any, q: Array, k: Array, v: Array) -> Array:
    context = jnp.einsum("bhtd,bhte->bhde", nn.softmax(k, -2), v)
    return nn.softmax(q, -1) @ context


@recipe("q k v", {"B": 64, "H": 1, "T": 4096, "S": 11, "D": 64}, q="BHSD", k="BHTD", v="BHTD")
def slot_attention(nn: Any, q: Array, k: Array, v: Array) -> Array:
    weights = nn.softmax(_scores(q, k), -2) + 1e-8
    return _weigh(weights / weights.sum(-1, keepdims=True), v)


LAYERS = {"B": 4, "L": 4, "T": 1024, "E": 1024}


@recipe("x w", LAYERS, x="BTE", w="L4EE")
def layers_by_scan(nn: Any, x: Array, w: Array) -> Array:
    """Causal attention's layers in a loop, each made again in the backward pass."""

    @jax.checkpoint
    def layer(x: Array, w: Array) -> tuple[Array, None]:
        heads = *x.shape[:2], -1, min(64, x.shape[2])
        split = [(x @ m).reshape(heads).swapaxes(1, 2) for m in w[:3]]
        scores = jnp.where(jnp.tri(x.shape[1], dtype=bool), _scores(*split[:2]), -1e9)
        out = _weigh(nn.softmax(scores), split[2]).swapaxes(1, 2).reshape(x.shape)
        return x + out @ w[3] * 0.1, None

    return jax.lax.scan(layer, x, w * x.shape[-1] ** -0.5)[0]


# Losses: of classes, tokens, actions; logits as arguments, or of a product with the head.

CLASSES = {"B": 32768, "V": 1000}
WORDS = {"B": 4096, "V": 32000}
FEW = {"B": 262144, "V": 10}
LABELS = {"labels": ("B", "integers", "V")}


@recipe("logits", CLASSES, WORDS, FEW, logits="BV", **LABELS)
def picked(nn: Any, logits: Array, labels: Array) -> Array:
    return -jnp.take_along_axis(nn.log_softmax(logits), labels[:, None], -1).mean()


@recipe("logits", CLASSES, WORDS, FEW, logits="BV", **LABELS)
def one_hot(nn: Any, logits: Array, labels: Array) -> Array:
    return -jnp.sum(jax.nn.one_hot(labels, logits.shape[-1]) * nn.log_softmax(logits), -1).mean()


@recipe("logits", CLASSES, WORDS, FEW, logits="BV", **LABELS)
def smoothed(nn: Any, logits: Array, labels: Array) -> Array:
    logs = nn.log_softmax(logits.astype(jnp.float32))
    picked = jnp.take_along_axis(logs, labels[:, None], -1)[:, 0]
    return -(0.9 * picked + 0.1 * logs.mean(-1)).mean()


@recipe("h w", {"B": 8192, "V": 32000, "E": 1024}, h="BE", w="EV", **LABELS, mask=("B", "mask"))
def language_model(nn: Any, h: Array, w: Array, labels: Array, mask: Array) -> Array:
    logs = nn.log_softmax((h @ w).astype(jnp.float32))
    picked = jnp.take_along_axis(logs, labels[:, None], -1)[:, 0]
    return -(picked * mask).sum() / mask.sum()


@recipe("logits", CLASSES, WORDS, logits="BV", teacher="BV")
def distillation(nn: Any, logits: Array, teacher: Array) -> Array:
    target = nn.softmax(jax.lax.stop_gradient(teacher) / 2.0)
    return -(target * nn.log_softmax(logits / 2.0)).sum(-1).mean() * 4.0


@recipe("logits", CLASSES, WORDS, logits="BV", teacher="BV")
def divergence(nn: Any, logits: Array, teacher: Array) -> Array:
    p, q = nn.log_softmax(jax.lax.stop_gradient(teacher)), nn.log_softmax(logits)
    return (jnp.exp(p) * (p - q)).sum(-1).mean()


@recipe("logits", CLASSES, WORDS, logits="BV", teacher="BV")
def reverse_divergence(nn: Any, logits: Array, teacher: Array) -> Array:
    p, q = nn.log_softmax(jax.lax.stop_gradient(teacher)), nn.log_softmax(logits)
    return (jnp.exp(q) * (q - p)).sum(-1).mean()


@recipe("logits", CLASSES, WORDS, logits="BV")
def entropy(nn: Any, logits: Array) -> Array:
    logs = nn.log_softmax(logits)
    return -(jnp.exp(logs) * logs).sum(-1).mean()


@recipe("logits", CLASSES, WORDS, {"B": 65536, "V": 18}, logits="BV")
def entropy_of_both(nn: Any, logits: Array) -> Array:
    return -(nn.softmax(logits) * nn.log_softmax(logits)).sum(-1).mean()


@recipe("logits", CLASSES, {"B": 65536, "V": 18}, logits="BV", values="BV")
def soft_actor(nn: Any, logits: Array, values: Array) -> Array:
    p, logs = nn.softmax(logits), nn.log_softmax(logits)
    return (p * (0.2 * logs - values)).sum(-1).mean()


@recipe("logits", CLASSES, WORDS, logits="BV", teacher="BV")
def divergence_of_both(nn: Any, logits: Array, teacher: Array) -> Array:
    teacher = jax.lax.stop_gradient(teacher)
    p, logs = nn.softmax(teacher), nn.log_softmax(teacher)
    return (p * (logs - nn.log_softmax(logits))).sum(-1).mean()


@recipe("logits", CLASSES, WORDS, logits="BV", weights="BV", mask=("B", "mask"))
def masked_targets(nn: Any, logits: Array, weights: Array, mask: Array) -> Array:
    losses = -(jnp.square(weights) * nn.log_softmax(logits)).sum(-1)
    return (losses * mask).sum() / mask.sum()


@recipe("student", {"B": 1024, "V": 65536}, student="BV", teacher="BV", centre="V")
def self_distillation(nn: Any, student: Array, teacher: Array, centre: Array) -> Array:
    target = jax.lax.stop_gradient(nn.softmax((teacher - centre) / 0.04))
    return -(target * nn.log_softmax(student / 0.1)).sum(-1).mean()


@recipe("a b scale", {"B": 8192, "E": 512}, a="BE", b="BE", scale="")
def contrastive(nn: Any, a: Array, b: Array, scale: Array) -> Array:
    logits = a @ b.T * jnp.exp(scale) * 0.05
    diagonal = jnp.arange(len(a))
    rows, columns = nn.log_softmax(logits, -1), nn.log_softmax(logits, 0)
    return -(rows[diagonal, diagonal] + columns[diagonal, diagonal]).mean() / 2


@recipe("a b", {"B": 8192, "E": 512}, a="BE", b="BE")
def self_contrastive(nn: Any, a: Array, b: Array) -> Array:
    logits = jnp.where(jnp.eye(len(a), dtype=bool), -1e9, a @ b.T * 0.05)
    return -nn.log_softmax(logits)[jnp.arange(len(a)), (jnp.arange(len(a)) + 1) % len(a)].mean()


@recipe("logits", CLASSES, {"B": 1048576, "V": 21}, logits="BV", **LABELS)
def focal(nn: Any, logits: Array, labels: Array) -> Array:
    logs = jnp.take_along_axis(nn.log_softmax(logits), labels[:, None], -1)
    return -((1 - jnp.exp(logs)) ** 2 * logs).mean()


@recipe(
    "logits", {"B": 65536, "V": 18}, {"B": 2097152, "V": 6}, logits="BV", advantage="B", **LABELS
)
def policy_gradient(nn: Any, logits: Array, advantage: Array, labels: Array) -> Array:
    logs = nn.log_softmax(logits)
    entropy = -(jnp.exp(logs) * logs).sum(-1)
    picked = jnp.take_along_axis(logs, labels[:, None], -1)[:, 0]
    return -(picked * advantage + 0.01 * entropy).mean()


@recipe("logits", {"B": 65536, "V": 18}, logits="BV", old="B", advantage="B", **LABELS)
def clipped_policy(nn: Any, logits: Array, old: Array, advantage: Array, labels: Array) -> Array:
    picked = jnp.take_along_axis(nn.log_softmax(logits), labels[:, None], -1)[:, 0]
    ratio = jnp.exp(picked - old)
    clipped = jnp.clip(ratio, 0.8, 1.2) * advantage
    return -jnp.minimum(ratio * advantage, clipped).mean()


@recipe(
    "logits",
    {"B": 32768, "A": 18, "V": 51},
    logits="BAV",
    labels=("B", "integers", "A"),
    target="BV",
)
def distributional(nn: Any, logits: Array, labels: Array, target: Array) -> Array:
    values = (
        nn.softmax(logits) * jnp.linspace(-10, 10, 51, dtype=logits.dtype)[: logits.shape[-1]]
    ).sum(-1)
    taken = jnp.take_along_axis(logits, labels[:, None, None], 1)[:, 0]
    loss = -(nn.softmax(target) * nn.log_softmax(taken)).sum(-1)
    return loss.mean() + 0.01 * values.max(-1).mean()


@recipe("logits", {"B": 32768, "A": 32, "V": 32}, logits="BAV", noise="BAV")
def gumbel(nn: Any, logits: Array, noise: Array) -> Array:
    return nn.softmax((logits + noise) / 0.5)


@recipe("logits", {"B": 32768, "A": 32, "V": 32}, logits="BAV")
def categorical_kl(nn: Any, logits: Array) -> Array:
    """To the uniform distribution, as of a variational autoencoder."""
    logs = nn.log_softmax(logits)
    return (jnp.exp(logs) * (logs + jnp.log(logits.shape[-1]))).sum((-1, -2)).mean()


@recipe("logits means", {"B": 524288, "V": 5}, logits="BV", means="BV", target="B")
def mixture_density(nn: Any, logits: Array, means: Array, target: Array) -> Array:
    likelihoods = nn.log_softmax(logits) - 0.5 * (target[:, None] - means) ** 2
    return -jax.scipy.special.logsumexp(likelihoods, -1).mean()


PIXELS = {"B": 8, "V": 21, "Y": 512, "X": 512}
TWO_CLASSES = {"B": 16, "V": 2, "Y": 512, "X": 512}
PLANES = {"logits": "BVYX", "labels": ("BYX", "integers", "V")}


@recipe("logits", PIXELS, logits="BYXV", labels=("BYX", "integers", "V"))
def segmentation(nn: Any, logits: Array, labels: Array) -> Array:
    return -jnp.take_along_axis(nn.log_softmax(logits), labels[..., None], -1).mean()


@recipe("logits", PIXELS, TWO_CLASSES, **PLANES)
def segmentation_by_planes(nn: Any, logits: Array, labels: Array) -> Array:
    return -jnp.take_along_axis(nn.log_softmax(logits, 1), labels[:, None], 1).mean()


@recipe("logits", PIXELS, TWO_CLASSES, **PLANES)
def dice(nn: Any, logits: Array, labels: Array) -> Array:
    p = nn.softmax(logits.astype(jnp.float32), 1)
    truth = jax.nn.one_hot(labels, logits.shape[1], axis=1)
    overlap = (p * truth).sum((2, 3))
    return 1 - (2 * overlap / (p.sum((2, 3)) + truth.sum((2, 3)) + 1e-6)).mean()


@recipe("logits", {"B": 64, "T": 1600, "V": 29}, logits="BTV")
def frames(nn: Any, logits: Array) -> Array:
    """What CTC takes."""
    return nn.log_softmax(logits)


@recipe("logits", WORDS, logits="BV", **LABELS)
def with_z_loss(nn: Any, logits: Array, labels: Array) -> Array:
    wide = logits.astype(jnp.float32)
    total = jax.scipy.special.logsumexp(wide, -1)
    picked = jnp.take_along_axis(nn.log_softmax(wide), labels[:, None], -1)[:, 0]
    return (-picked + 1e-4 * total**2).mean()


@recipe("h w", {"B": 32768, "E": 1024, "V": 64}, {"B": 32768, "E": 1024, "V": 8}, h="BE", w="EV")
def router(nn: Any, h: Array, w: Array) -> tuple[Array, Array]:
    p = nn.softmax((h @ w).astype(jnp.float32))
    gates, chosen = jax.lax.top_k(p, 2)
    load = jax.nn.one_hot(chosen[:, 0], p.shape[-1]).mean(0)
    return gates / gates.sum(-1, keepdims=True), (load * p.mean(0)).sum() * p.shape[-1]


@recipe("logits", {"B": 8192, "V": 1024}, logits="BV")
def sinkhorn(nn: Any, logits: Array) -> Array:
    for _ in range(3):
        logits = nn.log_softmax(nn.log_softmax(logits, -1), 0)
    return jnp.exp(logits)


@recipe(
    "logits gates",
    {"B": 4096, "A": 4, "V": 10000},
    logits="BAV",
    gates="BA",
    labels=("B", "integers", "V"),
)
def mixture_of_softmaxes(nn: Any, logits: Array, gates: Array, labels: Array) -> Array:
    p = (nn.softmax(gates)[:, :, None] * nn.softmax(logits)).sum(1)
    return -jnp.log(jnp.take_along_axis(p, labels[:, None], -1)).mean()


@recipe("logits", CLASSES, FEW, logits="BV")
def expectation(nn: Any, logits: Array) -> Array:
    return (nn.softmax(logits) * jnp.arange(logits.shape[-1], dtype=logits.dtype)).sum(-1).mean()


@recipe("logits", CLASSES, logits="BV", target="BV")
def squared_error(nn: Any, logits: Array, target: Array) -> Array:
    return ((nn.softmax(logits) - target) ** 2).mean()


@recipe("x gate", {"B": 32768, "V": 1024}, x="BV", gate="BV")
def gated(nn: Any, x: Array, gate: Array) -> Array:
    return x * nn.softmax(gate)


@recipe("x w", {"B": 64, "T": 1024, "E": 512}, x="BTE", w="E")
def attention_pooling(nn: Any, x: Array, w: Array) -> Array:
    weights = nn.softmax(x @ w, -1)
    return (weights[..., None] * x).sum(1)


# Decoding and evaluation.


@recipe("", {"B": 32768, "E": 512, "V": 1000}, h="BE", w="EV", b="V")
def probabilities(nn: Any, h: Array, w: Array, b: Array) -> Array:
    return nn.softmax(h @ w + b)


@recipe("", CLASSES, WORDS, FEW, logits="BV", **LABELS)
def evaluation(nn: Any, logits: Array, labels: Array) -> tuple[Array, Array]:
    p = nn.softmax(logits)
    return (p.argmax(-1) == labels).mean(), p.max(-1)


@recipe("", {"B": 64, "V": 128256}, logits="BV")
def nucleus(nn: Any, logits: Array) -> Array:
    p = jax.lax.sort(nn.softmax(logits.astype(jnp.float32) / 0.7))
    return jnp.cumsum(p, -1) > 0.1


@recipe("", {"B": 64, "V": 128256}, logits="BV", noise="BV")
def sample(nn: Any, logits: Array, noise: Array) -> tuple[Array, Array]:
    logs = nn.log_softmax(logits.astype(jnp.float32) / 0.7)
    token = jnp.argmax(logs + noise, -1)
    return token, jnp.take_along_axis(logs, token[:, None], -1)


@recipe("", {"B": 128, "V": 32000}, logits="BV", scores="B")
def beams(nn: Any, logits: Array, scores: Array) -> Any:
    total = nn.log_softmax(logits.astype(jnp.float32)) + scores[:, None]
    return jax.lax.top_k(total.reshape(len(logits) // 4, -1), 4)


@recipe("", {"B": 256, "V": 128256}, logits="BV", draft="BV", **LABELS)
def speculation(nn: Any, logits: Array, draft: Array, labels: Array) -> tuple[Array, Array]:
    p, q = nn.softmax(logits), nn.softmax(draft)
    ratio = jnp.take_along_axis(p / q, labels[:, None], -1)
    left = jnp.maximum(p - q, 0)
    return jnp.minimum(ratio, 1), left / left.sum(-1, keepdims=True)


@recipe("", {"A": 8, "B": 4096, "V": 1000}, logits="ABV")
def ensemble(nn: Any, logits: Array) -> tuple[Array, Array]:
    p = nn.softmax(logits).mean(0)
    return p, -(p * jnp.log(p + 1e-9)).sum(-1)


@recipe("", {"B": 4096, "T": 128, "V": 9}, logits="BTV", moves="VV")
def viterbi_scores(nn: Any, logits: Array, moves: Array) -> Array:
    def step(best: Array, emitted: Array) -> tuple[Array, None]:
        return (best[:, :, None] + nn.log_softmax(moves)).max(1) + emitted, None

    frames = nn.log_softmax(logits).swapaxes(0, 1)
    return jax.lax.scan(step, frames[0], frames[1:])[0]


def shapes(made: Recipe, sizes: Mapping[str, int], dtype: str) -> dict[str, jax.ShapeDtypeStruct]:
    """Of the operands, which are of `dtype`, masks and integers aside."""
    dtypes = {"normal": dtype, "mask": "bool", "integers": "int32"}
    return {
        name: jax.ShapeDtypeStruct(
            tuple(int(d) if d.isdigit() else sizes[d] for d in op.dimensions), dtypes[op.kind]
        )
        for name, op in made.operands.items()
    }


def draw(made: Recipe, sizes: Mapping[str, int], dtype: str) -> dict[str, Array]:
    """The operands."""
    return {
        name: drawn(spec, number, sizes.get(made.operands[name].below))
        for number, (name, spec) in enumerate(shapes(made, sizes, dtype).items())
    }


def drawn(spec: jax.ShapeDtypeStruct, number: int, below: int | None = None) -> Array:
    """The array of so many that are drawn together."""
    source = random_normal(2 ** max(spec.size - 1, 1).bit_length(), "float32")
    return _cut(source, number, spec.shape, str(spec.dtype), below)


@functools.partial(jax.jit, static_argnums=(2, 3, 4))
def _cut(
    source: Array, number: int, shape: tuple[int, ...], dtype: str, below: int | None
) -> Array:
    """As many elements, which begin elsewhere than those of other numbers."""
    values = jnp.roll(source, 1009 * number)[: math.prod(shape)].reshape(shape)
    if dtype == "bool":
        return values > -1.3
    return (jnp.abs(1e6 * values) % below if below else values).astype(dtype)
