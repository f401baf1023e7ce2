"""A plan is a value: pure, comparable, printable, and the same with or without a GPU."""

import collections
import dataclasses
import itertools
import math
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _cases import ABREAST
from _support import AXIS_STRATEGIES, CUDA_STRATEGIES, ROW_STRATEGIES, native_module
from _truth import DTYPES, FORWARD, GRADIENT, PAIRS, PER_ROW

import jax_softmax
from jax_softmax import plan

OPS = (*FORWARD, *GRADIENT)
# Bytes of shared memory a block may opt into (CUDA programming guide, technical specifications).
SHARED_LIMITS = {
    "H200": 227 * 1024,
    "RTX 5090": 99 * 1024,
    "A100": 163 * 1024,
    "GTX 1080": 48 * 1024,
}
DEVICES = (*SHARED_LIMITS, "cpu")
LENGTHS = sorted({2**k + d for k in range(20) for d in (-1, 0, 1)} - {0})
each_op = pytest.mark.parametrize("op", OPS)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
each_pair = pytest.mark.parametrize("dtype, output_dtype", PAIRS, ids=str)
each_device = pytest.mark.parametrize("device", DEVICES)


def test_a_plan_is_a_value():
    a, b = (plan((128, 1024), "bfloat16", device="H200") for _ in range(2))
    assert a == b and hash(a) == hash(b)
    assert a != plan((128, 1024), "bfloat16", device="H200", strategy="stream")
    with pytest.raises(dataclasses.FrozenInstanceError):
        a.threads = 1
    for field in dataclasses.fields(a):
        assert f"{field.name}={getattr(a, field.name)}" in str(a)


def test_dtypes_and_devices_have_several_spellings():
    expected = plan((4, 5), "float32", device="cpu")
    for dtype in (np.float32, jnp.float32, np.dtype("float32")):
        assert plan((4, 5), dtype, -1, "softmax", device=jax.devices("cpu")[0]) == expected
    with jax.default_device(jax.devices("cpu")[0]):
        default = plan([4, 5], "float32", axis=1)
    assert default == expected or jax.devices()[0].platform == "gpu"


@each_op
@each_dtype
@pytest.mark.parametrize("offset", [0, 1, 3])  # rows of whole vectors, and others, have own limits
@pytest.mark.parametrize("device", SHARED_LIMITS)
def test_strategies_follow_each_other_as_rows_get_longer(op, dtype, offset, device):
    lengths = [16 * n + offset for n in LENGTHS]
    chosen = {n: plan((4096, n), dtype, op=op, device=device).strategy for n in lengths}
    expected = ["warp", "block", "ring", "stream"]
    if op in FORWARD and dtype.itemsize < 8:
        expected.insert(1, "registers")
    if offset and dtype.itemsize < 8:
        assert {chosen.pop(n) for n in lengths if n < 512} == {"tile"}
        expected.remove("warp")
    if device in ("A100", "GTX 1080") or (op in FORWARD and dtype.itemsize == 8):
        expected.remove("ring")
    chosen = [s for s in chosen.values() if s != "tile"]  # for some that fill the others badly
    if device == "RTX 5090":  # less shared memory than all but few rings want
        chosen = ["ring" if s == "cluster" else s for s in chosen]
    assert [s for s, _ in itertools.groupby(chosen)] == expected


@pytest.mark.parametrize("op", FORWARD)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_that_fill_others_badly_go_to_tiles(op, dtype):
    def chosen(op, *columns, dtype=dtype):
        return {plan((4096, n), dtype, op=op, device="H200").strategy for n in columns}

    assert chosen(op, 16, 32, 64, 128, 240, 256) == {"warp"}
    assert chosen(op, 80, 160, 192, 288, 320, 384) == {"tile"}
    assert chosen(op, 577, 640, 777, 800, 900, 1100, 1280) == {"tile"}
    assert chosen(op, 1000, 1001, 1024, 1400, 1500, 2048) == {"registers"}
    assert chosen("softmax_tangent", 320, 512) == {"warp"}
    long = "tile" if dtype == "bfloat16" else "block"
    assert chosen("softmax_tangent", 513, 640, 1000) == {long}
    assert chosen("softmax_tangent", 1024, 1100) == {"block"}
    assert chosen(op, 320, 640, 1001, dtype="float64") == {"block"}


@pytest.mark.parametrize("op", FORWARD)
@pytest.mark.parametrize("dtype, output_dtype", [("bfloat16", "float32"), ("float32", "bfloat16")])
def test_rows_that_are_converted_go_to_tiles_and_rings(op, dtype, output_dtype):
    def chosen(*columns, op=op):
        request = {"op": op, "output_dtype": output_dtype, "device": "H200"}
        return {plan((4096, n), dtype, **request).strategy for n in columns}

    widens = dtype == "bfloat16"
    assert chosen(16, 32, 64, 128, 240, 256) == {"warp"}
    assert chosen(3, 21, 100, 160, 197, 224, 384, 577, 700) == {"tile"}
    exchanges = widens and op == "log_softmax"
    assert chosen(1024) == {"tile" if exchanges else "registers"}
    assert chosen(1100, 1280, 1500) == {"registers"}
    assert chosen(2048) == {"block" if exchanges else "registers"}
    assert chosen(8000, 8192) == {"block"}
    assert chosen(10_001, 16_384) == {"ring" if widens else "block"}
    assert chosen(50_257) == {"ring"}
    assert "tile" not in chosen(21, 100, 577, op="softmax_tangent")
    if widens:
        assert "tile" not in chosen(21, 100, 577, op="logsumexp")


def test_a_tile_has_room_for_results_of_another_size():
    def tile(dtype, output_dtype):
        return plan((4096, 300), dtype, output_dtype=output_dtype, device="H200", strategy="tile")

    for dtypes in (("float32", "bfloat16"), ("bfloat16", "float32")):
        p = tile(*dtypes)
        assert p.shared_bytes == p.rows_per_block * 300 * (4 + 2)
    # Both stretches begin and end at a vector's address.
    assert tile("float32", "bfloat16").rows_per_block % 2 == 0
    with pytest.raises(ValueError, match="converts"):
        plan((64, 300, 64), "float32", 1, output_dtype="bfloat16", device="H200", strategy="tile")
    with pytest.raises(ValueError, match="converts"):
        tile("float16", "float32")


@each_op
@each_dtype
def test_a_ring_has_room_for_several_parts_of_any_row(op, dtype):
    """And half of the device for all parts of one, which wait for each other."""
    vector = 16 // dtype.itemsize
    row_bytes = dtype.itemsize * (1 if op in FORWARD else 2)
    for columns in (1, 7, 1777 * vector, 3000 * vector + 1, 10**5, 4 * 10**6 // dtype.itemsize + 1):
        p = plan((64, columns), dtype, op=op, device="H200", strategy="ring")
        assert p.shared_bytes <= SHARED_LIMITS["H200"] - 1024
        assert p.blocks == min(132, 64 * p.lanes_per_row // (7 * 32))
        assert (p.shared_bytes - 4096) * 132 >= 2 * columns * row_bytes


@pytest.mark.parametrize(
    "op, dtype, columns, strategy",
    [
        ("softmax", "float32", 20_001, "ring"),
        ("softmax", "float32", 21_001, "ring"),
        ("softmax", "float32", 21_004, "block"),  # whole vectors
        ("softmax", "float32", 21_301, "block"),  # four parts, in place of three
        ("log_softmax", "bfloat16", 42_001, "ring"),
        ("log_softmax", "bfloat16", 44_001, "block"),
        ("softmax_tangent", "float32", 10_001, "ring"),
        ("softmax_tangent", "float32", 12_001, "block"),
        ("log_softmax_cotangent", "bfloat16", 28_001, "ring"),
        ("log_softmax_cotangent", "bfloat16", 29_001, "block"),
        ("log_softmax_cotangent", "float64", 7_001, "block"),
    ],
)
def test_odd_rows_that_fill_the_parts_of_a_ring_go_by_it(op, dtype, columns, strategy):
    assert plan((4096, columns), dtype, op=op, device="H200").strategy == strategy


@pytest.mark.parametrize("columns, parts", [(50_257, 4), (50_256, 5), (65_537, 5), (65_536, 6)])
def test_odd_rows_of_16_bits_are_shared_out_in_fewer_parts(columns, parts):
    p = plan((4096, columns), "bfloat16", device="H200", strategy="ring")
    assert p.lanes_per_row == parts * 7 * 32


def test_one_warp_is_few_bytes_for_a_block():
    assert plan((4096, 513), "bfloat16", device="H200").strategy == "tile"
    assert plan((4096, 513), "float32", device="H200").strategy == "registers"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_longer_rows_of_logsumexp_go_to_tiles(dtype):
    def chosen(*columns):
        return {plan((4096, n), dtype, op="logsumexp", device="H200").strategy for n in columns}

    assert chosen(16, 64, 128) == {"warp"}
    assert chosen(20, 100, 136, 256, 512, 1000, 1024, 2048) == {"tile"}
    assert chosen(2049, 2056) == {"registers"}


@pytest.mark.parametrize("dtype, columns, rows", [("float32", 704, 4), ("bfloat16", 1032, 8)])
def test_a_tile_has_rows_for_each_of_its_warps(dtype, columns, rows):
    def chosen(outer):
        return plan((outer, columns), dtype, device="H200", strategy="tile").rows_per_block

    assert chosen(4096) == rows
    assert chosen(100) == 1  # more blocks are worth more than full ones


@pytest.mark.parametrize("columns, vectors", [(10, 16), (50, 8), (100, 4)])
def test_few_neighbours_go_to_tiles(columns, vectors):
    def chosen(inner):
        return plan((1000, columns, inner), "bfloat16", 1, device="H200")

    assert chosen(8 * vectors).strategy == "panel"
    assert chosen(8 * (vectors - 1)).strategy == "tile"
    assert chosen(8 * vectors).rows_per_block <= max(8 * vectors, 32)


@pytest.mark.parametrize("op, inner", [("softmax", 1024), ("softmax_tangent", 256)])
def test_few_columns_of_many_neighbours_go_to_panels(op, inner):
    def chosen(columns, inner):
        return plan((1000, columns, inner), "bfloat16", 1, op, device="H200").strategy

    assert [chosen(8, n) for n in (inner, 2 * inner)] == ["tile", "panel"]
    assert [chosen(n, 2 * inner) for n in (4, 5)] == ["strided", "panel"]


def test_the_last_round_of_a_small_interleaved_tile_is_a_full_one():
    for shape, dtype in (((1447, 16, 21), "bfloat16"), ((21_795, 7, 3), "float32")):
        p = plan(shape, dtype, 1, device="H200", strategy="tile")
        at_a_time = p.threads // p.lanes_per_row
        rounds = -(-p.rows_per_block // at_a_time)
        assert p.rows_per_block >= 0.9 * rounds * at_a_time


def test_a_row_longer_than_an_int_has_a_plan():
    assert plan((2**37, 8), "float32", 0, device="H200").strategy == "split"
    assert plan((2**37, 8), "float32", 0, "logsumexp", device="H200").strategy == "strided"


@pytest.mark.parametrize("rows, least", [(7317, 400), (20_000, 528)])
@pytest.mark.parametrize("op", ["softmax", "masked_log_softmax"])
def test_few_rows_are_shared_out_in_small_tiles(op, rows, least):
    """Several to a multiprocessor, each with work for all of its threads at a time."""
    p = plan((rows, 116), "bfloat16", op=op, device="H200", strategy="tile")
    assert p.blocks >= least
    assert p.rows_per_block >= p.threads // p.lanes_per_row


def test_neighbours_that_fill_a_panel_badly_go_to_tiles():
    def chosen(columns, vectors, op="softmax"):
        return plan((1000, columns, 8 * vectors), "bfloat16", 1, op, device="H200").strategy

    assert [chosen(128, n) for n in (3, 4, 6, 8)] == ["tile", "panel", "tile", "panel"]
    assert [chosen(64, n) for n in (8, 12, 16)] == ["panel", "tile", "panel"]
    assert chosen(128, 6, "softmax_tangent") == "panel"  # at the limit all the same
    assert chosen(8, 33, "softmax_tangent") == "tile"
    assert chosen(256, 3) == chosen(256, 3, "softmax_tangent") == "tile"
    assert chosen(256, 6) == "panel"  # elements that lie apart by so much are in the same banks


def test_panels_of_longer_rows_are_as_wide_as_neighbours_fill_them():
    def lanes(columns, vectors, op="softmax", device="H200"):
        p = plan((1000, columns, 8 * vectors), "bfloat16", 1, op, device=device)
        assert p.strategy == "panel"
        return p.rows_per_block // 8

    # Without clusters.
    assert [lanes(400, n, device="A100") for n in (4, 8, 12, 14, 16)] == [4, 8, 4, 8, 8]
    assert [lanes(400, n) for n in (4, 8, 12, 14, 16)] == [4, 4, 4, 8, 4]  # 14 are no whole lines
    assert [lanes(1200, n, "softmax_tangent") for n in (8, 12)] == [8, 4]  # of clusters
    assert lanes(576, 14) == 8 and lanes(577, 14) == 4  # three blocks a multiprocessor
    assert lanes(200, 12) == 8


@pytest.mark.parametrize("op", ["softmax", "log_softmax_cotangent", "logsumexp"])
def test_panels_of_half_a_line_start_together_with_a_neighbour(op):
    def abreast(outer, columns, inner, dtype="bfloat16", device="H200", **kwargs):
        p = plan((outer, columns, inner), dtype, 1, op, device=device, **kwargs)
        assert p.strategy == "panel"
        # A row's bits do not depend on how many there are.
        same = plan((7, columns, inner), dtype, 1, op, device=device, **kwargs)
        for fact in ("threads", "rows_per_block", "lanes_per_row"):
            assert getattr(p, fact) == getattr(same, fact)
        panels = outer * -(-inner // p.rows_per_block)
        assert p.blocks == panels + panels % p.abreast
        return p.abreast

    assert [abreast(n, 640, 1024) for n in (1, 1000)] == [1, 2]
    assert abreast(999, 640, 96) == 2  # three panels each: the last one has a block for company
    assert abreast(1000, 640, 1024, "float32") == (1 if op == "logsumexp" else 2)
    assert abreast(1000, 200, 1024) == 1  # of whole lines
    # One for each of the first dimension: the next one's lines are others.
    assert abreast(10_000, 640, 32) == abreast(100_000, 300, 32) == 1
    assert abreast(1000, 640, 1024, device="A100") == 1
    if op != "logsumexp":
        assert abreast(1000, 640, 1024, "float32", output_dtype="bfloat16") == 1
    # As tests of the kernels want it, and an odd number of panels.
    assert abreast(*ABREAST) == 2 and ABREAST[0] % 2 == 1


def test_first_panels_start_by_turns_where_there_are_enough():
    def turns(outer, columns, inner, dtype="bfloat16", op="log_softmax"):
        p = plan((outer, columns, inner), dtype, 1, op, device="H200")
        assert p.strategy == "panel"
        assert p.turns == 1 or p.blocks >= p.turns * 132
        return p.turns

    assert turns(64, 1024, 1024) == turns(64, 1024, 1024, "float32") == 3
    assert turns(64, 1024, 1024, op="softmax") == 3
    assert [turns(n, 1024, 1024) for n in (1, 12, 13)] == [1, 1, 3]
    assert turns(436, 150, 1024) == 10
    assert turns(200, 280, 1024) == 1  # eleven half panels
    assert turns(64, 1024, 1024, "float64") == turns(64, 1024, 1024, op="logsumexp") == 1
    assert turns(64, 1024, 1024, op="softmax_tangent") == 1
    assert turns(64, 2048, 1024) == 1  # of clusters


@pytest.mark.parametrize("columns, inner, lanes", [(64, 2, 8), (64, 8, 4), (256, 8, 16)])
def test_lanes_of_a_tile_keep_out_of_each_others_banks(columns, inner, lanes):
    p = plan((1000, columns, inner), "bfloat16", 1, device="H200", strategy="tile")
    assert p.lanes_per_row == lanes


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("op", ["softmax", "softmax_tangent"])
def test_a_panel_that_one_block_has_no_room_for_goes_to_a_cluster(op, dtype):
    longest = 832 if op == "softmax_tangent" else 1728  # two to a multiprocessor

    def chosen(columns, device="H200", outer=64):
        return plan((outer, columns, 1024), dtype, 1, op, device=device)

    assert chosen(longest).cluster_blocks == 1 < chosen(longest + 1).cluster_blocks
    for columns in (longest + 1, 2048, 3001, 8192):
        p = chosen(columns)
        assert p.strategy == "panel"
        # The blocks' parts have all the columns.
        element_bytes = {"float32": 4, "bfloat16": 2, "float64": 8}[dtype]
        held = p.cluster_blocks * p.shared_bytes // (p.rows_per_block * element_bytes)
        assert held >= columns * (2 if op == "softmax_tangent" else 1)
        assert p.blocks == 64 * chosen(columns, outer=1).blocks
        assert p.blocks % p.cluster_blocks == 0
    assert chosen(8192, "A100").strategy == "strided"  # it has no clusters
    assert chosen(4096, "RTX 5090").strategy == "panel" and chosen(16_384).cluster_blocks > 8
    assert chosen(4096, "RTX 5090").cluster_blocks <= 8
    assert chosen(200_000).strategy == ("strided" if dtype == "float64" else "split")


def test_long_rows_that_leave_most_of_a_panel_idle_are_kept_all_together():
    def chosen(columns, vectors, op):
        return plan((1000, columns, 4 * vectors), "float32", 1, op, device="H200").strategy

    assert [chosen(1025, n, "softmax") for n in (1, 2, 3, 4)] == ["slab"] * 3 + ["panel"]
    assert [chosen(1025, n, "softmax_tangent") for n in (3, 4, 5)] == ["slab", "panel", "slab"]
    assert chosen(1025, 3, "logsumexp") == "panel" and chosen(1025, 1, "logsumexp") == "strided"
    # No cluster has room for these.
    assert [chosen(300_000, n, "softmax") for n in (1, 3)] == ["split", "split"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("op", ["softmax", "softmax_tangent"])
def test_rows_that_are_no_whole_vectors_go_to_slabs_where_these_are_long(op, dtype):
    def chosen(columns, inner, **kwargs):
        return plan((1000, columns, inner), dtype, 1, op, device="H200", **kwargs).strategy

    assert {chosen(64, n) for n in (2, 3, 7, 31)} == {"tile"}
    assert {chosen(n, 33) for n in (600, 1024, 1025, 5000, 8000)} == {"slab"}
    assert {chosen(n, 3) for n in (1025, 3000, 40_000)} == {"slab"}
    assert chosen(300, 249) == "slab"
    assert "slab" not in {chosen(300, 1271), chosen(20_000, 249)}  # too many rows, or bytes
    wide = {"bfloat16": "float32", "float32": "bfloat16"}[dtype]
    assert chosen(5000, 33, output_dtype=wide) == "strided"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("op", ["softmax", "log_softmax_cotangent"])
@pytest.mark.parametrize("device", ["H200", "RTX 5090", "A100"])
def test_a_slab_s_blocks_have_room_for_all_of_it(op, dtype, device):
    """Of whole periods: vectors after which elements are of the same rows again."""
    size = jnp.dtype(dtype).itemsize
    inputs, vector = 1 if op in FORWARD else 2, 16 // size
    found = collections.Counter()
    for columns, inner in itertools.product((2, 65, 1000, 4097, 30_011), (1, 2, 3, 8, 20, 33, 256)):
        try:
            p = plan((64, columns, inner), dtype, 1, op, device=device, strategy="slab")
        except ValueError as error:
            assert "do not fit" in str(error)
            continue
        found[p.cluster_blocks] += 1
        period = inner // math.gcd(inner, vector)
        assert p.threads % 32 == 0 and period <= p.threads <= 256
        # Wherever the slab begins among vectors; of groups of threads that have a period each.
        elements = columns * inner
        packs = elements // vector if elements % vector == 0 else (elements - 2) // vector + 2
        periods = -(-packs // (period * p.cluster_blocks))
        groups = p.threads // (32 if period <= 16 else period)
        statistics = (groups * period * vector + 2 * inner) * (4 if size == 2 else 12)
        needed = periods * period * 16 * inputs + statistics
        assert needed <= p.shared_bytes <= SHARED_LIMITS[device] - 1024
        assert p.blocks == 64 * p.cluster_blocks
    assert found[1]
    assert (max(found) > 8) == (device == "H200")
    assert (max(found) > 1) == (device != "A100")


def test_slabs_are_of_devices_whose_blocks_have_some_memory():
    with pytest.raises(ValueError, match="96 KB"):
        plan((64, 300, 5), "float32", 1, device="GTX 1080", strategy="slab")
    assert plan((64, 1200, 5), "float32", 1, device="GTX 1080").strategy == "strided"


def test_slabs_that_are_few_are_shared_by_more_blocks_where_their_number_may_decide():
    def slab(outer, batch_invariant, columns=4096, inner=8):
        shape = (outer, columns, inner)
        p = plan(shape, "bfloat16", 1, device="H200", batch_invariant=batch_invariant)
        assert p.strategy == "slab"
        return p.cluster_blocks

    assert [slab(n, True) for n in (1, 24, 1000)] == [1, 1, 1]
    assert [slab(n, False) for n in (1, 8, 24, 60, 1000)] == [6, 6, 2, 1, 1]
    # Of many statistics, of no more than eight blocks.
    assert [slab(2, flag, 1293, 158) for flag in (True, False)] == [4, 8]


@pytest.mark.parametrize("columns, inner", [(257, 17), (513, 11), (33, 125)])
def test_short_slabs_that_tiles_have_no_room_for_together_are_alone(columns, inner):
    assert plan((1000, columns, inner), "bfloat16", 1, device="H200").strategy == "slab"


@each_op
def test_a_thread_holds_few_columns_of_whole_vectors(op):
    def holds(columns, inner, dtype="bfloat16", **kwargs):
        p = plan((1000, columns, inner), dtype, 1, op, device="H200", **kwargs)
        return p.strategy == "strided" and p.shared_bytes == 0

    if op in PER_ROW:
        assert not any(holds(n, 8, strategy="strided") for n in (2, 4))
        return
    assert all(holds(n, 8) for n in (2, 3, 4)) and holds(4, 4, "float32")
    assert not any(holds(*problem) for problem in ((4, 9), (5, 8), (1, 8), (3, 4)))
    assert not holds(4, 8, "float64") and not holds(4, 8, output_dtype="float32")


@pytest.mark.parametrize("device, longest", [("H200", 57_344), ("RTX 5090", 12_288)])
def test_clusters_take_all_that_fits_them(device, longest):
    def chosen(columns):
        return plan((64, columns, 64), "float32", 1, device=device).strategy

    assert [chosen(longest + d) for d in (-1000, 0)] == ["panel"] * 2
    assert chosen(longest + 1) == ("split" if longest > 2**14 else "strided")


def test_a_value_for_each_row_is_not_shared_by_clusters():
    for columns in (1025, 2048):
        p = plan((64, columns, 1024), "float32", 1, "logsumexp", device="H200", strategy="panel")
        assert p.cluster_blocks == 1


@each_op
@pytest.mark.parametrize("device", SHARED_LIMITS)
def test_rows_along_another_axis_are_not_moved(op, device):
    def chosen(shape, axis):
        return plan(shape, "bfloat16", axis, op, device=device).strategy

    assert chosen((32, 21, 512, 512), 1) == chosen((64, 128, 1024), 1) == "panel"
    for inner in (2, 8, 33):  # too few side by side, or no whole vectors
        assert chosen((1000, 64, inner), 1) == "tile"
    kept = "slab" if device == "H200" else "split"  # its clusters have room for 2.8 MB
    assert chosen((3, 100_000, 7), 1) == ("strided" if op in PER_ROW else kept)
    for shape, axis in (((4, 5, 1), 1), ((4, 1, 1), 0)):
        assert chosen(shape, axis) in ROW_STRATEGIES


@each_op
@each_dtype
@pytest.mark.parametrize("device", SHARED_LIMITS)
def test_shared_memory_stays_below_the_devices_limit(op, dtype, device):
    plans = [plan((64, n), dtype, op=op, device=device) for n in LENGTHS]
    plans += [
        plan((64, n, inner), dtype, 1, op, device=device) for n in LENGTHS for inner in (3, 64)
    ]
    assert max(p.shared_bytes for p in plans) <= SHARED_LIMITS[device]
    assert any(p.shared_bytes > 0 for p in plans)


@each_op
@each_dtype
@each_device
def test_every_plan_has_a_sane_geometry(op, dtype, device):
    for n, axis in itertools.product(LENGTHS, (0, 1)):
        p = plan((37, n), dtype, axis, op, device=device)
        assert min(p.threads, p.blocks, p.lanes_per_row, p.rows_per_block, p.vector_bytes) >= 1
        assert p.vector_bytes % dtype.itemsize == 0
        if device != "cpu":
            assert p.threads <= 1024 and p.vector_bytes <= 16
        rows = 37 if axis == 1 else n
        in_turn = p.strategy in ("ring", "stream", "strided")  # a block goes on to more rows
        assert in_turn or p.blocks * p.rows_per_block >= rows


@each_op
@each_pair
def test_bytes_moved_is_every_operand_once(op, dtype, output_dtype):
    inputs = 1 if op in FORWARD else 2
    for device in DEVICES:
        p = plan((37, 129), dtype, op=op, device=device, output_dtype=output_dtype)
        assert p.bytes_moved == 37 * 129 * (inputs * dtype.itemsize + output_dtype.itemsize)


@each_op
@each_pair
@pytest.mark.parametrize("n", [128, 20_000, 100_000, 1_000_000])  # of 2,049 to 8,192 it decides
def test_the_results_dtype_does_not_change_how_a_row_is_read(op, dtype, output_dtype, n):
    if op in FORWARD and n == 20_000 and output_dtype.itemsize > dtype.itemsize:
        wider = plan((37, n), dtype, op=op, device="H200", output_dtype=output_dtype)
        assert wider.strategy == "ring"
        return
    for device in DEVICES:
        plain, other = (
            plan((37, n), dtype, op=op, device=device, output_dtype=d) for d in (None, output_dtype)
        )
        for field in ("strategy", "vector_bytes", "shared_bytes", "rows_per_block"):
            assert getattr(plain, field) == getattr(other, field)


@each_op
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("device", SHARED_LIMITS)
@pytest.mark.parametrize("n", [21, 64, 3001, 1_000_000])
def test_a_batch_invariant_plan_is_the_same_for_any_number_of_rows(op, dtype, device, n):
    def geometry(rows):
        p = plan((rows, n), dtype, op=op, device=device, batch_invariant=True)
        return p.strategy, p.threads, p.lanes_per_row, p.vector_bytes

    assert len({geometry(rows) for rows in (1, 2, 7, 1000, 100_000)}) == 1


@each_op
def test_a_forced_split_is_batch_invariant_too(op):
    def parts(rows, batch_invariant):
        p = plan(
            (rows, 300_000),
            "float32",
            op=op,
            device="H200",
            strategy="split",
            batch_invariant=batch_invariant,
        )
        return p.lanes_per_row // p.threads

    assert parts(1, True) == parts(4, True) == parts(1000, True) < parts(4, False) < parts(1, False)


def test_rows_along_another_axis_are_split_by_blocks_that_have_all_neighbours():
    def split(shape, dtype="float32", **kwargs):
        return plan(shape, dtype, 1, device="H200", strategy="split", **kwargs)

    def parts(shape, **kwargs):
        p = split(shape, **kwargs)
        return p.lanes_per_row // p.threads, p.blocks

    # As many as keep the device busy, no more than a block may read the statistics of, and none
    # that are not worth a block.
    assert parts((1, 10**6, 10), batch_invariant=False) == (128, 128)
    assert parts((8, 10**6, 10), batch_invariant=False) == (64, 512)
    assert parts((1, 4096, 1000), batch_invariant=False) == (16, 16)
    assert parts((1, 4096, 40)) == (10, 10) and parts((1, 4096, 4)) == (1, 1)
    assert parts((1, 10**6, 2048), batch_invariant=False) == (128, 256)
    assert parts((1, 10**6, 10)) == (128, 128) and parts((1000, 10**6, 10)) == (128, 128_000)
    assert split((1, 10**6, 10)).rows_per_block == 10
    assert split((1, 10**6, 2056)).rows_per_block == 1024
    with pytest.raises(ValueError, match="too many ways"):
        split((1, 10**6, 1025))
    with pytest.raises(ValueError, match="converted"):
        split((1, 10**6, 10), output_dtype="bfloat16")
    with pytest.raises(ValueError, match="64 bits"):
        split((1, 10**6, 10), "float64")
    with pytest.raises(ValueError, match="too many neighbours"):
        split((1, 2, 2**28))


@each_op
@pytest.mark.parametrize("device", SHARED_LIMITS)
def test_long_rows_along_another_axis_are_split_where_that_makes_a_few_parts(op, device):
    def chosen(shape, batch_invariant=True):
        p = plan(shape, "bfloat16", 1, op, device=device, batch_invariant=batch_invariant)
        return p.strategy

    shapes = (9, 2**14, 250), (9, 2**14 - 1, 250), (9, 60_000, 2049)
    expected = "strided" if op in PER_ROW else "split"
    assert [chosen(s) for s in shapes] == [expected, "strided", "strided"]
    assert [chosen((9, n, 250), False) for n in (4096, 4095)] == ["split", "strided"]
    if op in PER_ROW:  # others' neighbours of so few bytes in all are a slab
        assert [chosen((9, n, 5), False) for n in (2**14, 4096)] == ["split", "strided"]


@pytest.mark.parametrize("inner", [4, 7, 1024])
@pytest.mark.parametrize("n", [21, 3001, 100_000])
def test_so_is_that_of_rows_along_another_axis_but_for_their_layout(n, inner):
    plans = [plan((outer, n, inner), "float32", 1, device="H200") for outer in (1, 2, 1000)]
    assert len({(p.strategy, p.threads, p.lanes_per_row) for p in plans}) == 1


@each_op
@pytest.mark.parametrize("device", SHARED_LIMITS)
def test_few_long_rows_are_split_only_where_rows_may_depend_on_their_number(op, device):
    def chosen(rows, batch_invariant):
        shape = (rows, 128_256)
        return plan(shape, "bfloat16", op=op, device=device, batch_invariant=batch_invariant)

    one, eight = chosen(1, False), chosen(8, False)
    assert one.strategy == eight.strategy == "split"
    assert one.lanes_per_row >= eight.lanes_per_row > 4 * one.threads
    others = {
        chosen(rows, flag).strategy for rows, flag in ((1, True), (1000, True), (1000, False))
    }
    # Two operands' parts are too much for the smaller one's shared memory.
    expected = {"H200": "ring", "RTX 5090": "ring" if op in FORWARD else "cluster"}
    assert others == {expected.get(device, "stream")}


@pytest.mark.parametrize(
    "device, shape, dtype, blocks",
    [
        ("H200", (1, 32_768), "bfloat16", 8),
        ("H200", (12, 50_264), "bfloat16", 8),
        ("H200", (16, 32_768), "bfloat16", 4),
        ("H200", (16, 16_384), "bfloat16", 4),
        ("H200", (16, 16_384), "float32", 4),
        ("H200", (12, 65_536), "float32", 16),
        ("H200", (12, 131_072), "bfloat16", 16),
        ("RTX 5090", (2, 65_536), "bfloat16", 8),
        # More rows, longer ones, no whole vectors, other types, no clusters.
        ("H200", (13, 131_072), "bfloat16", 1),
        ("H200", (12, 131_080), "bfloat16", 1),
        ("H200", (8, 50_257), "bfloat16", 1),
        ("H200", (8, 32_768), "float64", 1),
        ("H200", (8, 32_768), "float16", 1),
        ("RTX 5090", (2, 65_544), "bfloat16", 1),
        ("A100", (2, 65_536), "bfloat16", 1),
    ],
)
def test_few_rows_are_split_by_clusters_that_have_room_for_them(device, shape, dtype, blocks):
    split = plan(shape, dtype, device=device, batch_invariant=False)
    assert split.strategy == "split" and split.cluster_blocks == blocks
    if blocks > 1:
        assert split.blocks == shape[0] * blocks and split.lanes_per_row == split.threads * blocks
    derivative = plan(shape, dtype, op="softmax_tangent", device=device, batch_invariant=False)
    kept = plan(shape, dtype, device=device, strategy="split", batch_invariant=True)
    assert derivative.cluster_blocks == kept.cluster_blocks == 1


@pytest.mark.parametrize(
    "device, shape, dtype, op, expected",
    [
        ("H200", (16, 262_144), "float32", "softmax", "split"),
        ("H200", (17, 262_144), "float32", "softmax", "ring"),
        ("H200", (5, 1_000_000), "float32", "softmax", "ring"),
        ("H200", (8, 1_000_000), "float32", "softmax_tangent", "ring"),
        # No ring takes these.
        ("H200", (1, 5_000_000), "float32", "softmax", "split"),
        ("H200", (3, 2**20), "float64", "log_softmax", "split"),
        ("RTX 5090", (5, 1_000_000), "float32", "softmax", "split"),
        ("A100", (5, 1_000_000), "float32", "softmax", "split"),
    ],
)
def test_few_rows_of_many_bytes_are_split_where_no_ring_takes_them(
    device, shape, dtype, op, expected
):
    p = plan(shape, dtype, op=op, device=device, batch_invariant=False)
    assert p.strategy == expected


def test_more_rows_are_split_for_a_value_each():
    def chosen(rows, columns, dtype="bfloat16"):
        shape = (rows, columns)
        return plan(shape, dtype, op="logsumexp", device="H200", batch_invariant=False).strategy

    assert chosen(64, 32_768) == chosen(3906, 4_000_000, "float32") == "split"
    assert chosen(65, 32_768) == chosen(3907, 4_000_000, "float32") == "stream"
    assert chosen(1, 32_760) == "stream"


def test_masks_have_plans():
    problem = (8, 16, 2048, 2048), "bfloat16"
    for device, expected in (
        ("H200", ["warp", "registers", "block", "cluster", "stream"]),
        ("A100", ["warp", "registers", "block", "stream"]),
    ):
        chosen = [
            plan((4096, n), "bfloat16", op="masked_softmax", device=device).strategy
            for n in range(256, 2**21, 4096)
        ]
        assert [s for s, _ in itertools.groupby(chosen)] == expected
    assert plan(*problem, axis=1, op="masked_softmax", device="H200").strategy == "strided"
    with pytest.raises(ValueError, match="take no masks"):
        plan(*problem, op="masked_softmax", device="H200", strategy="split")
    for shape, axis, why in (
        ((8, 2048), -1, "does not fit"),
        ((8, 20), -1, "too short"),
        ((8, 64, 5), 1, "along the last axis"),
    ):
        with pytest.raises(ValueError, match=why):
            plan(shape, "bfloat16", axis, "masked_softmax", device="H200", strategy="tile")
    assert plan(*problem, op="masked_softmax", device="cpu").strategy == "row"
    assert plan((64, 20), "bfloat16", op="masked_softmax", device="cpu").strategy == "lanes"
    for axis, strategy, why in (
        (1, "auto", "contiguous"),
        (-1, "slices", "take no masks"),
        (1, "strided", "take no masks"),
        (-1, "lanes", "short rows"),
    ):
        with pytest.raises(ValueError, match=why):
            plan(*problem, axis, op="masked_softmax", device="cpu", strategy=strategy)


@pytest.mark.parametrize("op", ["masked_softmax", "masked_log_softmax"])
def test_masked_rows_that_fill_others_badly_go_to_tiles(op):
    def chosen(dtype, *columns):
        return {plan((4096, n), dtype, op=op, device="H200").strategy for n in columns}

    for dtype in ("bfloat16", "float32"):
        assert chosen(dtype, 29, 40, 49, 72, 160, 197, 257, 320, 511, 577) == {"tile"}
        assert chosen(dtype, 17, 28, 64, 96, 128, 192, 256) == {"warp"}
        assert chosen(dtype, 640, 768, 897, 1001) == {"registers"}
    assert chosen("bfloat16", 448, 512) == {"warp"}
    assert chosen("float32", 448, 512) == {"registers"}
    assert chosen("bfloat16", 641, 785, 895) == {"tile"}
    assert chosen("float32", 641, 785, 895) == {"registers"}
    assert chosen("float64", 49, 197) == {"warp"}


@pytest.mark.parametrize("op", ["masked_softmax", "masked_log_softmax"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_masked_rows_in_registers_leave_few_places_empty(op, dtype):
    """Of blocks whose size is compiled: one for each length, so large as it must be."""
    vector = 16 // jnp.dtype(dtype).itemsize
    for columns in range(768, 8192 + 1, vector):
        chosen = plan((4096, columns), dtype, op=op, device="H200")
        assert chosen.strategy == "registers"
        # A lane holds as many elements as its vectors have room for.
        places = min(n for held in (16, 24, 32) if (n := chosen.threads * held) >= columns)
        assert places < 1.5 * columns
    for columns in (8192 + vector, 8200 + vector):
        assert plan((4096, columns), dtype, op=op, device="H200").strategy != "registers"


@pytest.mark.parametrize("strategy", ["tile", "panel", "strided"])
def test_rows_that_there_are_none_of(strategy):
    assert plan((5, 0), "float32", 0, device="H200", strategy=strategy).bytes_moved == 0


@pytest.mark.parametrize("strategy", ("auto", *AXIS_STRATEGIES))
@pytest.mark.parametrize("shape", [(0, 5, 0), (4, 5, 0), (0, 0, 0), (4, 0, 8), (0, 5, 8)], ids=str)
def test_empty_problems_along_another_axis_have_plans(strategy, shape):
    assert plan(shape, "float32", 1, device="H200", strategy=strategy).bytes_moved == 0


@each_device
@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (4000, 0), (0,), (0, 0)], ids=str)
def test_empty_problems_have_plans(device, shape):
    for axis in range(len(shape)):
        assert plan(shape, "float32", axis, device=device).bytes_moved == 0


@pytest.mark.parametrize("strategy", CUDA_STRATEGIES)
def test_a_strategy_can_be_forced(strategy):
    shape, axis = ((8, 16, 32), 1) if strategy in AXIS_STRATEGIES else ((8, 64), 1)
    assert plan(shape, "float32", axis, device="H200", strategy=strategy).strategy == strategy


@pytest.mark.parametrize("strategy", ["row", "slices", "lanes", "strided"])
def test_a_cpu_strategy_can_be_forced(strategy):
    assert plan((8, 64), "float32", device="cpu", strategy=strategy).strategy == strategy


@each_op
@each_dtype
def test_cpu_strategies_follow_the_shape(op, dtype):
    def chosen(shape, axis=-1):
        return plan(shape, dtype, axis, op, device="cpu", batch_invariant=False).strategy

    assert [chosen((4096, n)) for n in (1, 16, 64, 50_257)] == ["lanes", "lanes", "row", "row"]
    assert [chosen((7, n)) for n in (64, 16_384, 50_257)] == ["row", "row", "slices"]
    assert plan((7, 50_257), dtype, -1, op, device="cpu").strategy == "row"
    # Rows that lie interleaved by two fill any vector; by three, or by many, they do not.
    inner = [chosen((100, 64, n), 1) for n in (2, 3, 33, 512)]
    assert inner == ["row", "lanes", "strided", "strided"]
    assert chosen((2, 50_257, 2), 1) == "slices"
    assert chosen((2, 64, 3), 1) == "strided"


LONGEST_OF_LANES = [  # op, dtype, columns
    ("softmax", "float32", 103),
    ("log_softmax", "bfloat16", 103),
    ("softmax_tangent", "float16", 79),
    ("log_softmax_cotangent", "float32", 47),
    ("softmax", "float64", 47),
    ("logsumexp", "float32", 47),
    ("masked_softmax", "float32", 47),
]


@pytest.mark.parametrize("op, dtype, columns", LONGEST_OF_LANES)
def test_a_cpus_lanes_take_rows_of_few_vectors(op, dtype, columns):
    def chosen(n):
        return plan((4096, n), dtype, op=op, device="cpu").strategy

    lengths = [n for n in range(30, 120) if chosen(n) == "lanes"]
    assert lengths == [n for n in range(30, columns + 1) if n != 64]


def test_threads_share_few_long_rows_on_a_cpu():
    few = plan((1, 1_000_000), "float32", device="cpu", batch_invariant=False)
    assert few.blocks > 32
    interleaved = plan((1, 50_000, 2), "float32", 1, device="cpu", batch_invariant=False)
    assert interleaved.blocks > 4


BAD_ARGUMENTS = {
    "op": ({"op": "softmin"}, "softmin"),
    "device": ({"device": "H9000"}, "H9000"),
    "strategy": ({"strategy": "magic"}, "magic"),
    "strategy of another backend": ({"strategy": "row"}, "row"),
    "strategy of another device": ({"strategy": "warp", "device": "cpu"}, "warp"),
    "dtype": ({"dtype": "int32"}, "int32"),
    "complex": ({"dtype": "complex64"}, "complex64"),
    "unknown dtype": ({"dtype": "float33"}, "float33"),
    "unknown output dtype": ({"output_dtype": "float33"}, "float33"),
    "integer output": ({"output_dtype": "int32"}, "int32"),
    "no kernel for this pair": ({"output_dtype": "float64"}, "from float32 to float64"),
    "axis": ({"axis": 2}, "axis 2 is out of bounds"),
    "a row too long": ({"shape": (4, 2**20), "strategy": "warp"}, "warp"),
    "a row too long for a block": ({"shape": (4, 2**20), "strategy": "block"}, "block"),
    "an axis that is not last": ({"axis": 0, "strategy": "stream"}, "stream"),
    "a device without clusters": ({"device": "A100", "strategy": "cluster"}, "no clusters"),
    "a device without a ring": ({"device": "A100", "strategy": "ring"}, "no copies by the block"),
    "a row too long for a ring": ({"shape": (4, 2**22), "strategy": "ring"}, "too long"),
    "a row too long to split": ({"shape": (1, 2**31), "strategy": "split"}, "too long"),
    "too many rows to split": ({"shape": (2**29, 8192), "strategy": "split"}, "too many rows"),
    "two inputs": ({"op": "softmax_tangent", "strategy": "registers"}, "one .*input"),
}


@pytest.mark.parametrize("case", BAD_ARGUMENTS)
def test_what_cannot_run_is_refused_by_name(case):
    kwargs, message = BAD_ARGUMENTS[case]
    with pytest.raises(ValueError, match=message):
        plan(**{"shape": (4, 5), "dtype": "float32", "device": "H200"} | kwargs)


@pytest.mark.parametrize("shape", [5, None, (4, 0.5), np.ones((2, 2))], ids=str)
def test_a_shape_is_a_sequence_of_ints(shape):
    with pytest.raises(TypeError, match="shape wants a sequence of ints"):
        plan(shape, "float32", device="H200")


def test_the_command_line_prints_versions_backends_and_plans():
    command = [sys.executable, "-P", "-m", "jax_softmax"]
    out = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    assert f"jax_softmax {jax_softmax.__version__}" in out
    assert f"jax {jax.__version__}" in out
    assert "backend cpu: registered" in out
    assert "backend cuda: " in out
    assert out.count("Plan(device=") >= 3
    assert f"device 0: {jax.devices()[0].platform}" in out


@pytest.mark.gpu
@each_op
@each_pair
@pytest.mark.parametrize("n", [64, 3000, 3001, 12_000, 40_001])
def test_the_block_kernels_occupancy_is_what_cuda_says(op, dtype, output_dtype, n):
    """The plan computes it from a table of registers; see cuda/registers.h."""
    device = jax.devices("cuda")[0]
    cuda, cpu = native_module("cuda"), native_module("cpu")
    try:
        chosen = plan(
            (16, n), dtype, op=op, device=device, strategy="block", output_dtype=output_dtype
        )
    except ValueError:
        pytest.skip("the row does not fit a block")
    limits = cuda.device(device.local_hardware_id)
    problem = op, (16, n), 1, str(dtype), str(output_dtype)
    measured = cuda.resident_blocks(*problem, "block", True, device.local_hardware_id)
    computed = cpu.resident_blocks(*problem, True, chosen.threads, chosen.shared_bytes, limits)
    assert computed == measured
