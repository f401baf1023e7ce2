"""Compiles for H200s that need not be there; prints what each program does, as JSON.

Run by test_cuda_aot.py in a process of its own: the CUDA plugin complains about the missing
driver wherever it is loaded.
"""

import functools
import itertools
import json
import math
import os
import pathlib
import re
import struct
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _support import both, compiled, count_calls, native_module, operations
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_softmax

SHAPE = (32, 48, 64)
FEW_LONG_ROWS = (2, 4, 65_536)
TARGET_CONFIG = pathlib.Path(__file__).parent / "data/h200_target_config.textproto"
NAMES = ("softmax", "log_softmax")
MODES = {
    "forward": lambda f, x, t: f(x),
    "jvp": lambda f, x, t: jax.jvp(f, (x,), (t,))[1],
    "vjp": lambda f, x, t: jax.vjp(f, x)[1](t)[0],
}
# Those of the operand and of the result.
DTYPES = (("float32", "float32"), ("bfloat16", "bfloat16"), ("bfloat16", "float32"))
DEVICES = (1, 2)
# One traces while others compile.
THREADS = min(4, os.cpu_count() or 1)
# The softmax axis, and the dimension that is spread over two devices: of one it is all the same.
AXES = tuple(
    (axis, batch) for axis, batch in itertools.product(range(3), repeat=2) if axis != batch
)
CASES = (
    *itertools.product(DEVICES[:1], NAMES, MODES, DTYPES, AXES[::2]),
    *itertools.product(DEVICES[1:], NAMES, MODES, DTYPES, AXES),
    # With a workspace: the rows are split.
    *itertools.product(DEVICES, NAMES, MODES, DTYPES[:1], [(2, 0), (2, 1)], [FEW_LONG_ROWS]),
)
# What `implementation=None` gives to XLA where it is one kernel, its neighbours included. Of 640
# columns a third is padding to it, which is too much for some ways to write this.
CHOSEN = tuple(itertools.product(NAMES, ("float32", "bfloat16"), (16, 512, 640, 4096)))
ROWS = 2**14
# What makes bfloat16 rows, and their columns: rounded, some are mostly padding to XLA.
MADE_BEFORE = {
    "rounded": (lambda x: x.astype("bfloat16"), 1000),
    "rounded, mostly padding": (lambda x: x.astype("bfloat16"), 520),
    "rounded, read by fours": (lambda x: x.astype("bfloat16"), 68),
    "product": (lambda x: x.astype("bfloat16") @ jnp.ones((1024, 1024), "bfloat16"), 1024),
    "scaled product": (
        lambda x: 0.125 * (x.astype("bfloat16") @ jnp.ones((1024, 1024), "bfloat16")),
        1024,
    ),
    "masked product": (
        lambda x: jnp.where(x > 0, x.astype("bfloat16") @ jnp.ones((1024, 1024), "bfloat16"), -9),
        1024,
    ),
    "padded product": (lambda x: x.astype("bfloat16") @ jnp.ones((1002, 1002), "bfloat16"), 1002),
}
# How a program reads what it returns nothing as large of, what of, and who makes it.
READ = (
    ("picked", "log_softmax", "float32", 512, "pairs"),
    ("picked", "log_softmax", "float32", 50_257, "pairs"),
    ("picked", "log_softmax", "bfloat16", 1024, "kernel"),
    ("picked", "softmax", "bfloat16", 1024, "kernel"),
    ("reduced", "softmax", "float32", 1024, "xla"),
    ("reduced", "softmax", "float32", 8192, "xla"),
    ("reduced", "softmax", "bfloat16", 12_288, "xla"),
    ("reduced", "log_softmax", "bfloat16", 8192, "xla"),
    ("reduced", "log_softmax", "float32", 640, "pairs"),
    ("reduced", "log_softmax", "float32", 8192, "xla"),
    ("reduced", "log_softmax", "float32", 4200, "pairs"),
    ("across", "softmax", "bfloat16", 512, "kernel"),
    ("elements", "softmax", "float32", 8192, "xla"),
    ("elements", "log_softmax", "bfloat16", 12_000, "xla"),
    ("elements", "log_softmax", "float32", 20_000, "pairs"),
    ("elements", "softmax", "bfloat16", 20_000, "kernel"),
    ("converted", "softmax", "bfloat16", 8192, "xla"),
    ("converted", "softmax", "bfloat16", 20_001, "kernel"),
    ("weighed", "log_softmax", "float32", 8192, "xla"),
    ("summed", "log_softmax", "float32", 256, "pairs"),
    ("weighed sum", "log_softmax", "float32", 256, "pairs"),
    ("weighed", "log_softmax", "float32", 20_000, "pairs"),
)
# What is a kernel's where the program returns it, and what may be before it.
ALONE = tuple(itertools.product(NAMES, ("float32", "bfloat16"), (1024, 2400)))
# What a kernel writes where squares are summed behind it, and whether it adds a bias.
REREAD = (
    ("softmax", "float32", 512, False),
    ("softmax", "float32", 1001, True),
    ("softmax", "float16", 256, False),
    ("softmax", "float16", 256, True),
    ("log_softmax", "bfloat16", 256, False),
    ("log_softmax", "bfloat16", 256, True),
    ("log_softmax", "float16", 4096, False),
    ("log_softmax", "float32", 577, True),
)
# What a kernel would write and XLA's code makes, read as it is, and what is before it.
UNWRITTEN = (
    ("softmax", "bfloat16", 512, "weighted", "a scale"),
    ("softmax", "bfloat16", 250, "weighted", "a bias"),
    ("softmax", "float32", 5001, "weighted", "nothing"),
    ("softmax", "float32", 7001, "weighted", "a scale"),
    ("softmax", "bfloat16", 7001, "weighted", "a scale"),
    ("log_softmax", "float32", 1001, "weighted", "nothing"),
    ("log_softmax", "bfloat16", 1000, "converted", "nothing"),
    ("log_softmax", "bfloat16", 4000, "weighted", "nothing"),
    ("log_softmax", "bfloat16", 2048, "weighted", "a bias"),
    ("log_softmax", "float32", 520, "weighted", "a bias"),
)
# What nothing reads but its derivative, of which XLA makes one kernel, and what is before it.
UNREAD = (
    ("softmax", "bfloat16", 512, "nothing"),
    ("softmax", "bfloat16", 1000, "a scale"),
    ("softmax", "float32", 5001, "nothing"),
    ("softmax", "float32", 1000, "a bias"),
    ("log_softmax", "float32", 1001, "nothing"),
)
# What a kernel writes and XLA's derivative reads, with what makes the tangent of how it is read.
STORED = (
    ("softmax", "bfloat16", 264, "weighted"),
    ("softmax", "bfloat16", 1024, "summed"),
    ("softmax", "float16", 128, "averaged"),
    ("log_softmax", "bfloat16", 512, "averaged"),
)
# Columns, and the reductions of softmax's derivative with a product by element behind it.
REDUCED = {33: 3, 64: 4, 264: 4, 256: 3, 1000: 3}
# Columns of a loss that is made of log-softmax.
DIFFERENTIATED = (1000, 1001, 4096, 8192)
# And of its exponentials, which XLA:GPU would store: columns, and the logits' dtype.
ANEW = ((64, "bfloat16"), (1000, "bfloat16"))
# Softmax and log-softmax of the same logits: columns, their dtype, whether one kernel makes values.
TOGETHER = (
    (64, "bfloat16", True),
    (777, "bfloat16", True),
    (1001, "float32", True),
    (8192, "float32", True),
    (512, "float32", False),
)
# What surrounds a softmax in attention, and a loss: a call each way, nothing of the logits' size.
SCORES = (2, 16, 256, 512)
LOGITS = (2048, 32_000)
FUSED = (
    "where",
    "where log",
    "mask per key",
    "causal",
    "bias",
    "scale and softcap",
    "sink",
    "another axis",
    "cross entropy",
    "where in float32",
    "log in float32",
    "cross entropy in float32",
    "cross entropy of rows in float32",
)
# On two devices the mesh is explicit, where a reshape hides what was converted.
FUSED_ON = tuple(
    pair for pair in itertools.product(FUSED, DEVICES) if pair != (FUSED[-1], max(DEVICES))
)
# Of a float32 copy of 16 bits that two values of each row are made of: shapes and axes.
MIXED = (
    ("softmax", (256, 32_000), 1),
    ("log_softmax", (2048, 32_000), 1),
)
ABSMAX = (
    ("absmax_scale", "float32", (442_368, 128)),
    ("absmax_scale", "bfloat16", (16_384, 4_096)),
    ("absmax_quantize", "bfloat16", (16_384, 4_096)),
)
WAYS = {  # to make logits of others, and the number that kernels may multiply these by
    "product": (lambda x: x * 0.125, 0.125),
    "from the left": (lambda x: 0.3 * x, 0.3),
    "quotient": (lambda x: x / 11.3, 1 / 11.3),
    "by a function": (lambda x: jnp.multiply(x, 3), 3),
    "of an array": (lambda x: x * np.full(x.shape, 0.5, x.dtype), 0.5),
    "of a sum": (lambda x: (x + x[:1]) * 0.125, 0.125),
    "negative": (lambda x: x * -0.125, None),
    "too large": (lambda x: x * 1e30, None),
    "too small": (lambda x: x / 1e30, None),
    "by row": (lambda x: x * np.arange(1.0, len(x) + 1, dtype=x.dtype)[:, None, None], None),
    "inverse": (lambda x: 0.125 / x, None),
    "square": (lambda x: x * x, None),
    "sum": (lambda x: x + 0.125, None),
    "of a matrix product": (lambda x: (x @ jnp.ones((x.shape[-1],) * 2, x.dtype)) * 0.125, 0.125),
    "of that and a sum": (lambda x: (x @ jnp.eye(x.shape[-1], dtype=x.dtype) + 1) * 0.125, 0.125),
}
# Most of them in float32 on one device alone.
SCALED = tuple(
    (way, dtype, n)
    for way, dtype, n in itertools.product(WAYS, ("float32", "bfloat16"), DEVICES)
    if way in ("product", "quotient", "of a sum") or (dtype, n) == ("float32", 1)
)
# To make them with a mask, and the numbers that kernels may multiply by before, and put in.
HEADS = (8, 8, 512, 512)
LOWEST = float(jnp.finfo("bfloat16").min)
MASKS = {
    "causal": (
        (),
        lambda x, m: jnp.where(jnp.tri(512, dtype=bool), 0.125 * x, LOWEST),
        0.125,
        LOWEST,
    ),
    "of keys": ((8, 1, 1, 512), lambda x, m: jnp.where(m, x, -jnp.inf), 1, -math.inf),
    "of queries and keys": ((512, 512), lambda x, m: jnp.where(m, x / 8, 0), 0.125, 0),
    "negated": ((8, 1, 1, 512), lambda x, m: jnp.where(m, LOWEST, x), 1, LOWEST),
    "of elements": (HEADS, lambda x, m: jnp.where(m, x, LOWEST), 1, LOWEST),
    "by a selection": (HEADS, lambda x, m: jax.lax.select(m, x, jnp.full_like(x, 7)), 1, 7),
    "after a bias": (
        (8, 1, 1, 512),
        lambda x, m: jnp.where(m, 0.125 * x + m[0, 0, 0].astype(x.dtype), LOWEST),
        0.125,
        LOWEST,
    ),
    "of rows": ((8, 1, 512, 1), lambda x, m: jnp.where(m, x, LOWEST), None, None),
    "of two arrays": (HEADS, lambda x, m: jnp.where(m, x, x[::-1]), None, None),
    "of a traced number": (HEADS, lambda x, m: jnp.where(m, x, x[0, 0, 0, 0]), None, None),
    "not a number": (HEADS, lambda x, m: jnp.where(m, x, jnp.nan), None, None),
    "of what is fused": (HEADS, lambda x, m: jnp.where(m, jax.nn.relu(x), LOWEST), None, None),
    "transposed": ((512, 512), lambda x, m: jnp.where(m.T, x, LOWEST), 1, LOWEST),
    "by one flag": ((), lambda x, m: jnp.where(m, x, 0), None, None),
    "of a number converted twice": (
        HEADS,
        lambda x, m: jax.lax.select(m, x, jnp.full(x.shape, 1.7).astype("int32").astype(x.dtype)),
        None,
        None,
    ),
    "made of the logits": (HEADS, lambda x, m: jnp.where(x > 1, x, LOWEST), None, None),
}
# To make them with a bias, and the number that kernels may multiply by before they add it.
LONG = (64, 2, 4, 8192)
BIASES = {
    "of columns": ((8192,), lambda x, b: x + b, 1),
    "from the left": ((8192,), lambda x, b: b + x, 1),
    "of the first dimension": ((64, 1, 1, 8192), lambda x, b: x + b, 1),
    "of inner dimensions": ((2, 4, 8192), lambda x, b: x + b, 1),
    "of outer dimensions": ((64, 8192), lambda x, b: x + b[:, None, None], 1),
    "made of another": ((8192,), lambda x, b: x + jnp.where(b > 0, b, -1), 1),
    "after a product": ((8192,), lambda x, b: x * 0.125 + b, 0.125),
    "after a quotient": ((8192,), lambda x, b: x / 11.3 + b, 1 / 11.3),
    "after a bias": ((8192,), lambda x, b: x + b[::-1] + b, 1),
    "before a product": ((8192,), lambda x, b: (x + b) * 0.125, None),
    "of rows": ((4, 1), lambda x, b: x + b, None),
    "of a number": ((), lambda x, b: x + b, None),
    "of every logit": (LONG, lambda x, b: x + b, None),
    "of half of them": ((64, 1, 4, 8192), lambda x, b: x + b, None),
    "of an eighth, made of another": ((64, 1, 1, 8192), lambda x, b: x + jnp.exp(b), None),
    "of a difference": ((8192,), lambda x, b: x - b, None),
    "of a product": ((8192,), lambda x, b: x * b, None),
    "of an outer sum": ((8192,), lambda x, b: x[..., :1] + b, None),
    "of a matrix product": (
        (8192,),
        lambda x, b: x[..., :64] @ jnp.ones((64, 8192), x.dtype) + b,
        None,
    ),
}
# What attention does to its scores: their length and dtype, by what, and how; and what kernels do
# of it: the number that they multiply by, "b" for a bias or "m" for a mask, None without, and calls
# forward and with gradients.
ATTENTION = {
    "scaled": (1024, "bfloat16", (), lambda s, b: 0.125 * s, 0.125, None, [1, 2]),
    "scaled, padded": (577, "bfloat16", (), lambda s, b: 0.125 * s, 0.125, None, [1, 2]),
    "scaled, float32": (1024, "float32", (), lambda s, b: 0.125 * s, None, None, [0, 1]),
    "a bias of keys": (512, "bfloat16", "B11T", lambda s, b: s / 8 + b, 0.125, "b", [1, 2]),
    "of few": (128, "bfloat16", "B11T", lambda s, b: s / 8 + b, 0.125, "b", [1, 2]),
    "made": (512, "float32", "B11T", lambda s, b: s + jnp.where(b > 0, 0.0, -9), 1, "b", [1, 2]),
    "of queries and keys": (49, "float32", "HTT", lambda s, b: s / 8 + b, 0.125, "b", [1, 2]),
    "of all scores": (512, "float32", "BHTT", lambda s, b: s / 8 + b, None, None, [0, 1]),
    "a vector": (1024, "float32", "T", lambda s, b: s / 8 + b, None, None, [0, 1]),
    "a mask": (64, "bfloat16", "B11T", lambda s, b: jnp.where(b > 0, s, -9), 1, "m", [1, 1]),
    "a mask, odd": (197, "float32", "B11T", lambda s, b: jnp.where(b > 0, s, -9), 1, "m", [1, 1]),
}
# What costs nothing at run time. A fusion, copy, transpose or collective is none of it.
FREE = {"parameter", "bitcast", "tuple", "get-tuple-element", "constant"}


def topology(devices: int, axis_type: AxisType = AxisType.Auto) -> Mesh:
    description = topologies.get_topology_desc(
        platform="cuda", target_config=TARGET_CONFIG.read_text(), topology=f"1x1x{devices}"
    )
    return Mesh(np.array(description.devices), ("batch",), axis_types=(axis_type,))


def program(mesh, name, mode, dtypes, axes, shape=SHAPE) -> dict:
    axis, batch = axes
    dtype, output_dtype = dtypes
    # Not for XLA, whose code would be as fast for these few elements; and long rows are split.
    f = functools.partial(
        getattr(jax_softmax, name), axis=axis, dtype=output_dtype, batch_invariant=shape == SHAPE
    )
    sharding = NamedSharding(mesh, P(*("batch" if d == batch else None for d in range(3))))
    x = jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)
    t = x.update(dtype=output_dtype) if mode == "vjp" else x
    hlo = compiled(functools.partial(MODES[mode], f), x, t)
    return {"calls": count_calls(hlo), "operations": sorted(operations(hlo))}


def kernels(hlo: str) -> int:
    """How many instructions of the entry computation do anything."""
    entry = hlo[hlo.index("\nENTRY ") :]
    names = re.findall(r"^ *(?:ROOT )?%\S+ = (?:\(.*?\)|\S+) ([a-z-]+)\(", entry, re.M)
    return len([name for name in names if name not in FREE])


def chosen(mesh, name, dtype, columns) -> dict:
    """What the default makes of a short row between neighbours, next to jax.nn."""
    x = jax.ShapeDtypeStruct((ROWS, columns), dtype, sharding=NamedSharding(mesh, P()))
    default = getattr(jax_softmax, name)

    def between(f):
        return lambda x, w: jnp.sum(w * jnp.square(f(x * 0.125)), 1)

    def gradient(f):
        return lambda x, g: jax.vjp(f, x)[1](g)[0]

    def both_passes(f):
        def value_and_pull_back(x, g):
            y, pull_back = jax.vjp(f, x)
            return y, pull_back(g)

        return value_and_pull_back

    def loss(f):
        def of_picked(x, labels):
            y = f(x).reshape(-1, 2, columns)
            return jnp.take_along_axis(y, labels.reshape(-1, 2, 1), -1).sum(dtype="float32")

        return jax.value_and_grad(of_picked)

    wide = x.update(dtype="float32")
    alone = compiled(between(default), x, x)
    labels = x.update(shape=(ROWS,), dtype="int32")
    picked, of_jax_nn = (compiled(loss(f), x, labels) for f in (default, getattr(jax.nn, name)))
    return {
        "picked": [count_calls(picked), count_calls(picked, f"{name}_.*?")],
        "kernels of picked": [kernels(picked), kernels(of_jax_nn)],
        "forward": count_calls(alone),
        "kernels": kernels(alone),
        "of jax.nn": kernels(compiled(between(getattr(jax.nn, name)), x, x)),
        "gradient": count_calls(compiled(gradient(default), x, x)),
        "weighted": count_calls(compiled(gradient(lambda x: 3 * default(x)), x, x)),
        "both passes": kernels(compiled(both_passes(lambda x: default(x * 0.125)), x, x)),
        # The float32 result of a float32 row is the one above.
        "in float32": (dtype, name) == ("bfloat16", "log_softmax")
        and kernels(compiled(both_passes(lambda x: default(x).astype("float32")), x, wide)),
        "mixed": dtype == "bfloat16"
        and kernels(
            compiled(both_passes(lambda x: default(x.astype("float32")).astype(dtype)), x, x)
        ),
        "batch invariant": count_calls(compiled(both(name)[0], x)),
    }


def made_before(mesh, name, way) -> dict:
    """Forward, of bfloat16 that something made right before."""
    make, columns = MADE_BEFORE[way]
    f = getattr(jax_softmax, name)
    x = jax.ShapeDtypeStruct((ROWS, columns), "float32", sharding=NamedSharding(mesh, P()))
    hlo = compiled(lambda x: f(make(x)).astype("float32"), x)
    return {"calls": count_calls(hlo), "kernels": kernels(hlo)}


def alone(mesh, name, dtype, columns) -> dict:
    """Calls and kernels of a softmax that the program returns, by what is before it."""
    f = getattr(jax_softmax, name)
    sharding = NamedSharding(mesh, P())
    x = jax.ShapeDtypeStruct((ROWS, columns), dtype, sharding=sharding)
    b = jax.ShapeDtypeStruct((columns,), dtype, sharding=sharding)
    of = {way: compiled(lambda x, b, w=way: f(BEFORES[w](x, b)), x, b) for way in BEFORES}
    of["a conversion"] = compiled(lambda x: f(x.astype("float32")), x)
    return {way: [count_calls(hlo), kernels(hlo)] for way, hlo in of.items()}


def read(mesh, way, name, dtype, columns, _) -> dict:
    """Calls, of pairs too, of what is read in that way alone, and what it needs in all."""
    sharding = NamedSharding(mesh, P())
    x = jax.ShapeDtypeStruct((ROWS, columns), dtype, sharding=sharding)
    labels = x.update(shape=(ROWS, 1), dtype="int32")
    reads = {
        "picked": lambda y, labels: jnp.take_along_axis(y, labels, 1).sum(dtype="float32"),
        "reduced": lambda y, labels: jnp.square(y).sum(1),
        "across": lambda y, labels: y.mean(0),
        "converted": lambda y, _: y.astype("float32"),
        "elements": lambda y, w: y * w,
        "weighed": lambda y, w: (y * w).sum(1),
        "summed": lambda y, _: jnp.square(y).sum(),
        "weighed sum": lambda y, w: (y * w).sum(),
    }

    def program(x, other):
        return reads[way](getattr(jax_softmax, name)(x), other)

    others = {"elements": x, "weighed": x, "weighed sum": x, "converted": x.update(shape=())}
    other = others.get(way, labels)
    hlo = compiled(program, x, other)
    calls = count_calls(hlo, name), count_calls(hlo, "row_pairs")
    return {"calls": calls, "kernels": kernels(hlo)}


def few(mesh, name) -> dict:
    """What the default makes of few long rows."""
    f = getattr(jax_softmax, name)
    x = jax.ShapeDtypeStruct((8, 128_256), "bfloat16", sharding=NamedSharding(mesh, P()))
    both_passes = compiled(lambda x, g: jax.vjp(f, x)[1](g)[0], x, x)
    return {
        "split": compiled(f, x).count("batch_invariant = false"),
        "gradient": (count_calls(both_passes), both_passes.count("batch_invariant = false")),
    }


def mixed(mesh, name, shape, axis) -> dict:
    """Back to 16 bits, and with the gradient, on an automatic mesh."""
    x = jax.ShapeDtypeStruct(shape, "bfloat16", sharding=NamedSharding(mesh, P("batch")))

    def both_passes(f, x, g):
        y, pull_back = jax.vjp(f, x)
        return y, pull_back(g)[0]

    def programs(library):
        def f(x):
            return getattr(library, name)(x.astype("float32"), axis=axis).astype(x.dtype)

        return compiled(f, x), compiled(functools.partial(both_passes, f), x, x)

    ours, others = programs(jax_softmax), programs(jax.nn)
    return {
        "pairs": [count_calls(hlo, "row_pairs") for hlo in ours],
        "calls": [count_calls(hlo) for hlo in ours],
        "operations": sorted(set().union(*map(operations, ours))),
        "kernels": [kernels(hlo) for hlo in ours],
        "of jax.nn": [kernels(hlo) for hlo in others],
    }


def fused(mesh, name) -> dict:
    """Forward and gradient of one of FUSED, spread over the batch where there are two devices."""

    def struct(shape, dtype="bfloat16"):
        spec = P("batch") if shape[0] in (SCORES[0], LOGITS[0]) else P()
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))

    x, square = struct(SCORES), struct(SCORES[-2:], "bool")
    softmax = jax_softmax.masked_softmax
    cross_entropy = functools.partial(
        jax_softmax.softmax_cross_entropy_with_integer_labels,
        label_smoothing=0.1,
        z_loss=1e-4,
        ignore_index=-1,
    )
    f, operands = {
        "where": (lambda x, m: jax_softmax.softmax(x, where=m), (x, square)),
        "where log": (lambda x, m: jax_softmax.log_softmax(x, where=m), (x, square)),
        "mask per key": (softmax, (x, struct((2, 1, 1, 512), "bool"))),
        "causal": (lambda x: softmax(x, causal=True), (x,)),
        "bias": (lambda x, b: softmax(x, bias=b), (x, struct((1, 16, 256, 512)))),
        "scale and softcap": (lambda x: softmax(x, scale=0.125, softcap=30.0), (x,)),
        "sink": (lambda x, s: softmax(x, sink=s), (x, struct((16, 1)))),
        "another axis": (lambda x, m: softmax(x, m, axis=1), (x, square)),
        "cross entropy": (cross_entropy, (struct(LOGITS), struct(LOGITS[:1], "int32"))),
        "where in float32": (
            lambda x, m: jax_softmax.softmax(x.astype("float32"), where=m),
            (x, square),
        ),
        "log in float32": (
            lambda x: jax_softmax.log_softmax(x.astype("float32")),
            (struct(LOGITS),),
        ),
        "cross entropy in float32": (
            lambda x, labels: cross_entropy(x.astype("float32"), labels),
            (struct(LOGITS), struct(LOGITS[:1], "int32")),
        ),
        "cross entropy of rows in float32": (
            lambda x, labels: cross_entropy(x.astype("float32").reshape(LOGITS), labels),
            (struct((2, LOGITS[0] // 2, LOGITS[1])), struct(LOGITS[:1], "int32")),
        ),
    }[name]

    def gradient(x, g, *rest):
        return jax.vjp(lambda x: f(x, *rest), x)[1](g)[0]

    g = jax.eval_shape(f, *operands)
    g = struct(g.shape, g.dtype)
    both_programs = [
        jax.jit(f).lower(*operands).compile(),
        jax.jit(gradient).lower(operands[0], g, *operands[1:]).compile(),
    ]
    forward, backward = (made.as_text() for made in both_programs)
    return {
        "forward": count_calls(forward),
        "kernels": kernels(forward),
        "gradient": count_calls(backward),
        "operations": sorted(operations(forward) | operations(backward)),
        "temporaries": max(made.memory_analysis().temp_size_in_bytes for made in both_programs),
        "bytes": operands[0].size * 2 // mesh.size,
    }


def absmax(mesh, name, dtype, shape) -> dict:
    """With a donated operand: a copy to or from its buffer would be one more kernel."""
    x = jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P()))
    f = jax.jit(getattr(jax_softmax, name), donate_argnums=0 if name == "absmax_scale" else ())
    hlo = f.lower(x).compile().as_text()
    return {"kernels": kernels(hlo), "in place": "input_output_alias={ {0}: (0, {}," in hlo}


def scaled(mesh, way, dtype) -> dict:
    """The numbers that calls of softmax along the last axis and another one are told of."""
    before, _ = WAYS[way]
    x = jax.ShapeDtypeStruct(SHAPE, dtype, sharding=NamedSharding(mesh, P("batch")))
    told = {}
    for axis in (1, 2):
        f = functools.partial(jax_softmax.softmax, axis=axis, batch_invariant=True)
        hlo = compiled(lambda x, f=f: f(before(x)), x)
        told[axis] = {
            "calls": count_calls(hlo),
            "scales": [float(number) for number in re.findall(r"\bscale = ([^ ,}]*)", hlo)],
            "kernels": kernels(hlo),
        }
    return told


def added(hlo: str) -> dict:
    """What a program's calls are told of a bias."""
    return {
        "calls": [count_calls(hlo), count_calls(hlo, "masked_[a-z_]*softmax")],
        "factors": [float(number) for number in re.findall(r"\bfactor = ([^ ,}]*)", hlo)],
        "kernels": kernels(hlo),
    }


def filled(mesh, way) -> dict:
    """What calls put in by a mask, alone and where something else reads that, too."""
    shape, before, *_ = MASKS[way]
    x = jax.ShapeDtypeStruct(HEADS, "bfloat16", sharding=NamedSharding(mesh, P()))
    m = x.update(shape=shape, dtype="bool")

    def read_before(x, m):
        z = before(x, m)
        smallest = z.min()
        return jax_softmax.softmax(z), smallest

    def by_xla(x, m):
        return jax_softmax.softmax(before(x, m), implementation="xla", batch_invariant=False)

    hlo = compiled(lambda x, m: jax_softmax.softmax(before(x, m)), x, m)
    return added(hlo) | {
        "fills": [number(text) for text in re.findall(r"\bfill = ([^ ,}]*)", hlo)],
        "read before": added(compiled(read_before, x, m))["calls"][1],
        "by xla": added(compiled(by_xla, x, m))["calls"][0],
    }


def number(text: str) -> float:
    """Of an attribute, whose bits may be all that is told."""
    return struct.unpack(">d", bytes.fromhex(text[2:]))[0] if text[:2] == "0x" else float(text)


def masked_gradients(mesh) -> dict:
    """Calls in both passes, and those of them that are the derivative's."""
    x = jax.ShapeDtypeStruct(HEADS, "bfloat16", sharding=NamedSharding(mesh, P()))
    m = x.update(shape=(8, 1, 1, 512), dtype="bool")
    made = {}
    for name in NAMES:
        f = getattr(jax_softmax, name)

        def both_passes(x, m, g, f=f):
            y, back = jax.vjp(lambda x: f(jnp.where(m, x, LOWEST)), x)
            return y, back(g)[0]

        def causal(x, g, both_passes=both_passes):
            return both_passes(x, jnp.tri(512, dtype=bool), g)

        for way, hlo in {
            "of keys": compiled(both_passes, x, m, x),
            "causal": compiled(causal, x, x),
        }.items():
            made[f"{name} {way}"] = [count_calls(hlo), count_calls(hlo, f"{name}_.*tangent")]
    return made


def scores(mesh, way) -> dict:
    """What calls are told of what attention does to its scores, forward and with gradients."""
    length, dtype, bias, before, *_ = ATTENTION[way]
    sizes = {"B": 2**23 // (4 * length**2), "H": 4, "T": length, "1": 1}
    q = jax.ShapeDtypeStruct((sizes["B"], 4, length, 64), dtype, sharding=NamedSharding(mesh, P()))
    b = q.update(shape=tuple(sizes[letter] for letter in bias))

    def forward(q, k, v, b):
        weights = jax_softmax.softmax(before(jnp.einsum("bhqd,bhkd->bhqk", q, k), b))
        return jnp.einsum("bhqk,bhkd->bhqd", weights, v)

    def gradients(q, k, v, b, g):
        value, back = jax.vjp(lambda *qkv: forward(*qkv, b), q, k, v)
        return value, back(g)

    told = {}
    for name, hlo in {
        "forward": compiled(forward, q, q, q, b),
        "gradients": compiled(gradients, q, q, q, b, q),
    }.items():
        terms = re.findall(r'\bterms = \\?"(\w*)', hlo)
        told[name] = {"calls": count_calls(hlo), "terms": terms, "by": multipliers(hlo)}
    return told


def multipliers(hlo: str) -> list[list[float]]:
    """By what calls multiply logits, and derivatives."""
    calls = [line for line in hlo.splitlines() if 'custom_call_target="jax_softmax.' in line]
    by = [], []
    for call in calls:
        for number in re.findall(r"\b(?:factor|scale) = ([^ ,}]*)", call):
            by["tangent" in call].append(float(number))
    return list(by)


def scores_otherwise(mesh) -> dict:
    """With gradients: along another axis, after a soft cap, and the entropy of biased ones."""
    softmax, log_softmax = jax_softmax.softmax, jax_softmax.log_softmax

    def entropy(s, b):
        logs = log_softmax(s / 8 + b)
        return -(jnp.exp(logs) * logs).sum(-1)

    made = {}
    for name, (length, f) in {
        "along another axis": (512, lambda s, b: softmax(0.125 * s, axis=-2)),
        "capped": (197, lambda s, b: softmax(50 * jnp.tanh(s / 50))),
        "entropy": (512, entropy),
    }.items():
        sharding = NamedSharding(mesh, P())
        q = jax.ShapeDtypeStruct((8, 4, length, 64), "float32", sharding=sharding)
        b = q.update(shape=(8, 1, 1, length))

        def gradients(q, k, v, b, g, f=f):
            def value(q, k, v):
                made = f(jnp.einsum("bhqd,bhkd->bhqk", q, k), b)
                return jnp.einsum("bhqk,bhkd->bhqd", made, v) if made.ndim == 4 else made

            y, back = jax.vjp(value, q, k, v)
            return y, back(g)

        g = q.update(shape=q.shape[:3]) if name == "entropy" else q
        hlo = compiled(gradients, q, q, q, b, g)
        made[name] = {"calls": count_calls(hlo), "by": multipliers(hlo)}
        made[name]["pairs"] = count_calls(hlo, "row_pairs")
    return made


def biased(mesh, way) -> dict:
    shape, before, _ = BIASES[way]
    x = jax.ShapeDtypeStruct(LONG, "bfloat16", sharding=NamedSharding(mesh, P()))
    b = x.update(shape=shape)
    return added(compiled(lambda x, b: jax_softmax.softmax(before(x, b)), x, b))


def biased_otherwise(mesh) -> dict:
    """Where something reads the sum or the product first, where XLA may fuse, and in batches."""

    def struct(*shape):
        return jax.ShapeDtypeStruct(shape, "bfloat16", sharding=NamedSharding(mesh, P()))

    def sum_read_before(x, b):
        z = x + b
        smallest = z.min()
        return jax_softmax.softmax(z), smallest

    def product_read_before(x, b):
        z = x * 0.125
        smallest = z.min()
        return jax_softmax.softmax(z + b), smallest

    invariant = functools.partial(jax_softmax.log_softmax, batch_invariant=True)
    long, short = (struct(4096, 8192), struct(8192)), (struct(16_384, 1024), struct(1024))
    programs = {
        "sum read before": (sum_read_before, *long),
        "product read before": (product_read_before, *long),
        "short": (lambda x, b: jax_softmax.log_softmax(x + b), *short),
        "short and fused": (lambda x, b: jax_softmax.log_softmax(jax.nn.relu(x) + b), *short),
        "invariant": (lambda x, b: invariant(x + b), *long),
        "few rows": (lambda x: jax_softmax.softmax(x), struct(16, 24_576)),
    }
    return {name: added(compiled(*program)) for name, program in programs.items()}


def constrained(mesh) -> list[float]:
    """The numbers that calls are told of where somebody else has a say in the product."""
    x = jax.ShapeDtypeStruct(SHAPE, "float32", sharding=NamedSharding(mesh, P(None, "batch")))
    softmax = functools.partial(jax_softmax.softmax, batch_invariant=True)

    def sharded_otherwise(x):
        return softmax(jax.lax.with_sharding_constraint(x * 0.125, NamedSharding(mesh, P("batch"))))

    def read_before(x):
        product = x * 0.125
        smallest = product.min()
        return softmax(product), smallest

    programs = "".join(compiled(f, x) for f in (sharded_otherwise, read_before))
    return [float(number) for number in re.findall(r"\bscale = ([^ ,}]*)", programs)]


def gradient_after_scale(mesh, name) -> list[int]:
    """How many calls, and kernels in all, where each device has whole rows."""
    x = jax.ShapeDtypeStruct((16_384, 16_384), "float32", sharding=NamedSharding(mesh, P("batch")))
    f = getattr(jax_softmax, name)
    hlo = compiled(lambda x, g: jax.vjp(lambda x: f(x * 0.125), x)[1](g)[0], x, x)
    return [count_calls(hlo), count_calls(hlo, name), kernels(hlo)]


def pairs(mesh) -> bool:
    """Whether log-softmax by XLA, where blocks cannot keep its rows, has a complex sum."""
    x = jax.ShapeDtypeStruct((4, 5000, 3), "float32", sharding=NamedSharding(mesh, P()))
    return "c64[" in compiled(functools.partial(jax_softmax.log_softmax, axis=1), x)


def few_digits(mesh) -> dict:
    """Whether log-softmax to bfloat16 by XLA takes the logarithm of a sum without its largest."""
    x = jax.ShapeDtypeStruct((ROWS, 256), "bfloat16", sharding=NamedSharding(mesh, P()))

    def last(x):
        return jax_softmax.log_softmax(x, implementation="xla")

    def across(x):
        return jax_softmax.log_softmax(x, axis=0, implementation="xla")

    def with_gradient(x):
        y, pull_back = jax.vjp(last, x)
        return y, pull_back(y)

    functions = {"last": last, "batched": jax.vmap(last), "across": across}
    functions["with gradient"] = with_gradient
    return {name: "log-plus-one" in compiled(f, x) for name, f in functions.items()}


def reductions(mesh, columns) -> dict:
    """How many there are in softmax's derivative by XLA, and with a product behind it."""
    x = jax.ShapeDtypeStruct((ROWS, columns), "float32", sharding=NamedSharding(mesh, P()))
    softmax = functools.partial(jax_softmax.softmax, implementation="xla")
    functions = {"alone": softmax, "multiplied": lambda x: jnp.square(jnp.cos(x)) * softmax(x)}

    def reductions_of(f):
        lowered = jax.jit(lambda x, g: jax.vjp(f, x)[1](g)[0]).lower(x, x)
        return lowered.as_text().count("stablehlo.reduce(")

    return {name: reductions_of(f) for name, f in functions.items()}


def differentiated(mesh, columns) -> dict:
    """A float32 loss that is a sum over log-softmax, with its gradient; next to jax.nn."""

    def loss(library, x, target):
        return (target * library.log_softmax(x)).sum()

    return both_passes_of(loss, mesh, columns, "float32")


def anew(mesh, columns, dtype) -> dict:
    """An entropy of log-softmax in float32, and a divergence from another one."""

    def loss(library, x, other):
        p, q = (library.log_softmax(v.astype("float32")) for v in (other, x))
        return (jnp.exp(p) * (p - q)).sum() - (jnp.exp(q) * q).sum()

    return both_passes_of(loss, mesh, columns, dtype)


def together(mesh, columns, dtype, by_pairs) -> dict:
    """An entropy of softmax and log-softmax in float32, `by_pairs` or of one that was asked for."""
    asked = {} if by_pairs else {"implementation": "xla"}

    def entropy(library, x, _):
        x = x.astype("float32")
        logs = library.log_softmax(x, **({} if library is jax.nn else asked))
        return -(library.softmax(x) * logs).sum()

    return both_passes_of(entropy, mesh, columns, dtype)


def temperature(mesh) -> list:
    """The calls of an entropy of a product in float32 times a number, of what kernels write."""
    a, b = (
        jax.ShapeDtypeStruct(shape, "bfloat16", sharding=NamedSharding(mesh, P()))
        for shape in ((256, 64), (64, 32_000))
    )

    def entropy(a, b):
        x = (a @ b).astype("float32") / 0.7
        return -(jax_softmax.softmax(x) * jax_softmax.log_softmax(x)).sum(-1)

    hlo = compiled(entropy, a, b)
    return [count_calls(hlo), count_calls(hlo, "row_pairs")]


def both_passes_of(loss, mesh, columns, dtype) -> dict:
    x = jax.ShapeDtypeStruct((ROWS, columns), dtype, sharding=NamedSharding(mesh, P()))

    def program(library):
        of_library = functools.partial(loss, library)
        return jax.jit(jax.value_and_grad(of_library)).lower(x, x).compile()

    ours, others = map(program, (jax_softmax, jax.nn))
    return {
        "calls": [count_calls(ours.as_text()), count_calls(ours.as_text(), "row_pairs")],
        "kernels": [kernels(ours.as_text()), kernels(others.as_text())],
        "temporaries": ours.memory_analysis().temp_size_in_bytes / (4 * ROWS * columns),
    }


def reread(mesh, name, dtype, columns, biased) -> dict:
    """Softmax or log-softmax with its pull-back, behind which squares are summed, or taken."""
    x = jax.ShapeDtypeStruct((ROWS, columns), dtype, sharding=NamedSharding(mesh, P()))
    g = jax.ShapeDtypeStruct((ROWS,), dtype, sharding=NamedSharding(mesh, P()))
    op = f"masked_{name}" if biased else name

    def f(x):
        return getattr(jax_softmax, name)(x + jnp.arange(columns, dtype=dtype) if biased else x)

    def both_passes(read, x, g):
        value, pull_back = jax.vjp(lambda x: read(jnp.square(f(x))), x)
        return value, pull_back(g)[0]

    def with_result(x):
        def loss(x):
            y = f(x)
            return jnp.square(y).sum(dtype="float32"), y

        return jax.value_and_grad(loss, has_aux=True)(x)

    def of_other(x, g):
        y, pull_back = jax.vjp(f, x)
        for i in range(20):
            g = jnp.sin((i + 1.5) * g)
        return jnp.square(y).sum(-1), pull_back(g)[0]

    # That nothing is made anew of the logits.
    reduced = compiled(functools.partial(both_passes, lambda y: y.sum(-1)), x, g)
    programs = reduced, compiled(with_result, x)
    once = [count_calls(hlo, op) == 1 and "maximum(" not in hlo for hlo in programs]
    elements = compiled(functools.partial(both_passes, lambda y: y), x, x)
    others = [count_calls(hlo, op) for hlo in (elements, compiled(of_other, x, x))]
    return {"once": once, "calls": count_calls(reduced), "others": others}


def stored(mesh, name, dtype, columns, read) -> dict:
    """Calls of both passes, and what they keep beside their results, as a part of the operand."""
    sharding = NamedSharding(mesh, P())
    x = jax.ShapeDtypeStruct((ROWS, columns), dtype, sharding=sharding)
    reads = {
        "weighted": lambda y, w: y * w,
        "summed": lambda y, w: (y * w).sum(-1),
        "averaged": lambda y, w: y.mean(0),
    }

    def both_passes(x, w, g):
        value, pull_back = jax.vjp(lambda x: reads[read](getattr(jax_softmax, name)(x), w), x)
        return value, pull_back(g)[0]

    shape = {"weighted": x.shape, "summed": x.shape[:1], "averaged": x.shape[1:]}[read]
    g = jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)
    made = jax.jit(both_passes).lower(x, x, g).compile()
    kept = made.memory_analysis().temp_size_in_bytes / (x.size * x.dtype.itemsize)
    return {"calls": count_calls(made.as_text()), "kept": kept}


BEFORES = {
    "nothing": lambda x, b: x,
    "a scale": lambda x, b: 0.125 * x,
    "a bias": lambda x, b: x + b,
}


def unread(mesh, name, dtype, columns, before) -> list:
    """Kernels of the gradient of a weighed sum, without its value, and calls."""
    sharding = NamedSharding(mesh, P())
    x = jax.ShapeDtypeStruct((ROWS, columns), dtype, sharding=sharding)
    b = jax.ShapeDtypeStruct((columns,), dtype, sharding=sharding)

    def loss(x, b, w):
        return (w * getattr(jax_softmax, name)(BEFORES[before](x, b))).sum(dtype="float32")

    hlo = compiled(jax.grad(loss), x, b, x)
    return [kernels(hlo), count_calls(hlo)]


def unwritten(mesh, name, dtype, columns, read, before) -> list:
    """Kernels of both passes, and calls."""
    sharding = NamedSharding(mesh, P())
    x = jax.ShapeDtypeStruct((ROWS, columns), dtype, sharding=sharding)
    b = jax.ShapeDtypeStruct((columns,), dtype, sharding=sharding)

    def both_passes(x, b, w):
        def f(x):
            y = getattr(jax_softmax, name)(BEFORES[before](x, b))
            return y * w if read == "weighted" else y.astype(w.dtype)

        y, pull_back = jax.vjp(f, x)
        return y, pull_back(w)[0]

    other = "bfloat16" if dtype == "float32" else "float32"
    w = x.update(dtype=other) if read == "converted" else x
    hlo = compiled(both_passes, x, b, w)
    return [kernels(hlo), count_calls(hlo)]


def loaded(mesh) -> list:
    """Calls of both passes of log-softmax: a kernel loads 16 bits, which are float32 for it."""
    x = jax.ShapeDtypeStruct((ROWS, 65), "bfloat16", sharding=NamedSharding(mesh, P()))

    def both_passes(x, g):
        def f(x):
            return jax_softmax.log_softmax(x.astype("float32")).astype(x.dtype)

        y, pull_back = jax.vjp(f, x)
        return y, pull_back(g)[0]

    hlo = compiled(both_passes, x, x)
    return [count_calls(hlo), count_calls(hlo, "log_softmax")]


def returned(mesh) -> list:
    """The calls of a loss that returns its log-softmax too, and whether XLA looks for maxima."""
    x = jax.ShapeDtypeStruct((ROWS, 1000), "float32", sharding=NamedSharding(mesh, P()))

    def loss(x):
        y = jax_softmax.log_softmax(x)
        return jnp.square(y).sum(), y

    hlo = compiled(jax.value_and_grad(loss, has_aux=True), x)
    return [count_calls(hlo), count_calls(hlo, "row_pairs"), "maximum(" in hlo]


def writers(mesh) -> int:
    """How many kernels of masked softmax by XLA along another axis write what has its size."""
    x = jax.ShapeDtypeStruct((78, 1932, 48), "float32", sharding=NamedSharding(mesh, P()))
    m = jax.ShapeDtypeStruct((1932, 1), "bool", sharding=NamedSharding(mesh, P()))
    hlo = compiled(lambda x, m: jax_softmax.softmax(x, axis=1, where=m), x, m)
    entry = hlo[hlo.index("\nENTRY ") :]
    return len(re.findall(r" = [^=]*\[78,1932,48\][^=]* fusion\(", entry))


def main() -> None:
    native_module("cuda")
    meshes = {n: topology(n) for n in DEVICES}
    # The trace tells of an explicit mesh that each device has whole rows.
    explicit = meshes | {2: topology(2, AxisType.Explicit)}
    one = meshes[1]
    with ThreadPoolExecutor(THREADS) as pool:
        do = pool.submit
        programs: dict[str, Any] = {str((n, *c)): do(program, meshes[n], *c) for n, *c in CASES}
        programs |= {str(case): do(chosen, one, *case) for case in CHOSEN}
        programs |= {
            f"{n}, {way}": do(made_before, one, n, way) for n in NAMES for way in MADE_BEFORE
        }
        programs |= {f"alone, {case}": do(alone, one, *case) for case in ALONE}
        programs |= {f"read, {case}": do(read, one, *case) for case in READ}
        programs |= {
            f"few, {name} on {n}": do(few, meshes[n], name) for name in NAMES for n in DEVICES
        }
        programs["sums of pairs"] = {n: do(pairs, meshes[n]) for n in DEVICES}
        programs["few digits"] = do(few_digits, one)
        programs["writers"] = do(writers, one)
        programs["differentiated"] = {n: do(differentiated, one, n) for n in DIFFERENTIATED}
        programs |= {f"anew, {case}": do(anew, one, *case) for case in ANEW}
        programs |= {f"together, {case}": do(together, one, *case) for case in TOGETHER}
        programs["reductions"] = {n: do(reductions, one, n) for n in REDUCED}
        programs |= {f"reread, {case}": do(reread, one, *case) for case in REREAD}
        programs |= {f"unwritten, {case}": do(unwritten, one, *case) for case in UNWRITTEN}
        programs |= {f"unread, {case}": do(unread, one, *case) for case in UNREAD}
        programs |= {f"stored, {case}": do(stored, one, *case) for case in STORED}
        programs["temperature"] = do(temperature, one)
        programs["returned"] = do(returned, one)
        programs["loaded"] = do(loaded, one)
        programs["constrained"] = {n: do(constrained, meshes[n]) for n in DEVICES}
        programs |= {
            f"{way} of {dtype} on {n}": do(scaled, meshes[n], way, dtype)
            for way, dtype, n in SCALED
        }
        programs |= {
            f"bias {way} on {n}": do(biased, meshes[n], way) for way in BIASES for n in DEVICES
        }
        programs |= {
            f"mask {way} on {n}": do(filled, meshes[n], way) for way in MASKS for n in DEVICES
        }
        programs |= {f"scores {way}": do(scores, one, way) for way in ATTENTION}
        programs["scores otherwise"] = do(scores_otherwise, one)
        programs["masked gradients"] = do(masked_gradients, one)
        programs["biases"] = {n: do(biased_otherwise, meshes[n]) for n in DEVICES}
        programs |= {
            f"{case} on {n}": do(mixed, meshes[n], *case) for case in MIXED for n in DEVICES
        }
        programs |= {f"{name} on {n}": do(fused, explicit[n], name) for name, n in FUSED_ON}
        programs["product on an explicit mesh"] = do(scaled, explicit[2], "product", "float32")
        programs |= {
            f"gradient of {name} after a scale on {n}": do(gradient_after_scale, explicit[n], name)
            for name in NAMES
            for n in DEVICES
        }
        programs |= {str(case): do(absmax, one, *case) for case in ABSMAX}
        print(json.dumps(programs, default=Future.result))


if __name__ == "__main__":
    main()
