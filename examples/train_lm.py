"""One small language model, trained twice from one seed: with jax_softmax and with jax.nn.

The model is a byte-level transformer; its text is Python's own standard library, so nothing is
downloaded. Both runs see the same batches, and the script fails if their losses part. Needs
`optax`, `tqdm` and `matplotlib`; takes a minute or two on two CPU cores.
"""

import argparse
import sysconfig
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure
from tqdm import tqdm, trange

import jax_softmax

BYTES, CONTEXT, WIDTH, HEADS, LAYERS = 256, 128, 128, 4, 2  # "256", "T", "D", "H" in shapes below
PEAK_LEARNING_RATE = 3e-3
HELD_OUT = 0.1  # of the text, its tail
VALIDATION_WINDOWS = 32
REPORTS = 8  # per run, after the one before training

# Until rounding has had time to grow, the two runs are one; later they are only as good. Adam hides
# a gradient off by a constant factor, so this complements the gradient tests and replaces none.
FIRST_STEPS, FIRST_TOLERANCE = 20, 1e-4
LAST_STEPS, FINAL_TOLERANCE = 20, 1e-2

Params = dict[str, Any]


@dataclass(frozen=True)
class Ops:
    """All that differs between the two runs."""

    name: str
    softmax: Callable[..., jax.Array]
    cross_entropy: Callable[..., jax.Array]


def standard_library() -> np.ndarray:
    """Reads the top-level modules of the standard library, in order of name: uint8[N]."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    return np.frombuffer(b"".join(p.read_bytes() for p in sorted(folder.glob("*.py"))), np.uint8)


def windows(text: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Cuts inputs together with the byte after them: int32[B, T + 1], from starts [B]."""
    return text[starts[:, None] + np.arange(CONTEXT + 1)].astype(np.int32)


def init_params(key: jax.Array) -> Params:
    """Draws the model; `tokens` [256, D] is the embedding and also the output layer."""
    keys = iter(jax.random.split(key, 2 + 2 * LAYERS))

    def draw(*shape: int) -> jax.Array:
        return jax.random.normal(next(keys), shape) * WIDTH**-0.5

    def block() -> Params:
        return {
            "norm1": jnp.ones(WIDTH),
            "qkv": draw(WIDTH, 3 * WIDTH),
            "norm2": jnp.ones(WIDTH),
            "up": draw(WIDTH, 4 * WIDTH),
            # Zero, so that a block starts as the identity, which learns faster.
            "project": jnp.zeros((WIDTH, WIDTH)),
            "down": jnp.zeros((4 * WIDTH, WIDTH)),
        }

    return {
        "tokens": draw(BYTES, WIDTH),
        "positions": draw(CONTEXT, WIDTH),
        "blocks": [block() for _ in range(LAYERS)],
        "norm": jnp.full(WIDTH, WIDTH**-0.5),  # small: the first guess is near uniform
    }


def normalise(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Layer norm without a bias: [B, T, D] to [B, T, D]."""
    return jax.nn.standardize(x, epsilon=1e-5) * scale


def attend(block: Params, x: jax.Array, softmax: Callable[..., jax.Array]) -> jax.Array:
    """Causal self-attention: [B, T, D] to [B, T, D]."""
    batch, length, _ = x.shape
    qkv = (x @ block["qkv"]).reshape(batch, length, 3, HEADS, WIDTH // HEADS)
    query, key, value = jnp.moveaxis(qkv, 2, 0)  # each [B, T, H, D / H]
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) * (WIDTH // HEADS) ** -0.5
    causal = jnp.tril(jnp.ones((length, length), bool))  # [T, T], for scores [B, H, T, T]
    weights = softmax(scores, where=causal)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, value).reshape(x.shape) @ block["project"]


def predict(params: Params, tokens: jax.Array, softmax: Callable[..., jax.Array]) -> jax.Array:
    """Logits of the byte after each of `tokens`: [B, T] to [B, T, 256]."""
    x = params["tokens"][tokens] + params["positions"]
    for block in params["blocks"]:
        x += attend(block, normalise(x, block["norm1"]), softmax)
        x += jax.nn.gelu(normalise(x, block["norm2"]) @ block["up"]) @ block["down"]
    return normalise(x, params["norm"]) @ params["tokens"].T


def mean_loss(params: Params, batch: jax.Array, ops: Ops) -> jax.Array:
    """Mean cross-entropy of the next byte, in nats: [B, T + 1] to a scalar."""
    logits = predict(params, batch[:, :-1], ops.softmax)
    return ops.cross_entropy(logits, batch[:, 1:]).mean()


class Run:
    """One training run: its weights, its compiled functions and what they measured."""

    def __init__(self, ops: Ops, optimizer: optax.GradientTransformation, seed: int):
        self.name = ops.name
        self.losses: list[float] = []
        self.seconds: list[float] = []
        self.validation: dict[int, float] = {}  # loss after so many steps
        params = init_params(jax.random.key(seed))
        self._state = params, optimizer.init(params)
        self._loss = jax.jit(partial(mean_loss, ops=ops))

        @jax.jit
        def update(state, batch):
            params, moments = state
            loss, grads = jax.value_and_grad(mean_loss)(params, batch, ops)
            updates, moments = optimizer.update(grads, moments, params)
            return (optax.apply_updates(params, updates), moments), loss

        self._update = update

    def train(self, batch: np.ndarray) -> None:
        start = time.perf_counter()
        self._state, loss = jax.block_until_ready(self._update(self._state, batch))
        self.seconds.append(time.perf_counter() - start)
        self.losses.append(float(loss))

    def report(self, batch: np.ndarray) -> str:
        step = len(self.losses)
        self.validation[step] = float(self._loss(self._state[0], batch))
        train = f"train {self.losses[-1]:.4f}" if step else "untrained   "
        return f"step {step:4d}  {self.name:11}  {train}  val {self.validation[step]:.4f}"

    def final(self) -> dict[str, float]:
        return {
            "train loss": float(np.mean(self.losses[-LAST_STEPS:])),
            "val loss": self.validation[len(self.losses)],
            "ms/step": 1e3 * float(np.median(self.seconds[1:])),  # the first one compiles
        }


def train_together(runs: list[Run], steps: int, batch: int, seed: int) -> None:
    """Takes each step with every run in turn, so that a busy machine slows all alike."""
    text = standard_library()
    train, held_out = np.split(text, [round(len(text) * (1 - HELD_OUT))])
    spread = np.linspace(0, len(held_out) - CONTEXT - 1, VALIDATION_WINDOWS, dtype=int)
    validation = windows(held_out, spread)
    rng = np.random.default_rng(seed)
    reports = {round(steps * (i + 1) / REPORTS) for i in range(REPORTS)}

    for run in runs:
        print(run.report(validation))
    for step in trange(1, steps + 1, unit="step"):
        drawn = windows(train, rng.integers(len(train) - CONTEXT, size=batch))
        for run in runs:
            run.train(drawn)
            if step in reports:
                tqdm.write(run.report(validation))


def difference(value: Any, reference: Any) -> np.ndarray:
    """Relative, elementwise."""
    return np.abs(np.asarray(value) / np.asarray(reference) - 1)


def print_table(ours: Run, reference: Run) -> None:
    print(f"\n{'':10}  {ours.name:>11}  {reference.name:>11}  difference")
    wanted = reference.final()
    for what, value in ours.final().items():
        relative = difference(value, wanted[what])
        print(f"{what:10}  {value:11.4f}  {wanted[what]:11.4f}  {relative:10.1e}")


def plot(ours: Run, reference: Run, path: Path) -> None:
    """Draws both loss curves, one over the other, and their difference below."""
    figure = Figure(figsize=(8, 6), layout="constrained")
    top, bottom = figure.subplots(2, sharex=True, height_ratios=[3, 1])
    steps = np.arange(1, len(ours.losses) + 1)
    # The reference wide and pale beneath, or one curve would hide the other.
    for run, colour, width, marker in (reference, "orange", 4, "o"), (ours, "navy", 1, "x"):
        top.plot(steps, run.losses, color=colour, lw=width, label=f"{run.name}, train")
        at, losses = zip(*run.validation.items(), strict=True)
        top.plot(at, losses, marker, color=colour, ms=8, mec="navy", label=f"{run.name}, val")
    top.set(title="One model, two softmaxes", ylabel="loss (nats per byte)")
    top.legend()
    # Zero has no logarithm: equal losses are drawn at 1e-8, less than float32 can tell apart.
    gap = np.maximum(difference(ours.losses, reference.losses), 1e-8)
    bottom.semilogy(steps, gap, ".", color="navy", ms=3)
    bottom.hlines(FIRST_TOLERANCE, 1, FIRST_STEPS, color="red", label="allowed")
    bottom.legend(loc="lower right")
    bottom.set(xlabel="step", ylabel="relative\ndifference")
    figure.savefig(path, dpi=120)


def failures(ours: Run, reference: Run) -> list[str]:
    """Says where the two runs part."""
    first = difference(ours.losses[:FIRST_STEPS], reference.losses[:FIRST_STEPS]).max()
    final, wanted = ours.final(), reference.final()
    checks = [(f"first {FIRST_STEPS} step losses", first, FIRST_TOLERANCE)]
    for what in ("train loss", "val loss"):
        checks.append((f"final {what}", difference(final[what], wanted[what]), FINAL_TOLERANCE))
    return [
        f"{what}: relative difference {found:.1e}, allowed {allowed:.0e}"
        for what, found, allowed in checks
        if not found <= allowed  # so put, a NaN fails
    ]


def parse_args() -> argparse.Namespace:
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default="loss_curve.png", help="the PNG to write")
    parser.add_argument("--implementation", help="passed on to jax_softmax.softmax")
    args = parser.parse_args()
    if args.steps < 2 or args.batch < 1:
        parser.error("--steps must be at least 2 (the first one compiles), --batch at least 1")
    return args


def main() -> None:
    args = parse_args()
    # No TF32: what separates the runs should be their softmax, not the rounding of a matmul.
    jax.config.update("jax_default_matmul_precision", "highest")
    scores = (args.batch, HEADS, CONTEXT, CONTEXT)
    plan = jax_softmax.plan(scores, jnp.float32, axis=-1, op="softmax")
    print(f"backend {jax.default_backend()}, attention scores {scores}: {plan}")

    ours = Ops(
        "jax_softmax",
        partial(jax_softmax.softmax, implementation=args.implementation),
        jax_softmax.softmax_cross_entropy_with_integer_labels,
    )
    theirs = Ops("jax.nn", jax.nn.softmax, optax.softmax_cross_entropy_with_integer_labels)
    learning_rate = optax.warmup_cosine_decay_schedule(
        0.0, PEAK_LEARNING_RATE, warmup_steps=args.steps // 10, decay_steps=args.steps
    )
    # b2: a short run needs second moments that forget sooner than optax's 0.999.
    optimizer = optax.adamw(learning_rate, b2=0.98)
    run, reference = Run(ours, optimizer, args.seed), Run(theirs, optimizer, args.seed)
    train_together([run, reference], args.steps, args.batch, args.seed)

    print_table(run, reference)
    plot(run, reference, args.out)
    print(f"loss curves: {args.out}")
    if failed := failures(run, reference):
        raise SystemExit("FAILED: the two runs part\n  " + "\n  ".join(failed))
    print("the two runs agree")


if __name__ == "__main__":
    main()
