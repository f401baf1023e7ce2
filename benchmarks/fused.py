"""Times what is fused around softmax beside what jax.nn, optax and XLA make of the same.

    python benchmarks/fused.py --output fused.json

Masks and biases on the scores of attention, forward and as a pull-back with its forward pass, and,
by every strategy for such rows, of lengths that are no whole vectors or leave lanes idle; masks on
the logits of a vocabulary; cross-entropies, value and gradient; logsumexp; the same of 16 bits that
are brought to float32 before and maybe back afterwards; absmax scaling and quantisation. Speed is
the traffic that there must be (operands of the rows and masks, which the cache holds, count
nothing; neither does what a causal mask hides) over time, as a fraction of a copy in the same run.
Exits with 1 if a case failed.
"""

import functools
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from cases import NATIVE, copy_call, random_normal
from options import add_list, add_rounds, run_parser, start_jax
from report import Entry, attempt, environment, exit_code, record, shape_label
from timing import time_calls

import jax_softmax

GROUPS = ("attention", "odd", "vocabulary", "losses", "mixed", "absmax")


Function = Callable[..., Any]


class Sizes(NamedTuple):
    scores: tuple[int, int, int, int]
    odd: tuple[int, tuple[int, ...]]  # elements, columns
    logits: tuple[tuple[int, int], ...]
    rows: tuple[tuple[int, int], ...]
    odd_rows: tuple[tuple[int, int], ...]  # and few ones, for absmax alone


SIZES = {
    "gpu": Sizes(
        (8, 16, 2048, 2048),
        (2**26, (33, 40, 49, 72, 100, 160, 197, 257, 320, 385, 577, 785)),
        ((4096, 50257), (16384, 32000), (8192, 128256)),
        ((442_368, 128), (2**16, 1024), (8192, 16384), (4096, 50257)),
        tuple((min(2**20, 2**26 // n), n) for n in (3, 10, 21, 33, 65, 100, 127, 150, 257, 320))
        + tuple((2**26 // n, n) for n in (512, 577, 777, 1001, 1537, 2048, 3001, 4096, 4097))
        + tuple((2**26 // n, n) for n in (8192, 16385, 24001, 32768, 128256, 151936, 300_000))
        + tuple((rows, n) for n in (16384, 50257, 131_072) for rows in (4, 16, 64, 256)),
    ),
    "cpu": Sizes(
        (4, 8, 512, 512),
        (2**22, (49, 197, 577)),
        ((256, 50257), (4096, 1000), (2**17, 10)),
        ((2**16, 128), (4096, 1024), (256, 32768)),
        ((2**16, 127), (4096, 1001)),
    ),
    "small": Sizes((2, 2, 64, 64), (2**15, (49,)), ((64, 100),), ((64, 100),), ((64, 33),)),
}


class Fused(NamedTuple):
    """Functions of the same arrays, and how many operands' worth of bytes they must move."""

    name: str
    dtype: str
    traffic: float
    functions: dict[str, Function]
    operands: tuple[jax.Array, ...]  # the first one counts

    def entry(self) -> Entry:
        shape = self.operands[0].shape
        return {"name": self.name, "shape": shape, "axis": -1, "dtype": self.dtype}


def pull_back(f: Function, x: jax.Array, g: jax.Array, *rest: jax.Array) -> Any:
    return jax.vjp(lambda x: f(x, *rest), x)[1](g)[0]


def attention(dtype: str, sizes: Sizes) -> Iterator[Fused]:
    shape = sizes.scores
    _, heads, rows, columns = shape
    x = random_normal(math.prod(shape), dtype).reshape(shape)
    square = jnp.tri(rows, columns, dtype=bool)
    keys = jnp.arange(columns) < columns * 3 // 4
    bias = random_normal(heads * rows * columns, dtype).reshape(1, heads, rows, columns)
    masked = jax_softmax.masked_softmax

    def jax_causal(x: jax.Array, f: Function = jax.nn.softmax) -> jax.Array:
        return f(x, where=jnp.tri(rows, columns, dtype=bool))

    def jax_bias(x: jax.Array, bias: jax.Array) -> jax.Array:
        return jax.nn.softmax(x + bias)

    where = {"jax_softmax": masked, "jax_nn": lambda x, m: jax.nn.softmax(x, where=m)}
    causal = {"jax_softmax": functools.partial(masked, causal=True), "jax_nn": jax_causal}
    biased = {"jax_softmax": lambda x, b: masked(x, bias=b), "jax_nn": jax_bias}
    forced = functools.partial(jax_softmax.softmax, batch_invariant=True)
    plain = {"jax_softmax": forced, "jax_nn": jax.nn.softmax}
    share = 1 + 1 / len(x)  # a bias, read once
    for name, traffic, functions, rest in (
        ("plain", 2, plain, ()),
        ("where", 2, where, (square,)),
        ("mask per key", 2, where, (keys,)),
        ("causal", 1.5, causal, ()),
        ("bias", 1 + share, biased, (bias,)),
    ):
        yield Fused(name, dtype, traffic, functions, (x, *rest))
        both = {k: functools.partial(pull_back, f) for k, f in functions.items()}
        yield Fused(f"{name}, pull-back", dtype, traffic + 3, both, (x, x, *rest))
    logs = {
        "jax_softmax": functools.partial(masked, log=True),
        "jax_nn": lambda x, m: jax.nn.log_softmax(x, where=m),
    }
    causal_logs = {
        "jax_softmax": functools.partial(masked, causal=True, log=True),
        "jax_nn": functools.partial(jax_causal, f=jax.nn.log_softmax),
    }
    yield Fused("log, where", dtype, 2, logs, (x, square))
    yield Fused("log, mask per key", dtype, 2, logs, (x, keys))
    yield Fused("log, causal", dtype, 1.5, causal_logs, (x,))


def odd(dtype: str, sizes: Sizes) -> Iterator[Fused]:
    """Scores of windows of 7 x 7, of images of 14 x 14 and 24 x 24 patches with a class, ..."""
    elements, lengths = sizes.odd
    heads = 12
    native = NATIVE[jax.default_backend()]
    for n in lengths:
        shape = (max(1, elements // (heads * n * n)), heads, n, n)
        x = random_normal(math.prod(shape), dtype).reshape(shape)
        bias = random_normal(heads * n * n, dtype).reshape(1, heads, n, n)
        keys = jnp.arange(n) % 7 != 3
        elementwise = x > -1

        def by_jax(
            x: jax.Array, mask: jax.Array | None = None, bias: jax.Array | None = None
        ) -> jax.Array:
            return jax.nn.softmax(x if bias is None else x + bias, where=mask)

        functions: dict[str, Function] = {
            "jax_softmax": jax_softmax.masked_softmax,
            "jax_nn": by_jax,
        }
        for strategy in ("tile", "warp" if n <= 512 else "registers"):
            forced = f"{native}:{strategy}"
            try:
                jax_softmax.plan(shape, dtype, -1, "masked_softmax", strategy=strategy)
            except ValueError:
                continue
            functions[strategy] = functools.partial(
                jax_softmax.masked_softmax, implementation=forced
            )
        for name, traffic, terms in (
            ("odd: mask per key", 2, {"mask": keys}),
            ("odd: mask per element", 2 + 1 / x.dtype.itemsize, {"mask": elementwise}),
            ("odd: bias per head", 2, {"bias": bias}),
            ("odd: mask per key, bias per head", 2, {"mask": keys, "bias": bias}),
        ):

            def by_name(f: Function, x: jax.Array, *rest: jax.Array, names=tuple(terms)) -> Any:
                return f(x, **dict(zip(names, rest, strict=True)))

            named = {k: functools.partial(by_name, f) for k, f in functions.items()}
            yield Fused(name, dtype, traffic, named, (x, *terms.values()))


def vocabulary(dtype: str, sizes: Sizes) -> Iterator[Fused]:
    """Tokens that are banned for all, and for each text."""
    for shape in sizes.logits:
        x = random_normal(math.prod(shape), dtype).reshape(shape)
        tokens = jnp.arange(shape[1]) % 5 != 0
        elements = x > -1
        where = {
            "jax_softmax": jax_softmax.masked_softmax,
            "jax_nn": lambda x, m: jax.nn.softmax(x, where=m),
        }
        for name, mask, traffic in (
            ("mask per token", tokens, 2),
            ("mask per element", elements, 2 + 1 / x.dtype.itemsize),
        ):
            yield Fused(name, dtype, traffic, where, (x, mask))


def by_optax(logits: jax.Array, labels: jax.Array) -> jax.Array:
    import optax

    return optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), labels)


def cross_entropy_of_float32(logits: jax.Array, labels: jax.Array) -> jax.Array:
    wide = logits.astype(jnp.float32)
    return jax_softmax.softmax_cross_entropy_with_integer_labels(wide, labels)


def by_log_softmax(logits: jax.Array, labels: jax.Array, axis: int = -1) -> jax.Array:
    y = jax.nn.log_softmax(logits.astype(jnp.float32), axis)
    return -jnp.take_along_axis(y, jnp.expand_dims(labels, axis), axis).squeeze(axis)


def losses(dtype: str, sizes: Sizes) -> Iterator[Fused]:
    for shape in sizes.logits:
        x = 3 * random_normal(math.prod(shape), dtype).reshape(shape)
        labels = jnp.arange(shape[0], dtype=jnp.int32) * 7919 % shape[1]
        losses = {
            "jax_softmax": jax_softmax.softmax_cross_entropy_with_integer_labels,
            "optax": by_optax,
            "log_softmax": by_log_softmax,
        }
        both = {
            k: jax.value_and_grad(lambda x, labels, f=f: f(x, labels).mean())
            for k, f in losses.items()
        }
        yield Fused("cross-entropy, value and gradient", dtype, 3, both, (x, labels))
    for shape in (*sizes.rows, *sizes.logits):
        x = random_normal(math.prod(shape), dtype).reshape(shape)
        functions = {
            "jax_softmax": jax_softmax.logsumexp,
            "jax_nn": functools.partial(jax.nn.logsumexp, axis=-1),
        }
        yield Fused("logsumexp", dtype, 1, functions, (x,))


def mixed(dtype: str, sizes: Sizes) -> Iterator[Fused]:
    """In mixed precision: softmax of float32, made of 16 bits, which its result becomes again.

    "kernels" are ours wherever there are any; results of a logarithm stay float32.
    """
    if jnp.dtype(dtype).itemsize != 2:
        return
    kernels = functools.partial(jax_softmax.softmax, batch_invariant=True)
    log_kernels = functools.partial(jax_softmax.log_softmax, batch_invariant=True)
    softmax = {"jax_softmax": jax_softmax.softmax, "kernels": kernels, "jax_nn": jax.nn.softmax}
    logs = {
        "jax_softmax": jax_softmax.log_softmax,
        "kernels": log_kernels,
        "jax_nn": jax.nn.log_softmax,
    }
    for shape in dict.fromkeys((*sizes.rows, *sizes.logits, sizes.scores)):
        x = random_normal(math.prod(shape), dtype).reshape(shape)
        mask = jnp.arange(shape[-1]) % 5 != 0
        for name, functions, result in (
            ("softmax", softmax, dtype),
            ("softmax where", softmax, dtype),
            ("softmax where, in float32", softmax, "float32"),
            ("log_softmax", logs, "float32"),
        ):
            where = mask if "where" in name else None

            def cast(f: Function, x: jax.Array, result=result, where=where) -> jax.Array:
                return f(x.astype(jnp.float32), where=where).astype(result)

            forward = {k: functools.partial(cast, f) for k, f in functions.items()}
            both = {k: functools.partial(pull_back, f) for k, f in forward.items()}
            out = jnp.dtype(result).itemsize // 2
            yield Fused(f"mixed: {name}", dtype, 1 + out, forward, (x,))
            g = x.astype(result)
            yield Fused(f"mixed: {name}, pull-back", dtype, 2 + 3 * out, both, (x, g))
    for shape in sizes.logits:
        x = 3 * random_normal(math.prod(shape), dtype).reshape(shape)
        labels = jnp.arange(shape[0], dtype=jnp.int32) * 7919 % shape[1]
        losses = {
            "jax_softmax": cross_entropy_of_float32,
            "of 16 bits": jax_softmax.softmax_cross_entropy_with_integer_labels,
            "optax": by_optax,
        }
        both = {
            k: jax.value_and_grad(lambda x, labels, f=f: f(x, labels).mean())
            for k, f in losses.items()
        }
        yield Fused("mixed: cross-entropy", dtype, 1, losses, (x, labels))
        yield Fused("mixed: cross-entropy, value and gradient", dtype, 3, both, (x, labels))


def by_xla(x: jax.Array, axis: int = -1) -> tuple[jax.Array, jax.Array]:
    absmax = jnp.max(jnp.abs(x), axis, keepdims=True)
    return x / jnp.where(absmax == 0, 1, absmax), absmax.squeeze(axis)


def quantised_by_xla(x: jax.Array, dtype: Any) -> tuple[jax.Array, jax.Array]:
    wide = x.astype(jnp.float32)
    largest = float(jnp.finfo(dtype).max)
    scale = jnp.max(jnp.abs(wide), -1, keepdims=True) / largest
    return (wide / jnp.where(scale == 0, 1, scale)).astype(dtype), scale[..., 0]


def absmax(dtype: str, sizes: Sizes) -> Iterator[Fused]:
    for shape in (*sizes.rows, *sizes.odd_rows):
        x = random_normal(math.prod(shape), dtype).reshape(shape)
        scaled = {"jax_softmax": jax_softmax.absmax_scale, "xla": by_xla}
        yield Fused("absmax_scale", dtype, 2, scaled, (x,))
        fp8 = jnp.float8_e4m3fn
        quantised = {
            "jax_softmax": functools.partial(jax_softmax.absmax_quantize, dtype=fp8),
            "xla": functools.partial(quantised_by_xla, dtype=fp8),
        }
        traffic = 1 + 1 / x.dtype.itemsize
        yield Fused("absmax_quantize to float8_e4m3fn", dtype, traffic, quantised, (x,))


def measure(case: Fused, platform: str, rounds: int, iterations: int) -> Entry:
    size = case.operands[0].nbytes
    calls = {
        name: functools.partial(jax.jit(f).lower(*case.operands).compile(), *case.operands)
        for name, f in case.functions.items()
    }
    calls["copy"] = copy_call(size)
    timings = time_calls(calls, platform, rounds, iterations)
    microseconds = {name: timing.microseconds for name, timing in timings.items()}
    limit = 2 * size / microseconds["copy"]
    return {
        "microseconds": microseconds,
        "kernels": {n: len(t.kernels) for n, t in timings.items() if t.kernels is not None},
        "of_limit": {
            name: case.traffic * size / us / limit
            for name, us in microseconds.items()
            if name != "copy"
        },
    }


def row(entry: Entry, report: Entry) -> str:
    del report
    label = f"{entry['name']:34} {entry['dtype']:8} {shape_label(entry):>16}"
    if "error" in entry:
        return f"{label} | {entry['error']}"
    cells = (
        f"{name} {entry['microseconds'][name]:.1f}us {of_limit:.2f}"
        for name, of_limit in entry["of_limit"].items()
    )
    return " | ".join([label, *cells])


def summarise(cases: list[Entry]) -> Entry:
    return {"of_limit": "traffic that there must be, over time, as a fraction of the copy's"}


def main() -> int:
    parser = run_parser(__doc__)
    add_list(parser, "--groups", GROUPS, GROUPS)
    add_list(parser, "--dtypes", ("bfloat16", "float32"), ("bfloat16", "float32"))
    add_rounds(parser)
    parser.add_argument("--small", action="store_true", help="small arrays")
    args = parser.parse_args()
    platform = start_jax(args)
    sizes = SIZES["small" if args.small else platform]
    makers = {
        "attention": attention,
        "odd": odd,
        "vocabulary": vocabulary,
        "losses": losses,
        "mixed": mixed,
        "absmax": absmax,
    }

    def entries() -> Iterator[Entry]:
        for group in args.groups:
            for dtype in args.dtypes:
                for case in makers[group](dtype, sizes):
                    timed = functools.partial(measure, case, platform, args.rounds, args.iterations)
                    yield attempt(case.entry(), timed)

    header = environment(platform) | {"suite": "fused", "timer": platform}
    return exit_code(record(entries(), header, summarise, row, args.output, args.budget))


if __name__ == "__main__":
    sys.exit(main())
