"""The command line that the benchmarks share."""

import argparse
import math
from pathlib import Path

import jax
from shapes import DTYPES

OPS = ("softmax", "log_softmax")


def add_list(
    parser: argparse.ArgumentParser, name: str, known: tuple[str, ...], default: tuple[str, ...]
) -> None:
    def parse(text: str) -> tuple[str, ...]:
        if unknown := set(text.split(",")) - set(known):
            raise argparse.ArgumentTypeError(f"{unknown} not among {','.join(known)}")
        return tuple(text.split(","))

    parser.add_argument(name, type=parse, default=default, help=",".join(known))


def numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def run_parser(doc: str | None) -> argparse.ArgumentParser:
    """On what to measure, for how long, and where to write it down."""
    parser = argparse.ArgumentParser(description=(doc or "").split("\n")[0])
    parser.add_argument("--device", choices=("auto", "cpu", "gpu"), default="auto")
    parser.add_argument("--budget", type=float, default=math.inf, help="seconds; then stop cleanly")
    parser.add_argument("--output", type=Path, help="JSON, rewritten as cases come in")
    return parser


def basic_parser(
    doc: str | None, dtypes: tuple[str, ...], directions: tuple[str, ...]
) -> argparse.ArgumentParser:
    """The same, and which calls to measure."""
    parser = run_parser(doc)
    add_list(parser, "--dtypes", tuple(DTYPES), dtypes)
    add_list(parser, "--ops", OPS, OPS)
    add_list(parser, "--directions", directions, directions)
    return parser


def add_rounds(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=5, help="timed runs in a round")


def add_timing(parser: argparse.ArgumentParser, columns: tuple[int, ...]) -> None:
    parser.add_argument("--columns", type=numbers, default=columns, help="row lengths")
    parser.add_argument("--elements", type=int, help="of an operand")
    add_rounds(parser)


def start_jax(args: argparse.Namespace) -> str:
    """Applies the choice of device and, if there is one, width; the platform, "gpu" or "cpu"."""
    if args.device != "auto":
        jax.config.update("jax_platforms", {"cpu": "cpu", "gpu": "cuda"}[args.device])
    if "float64" in getattr(args, "dtypes", ()):
        jax.config.update("jax_enable_x64", True)
    return jax.default_backend()
