"""Single steps of the simulated device: numbers, shared memory, exchanges between threads, and where they go wrong."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gristmill import dtypes as dt
from gristmill.compiler.interpreter import run_kernel
from gristmill.compiler.ir import Block, For, Function, If, Pointer, Tile, Value, While
from gristmill.compiler.layout import blocked
from gristmill.compiler.simt.machine import SimtMachine
from gristmill.compiler.simt.numbers import Numbers, convert, from_bits, fused, number_of, to_bits
from gristmill.compiler.simt.run import run_simulated
from gristmill.compiler.targets.threads import Held
from gristmill.errors import Position, SimulationError
from gristmill.language.index import dt_numpy
from machines import array, compute, kernel_of

PLACE = Position("kernel.py", 7, 5, 9, "    here")


def machine(num_warps: int = 2, num_blocks: int = 1) -> SimtMachine:
    return SimtMachine(Function("", Block(), num_warps, num_blocks))


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


# ---- numbers -------------------------------------------------------------------------------------------------------

NUMBERS = [d for d in dt.ALL if not d.name.startswith("f8")]
SPECIAL = (
    0.0,
    -0.0,
    1.0,
    -1.5,
    2.5,
    255.5,
    -129.0,
    65504.0,
    65520.0,
    3e9,
    -3e9,
    1e19,
    2.0**-24,
    2.0**-133,
    1e-45,
    3e38,
)
EVERY = np.array([*SPECIAL, math.inf, -math.inf, math.nan, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-11 + 2**-40, 1e300])


@pytest.mark.parametrize("to", NUMBERS, ids=str)
@pytest.mark.parametrize("source", NUMBERS, ids=str)
def test_conversions_are_those_of_the_language(source, to):
    """Integers too: of all kinds of width and sign."""
    with np.errstate(all="ignore"):
        values = EVERY.astype(dt_numpy(source)) if source.is_float else np.arange(-200, 200).astype(dt_numpy(source))
        if source.is_int:
            limits = np.iinfo(values.dtype)
            values = np.append(values, [limits.min, limits.max, limits.max // 3]).astype(values.dtype)
        want = compute(run_kernel, f"x.to(tl.{spelled(to)})", to, x=padded(values)) if source != to else padded(values)
        got = convert(from_bits(padded(values).view(f"u{source.itemsize}"), source), source, to)
    assert_same(got, want, to)


def spelled(dtype: dt.Dtype) -> str:
    return {"bool": "int1", "bf16": "bfloat16"}.get(dtype.name) or dt_numpy(dtype).name


def padded(values: np.ndarray) -> np.ndarray:
    return np.resize(values, 1 << (len(values) - 1).bit_length())


def assert_same(got: object, want: np.ndarray, dtype: dt.Dtype) -> None:
    """Equal to the bit, but for what a NaN carries."""
    bits, wanted = to_bits(got, dtype), want.view(f"u{dtype.itemsize}")
    if dtype.is_float:
        is_nan = np.isnan(want.astype(np.float64))
        assert (np.isnan(np.asarray(got, np.float64)) == is_nan).all()
        bits, wanted = bits[~is_nan], wanted[~is_nan]
    np.testing.assert_array_equal(bits, wanted)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_every_half_survives_its_way_through_registers(dtype):
    bits = np.arange(1 << 16, dtype=np.uint16)
    kind = getattr(dt, dtype)
    assert (to_bits(from_bits(bits, kind), kind) == bits).all()
    with np.errstate(all="ignore"):
        back = convert(convert(from_bits(bits, kind), kind, dt.f64), dt.f64, kind)
        assert_same(back, bits.view(dt_numpy(kind)), kind)


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_constants_are_rounded_as_numpy_does(dtype):
    numbers = [0, 1, 3, 100] if not dtype.is_float else [*SPECIAL, math.inf, math.nan, 0.1, 1 / 3]
    with np.errstate(all="ignore"):
        want = np.array(numbers).astype(np.float32 if dtype == dt.bf16 else dt_numpy(dtype)).astype(dt_numpy(dtype))
        assert_same(np.array([number_of(dtype, n) for n in numbers]), want, dtype)


floats = st.floats(allow_nan=False, allow_infinity=False)


@given(floats, floats, floats)
@example(1 + 2.0**-52, 1 - 2.0**-53, -1.0)
@example(5e-324, 0.5, 0.0)
@example(1e308, 10.0, -1e308)
@example(0.0, 1e308, -0.0)
@example(2.0**-540, 2.0**-540, 2.0**-1074)
def test_fused_product_and_sum_is_rounded_once(x, y, z):
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    try:
        want = exact.numerator / exact.denominator
    except OverflowError:
        want = math.inf if exact > 0 else -math.inf
    with np.errstate(all="ignore"):
        got = float(fused(np.float64(x), np.float64(y), np.float64(z), dt.f64))
    assert got == want


@given(*[st.floats(width=16, allow_nan=False, allow_infinity=False)] * 3)
@example(1 + 2.0**-10, 1 + 2.0**-10, 2.0**-24)
def test_fused_halves_are_rounded_once(x, y, z):
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    with np.errstate(all="ignore"):
        got = fused(*(np.float16(v) for v in (x, y, z)), dt.f16)
        low, high = np.nextafter(got, np.float16(-np.inf)), np.nextafter(got, np.float16(np.inf))
    if np.isinf(got):
        assert abs(exact) >= 65520
        return
    distance = abs(Fraction(float(got)) - exact)
    assert all(distance <= abs(Fraction(float(v)) - exact) for v in (low, high) if np.isfinite(v))


OPERATIONS = {
    "floats": [
        "x + y", "x - y", "x * y", "-x", "tl.abs(x)", "tl.maximum(x, y)", "tl.minimum(x, y)", "tl.where(x < y, x, y)",
        "tl.maximum(x, y, propagate_nan='all')", "tl.minimum(x, y, propagate_nan='all')", "tl.clamp(x, -1.0, 2.0)",
        "tl.floor(x)", "tl.ceil(x)", "tl.sqrt(x)", "tl.fma(x, y, x)",
    ],
    "ints": [
        "x + y", "x - y", "x * y", "-x", "tl.abs(x)", "tl.maximum(x, y)", "tl.minimum(x, y)", "tl.where(x < y, x, y)",
        "x // y", "x % y", "x & y", "x | y", "x ^ y", "~x", "x << (y & 7)", "x >> (y & 7)",
    ],
    "bools": ["x < y", "x <= y", "x > y", "x >= y", "x == y", "x != y"],
}  # fmt: skip
DTYPES = {"floats": ["f16", "bf16", "f32", "f64"], "ints": ["i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"]}
CASES = [(dtype, e) for kind, names in DTYPES.items() for dtype in names for e in OPERATIONS[kind]]
CASES += [(dtype, "x % y") for dtype in ("f32", "f64")]
CASES += [(dtype, e) for names in DTYPES.values() for dtype in names for e in OPERATIONS["bools"]]


@pytest.mark.parametrize(("dtype", "expression"), CASES)
def test_operations_give_the_bits_that_the_reference_gives(dtype, expression):
    """These are rounded correctly, so that there is one right answer; that of zeros of both signs is +0 or -0."""
    kind = getattr(dt, dtype)
    with np.errstate(all="ignore"):
        if kind.is_float:
            x, y = (v.ravel().astype(dt_numpy(kind)) for v in np.meshgrid(EVERY, EVERY))
        else:
            limits = np.iinfo(dt_numpy(kind))
            edges = np.array([limits.min, limits.max, limits.max // 2, 1, 2, 3, 7, 100, limits.min + 1], dt_numpy(kind))
            x, y = (v.ravel() for v in np.meshgrid(edges, edges[edges != 0]))
        inputs = {"x": padded(x), "y": padded(y)}
        result = dt.bool_ if expression in OPERATIONS["bools"] else kind
        got, want = (compute(run, expression, result, **inputs) for run in (run_simulated, run_kernel))
    if kind.is_float and ("maximum" in expression or "minimum" in expression or "clamp" in expression):
        got, want = got + dt_numpy(kind).type(0), want + dt_numpy(kind).type(0)
    if "fma" in expression:
        return np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=2**-8 if kind == dt.bf16 else 0)
    assert_same(from_bits(got.view(f"u{result.itemsize}"), result), want, result)
    return None


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", ["exp", "exp2", "log", "log2", "tanh", "rsqrt", "sigmoid"])
def test_functions_are_within_4_ulp_of_the_reference(name, dtype):
    x = array(dtype, *np.linspace(-20, 80, 1000), *np.linspace(0, 1, 24))
    x = np.abs(x) if name in ("log", "log2", "rsqrt") else x
    got, want = (compute(run, f"tl.{name}(x)", x=x) for run in (run_simulated, run_kernel))
    np.testing.assert_allclose(got, want, rtol=4 * np.finfo(x.dtype).eps, atol=np.finfo(x.dtype).smallest_normal)


def test_fast_words_flush_denormals_as_their_instructions_do():
    x = array("f32", -126, -127, -149, 127)
    assert compute(run_simulated, "tl.exp2(x)", x=x).tolist() == [2.0**-126, 0, 0, 2.0**127]
    y = array("f32", 2.0**126, 2.0**127, -(2.0**127), 4)
    assert compute(run_simulated, "tl.fdiv(1.0, y, approx=True)", y=y).tolist() == [2.0**-126, 0, -0.0, 0.25]


def test_maximum_prefers_the_positive_zero_whatever_the_order():
    x, y = array("f32", 0.0, -0.0, -0.0, 0.0), array("f32", -0.0, 0.0, -0.0, 0.0)
    assert np.signbit(compute(run_simulated, "tl.maximum(x, y)", x=x, y=y)).tolist() == [False, False, True, False]
    assert np.signbit(compute(run_simulated, "tl.minimum(x, y)", x=x, y=y)).tolist() == [True, True, True, False]


def test_integer_division_by_zero_gives_what_a_device_gives():
    x, y = array("i32", 5, -5, 0, 7), array("i32", 0, 0, 0, 1)
    assert compute(run_simulated, "x // y", x=x, y=y).tolist() == [-1, -1, -1, 7]
    assert compute(run_simulated, "x % y", x=x, y=y).tolist() == [5, -5, 0, 0]


@pytest.mark.parametrize("dtype", ["i8", "u16", "i32", "u64"])
def test_shifts_beyond_the_width_give_zero_or_the_sign(dtype):
    x = array(dtype, 1, 5, 100, 3)
    y = array(dtype, *[getattr(dt, dtype).bits] * 4)
    assert compute(run_simulated, "x << y", x=x, y=y).tolist() == [0] * 4
    assert compute(run_simulated, "x >> y", x=x, y=y).tolist() == [0] * 4


def test_addresses_are_in_bytes_and_offsets_in_elements():
    m = machine()
    p = Numbers(np.int64(1000), Pointer(dt.f64))
    assert m.offset(p, i32(-2)).each == 984
    assert m.offset(p, Numbers(np.uint32(2**32 - 1), dt.u32)).each == 1000 + 8 * (2**32 - 1)
