"""Where shared memory lies, and where barriers stand: the pass `shared`, and what it makes of kernels."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.compiler.compile import compile_variants
from gristmill.compiler.ir import Op, Place, walk
from gristmill.compiler.passes.shared import aligned, notes
from gristmill.compiler.prepare import prepare
from gristmill.compiler.targets import TARGETS
from gristmill.errors import KernelError
from gristmill.specialisation import VARIANTS
from machines import kernel_of


def kernel_with(body: str, dtype: str = "f32"):
    head = f"@gm.kernel(grid=1)\ndef k(p: gm.ptr[gm.{dtype}], q: gm.ptr[gm.{dtype}], n: gm.i32):\n"
    load = "    x = tl.load(p + tl.arange(0, 1024))\n"
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return kernel_of(head + load + lines + "    tl.store(q + tl.arange(0, 1024), x)\n")


def prepared(body: str, target: str = "sm_90a"):
    kernel = kernel_with(body)
    return prepare(kernel, kernel.specialisations()[0], VARIANTS[0], TARGETS[target], lambda stage, thing: None)[0]


def places_of(function) -> list[tuple[Op, tuple[Place, ...]]]:
    ops = [s for s in walk(function.body) if isinstance(s, Op)]
    return [(op, op.places) for op in ops if op.places]


STEPS = ["x = x / tl.sum(x)", "x = tl.flip(x, 0)", "x = tl.cumsum(x, 0)", "x = tl.sort(x)", "x = x - tl.max(x)"]


@given(st.lists(st.sampled_from(STEPS), min_size=1, max_size=4))
def test_an_exchange_never_writes_what_may_still_be_read(steps):
    function = prepared("\n".join(steps))
    read: list[Place] = []
    for op, places in places_of(function):
        remaining = list(places)
        for size in notes(function, op)[0]:
            if size is None:
                read = read[-1:]
                continue
            place = remaining.pop(0)
            assert place.size == size and place.start % 16 == 0 and place.end <= function.used_bytes
            assert place.has_barrier or not any(place.meets(other) for other in read)
            read = [] if place.has_barrier else read
            read.append(place)
        assert not remaining


def test_several_dtypes_lie_side_by_side():
    function = prepared("x = x + tl.argmax(x, 0)")
    ((_, (place,)),) = places_of(function)
    assert place == Place(0, aligned(4 * 4) + aligned(4 * 4))


def test_what_blocks_of_a_cluster_tell_each_other_has_places_of_its_own():
    """Slots, their barrier and what warps exchange in the same reduction, and in the next one."""
    body = "y = tl.load(p + tl.arange(0, 65536))\ntl.store(q + tl.arange(0, 65536), (y - tl.max(y)) / tl.sum(y))"
    function = prepared(body)
    assert function.num_blocks > 1
    places = [place for _, places in places_of(function) for place in places]
    assert len(places) >= 6
    for i, place in enumerate(places):
        assert place.end <= function.used_bytes
        assert not any(place.meets(other) for other in places[:i])


def test_places_are_printed():
    kernel = kernel_with("for i in range(n):\n    x = x / tl.sum(x)")
    seen = []
    prepare(kernel, kernel.specialisations()[0], VARIANTS[0], TARGETS["sm_90a"], lambda *stage: seen.append(stage))
    from gristmill.compiler.ir import print_function

    assert "places=[barrier+0:16]" in print_function(dict(seen)["shared"])


def test_a_held_tile_keeps_its_place_until_its_last_use():
    load, store = "y = tl.load(p + tl.arange(0, 8192))", "tl.store(q + tl.arange(0, 8192), y * tl.sum(y))"
    (_, (kept,)), *others = places_of(prepared(f"{load}\nx = tl.flip(x, 0)\n{store}", "sm_80"))
    assert kept.size == 8192 * 4 and len(others) == 2
    assert not any(kept.meets(place) for _, places in others for place in places)
    (_, (kept,)), *_, (_, (flipped,)) = places_of(prepared(f"{load}\n{store}\nx = tl.flip(x, 0)", "sm_80"))
    assert kept.meets(flipped) and flipped.has_barrier


def test_more_shared_memory_than_there_is_names_the_line():
    kernel = kernel_with("y = tl.load(p + tl.arange(0, 32768))\ntl.store(q + tl.arange(0, 32768), tl.flip(y, 0))")
    with pytest.raises(KernelError, match=r"needs 131072 bytes of shared memory, the target has 101376") as caught:
        compile_variants(kernel, kernel.specialisations()[0], TARGETS["sm_80"])
    assert caught.value.fix
    assert caught.value.position.text.strip().startswith("tl.store")


def ptx(body: str, target: str = "sm_90a"):
    kernel = kernel_with(body)
    return compile_variants(kernel, kernel.specialisations()[0], TARGETS[target])[0]


def test_sorting_takes_two_areas_however_many_exchanges_it_needs():
    artifact = ptx("x = tl.sort(x)")
    assert artifact.code.decode().count("bar.sync") == 5
    assert artifact.shared_bytes == 2 * 1024 * 4


@pytest.mark.parametrize(
    ("body", "barriers"),
    [
        ("x = x / tl.sum(x) - tl.max(x)", 2),  # each exchange has its own
        ("for i in range(n):\n    x = x / tl.sum(x)", 2),  # and one, since the last round may still read
        ("for i in range(n):\n    x = x / tl.sum(x) - tl.max(x)", 2),  # the other's lies in between
        ("x = x / tl.sum(x)\nif n > 3:\n    x = x - tl.max(x)", 2),
        ("for i in range(n):\n    x = x + 1.0\nx = x / tl.sum(x)", 1),
    ],
)
def test_barriers_stand_where_they_are_needed(body, barriers):
    assert ptx(body).code.decode().count("bar.sync") == barriers
