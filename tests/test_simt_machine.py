"""Single steps of the simulated device: shared memory, exchanges, control flow, and where they go wrong."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill import dtypes as dt
from gristmill.compiler.interpreter import run_kernel
from gristmill.compiler.ir import Block, For, Function, If, Place, Pointer, Tile, Value, While
from gristmill.compiler.layout import blocked
from gristmill.compiler.passes import shared
from gristmill.compiler.simt.machine import SimtMachine
from gristmill.compiler.simt.numbers import Numbers
from gristmill.compiler.simt.run import run_simulated
from gristmill.compiler.simt.shared import SharedMemory, SharedTile
from gristmill.compiler.targets.threads import Held
from gristmill.dtypes import dt_numpy
from gristmill.errors import Position, SimulationError
from machines import kernel_of

PLACE = Position("kernel.py", 7, 5, 9, "    here")


def machine(num_warps: int = 2, num_blocks: int = 1) -> SimtMachine:
    m = SimtMachine(Function("", Block(), num_warps, num_blocks, used_bytes=1 << 16))
    m.places = iter([Place(start, 1 << 14) for start in range(0, 1 << 16, 1 << 14)])
    return m


def i32(numbers: object) -> Numbers:
    return Numbers(np.asarray(numbers, np.int32), dt.i32)


# ---- shared memory -------------------------------------------------------------------------------------------------


def test_shared_memory_carries_numbers_over_a_barrier():
    m = machine()
    memory = m.shared(dt.i32, 64)
    m.shared_store(memory, i32(m.index), i32(m.index * 3))
    m.barrier()
    assert m.shared_load(memory, i32(63 - m.index), dt.i32).each.tolist() == [3 * (63 - i) for i in range(64)]


def test_own_number_needs_no_barrier():
    m = machine()
    memory = m.shared(dt.f64, 128)
    pair = [Numbers(m.index + half, dt.f64) for half in (0.25, 0.5)]
    m.shared_store_wide(memory, i32(2 * m.index), pair)
    first, second = m.shared_load_wide(memory, i32(2 * m.index), dt.f64, 2)
    assert (first.each == pair[0].each).all()
    assert (second.each == pair[1].each).all()


def test_read_of_what_another_thread_wrote_is_a_race():
    m = machine()
    memory = m.shared(dt.i32, 64)
    m.shared_store(memory, i32(m.index), i32(m.index))
    with pytest.raises(SimulationError, match=r"race: thread 0, .* loads element 1 .* another thread stored"):
        m.shared_load(memory, i32(m.index ^ 1), dt.i32)


def test_write_to_what_another_thread_read_is_a_race_even_of_an_equal_number():
    m = machine()
    memory = m.shared(dt.i32, 64)
    m.shared_store(memory, i32(m.index), i32(m.index))
    m.barrier()
    m.shared_load(memory, i32(m.index ^ 1), dt.i32)
    with pytest.raises(SimulationError, match=r"race: thread 0, .* stores element 0 .* another thread loaded"):
        m.shared_store(memory, i32(m.index), i32(m.index))


def test_write_after_several_threads_have_read_is_a_race_for_each_of_them():
    m = machine()
    memory = m.shared(dt.i32, 64)
    m.shared_store(memory, i32(m.index), i32(m.index))
    m.barrier()
    m.shared_load(memory, i32(0), dt.i32)
    m.shared_load(memory, i32(m.index), dt.i32)
    with pytest.raises(SimulationError, match=r"thread 0, .* stores element 0"):
        m.shared_store(memory, i32(m.index), i32(m.index))


@pytest.mark.parametrize(("numbers", "races"), [(range(64), True), ([5] * 64, False)])
def test_threads_that_write_one_place_race_unless_their_numbers_are_equal(numbers, races):
    m = machine()
    memory = m.shared(dt.i32, 32)
    if races:
        with pytest.raises(SimulationError, match="which another thread stored another number"):
            m.shared_store(memory, i32(m.index // 2), i32(list(numbers)))
    else:
        m.shared_store(memory, i32(m.index // 2), i32(list(numbers)))


def test_second_write_by_another_thread_is_a_race():
    m = machine()
    memory = m.shared(dt.i32, 64)
    m.shared_store(memory, i32(m.index), i32(m.index))
    with pytest.raises(SimulationError, match="which another thread stored another number"):
        m.shared_store(memory, i32(m.index ^ 32), i32(m.index))


def test_place_that_nothing_wrote_is_poison_and_again_in_the_next_program():
    m = machine()
    memory = m.shared(dt.f16, 64)
    with pytest.raises(SimulationError, match="nothing wrote it"):
        m.shared_load(memory, i32(m.index), dt.f16)
    m.shared_store(memory, i32(m.index), Numbers(m.index.astype(np.float16), dt.f16))
    m.barrier()
    m.shared_load(memory, i32(m.index), dt.f16)
    m.run_program((1, 0, 0), {})
    with pytest.raises(SimulationError, match="nothing wrote it"):
        m.shared_load(memory, i32(m.index), dt.f16)


def test_blocks_have_shared_memory_of_their_own():
    m = machine(num_warps=1, num_blocks=2)
    memory = m.shared(dt.i32, 32)
    m.shared_store(memory, i32(m.index % 32), i32(m.index))
    m.barrier()
    assert m.shared_load(memory, i32(31 - m.index % 32), dt.i32).each.tolist() == [
        *range(31, -1, -1),
        *range(63, 31, -1),
    ]


@pytest.mark.parametrize("first", [1, 128, -2, 127])
def test_misaligned_or_outside_place_in_shared_memory_is_reported(first):
    m = machine()
    memory = m.shared(dt.i32, 128)
    with pytest.raises(SimulationError, match=f"2 elements at {first} of a tile of 128"):
        m.shared_store_wide(memory, i32(first), [i32(0), i32(0)])


IN_LOOP = """
@gm.kernel(grid=1, num_warps=4)
def k(x: gm.ptr[gm.f32], y: gm.ptr[gm.f32], n: gm.i32):
    i = tl.arange(0, 32)
    square = i[:, None] * 32 + i[None, :]
    v = tl.load(x + square)
    for step in range(n):
        {body}
    tl.store(y + square, v)
"""
BODIES = {"reduction": "v += tl.sum(v * 2)", "relayout": "v += tl.trans(v)"}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_every_barrier_of_a_step_that_recurs_is_needed(monkeypatch, body):
    """With the barriers nothing is reported and the numbers are right; without every second one there is a race."""
    kernel = kernel_of(IN_LOOP.format(body=body))
    x = np.random.default_rng(0).integers(-8, 8, (32, 32)).astype(np.float32)
    results = {run: np.zeros_like(x) for run in (run_kernel, run_simulated)}
    for run, y in results.items():
        run(kernel, None, x, y, 3)
    np.testing.assert_array_equal(*results.values())
    for skipped in (0, 1):
        monkeypatch.setattr(SimtMachine, "barrier", without_every_second(skipped))
        with pytest.raises(SimulationError, match=r"race: .* with no barrier between") as caught:
            run_simulated(kernel, None, x, np.zeros_like(x), 3)
        assert caught.value.position is not None
        assert caught.value.position.line == 11


def without_every_second(skipped: int) -> Callable[[SimtMachine], None]:
    """Return a barrier that does nothing every second time in the loop's body."""
    count = itertools.count()

    def barrier(m: SimtMachine) -> None:
        if m.loop_depth == 0 or next(count) % 2 != skipped:
            m.clock.barrier()

    return barrier


TWO_EXCHANGES = """
@gm.kernel(grid=1, num_warps=4)
def k(x: gm.ptr[gm.f32], y: gm.ptr[gm.{dtype}]):
    i = tl.arange(0, 1024)
    v = tl.load(x + i)
    tl.store(y + i, v.to(gm.{dtype}) + tl.sum(v).to(gm.{dtype}) + tl.max(v.to(gm.{dtype})))
"""


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_exchanges_that_follow_each_other_need_two_areas(monkeypatch, dtype):
    """There is one barrier an exchange: in one area, a warp would write what another one still has to read."""
    x, y = np.ones(1024, np.float32), np.zeros(1024, dt_numpy(getattr(dt, dtype)))
    run_simulated(kernel_of(TWO_EXCHANGES.format(dtype=dtype)), None, x, y)
    assert (y == 1026).all()
    monkeypatch.setattr(shared, "_lowest", lambda size, taken, alignment: Place(0, size))
    monkeypatch.setattr(Place, "meets", lambda place, other: False)
    with pytest.raises(SimulationError, match=r"race: thread .* stores element .* which another thread loaded"):
        run_simulated(kernel_of(TWO_EXCHANGES.format(dtype=dtype) + "\n"), None, x, y)


def test_tiles_of_two_dtypes_race_where_their_bytes_overlap():
    m = machine()
    memory = SharedMemory(512, 1, m.reports)
    wide, narrow = SharedTile(memory, 0, dt.f64, 64), SharedTile(memory, 16, dt.i8, 64)
    wide.store(m.index, [m.index.astype(np.float64)])
    with pytest.raises(SimulationError, match=r"race: thread 0, .* loads element 0 of a tile"):
        narrow.load(m.index)
    m.barrier()
    assert narrow.load(m.index)[0].tobytes() == np.arange(2, 10, dtype=np.float64).tobytes()


def test_updates_of_shared_memory_meet_but_no_plain_access_meets_them():
    m = machine()
    (memory,) = m.scratch([dt.i32], 8)
    m.shared_store(memory, i32(m.index % 8), i32(0))
    with pytest.raises(SimulationError, match="updates element"):
        m.shared_add(memory, i32(m.index % 4), i32(1), None)
    m.barrier()
    m.shared_add(memory, i32(m.index % 4), i32(m.index), Numbers(m.index < 40, dt.bool_))
    with pytest.raises(SimulationError, match="loads element 0 of a tile in shared memory, which another thread upd"):
        m.shared_load(memory, i32(m.index % 8), dt.i32)
    m.barrier()
    sums = [sum(i for i in range(40) if i % 4 == bin) for bin in range(4)]
    assert m.shared_load(memory, i32(m.index % 8), dt.i32).each[:8].tolist() == [*sums, 0, 0, 0, 0]


# ---- threads -------------------------------------------------------------------------------------------------------


def test_shuffle_gives_the_number_of_the_lane_whose_index_differs_in_the_mask():
    m = machine()
    for mask in (1, 2, 16, 31):
        assert m.shuffle_xor(i32(m.index), mask).each.tolist() == [i ^ mask for i in range(64)]


@given(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2]), st.data())
def test_thread_bits_are_those_of_lane_warp_and_block(num_warps, num_blocks, data):
    m = machine(num_warps, num_blocks)
    sizes = (5, num_warps.bit_length() - 1, num_blocks.bit_length() - 1)
    parts = [[(i, data.draw(st.integers(0, 1000))) for i in range(size)] for size in sizes]
    got = m.thread_bits(*parts, dt.i64)
    for thread, number in enumerate(got.each.tolist()):
        index, want = (thread % 32, thread // 32 % num_warps, thread // 32 // num_warps), 0
        for part, bits in zip(index, parts, strict=True):
            for i, term in bits:
                want ^= term if part >> i & 1 else 0
        assert number == want
    assert got.each.dtype == np.int64


def test_owner_is_the_thread_whose_bits_are_not_set():
    m = machine(4, 2)
    owners = np.flatnonzero(m.is_thread([0, 1, 2, 4], [0, 1], [0]).each)
    assert owners.tolist() == [0, 8]
    assert m.is_thread([], [1], []).each.sum() == 128


def test_blocks_tell_each_other_what_all_their_threads_hold():
    m = machine(1, 4)
    came = m.from_blocks([Numbers((m.index // 32).astype(np.float64), dt.f64)])
    assert [float(x.each) for x in came[0]] == [0.0, 1.0, 2.0, 3.0]
    with pytest.raises(SimulationError, match="push different numbers"):
        m.from_blocks([i32(m.index)])


def test_held_tile_comes_back_in_registers():
    m = machine(4)
    layout = blocked((4096,), 8, 4)
    tile = Held(layout, [i32(m.index * 100 + r) for r in range(layout.registers)])
    kept = m.hold(tile)
    op = type("Op", (), {"attributes": {}, "position": None})()
    assert [x.each.tolist() for x in m.held(op, kept).registers] == [x.each.tolist() for x in tile.registers]


# ---- divergence ----------------------------------------------------------------------------------------------------


def condition() -> Value:
    return Value(Tile(dt.bool_), "c")


@pytest.mark.parametrize("kind", ["if", "while", "for"])
def test_threads_that_disagree_on_where_to_go_are_reported(kind):
    m, value = machine(), condition()
    is_low = Numbers(m.index < 40, dt.bool_)
    with pytest.raises(SimulationError) as caught:
        if kind == "if":
            m.run_if(If([value], Block(), Block(), [], position=PLACE), {value: is_low})
        elif kind == "while":
            loop = While([], Block(yields=[value]), Block(), [], position=PLACE)
            m.run_while(loop, {value: is_low})
        else:
            bounds = [Value(Tile(dt.i32)) for _ in range(3)]
            loop = For(bounds, Block([Value(Tile(dt.i32))]), [], position=PLACE)
            m.run_for(loop, dict(zip(bounds, (i32(0), i32(m.index // 40), i32(1)), strict=True)))
    text = str(caught.value)
    assert text.startswith(f"kernel.py:7:5: error: `{kind}`: threads disagree on where to go: ")
    assert "in thread 0, program 0, 0, 0; " in text
    assert "in thread 40, program 0, 0, 0" in text


def test_threads_that_agree_go_on():
    m, value = machine(), condition()
    m.run_if(If([value], Block(), Block(), [], position=PLACE), {value: Numbers(m.index >= 0, dt.bool_)})


def test_addresses_are_in_bytes_and_offsets_in_elements():
    m = machine()
    p = Numbers(np.int64(1000), Pointer(dt.f64))
    assert m.offset(p, i32(-2)).each == 984
    assert m.offset(p, Numbers(np.uint32(2**32 - 1), dt.u32)).each == 1000 + 8 * (2**32 - 1)


def test_access_of_another_size_than_the_elements_is_reported():
    m, x = machine(), np.zeros(64, np.float32)
    address = m.memory.add("x", x)
    m.memory.watch()
    p = Numbers(np.int64(address), Pointer(dt.f16))
    with pytest.raises(SimulationError, match=r"load: f16 in `x`, whose elements have 4 bytes"):
        m.wide_load(p, 1, None, None, {})
    whole = Numbers(np.int64(address), Pointer(dt.i32))
    assert m.wide_load(whole, 1, None, None, {})[0].each.tolist() == [0] * 64


@pytest.mark.parametrize("dtype", [dt.f8e4m3, dt.f8e5m2], ids=str)
def test_arrays_of_8_bit_floats_are_loaded_and_stored(dtype):
    m, y = machine(), np.arange(64).astype(dt_numpy(dtype))[::-1]
    p = Numbers(m.memory.add("y", y) - m.index, Pointer(dtype))
    m.memory.watch()
    (x,) = m.wide_load(p, 1, None, None, {})
    m.wide_store(p, [m.negative(x)], None, {})
    assert y.astype(float).tolist() == (-np.arange(64.0)[::-1]).astype(dt_numpy(dtype)).astype(float).tolist()
