"""Compiles for H200s that need not be there; prints what each program does, as JSON.

Run by test_cuda_aot.py in a process of its own: the CUDA plugin complains about the missing
driver wherever it is loaded.
"""

import functools
import itertools
import json
import pathlib

import jax
import numpy as np
from _support import count_calls, native_module, operations
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_softmax

SHAPE = (32, 48, 64)
FEW_LONG_ROWS = (4, 8, 65_536)
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
# The softmax axis, and the dimension that is spread over the devices.
AXES = tuple(
    (axis, batch) for axis, batch in itertools.product(range(3), repeat=2) if axis != batch
)
CASES = (
    *itertools.product(DEVICES, NAMES, MODES, DTYPES, AXES),
    # With a workspace: the rows are split.
    *itertools.product(DEVICES, NAMES, MODES, DTYPES[:1], [(2, 0), (2, 1)], [FEW_LONG_ROWS]),
)


def topology(devices: int) -> Mesh:
    description = topologies.get_topology_desc(
        platform="cuda", target_config=TARGET_CONFIG.read_text(), topology=f"1x1x{devices}"
    )
    return Mesh(np.array(description.devices), ("batch",))


def program(mesh, name, mode, dtypes, axes, shape=SHAPE) -> dict:
    axis, batch = axes
    dtype, output_dtype = dtypes
    f = functools.partial(
        getattr(jax_softmax, name), axis=axis, dtype=output_dtype, batch_invariant=False
    )
    sharding = NamedSharding(mesh, P(*("batch" if d == batch else None for d in range(3))))
    x = jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)
    t = x.update(dtype=output_dtype) if mode == "vjp" else x
    hlo = jax.jit(functools.partial(MODES[mode], f)).lower(x, t).compile().as_text()
    return {"calls": count_calls(hlo), "operations": sorted(operations(hlo))}


def main() -> None:
    native_module("cuda")
    meshes = {n: topology(n) for n in DEVICES}
    print(json.dumps({str((n, *case)): program(meshes[n], *case) for n, *case in CASES}))


if __name__ == "__main__":
    main()
