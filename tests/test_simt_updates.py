"""Atomic updates, printing and checks of the simulated device's threads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from gristmill import dtypes as dt
from gristmill.compiler.ir import Block, Function, Pointer
from gristmill.compiler.simt.machine import SimtMachine
from gristmill.compiler.simt.numbers import Numbers, storage
from gristmill.dtypes import Dtype, dt_numpy
from gristmill.errors import Position, SimulationError

THREADS = 64
INDEX = np.arange(THREADS)
NUMBERS = [d for d in dt.ALL if d != dt.bool_ and not d.name.startswith("f8")]
PLACE = Position("kernel.py", 7, 5, 9, "    here")


class Place:
    """An array in the memory of a machine of two warps."""

    def __init__(self, array: np.ndarray, dtype: Dtype):
        self.machine = SimtMachine(Function("", Block(), 2))
        self.dtype = dtype
        self.array = array
        self.address = self.machine.memory.add("y", array)
        self.machine.memory.watch()

    def pointer(self, elements: object) -> Numbers:
        return Numbers(self.address + np.asarray(elements) * self.dtype.itemsize, Pointer(self.dtype))

    def update(self, kind: str, elements: object, *operands: object, mask: object = None) -> np.ndarray:
        each = [Numbers(np.asarray(x).astype(storage(self.dtype)), self.dtype) for x in operands]
        guard = None if mask is None else Numbers(mask, dt.bool_)
        got = self.machine.atomic(kind, self.pointer(elements), each, guard, "acq_rel", "gpu")
        return np.asarray(got.each)  # type: ignore[attr-defined]


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_every_thread_adds_even_where_they_meet(dtype):
    y = np.zeros(3).astype(dt_numpy(dtype))
    found = Place(y, dtype).update("add", INDEX % 2, np.ones(THREADS))
    assert y.astype(float).tolist() == [32, 32, 0]
    assert sorted(found[::2].tolist()) == sorted(found[1::2].tolist()) == list(range(32))


def test_sums_of_halves_are_rounded_each_time():
    """256 + 1 is halfway between 256 and 258, the even one of which is 256."""
    y = np.full(1, 256).astype(dt_numpy(dt.bf16))
    Place(y, dt.bf16).update("add", INDEX * 0, np.ones(THREADS))
    assert float(y[0]) == 256


@pytest.mark.parametrize(
    ("kind", "start", "want"),
    [("max", -5, 40), ("min", 7, -23), ("and", -1, 0), ("or", 0, 63), ("xor", 0, 0)],
)
def test_integers_are_combined(kind, start, want):
    operands = INDEX - 23 if kind in ("max", "min") else INDEX
    y = np.full(1, start, np.int32)
    Place(y, dt.i32).update(kind, INDEX * 0, operands)
    assert y[0] == want


def test_order_of_unsigned_integers_is_theirs():
    y = np.full(1, 5, np.uint32)
    Place(y, dt.u32).update("max", 0, np.uint32(2**32 - 1))
    assert y[0] == 2**32 - 1


def test_exchange_hands_the_number_on_from_thread_to_thread():
    y = np.full(1, -1, np.int64)
    found = Place(y, dt.i64).update("xchg", INDEX * 0, INDEX)
    assert found.tolist() == [-1, *range(63)]
    assert y[0] == 63


def test_one_thread_alone_finds_what_it_expects():
    y = np.zeros(1, np.int32)
    found = Place(y, dt.i32).update("cas", INDEX * 0, np.zeros(THREADS), INDEX + 1)
    assert found.tolist() == [0] + [1] * 63
    assert y[0] == 1


def test_numbers_are_compared_bit_by_bit():
    y = np.array([-0.0, np.nan], np.float32)
    Place(y, dt.f32).update("cas", INDEX % 2, np.where(INDEX % 2, np.nan, 0.0), np.full(THREADS, 5.0))
    assert np.signbit(y[0])
    assert y[1] == 5


def test_masked_threads_update_nothing_and_find_zero():
    y = np.full(64, 9, np.int32)
    found = Place(y, dt.i32).update("add", INDEX + 1000 * (INDEX >= 10), np.ones(THREADS), mask=INDEX < 10)
    assert y.tolist() == [10] * 10 + [9] * 54
    assert found.tolist() == [9] * 10 + [0] * 54


def reported(place: Place, kind: str, elements: object, *operands: object) -> str:
    with pytest.raises(SimulationError) as caught:
        place.update(kind, elements, *operands)
    return str(caught.value)


def test_what_stores_may_not_do_updates_may_not_either():
    assert "element 3 of `y` is outside" in reported(Place(np.zeros(3, np.int32), dt.i32), "add", INDEX, INDEX)
    y = np.zeros(64, np.int32)
    y.flags.writeable = False
    assert "`y` is read-only" in reported(Place(y, dt.i32), "add", INDEX, INDEX)


def test_plain_access_beside_an_update_is_a_race():
    for access, what in ((load, "loads"), (store, "stores")):
        place = Place(np.zeros(64, np.int32), dt.i32)
        place.update("add", INDEX, INDEX + 1)
        with pytest.raises(SimulationError, match=f"{what} element .* another thread updated at"):
            access(place, INDEX ^ 1)
        place = Place(np.zeros(64, np.int32), dt.i32)
        access(place, INDEX)
        assert "race: thread 0, program 0, 0, 0 updates element 1" in reported(place, "add", INDEX ^ 1, INDEX)
        place.machine.barrier()
        place.update("add", INDEX ^ 1, INDEX)


def load(place: Place, elements: np.ndarray) -> None:
    place.machine.wide_load(place.pointer(elements), 1, None, None, {})


def store(place: Place, elements: np.ndarray) -> None:
    place.machine.wide_store(place.pointer(elements), [Numbers(np.int32(INDEX + 7), dt.i32)], None, {})


# ---- printing and checks -------------------------------------------------------------------------------------------


def printed(capsys, numbers: Sequence[tuple[Numbers, str]], mask: np.ndarray) -> list[str]:
    machine = SimtMachine(Function("", Block(), 2))
    texts = ["x: ", *[", "] * (len(numbers) - 1), ";"]
    machine.print_line(texts, numbers, Numbers(mask, dt.bool_))
    return capsys.readouterr().out.splitlines()


def test_threads_print_lines_in_their_order(capsys):
    x = Numbers(np.where(INDEX % 2, INDEX / 4, -np.inf), dt.f64)
    bits = Numbers(np.float32(INDEX), dt.f32)
    lines = printed(capsys, [(x, "%g"), (Numbers(np.int32(5), dt.i32), "%lld"), (bits, "0x%llx")], INDEX < 3)
    assert lines == ["x: -inf, 5, 0x0;", "x: 0.25, 5, 0x3f800000;", "x: -inf, 5, 0x40000000;"]


def test_check_that_fails_is_reported_with_its_thread():
    machine = SimtMachine(Function("", Block(), 2))
    machine.fail("x is small", PLACE, Numbers(INDEX < 0, dt.bool_))
    with pytest.raises(SimulationError) as caught:
        machine.fail("x is small", PLACE, Numbers(INDEX == 35, dt.bool_))
    assert str(caught.value).splitlines()[0] == (
        "kernel.py:7:5: error: the check failed: x is small (thread 35, program 0, 0, 0)"
    )
