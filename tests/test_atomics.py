"""What atomics mean, on every machine."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from gristmill import dtypes as dt
from gristmill.compiler.interpreter import InterpreterError, run_kernel
from gristmill.dtypes import dt_numpy
from gristmill.errors import KernelError
from gristmill.language.atomic import SCOPES, SEMS, TAKEN
from machines import RUNNERS, array, kernel_of, on_each_in_order, on_each_machine, same

INTEGERS = ("i32", "i64", "u32", "u64")
DTYPES = [(kind, d.name) for kind, taken in TAKEN.items() for d in taken]


def update(dtype: str, call: str, *, size: int = 8, mask: str = "", extra: str = "") -> str:
    """A kernel that updates `p` at `at` by `val`, loads them first, and stores the old values to `old`."""
    return f"""
    @gm.kernel(grid=1)
    def k(p: gm.ptr[gm.{dtype}], at: gm.ptr[gm.i32], val: gm.ptr[gm.{dtype}], old: gm.ptr[gm.{dtype}], n: gm.i32):
        i = tl.arange(0, {size})
        x = tl.load(val + i)
        {extra or "pass"}
        tl.store(old + i, tl.{call.format(p="p + tl.load(at + i)")})
    """


def run_update(run, source: str, p, at, val, n: int = 8):
    p, old = p.copy(), np.full(len(val), 77).astype(val.dtype)
    run(kernel_of(source), None, p, np.array(at, np.int32), val, old, n)
    return p, old


# ---- what is put where ---------------------------------------------------------------------------------------------

MEANING = {
    "add": lambda a, b: a + b,
    "max": max,
    "min": min,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "xchg": lambda a, b: b,
}


def expected(kind: str, p, at, val):
    p, old = list(p), []
    for place, x in zip(at, val, strict=True):
        old.append(p[place])
        p[place] = MEANING[kind](p[place], x)
    return p, old


@on_each_machine
@pytest.mark.parametrize(("kind", "dtype"), [pair for pair in DTYPES if pair[0] != "cas"])
def test_elements_are_updated_one_by_one_and_give_what_was_there(run, kind, dtype):
    at = [0, 1, 0, 3, 0, 1, 2, 0]
    val = array(dtype, 5, 6, 3, 9, 12, 1, 10, 2)
    p = array(dtype, 4, 8, 1, 15)
    got, old = run_update(run, update(dtype, f"atomic_{kind}({{p}}, x)"), p, at, val)
    want, want_old = expected(kind, p.tolist(), at, val.tolist())
    same(got, *want)
    same(old, *want_old)


@on_each_machine
@pytest.mark.parametrize(("kind", "dtype"), [*itertools.product(("add", "max", "min", "xor"), INTEGERS)])
def test_integers_wrap_and_compare_by_their_sign(run, kind, dtype):
    info = np.iinfo(dt_numpy(getattr(dt, dtype)))
    p = np.array([info.max, info.min, info.max, info.min], info.dtype)
    val = np.array([1, info.max, info.min, info.max], info.dtype)
    got, old = run_update(run, update(dtype, f"atomic_{kind}({{p}}, x)", size=4), p, [0, 1, 2, 3], val)
    with np.errstate(over="ignore"):
        want = [MEANING[kind](a, b) for a, b in zip(p, val, strict=True)]
    assert got.tolist() == [int(w) for w in want]
    assert old.tolist() == p.tolist()


SPECIAL = [0.0, -0.0, 1.5, -1.5, np.inf, -np.inf, np.nan, 1e-42, -1e-42, 3e38]


@on_each_machine
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
def test_addition_of_special_numbers(run, dtype):
    pairs = list(itertools.product(SPECIAL, SPECIAL))
    pairs += [(1.0, 2.0**-9), (2049.0, 1.0), (65504.0, 32.0)] + [(0.0, 0.0)] * 25
    a, b = (array(dtype, *column) for column in zip(*pairs, strict=True))
    got, old = run_update(run, update(dtype, "atomic_add({p}, x)", size=128), a, range(128), b)
    with np.errstate(all="ignore"):
        want = a + b
    kept = np.ones(128, bool)
    if run is RUNNERS.get("cuda") and dtype == "f32":  # memory's own addition flushes denormals
        kept = ~np.isin(np.abs(np.stack([a, b])), np.float32(1e-42)).any(0)
    np.testing.assert_array_equal(got.astype(np.float64)[kept], want.astype(np.float64)[kept])
    kept &= ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got)[kept], np.signbit(want)[kept])
    assert old.tobytes() == a.tobytes()


def order(x: float) -> float:
    """What floats are ordered by: their bits, as sign and size."""
    bits = int(np.float32(x).view(np.int32))
    return bits if bits >= 0 else -(bits & 0x7FFFFFFF) - 1


@on_each_machine
@pytest.mark.parametrize(("kind", "dtype"), [*itertools.product(("max", "min"), ("f32", "f64"))])
def test_extremes_of_floats_follow_their_bits(run, kind, dtype):
    numbers = [*SPECIAL, -np.nan]
    pairs = list(itertools.product(numbers, numbers))
    pairs += [(0.0, 0.0)] * (128 - len(pairs))
    a, b = (array(dtype, *column) for column in zip(*pairs, strict=True))
    want = [(max if kind == "max" else min)(pair, key=order) for pair in pairs]
    got, old = run_update(run, update(dtype, f"atomic_{kind}({{p}}, x)", size=128), a, range(128), b)
    assert got.tobytes() == array(dtype, *want).tobytes()
    assert old.tobytes() == a.tobytes()


@on_each_machine
@pytest.mark.parametrize("dtype", [d for kind, d in DTYPES if kind == "cas"])
def test_exchange_happens_where_the_bits_are_as_expected(run, dtype):
    source = update(dtype, "atomic_cas({p}, c, x)", size=4, extra=f"c = tl.full((4,), 0, tl.int32).to(gm.{dtype})")
    p = array(dtype, 0, 5, 0, -0.0 if dtype[0] in "fb" else 1)
    got, old = run_update(run, source, p, [0, 1, 2, 3], array(dtype, 1, 2, 3, 4))
    assert got.tobytes() == np.array([1, 5, 3, p[3]]).astype(p.dtype).tobytes()
    assert old.tobytes() == p.tobytes()


@on_each_machine
def test_nan_is_exchanged_for_by_its_bits(run):
    source = update("f32", "atomic_cas({p}, x, 1.0)", size=2)
    nan = np.array([0x7FC00000, 0x7FC00001], np.uint32).view(np.float32)
    got, _ = run_update(run, source, nan, [0, 1], nan[[0, 0]])
    assert got.view(np.uint32).tolist() == [0x3F800000, 0x7FC00001]


@on_each_machine
def test_values_are_cast_to_the_element(run):
    source = """
    @gm.kernel(grid=1)
    def k(p: gm.ptr[gm.i32], q: gm.ptr[gm.f16]):
        i = tl.arange(0, 4)
        tl.atomic_add(p + i, i.to(tl.float32) + 0.75)
        (q + i).atomic_add(3)
        tl.atomic_cas(p + i, 2.0, i.to(tl.int64) * 100)
    """
    p, q = np.zeros(4, np.int32), np.zeros(4, np.float16)
    run(kernel_of(source), None, p, q)
    assert p.tolist() == [0, 1, 200, 3]
    assert q.tolist() == [3] * 4


# ---- masks ---------------------------------------------------------------------------------------------------------


@on_each_machine
@pytest.mark.parametrize(
    ("kind", "dtype"), [("add", "f16"), ("add", "bf16"), ("add", "i64"), ("max", "f32"), ("xchg", "f64")]
)
def test_where_the_mask_is_false_nothing_is_touched_and_the_result_is_zero(run, kind, dtype):
    source = update(dtype, f"atomic_{kind}({{p}}, x, mask=i < n)")
    p = array(dtype, 1, 2, 3)
    got, old = run_update(run, source, p, [0, 1, 2, 99, 99, 99, 99, 99], array(dtype, *range(8)), 3)
    want = {"add": [1, 3, 5], "max": [1, 2, 3], "xchg": [0, 1, 2]}[kind]
    same(got, *want)
    same(old, 1, 2, 3, 0, 0, 0, 0, 0)


@on_each_machine
def test_one_condition_masks_a_block_and_a_scalar(run):
    source = """
    @gm.kernel(grid=2)
    def k(p: gm.ptr[gm.i32], old: gm.ptr[gm.i32]):
        is_first = tl.program_id(0) == 0
        tl.atomic_add(p + tl.arange(0, 4), 1, mask=is_first)
        tl.store(old + tl.program_id(0), tl.atomic_add(p + 4, 5, mask=is_first))
    """
    p, old = np.full(5, 7, np.int32), np.full(2, 77, np.int32)
    run(kernel_of(source), None, p, old)
    assert p.tolist() == [8, 8, 8, 8, 12]
    assert old.tolist() == [7, 0]


# ---- shapes, order and programs ------------------------------------------------------------------------------------


@on_each_machine
def test_blocks_of_two_axes_and_broadcast_values(run):
    source = """
    @gm.kernel(grid=1)
    def k(p: gm.ptr[gm.i32], old: gm.ptr[gm.i32]):
        i, j = tl.arange(0, 8)[:, None], tl.arange(0, 4)[None, :]
        got = tl.atomic_add(p + (i * 4 + j) // 2, j + 1)
        tl.store(old + i * 4 + j, got)
        tl.store(old + 32 + tl.arange(0, 8), tl.sum(got, 1))
    """
    p, old = np.zeros(16, np.int32), np.zeros(40, np.int32)
    run(kernel_of(source), None, p, old)
    assert p.tolist() == [3, 7] * 8
    assert old[:32].tolist() == [0, 1, 0, 3] * 8
    assert old[32:].tolist() == [4] * 8


@on_each_machine
def test_programs_take_numbers_of_their_own(run):
    source = """
    @gm.kernel(grid=100)
    def k(counter: gm.ptr[gm.i32], taken: gm.ptr[gm.i32]):
        ticket = tl.atomic_add(counter, 1)
        tl.atomic_add(taken + ticket, 1, sem="relaxed", scope="sys")
    """
    counter, taken = np.zeros(1, np.int32), np.zeros(100, np.int32)
    run(kernel_of(source), None, counter, taken)
    assert counter.tolist() == [100]
    assert taken.tolist() == [1] * 100


@on_each_machine
def test_a_lock_is_taken_and_given_back(run):
    source = """
    @gm.kernel(grid=7)
    def k(lock: gm.ptr[gm.i32], x: gm.ptr[gm.f32]):
        i = tl.arange(0, 128)
        while tl.atomic_cas(lock, 0, 1) == 1:
            pass
        tl.store(x + i, tl.load(x + i) + i)
        tl.debug_barrier()
        tl.atomic_xchg(lock, 0)
    """
    lock, x = np.zeros(1, np.int32), np.ones(128, np.float32)
    run(kernel_of(source), None, lock, x)
    assert lock.tolist() == [0]
    same(x, *(1 + 7 * np.arange(128)))


SHAPES = [(1, 1), (1, 2), (2, 1), (8, 16), (64, 1), (1, 512), (32, 32)]


def learning(rows: int, columns: int, num_warps: int) -> str:
    """A kernel that uses what atomics found, in every shape that follows from one."""
    return f"""
    @gm.kernel(grid=2, num_warps={num_warps})
    def k(p: gm.ptr[gm.i32], old: gm.ptr[gm.i32], sums: gm.ptr[gm.i32], total: gm.ptr[gm.i32]):
        i, j = tl.arange(0, {rows})[:, None], tl.arange(0, {columns})[None, :]
        got = tl.atomic_add(p + j * {rows} + i, i + j + 1, mask=(i + j) % 3 != 1)
        tl.store(old + (tl.program_id(0) * {rows} + i) * {columns} + j, got)
        rows = tl.sum(got, 1)
        tl.store(sums + tl.arange(0, {rows}), tl.atomic_xchg(sums + tl.arange(0, {rows}), rows) + rows)
        before = tl.atomic_add(total, tl.sum(rows))
        tl.store(total + 1 + tl.arange(0, {rows}), before + rows)
    """


@on_each_in_order
@pytest.mark.parametrize("num_warps", [1, 4, 8])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_thread_learns_what_was_there(run, shape, num_warps):
    rows, columns = shape
    source = learning(rows, columns, num_warps)
    size = rows * columns
    p = np.arange(size, dtype=np.int32)
    old, sums, total = (np.zeros(n, np.int32) for n in (2 * size, rows, rows + 1))
    run(kernel_of(source), None, p, old, sums, total)
    i, j = np.arange(rows)[:, None], np.arange(columns)[None, :]
    keeps, added = (i + j) % 3 != 1, i + j + 1
    first = np.where(keeps, j * rows + i, 0)
    second = np.where(keeps, first + added, 0)
    np.testing.assert_array_equal(p.reshape(columns, rows).T, j * rows + i + np.where(keeps, 2 * added, 0))
    np.testing.assert_array_equal(old.reshape(2, rows, columns), [first, second])
    np.testing.assert_array_equal(sums, first.sum(1) + second.sum(1))
    np.testing.assert_array_equal(total, [first.sum() + second.sum(), *(first.sum() + second.sum(1))])


@on_each_machine
def test_what_was_loaded_before_an_update_stays(run):
    source = """
    @gm.kernel(grid=1)
    def k(p: gm.ptr[gm.f32], y: gm.ptr[gm.f32]):
        i = tl.arange(0, 64)
        before = tl.load(p + i)
        old = tl.atomic_xchg(p + 63 - i, before)
        tl.store(y + i, before + 100 * tl.load(p + i) + 10000 * old)
    """
    p, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    run(kernel_of(source), None, p, y)
    i = np.arange(64)
    same(p, *i[::-1])
    same(y, *(i + 100 * i[::-1] + 10000 * i[::-1]))


@on_each_in_order
def test_updates_in_loops_and_branches(run):
    source = """
    @gm.kernel(grid=3)
    def k(p: gm.ptr[gm.i64], n: gm.i32):
        total = tl.zeros((4,), tl.int64)
        for step in range(n):
            if step % 2 == 0:
                total += tl.atomic_add(p + tl.arange(0, 4), 1)
            else:
                tl.atomic_max(p + tl.arange(0, 4), step.to(tl.int64) * 10)
        tl.atomic_add(p + 4 + tl.arange(0, 4), total)
    """
    p = np.zeros(8, np.int64)
    run(kernel_of(source), None, p, 4)
    assert p.tolist() == [34] * 4 + [(0 + 10) + (30 + 31) + (32 + 33)] * 4


@on_each_machine
@pytest.mark.parametrize(("sem", "scope"), [*itertools.product((None, *SEMS), (None, *SCOPES))])
def test_order_and_scope_change_no_value(run, sem, scope):
    named = f"sem={sem!r}, scope={scope!r}"
    got, old = run_update(
        run, update("f32", f"atomic_add({{p}}, x, {named})"), array("f32", 0), [0] * 8, np.ones(8, "f4")
    )
    same(got, 8)
    same(old, *range(8))
    source = update("i32", f"atomic_cas({{p}}, 0, x, {named})")
    same(run_update(run, source, array("i32", 0), [0] * 8, np.arange(1, 9, dtype="i4"))[1], 0, *[1] * 7)


# ---- what has no meaning is refused --------------------------------------------------------------------------------

REFUSED = {
    "tl.atomic_add(x, x)": "needs pointers",
    "tl.atomic_add(h + i, 1)": "i16 is not one of i32, i64",
    "tl.atomic_add(b + i, 1)": "i8 is not one of",
    "tl.atomic_add(t + i, 1)": "bool is not one of",
    "tl.atomic_max(f16 + i, 1)": "f16 is not one of",
    "tl.atomic_xchg(f16 + i, 1)": "f16 is not one of",
    "tl.atomic_and(p + i, 1)": "f32 is not one of i32, i64, u32, u64",
    "tl.atomic_cas(b + i, 0, 1)": "i8 is not one of i16, u16",
    "tl.atomic_add(p + i, 1, mask=i)": "mask must be bools",
    "tl.atomic_add(p, x)": "val \\[4\\] is larger than the pointers \\[\\]",
    "tl.atomic_cas(q, i, 1)": "cmp \\[4\\] is larger than the pointers",
    "tl.atomic_add(p + i, 1, mask=(i < 2)[:, None])": "larger than the pointers",
    "tl.atomic_add(p + i, 1, sem='seq_cst')": "sem cannot be `seq_cst`",
    "tl.atomic_add(p + i, 1, scope='block')": "scope cannot be `block`",
    "tl.atomic_cas(q + i, 0, 1, i < 2)": "sem cannot be bool",
    "tl.atomic_xor(q + i, 3000000000)": "out of range for i32",
    "tl.atomic_add(p + i)": "missing a required argument: 'val'",
}


@pytest.mark.parametrize("call", REFUSED)
def test_meaningless_update_is_refused(call):
    source = f"""
    @gm.kernel(grid=1)
    def k(p: gm.ptr[gm.f32], q: gm.ptr[gm.i32], h: gm.ptr[gm.i16], b: gm.ptr[gm.i8], t: gm.ptr[gm.bool_],
          f16: gm.ptr[gm.f16]):
        i = tl.arange(0, 4)
        x = tl.load(p + i)
        {call}
    """
    arrays = [np.zeros(4, d) for d in ("f4", "i4", "i2", "i1", "?", "f2")]
    with pytest.raises(KernelError, match=REFUSED[call]) as caught:
        run_kernel(kernel_of(source), None, *arrays)
    assert caught.value.fix
    assert caught.value.position


def test_update_outside_an_array_or_of_a_read_only_one_is_reported():
    kernel = kernel_of(update("f32", "atomic_add({p}, x)"))
    arguments = [np.zeros(8, np.int32), np.ones(8, np.float32), np.zeros(8, np.float32), 8]
    with pytest.raises(InterpreterError, match="update: element 3 of `p` is outside"):
        run_kernel(kernel, None, np.zeros(3, np.float32), np.arange(8, dtype=np.int32), *arguments[1:])
    fixed = np.zeros(3, np.float32)
    fixed.flags.writeable = False
    with pytest.raises(InterpreterError, match="`p` is read-only"):
        run_kernel(kernel, None, fixed, *arguments)
