"""Products of blocks that the hardware copies: values at any shape, block, offset and rank, on each machine."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from gristmill.compiler.ir import walk
from gristmill.compiler.prepare import prepare
from gristmill.compiler.simt import windows
from gristmill.compiler.simt.machine import SimtMachine
from gristmill.compiler.simt.run import run_simulated
from gristmill.compiler.targets import TARGETS, cuda_roles, cuda_windows, thread_products
from gristmill.specialisation import VARIANTS
from gristmill.symbolic import evaluate
from machines import MACHINES, bfloat16, kernel_of

KINDS = {"f16": "float16", "bf16": bfloat16, "f32": "float32"}


def run_windows(*arguments, **named):
    """Run a kernel on the simulated sm_90a; returns the arrays of which blocks were copied as windows.

    The simulated device goes by the numbers that the program computes, the hardware by the map: they must agree.
    """
    copied = set()
    bind, copy = SimtMachine.bind, windows.copy

    def bind_and_keep(m, given):
        m.bound = bind(m, given)
        return m.bound

    def compare_and_copy(m, op, window, ring, start):
        tensor_map, rank = m.function.maps[op.attributes["map"]], len(op.attributes["block"])
        numbers = [m.bound[value].each.item() for value in m.function.parameters]
        base, *rest = (x.each for x in window)
        codes = [*reversed(tensor_map.extents), *reversed(tensor_map.strides)]
        assert [evaluate(code, numbers) for code in codes] == rest[: 2 * rank - 1]
        assert m.function.parameters[numbers.index(base)].name == tensor_map.parameter
        assert base % 16 == 0 and all(stride * ring.dtype.itemsize % 16 == 0 for stride in rest[rank : 2 * rank - 1])
        copied.add(tensor_map.parameter)
        copy(m, op, window, ring, start)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimtMachine, "bind", bind_and_keep)
        patch.setattr(windows, "copy", compare_and_copy)
        run_simulated(*arguments, target="sm_90a", **named)
    return copied


def run_with_pointers(*arguments, **named):
    run_simulated(*arguments, target="sm_80", **named)


RUNS = MACHINES | {
    "simt": pytest.param(run_windows, id="sm_90a"),
    "sm_80": pytest.param(run_with_pointers, id="sm_80"),
}
on_each = pytest.mark.parametrize("run", list(RUNS.values()))


def prepared(kernel, target: str = "sm_90a", variant: int = 0):
    """The function of a target and variant."""
    given = kernel, kernel.specialisations()[0], VARIANTS[variant], TARGETS[target]
    return prepare(*given, lambda stage, thing: None)[0]


def integers(*shape, seed: int = 0, dtype: str = "f16"):
    """Small integers: products and sums of them are exact."""
    return np.random.default_rng(seed + sum(shape)).integers(-3, 4, shape).astype(KINDS[dtype])


def wide(x):
    return x.astype("f8")


PRODUCT = """
@gm.kernel(grid=lambda m, n: (gm.cdiv(m, {M}), gm.cdiv(n, {N})), num_warps={warps}, num_stages={stages})
def k(a: gm.ptr[gm.{dtype}], b: gm.ptr[gm.{dtype}], c: gm.ptr[gm.f32], m: gm.shape["c", 0], n: gm.shape["c", 1],
      depth: gm.shape["a", {axis}]):
    left = tl.make_tensor_descriptor(a, {left})
    right = tl.make_tensor_descriptor(b, {right})
    row, column = tl.program_id(0) * {M}, tl.program_id(1) * {N}
    acc = tl.zeros(({M}, {N}), tl.float32)
    for start in range(0, depth, {K}):
        acc = tl.dot({x}, {y}, acc)
    rows, columns = row + tl.arange(0, {M}), column + tl.arange(0, {N})
    tl.store(c + rows[:, None] * n + columns[None, :], acc, mask=(rows[:, None] < m) & (columns[None, :] < n))
"""


def product_source(tile=(64, 64, 64), warps=4, stages=3, *, turned="", dtype="f16"):
    """A product of blocks; `turned` names the arrays that lie as their transposes."""
    M, N, K = tile
    left = f"[depth, m], [m, 1], [{K}, {M}]" if "a" in turned else f"[m, depth], [depth, 1], [{M}, {K}]"
    right = f"[n, depth], [depth, 1], [{N}, {K}]" if "b" in turned else f"[depth, n], [n, 1], [{K}, {N}]"
    x = "left.load([start, row]).T" if "a" in turned else "left.load([row, start])"
    y = "right.load([column, start]).T" if "b" in turned else "right.load([start, column])"
    axis = 0 if "a" in turned else 1
    return PRODUCT.format(**locals())


def product_kernel(*given, **named):
    return kernel_of(product_source(*given, **named))


def run_product(run, kernel, shape, *, turned="", dtype="f16"):
    """Returns what was computed, what is right, and what `run` returned."""
    m, n, depth = shape
    a, b = integers(m, depth, dtype=dtype), integers(depth, n, seed=1, dtype=dtype)
    c = np.full((m, n), np.nan, "f4")
    given = [np.ascontiguousarray(x.T) if name in turned else x for name, x in (("a", a), ("b", b))]
    found = run(kernel, None, *given, c)
    return c, wide(a) @ wide(b), found


TILES = [  # rows, columns, depth; warps, stages
    ((64, 16, 16), 4, 2),
    ((64, 32, 32), 8, 3),
    ((64, 64, 64), 4, 4),
    ((64, 128, 64), 8, 3),
    ((64, 256, 16), 4, 2),
    ((128, 16, 128), 4, 3),
    ((128, 64, 32), 8, 2),
    ((128, 128, 64), 8, 4),
]
TURNED = ["", "a", "b", "ab"]


@pytest.mark.parametrize("turned", TURNED, ids=["plain", "a", "b", "both"])
@pytest.mark.parametrize(("tile", "warps", "stages"), TILES, ids=str)
def test_blocks_of_any_size_are_copied_either_way(tile, warps, stages, turned):
    """No length is a multiple of the block; rows of arrays start on 16 bytes."""
    M, N, K = tile
    kernel = product_kernel(tile, warps, stages, turned=turned)
    c, want, copied = run_product(run_windows, kernel, (M + 8, N - 8, K + 8), turned=turned)
    assert (c == want).all() and copied == {"a", "b"}


@on_each
@pytest.mark.parametrize("shape", [(64, 64, 64), (65, 72, 72), (1, 8, 8), (63, 56, 72), (64, 64, 0), (65, 63, 33)])
def test_products_of_any_shape(run, shape):
    """The last one's rows do not start on 16 bytes: another variant serves it."""
    c, want, copied = run_product(run, product_kernel(), shape)
    assert (c == want).all()
    if run is run_windows:
        assert copied == ({"a", "b"} if shape[2] % 8 == 0 < shape[2] else set())


@on_each
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("shape", [(64, 72, 37), (72, 64, 1)])
def test_depth_is_of_any_length_where_no_row_goes_along_it(run, dtype, shape):
    kernel = product_kernel(turned="a", dtype=dtype)
    c, want, copied = run_product(run, kernel, shape, turned="a", dtype=dtype)
    assert (c == want).all()
    assert run is not run_windows or copied == {"a", "b"}


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5, 9])
def test_any_number_of_stages_and_steps_gives_the_product(stages, steps):
    kernel = product_kernel((64, 16, 16), stages=stages)
    c, want, copied = run_product(run_windows, kernel, (64, 16, 16 * steps))
    assert (c == want).all() and copied == {"a", "b"}


# ---- where blocks lie ------------------------------------------------------------------------------------------------

SQUARE = "tl.arange(0, 64)[:, None] * 64 + tl.arange(0, 64)[None, :]"
PLACED = f"""
@gm.kernel(grid=1, num_warps=4, num_stages=3)
def k(a: gm.ptr[gm.f16], b: gm.ptr[gm.f16], c: gm.ptr[gm.f32], x: gm.{{kind}}, m: gm.shape["a", 0],
      depth: gm.shape["a", 1], steps: gm.shape["b", 0]):
    left = tl.make_tensor_descriptor({{base}}, {{array}}, [64, 64]{{padding}})
    right = tl.make_tensor_descriptor(b, [steps, 64], [64, 1], [64, 64])
    acc = tl.zeros((64, 64), tl.float32)
    for start in range(0, steps, 64):
        acc = tl.dot(left.load({{place}}), right.load([start, 0]), acc)
    tl.store(c + {SQUARE}, acc)
"""


def placed_kernel(array="[m, depth], [depth, 1]", place="[0, start]", kind="i32", base="a", padding=""):
    return kernel_of(PLACED.format(**locals()))


def run_placed(run, kernel, rows, x=0, *, size=(40, 136), beyond=24, at=(0, 0), padding=0.0):
    """Multiply a block of the matrix that `rows` makes of an array: it begins at `at` and ends `beyond` the columns."""
    a = integers(*size)
    matrix = np.asarray(rows(a))
    b = integers(matrix.shape[1] + beyond, 64, seed=1)
    c = np.full((64, 64), np.nan, "f4")
    found = run(kernel, None, a, b, c, x=x)
    places = [np.arange(length) + start for start, length in zip(at, (64, len(b)), strict=True)]
    block = np.full((64, len(b)), padding)
    inside = [(p >= 0) & (p < length) for p, length in zip(places, matrix.shape, strict=True)]
    block[np.ix_(*inside)] = matrix[np.ix_(*(p[i] for p, i in zip(places, inside, strict=True)))]
    with np.errstate(invalid="ignore"):
        return c, block @ wide(b), found


def same(c, want):
    np.testing.assert_array_equal(c, want)


def itself(a):
    return a


def overlapping(a):
    return np.lib.stride_tricks.as_strided(a, (len(a), 64), (32, 2))


@on_each
@pytest.mark.parametrize("x", [1, 40, -1, -64, 2147483584, -2147483648])
def test_rows_outside_of_the_array_are_zeros(run, x):
    c, want, copied = run_placed(run, placed_kernel(place="[x, start]"), itself, x, at=(x, 0))
    same(c, want)
    assert run is not run_windows or copied == {"a", "b"}


@on_each
@pytest.mark.parametrize("x", [7, 8, 100, -1, -200, 2147483392])
def test_columns_outside_of_the_array_are_zeros(run, x):
    """The hardware copies no block whose columns begin elsewhere than on 16 bytes."""
    c, want, copied = run_placed(run, placed_kernel(place="[0, start + x]"), itself, x, at=(0, x))
    same(c, want)
    assert run is not run_windows or copied == ({"a", "b"} if x % 8 == 0 else set())


ARRAYS = {  # as descriptors, and in numpy
    "[m - 1, depth], [depth, 1]": lambda a: a[:-1],
    "[m, depth - 3], [depth, 1]": lambda a: a[:, :-3],
    "[m // 2, depth * 2], [depth * 2, 1]": lambda a: a.reshape(len(a) // 2, -1),
    "[m // 2, depth], [depth * 2, 1]": lambda a: a[::2],
    "[(m + 2) // 3, depth - 8], [3 * depth, 1]": lambda a: a[::3, :-8],
    "[x, depth], [depth, 1]": lambda a: a[:24],
    "[m - x, x], [(depth + 7) // 8 * 8, 1]": lambda a: a[:-24, :24],
    "[x, 120], [136, 1]": lambda a: a[:24, :120],
    "[m, 64], [16, 1]": overlapping,
}


@on_each
@pytest.mark.parametrize("array", ARRAYS)
def test_sizes_and_strides_follow_from_arguments(run, array):
    c, want, copied = run_placed(run, placed_kernel(array), ARRAYS[array], 24)
    same(c, want)
    assert run is not run_windows or copied == {"a", "b"}


@pytest.mark.parametrize("run", [run_windows, run_with_pointers])
def test_an_array_that_has_no_rows_gives_zeros(run):
    c, want, _ = run_placed(run, placed_kernel("[m - 1, depth], [depth, 1]"), lambda a: a[:-1], size=(1, 136))
    assert (want == 0).all()
    same(c, want)


@on_each
def test_the_hardware_pads_with_zeros_alone(run):
    kernel = placed_kernel(padding=", padding_option='nan'")
    c, want, copied = run_placed(run, kernel, itself, size=(40, 128), beyond=0, padding=np.nan)
    same(c, want)
    assert run is not run_windows or copied == {"b"}


# ---- numbers that a map and a program compute differently ------------------------------------------------------------

DIFFERENT = {  # sizes of which bits, signs or zeros count, an argument, and what they are of 65 rows
    "(m - 66) // 2 + 40": ("i32", 1, 40),
    "m // x - 25": ("i32", 0, 40),
    "(m * 4).to(tl.int8)": ("i32", 1, 4),
    "(m * 1024 - 1000).to(tl.int16).to(tl.int32)": ("i32", 1, 24),
    "x.to(tl.int32)": ("f32", 40.7, 40),
    "x.to(tl.int32) + 1": ("bool_", True, 2),
}


@pytest.mark.parametrize("rows", DIFFERENT)
def test_sizes_are_what_the_program_computes(rows):
    kind, x, length = DIFFERENT[rows]
    kernel = placed_kernel(f"[{rows}, depth], [depth, 1]", kind=kind)
    c, want, _ = run_placed(run_windows, kernel, lambda a: a[:length], x, size=(65, 64), beyond=0)
    same(c, want)


# ---- one matrix of many ----------------------------------------------------------------------------------------------

BATCHED = """
@gm.kernel(grid=lambda m, batch: (gm.cdiv(m, 64), batch), num_warps=4, num_stages=3)
def k(a: gm.ptr[gm.f16], b: gm.ptr[gm.f16], c: gm.ptr[gm.f32], depth: gm.i32, batch: gm.shape["c", 0],
      m: gm.shape["c", 1], n: gm.shape["c", 2]):
    left = tl.make_tensor_descriptor(a, {left})
    right = tl.make_tensor_descriptor(b, {right})
    row, i = tl.program_id(0) * 64, tl.program_id(1)
    acc = tl.zeros((64, 32), tl.float32)
    for start in range(0, depth, 32):
        acc = tl.dot({x}, {y}, acc)
    rows, columns = row + tl.arange(0, 64)[:, None], tl.arange(0, 32)[None, :]
    tl.store(c + i * (m * n) + rows * n + columns, acc, mask=(rows < m) & (columns < n))
"""
LEFT = {  # arrays as descriptors, what is loaded, and how an array of [batch, m, depth] becomes them
    "matrices": (
        "[batch, m, depth], [m * depth, depth, 1], [1, 64, 32]",
        "left.load([i, row, start]).reshape(64, 32)",
        itself,
    ),
    "turned": (
        "[batch, depth, m], [depth * m, m, 1], [1, 32, 64]",
        "left.load([i, start, row]).reshape(32, 64).T",
        lambda a: a.swapaxes(1, 2),
    ),
    "pairs": (
        "[batch // 2, 2, m, depth], [2 * m * depth, m * depth, depth, 1], [1, 1, 64, 32]",
        "left.load([i // 2, i % 2, row, start]).reshape(64, 32)",
        lambda a: a.reshape(-1, 2, *a.shape[1:]),
    ),
    "fives": (
        "[2, 1, batch // 2, m, depth], [m * depth, m, 2 * m * depth, depth, 1], [1, 1, 1, 64, 32]",
        "left.load([i % 2, 0, i // 2, row, start]).reshape(64, 32)",
        itself,
    ),
}
RIGHT = {
    "one": ("[depth, n], [n, 1], [32, 32]", "right.load([start, 0])", lambda b: b[0]),
    "matrices": (
        "[batch, depth, n], [depth * n, n, 1], [1, 32, 32]",
        "right.load([i, start, 0]).reshape(32, 32)",
        itself,
    ),
    "turned": (
        "[batch, n, depth], [n * depth, depth, 1], [1, 32, 32]",
        "right.load([i, 0, start]).reshape(32, 32).T",
        lambda b: b.swapaxes(1, 2),
    ),
}


@on_each
@pytest.mark.parametrize(
    ("left", "right"), [*((x, "matrices") for x in LEFT), ("matrices", "one"), ("pairs", "turned")]
)
def test_windows_may_be_of_one_matrix_of_many(run, left, right):
    """Nothing beyond a matrix's own rows and columns is read, though other matrices lie there."""
    m, n, depth = 72, 24, 56
    a, b = integers(4, m, depth), integers(4, depth, n, seed=1)
    c = np.full((4, m, n), np.nan, "f4")
    shape_a, x, arrange_a = LEFT[left]
    shape_b, y, arrange_b = RIGHT[right]
    kernel = kernel_of(BATCHED.format(left=shape_a, right=shape_b, x=x, y=y))
    found = run(kernel, None, *(np.ascontiguousarray(v) for v in (arrange_a(a), arrange_b(b))), c, depth=depth)
    same(c, wide(a) @ (wide(b) if right != "one" else wide(b[0])))
    assert run is not run_windows or found == {"a", "b"}


MIDDLE = """
@gm.kernel(grid=3, num_warps=4, num_stages=3)
def k(a: gm.ptr[gm.f16], b: gm.ptr[gm.f16], c: gm.ptr[gm.f32], m: gm.shape["a", 0], depth: gm.shape["a", 2]):
    left = tl.make_tensor_descriptor(a, [m, 3, depth], [3 * depth, depth, 1], [64, 1, 32])
    right = tl.make_tensor_descriptor(b, [depth, 64], [64, 1], [32, 64])
    i = tl.program_id(0)
    acc = tl.zeros((64, 64), tl.float32)
    for start in range(0, depth, 32):
        acc = tl.dot(left.load([0, i, start]).reshape(64, 32), right.load([start, 0]), acc)
    tl.store(c + i * 4096 + SQUARE, acc)
""".replace("SQUARE", SQUARE)


@on_each
def test_rows_that_lie_apart_from_a_matrix_are_read_through_pointers(run):
    a, b, c = integers(56, 3, 72), integers(72, 64, seed=1), np.full((3, 64, 64), np.nan, "f4")
    assert prepared(kernel_of(MIDDLE)).maps == []
    run(kernel_of(MIDDLE), None, a, b, c)
    same(c, np.pad(wide(a).swapaxes(0, 1) @ wide(b), ((0, 0), (0, 8), (0, 0))))


# ---- what the hardware is told ---------------------------------------------------------------------------------------


MAPS = [  # tile and what is turned; for both arrays the extents, strides, box and swizzle, of 100 x 200 x 304
    ((64, 64, 64), "", ((304, 100), 304, (64, 64), 128), ((200, 304), 200, (64, 64), 128)),
    ((128, 256, 32), "", ((304, 100), 304, (32, 128), 64), ((200, 304), 200, (64, 32), 128)),
    ((128, 16, 128), "", ((304, 100), 304, (64, 128), 128), ((200, 304), 200, (16, 128), 32)),
    ((64, 256, 16), "ab", ((100, 304), 100, (64, 16), 128), ((304, 200), 304, (16, 256), 32)),
]


@pytest.mark.parametrize(("tile", "turned", "of_a", "of_b"), MAPS, ids=str)
def test_maps_say_what_the_arrays_are(tile, turned, of_a, of_b):
    function = prepared(product_kernel(tile, 8, 2, turned=turned, dtype="bf16"))
    assert [p.name for p in function.parameters] == ["a", "b", "c", "m", "n", "depth"]
    numbers = (0, 0, 0, 100, 200, 304)
    found = [
        (tuple(evaluate(e, numbers) for e in m.extents), *(evaluate(s, numbers) for s in m.strides), m.box, m.swizzle)
        for m in function.maps
    ]
    assert found == [of_a, of_b]
    assert [(m.parameter, m.dtype.name) for m in function.maps] == [("a", "bf16"), ("b", "bf16")]


def test_expressions_of_sizes_and_strides_are_the_launchers():
    function = prepared(placed_kernel("[(m + 2) // 3, depth - x], [3 * depth * x, 1]"))
    (of_a, _) = function.maps
    numbers = (0, 0, 0, 5, 100, 200, 0)  # a, b, c, x, m, depth, steps
    assert [evaluate(code, numbers) for code in (*of_a.extents, *of_a.strides)] == [195, 34, 3000]


@pytest.mark.parametrize(("warps", "threads"), [(4, 160), (8, 288)])
def test_one_warp_tells_what_to_copy(warps, threads):
    function = prepared(product_kernel((64, 64, 64), warps))
    assert function.producer_warps == 1 and function.block_threads == threads


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100", "sm_120"])
def test_other_targets_have_no_windows(target):
    assert len(prepared(product_kernel()).maps) == 2
    assert prepared(product_kernel(), target).maps == []


def test_general_variants_have_no_windows():
    assert not any(prepared(product_kernel(), variant=variant).maps for variant in (1, 2))


class Told:
    """Stands for a machine: numbers are computed, and of instructions the operands are kept."""

    def __init__(self, function):
        self.function, self.boxes = function, []

    def constant(self, dtype, number):
        return number

    def add(self, x, y):
        return x + y

    def multiply(self, x, y):
        return x * y

    def emit(self, text, dtype):
        return 0

    def scratch(self, dtypes, elements):
        return (SimpleNamespace(text="%ring"),)


def slots_filled(kernel, monkeypatch):
    """Yield what the hardware copies for each window: its map, its ring, the boxes told, and where its block begins."""
    function = prepared(kernel)
    known = {op.results[0]: op for op in function.common.statements if op.name == "ring"}
    for op in walk(function.producer):
        if op.name == "copy_window":
            m, rank = Told(function), len(op.attributes["block"])
            monkeypatch.setattr(cuda_roles, "filling", lambda m, pipe: None)
            monkeypatch.setattr(cuda_roles, "is_first_producer", lambda m: None)
            monkeypatch.setattr(cuda_roles, "assembly", lambda m, text, to, *rest: m.boxes.append((to, rest[3:])))
            ring = thread_products.ring(m, known[op.operands[-2]])
            place = tuple(1000 * (axis + 1) for axis in range(rank))
            cuda_windows.copy_window(m, op, [0] * (1 + 2 * rank) + list(place), None, ring, 1)
            yield function.maps[op.attributes["map"]], ring, m.boxes, place


def swizzled(byte, width):
    """Where the hardware puts a byte: chunks of 16 change places by the number of the 128 bytes they lie in."""
    return byte ^ (byte >> 7 & width // 16 - 1) << 4 if width else byte


BOXES = [*((tile, warps) for tile, warps, _ in TILES), ((64, 512, 16), 8), ((512, 16, 64), 8)]


@pytest.mark.parametrize("turned", TURNED, ids=["plain", "a", "b", "both"])
@pytest.mark.parametrize(("tile", "warps"), BOXES, ids=str)
def test_boxes_lie_as_products_read_them(monkeypatch, tile, warps, turned):
    for tensor_map, ring, boxes, place in slots_filled(product_kernel(tile, warps, 2, turned=turned), monkeypatch):
        inner, outer = tensor_map.box
        found, size = {}, 2 * ring.elements
        assert inner * 2 in (32, 64, 128) and tensor_map.swizzle == inner * 2 and outer <= 256
        for to, (column, row) in boxes:
            assert to % (8 * tensor_map.swizzle) == 0  # where the pattern begins anew
            for r, c in np.ndindex(outer, inner):
                byte = swizzled(to + 2 * (r * inner + c), tensor_map.swizzle)
                found[row + r - place[0], column + c - place[1]] = byte
        rows, columns = ring.shape[1 - ring.inner], ring.shape[ring.inner]
        assert found == {(r, c): size + 2 * ring.offset(r, c) for r, c in np.ndindex(rows, columns)}


def test_boxes_of_many_matrices_name_the_matrix(monkeypatch):
    shape_a, x, _ = LEFT["pairs"]
    shape_b, y, _ = RIGHT["turned"]
    kernel = kernel_of(BATCHED.format(left=shape_a, right=shape_b, x=x, y=y))
    (of_left, of_right) = slots_filled(kernel, monkeypatch)
    assert of_left[0].box == (32, 64, 1, 1) and of_left[2] == [(4096, (4000, 3000, 2000, 1000))]
    assert of_right[0].box == (32, 32, 1) and of_right[2] == [(2048, (3000, 2000, 1000))]
