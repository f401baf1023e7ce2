"""`python -m jax_softmax`: versions, backends, devices, and the plan of a few shapes."""

import platform
from importlib.metadata import version

import jax

import jax_softmax

from . import _native

SHAPES = [(65536, 128), (16384, 1024), (4096, 32000), (4096, 50257), (8, 128256)]


def main() -> None:
    print(f"jax_softmax {jax_softmax.__version__}, Python {platform.python_version()}, ", end="")
    print(f"jax {jax.__version__}, jaxlib {version('jaxlib')}")
    for backend in _native.BACKENDS:
        loaded = _native.load(backend)
        state = loaded if isinstance(loaded, str) else f"registered ({loaded.describe()})"
        print(f"backend {backend}: {state}")
    for device in jax.devices():
        print(f"device {device.id}: {device.platform}, {device.device_kind}")
    for shape in SHAPES:
        print(f"softmax{shape} bfloat16: {_planned(shape)}")


def _planned(shape: tuple[int, ...]) -> str:
    try:
        return str(jax_softmax.plan(shape, "bfloat16"))
    except ValueError as error:
        return f"no plan: {error}"


if __name__ == "__main__":
    main()
