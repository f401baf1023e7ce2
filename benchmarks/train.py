"""Times whole training steps, with this package beside jax.nn and optax: a GPT-2, a classifier.

    python benchmarks/train.py --output train.json

GPT-2 small (12 layers of width 768, 1,024 tokens, a vocabulary of 50,257; its attention is einsum,
softmax, einsum) and, where softmax is not on the hot path, a classifier of 10 classes; on a CPU,
small ones of their kind. Activations are bfloat16, parameters float32, updated by AdamW in place.

    jax_nn          jax.nn.softmax of masked scores; optax's loss of logits cast to float32 (always)
    jax_nn_narrow   the same, but optax's loss of the bfloat16 logits as they are
    jax_softmax     masked_softmax and our loss of the bfloat16 logits
    native          the same, our kernels forced in attention; elsewhere the program of jax_softmax

Variants start from the same parameters and see the same batches. They train for `--steps`, and
their losses must stay within 1% of jax_nn's (but jax_nn_narrow's). Then their steps are timed in
turn, each going on from its last: wall clock, from dispatch to result, and on a GPU kernel time,
with its breakdown by part of the model. Four trainings of one program differed by 2.5% in wall
clock (two CPU cores, 20 rounds): less is no difference. Memory is what XLA's compiler plans for a
step. Exits with 1 if a case failed or losses part. Needs optax.
"""

import argparse
import functools
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from breakdown import OURS, Launch, breakdown, scopes_of
from cases import NATIVE
from jax.typing import DTypeLike
from models import (
    PARTS,
    SMALL_CLASSIFIER,
    SMALL_GPT2,
    Batch,
    Classifier,
    Gpt2,
    Model,
    Ops,
    mean_loss,
)
from options import add_list, add_rounds, run_parser, start_jax
from report import Entry, attempt, environment, exit_code, record
from timing import Timing, time_calls, wall_time
from train_report import BASE, TOLERANCE, difference, row, speedups, summarise, verdict

import jax_softmax

MODELS = ("gpt2", "classifier")
VARIANTS = ("jax_nn", "jax_nn_narrow", OURS, "native")
# Without a warm-up GPT-2's loss leaps at the eighth step, and with unclipped gradients at the
# sixteenth, in every variant: what it does then depends on the last bit.
OPTIMIZER = optax.chain(
    optax.clip_by_global_norm(1.0), optax.adamw(optax.linear_schedule(0.0, 3e-4, 20))
)


def jax_nn_weights(scores: jax.Array, scale: float, dtype: DTypeLike) -> jax.Array:
    seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    return jax.nn.softmax(jnp.where(seen, scores * scale, -jnp.inf)).astype(dtype)


def our_weights(
    scores: jax.Array, scale: float, dtype: DTypeLike, implementation: str | None = None
) -> jax.Array:
    return jax_softmax.masked_softmax(
        scores, causal=True, scale=scale, dtype=dtype, implementation=implementation
    )


def wide_optax_loss(logits: jax.Array, labels: jax.Array) -> jax.Array:
    wide = logits.astype(jnp.float32)
    return optax.softmax_cross_entropy_with_integer_labels(wide, labels)


def ops_of(variant: str, platform: str) -> Ops:
    native = functools.partial(our_weights, implementation=NATIVE[platform])
    our_loss = jax_softmax.softmax_cross_entropy_with_integer_labels
    narrow_loss = optax.softmax_cross_entropy_with_integer_labels
    return {
        "jax_nn": Ops(jax_nn_weights, wide_optax_loss),
        "jax_nn_narrow": Ops(jax_nn_weights, narrow_loss),
        OURS: Ops(our_weights, our_loss),
        "native": Ops(native, our_loss),
    }[variant]


class Training:
    """A model's training, of which every call is a step in place; returns the loss before it.

    It is a `jax.stages.Wrapped`, so that a profiler calls it as it is rather than jit it.
    """

    def __init__(self, model: Model, ops: Ops, batch: Batch):
        @functools.partial(jax.jit, donate_argnums=0)
        def step(state: Any, batch: Batch) -> tuple[Any, jax.Array]:
            params, moments = state
            loss, grads = jax.value_and_grad(mean_loss, 1)(model, params, batch, ops)
            with jax.named_scope("optimizer"):
                updates, moments = OPTIMIZER.update(grads, moments, params)
                return (optax.apply_updates(params, updates), moments), loss

        @jax.jit
        def init(key: jax.Array) -> Any:
            params = model.init(key)
            return params, OPTIMIZER.init(params)

        self._step, self._key, self._init = step, jax.random.key(0), init
        self.program = self.lower(batch).compile()
        self._state = init(self._key)

    def trace(self, batch: Batch) -> jax.stages.Traced:
        return self._step.trace(jax.eval_shape(self._init, self._key), batch)

    def lower(self, batch: Batch) -> jax.stages.Lowered:
        return self.trace(batch).lower()

    def __call__(self, batch: Batch) -> jax.Array:
        self._state, loss = self.program(self._state, batch)
        return loss


def memory_of(program: jax.stages.Compiled) -> Entry:
    """Bytes that a step needs, in parts; what it updates in place counts once."""
    analysis = program.memory_analysis()
    if analysis is None:
        raise RuntimeError("this platform's compiler does not tell its memory")
    parts = {
        "arguments": analysis.argument_size_in_bytes,
        "results": analysis.output_size_in_bytes - analysis.alias_size_in_bytes,
        "temporaries": analysis.temp_size_in_bytes,
    }
    return parts | {"peak": sum(parts.values())}


def train(runs: Mapping[str, Training], batches: list[Batch]) -> dict[str, list[float]]:
    curves: dict[str, list[float]] = {name: [] for name in runs}
    for batch in batches:
        for name, run in runs.items():
            curves[name].append(float(run(batch)))
    return curves


def profile(run: Training, timing: Timing) -> Entry:
    launches = map(Launch, timing.kernels or (), timing.kernel_microseconds)
    text = run.program.as_text() or ""
    parts = breakdown(launches, scopes_of(text, PARTS))
    return {"kernel_microseconds": timing.microseconds} | parts


def measure(model: Model, args: argparse.Namespace, platform: str) -> Entry:
    draw = jax.jit(model.draw)
    batches = [draw(jax.random.key(step)) for step in range(args.steps)]
    # Compiled one after the other: XLA times kernels on the device to choose among them.
    names = dict.fromkeys((BASE, *args.variants))
    runs = {name: Training(model, ops_of(name, platform), batches[0]) for name in names}
    losses = train(runs, batches)

    calls = {name: functools.partial(run, batches[0]) for name, run in runs.items()}
    timers = {name: functools.partial(wall_time, call) for name, call in calls.items()}
    walls = time_calls({}, platform, args.rounds, args.iterations, timers)
    results = {
        name: {
            "wall_microseconds": walls[name].microseconds,
            "memory": memory_of(run.program),
            "losses": losses[name],
            "loss_difference": difference(losses[name], losses[BASE]),
        }
        for name, run in runs.items()
    }
    if platform == "gpu":
        timings = time_calls(calls, platform, args.rounds, args.iterations)
        for name, run in runs.items():
            results[name] |= profile(run, timings[name])
    return {"results": results, "speedup": speedups(results)} | verdict(results)


def models(args: argparse.Namespace, platform: str) -> Iterator[tuple[str, Any]]:
    small = args.small or platform == "cpu"
    gpt2, classifier = (SMALL_GPT2, SMALL_CLASSIFIER) if small else (Gpt2(), Classifier())
    if "gpt2" in args.models:
        for scores in args.scores:
            batch = args.batch or gpt2.batch
            yield f"gpt2 {scores} scores", gpt2._replace(scores=scores, batch=batch)
    if "classifier" in args.models:
        yield "classifier", classifier


def main() -> int:
    parser = run_parser(__doc__)
    add_list(parser, "--models", MODELS, MODELS)
    add_list(parser, "--variants", VARIANTS, VARIANTS)
    add_list(parser, "--scores", ("bfloat16", "float32"), ("bfloat16",))
    parser.add_argument("--batch", type=int, help="of GPT-2, in texts of full length")
    parser.add_argument("--steps", type=int, default=20, help="whose losses are compared")
    parser.add_argument("--small", action="store_true", help="small models, as on a CPU")
    add_rounds(parser)
    parser.set_defaults(rounds=10)
    args = parser.parse_args()
    platform = start_jax(args)

    def entries() -> Iterator[Entry]:
        for label, model in models(args, platform):
            entry = {"model": label, "sizes": model._asdict()}
            yield attempt(entry, functools.partial(measure, model, args, platform))

    header = environment(platform) | {"suite": "train", "tolerance": TOLERANCE}
    header["versions"]["optax"] = optax.__version__
    header |= {name: getattr(args, name) for name in ("steps", "rounds", "iterations")}
    return exit_code(record(entries(), header, summarise, row, args.output, args.budget))


if __name__ == "__main__":
    sys.exit(main())
