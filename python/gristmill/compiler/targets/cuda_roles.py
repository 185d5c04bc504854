"""Warps with roles on CUDA: where their programs part, and the barriers by which they pass slots to each other.

Each role keeps the number of its slot and the parity of its round in memory of its own, which becomes registers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gristmill import dtypes as dt
from gristmill.compiler.machine import V

ROLES = ("producers", "consumers")
CONSUMERS = 1  # the barrier that only they pass
WAIT = (
    "{ .reg .pred p; again${:uid}: mbarrier.try_wait.parity.shared::cta.b64 p, [$0], $1; "
    "@p bra come${:uid}; bra again${:uid}; come${:uid}: }"
)
INIT = "{ .reg .pred p; setp.eq.u32 p, $0, 0; @p mbarrier.init.shared::cta.b64 [$1], $2; }"
ARRIVE = "@$1 mbarrier.arrive.shared::cta.b64 _, [$0];"
ARRIVE_AT = (
    "{ .reg .b32 there; mapa.shared::cluster.u32 there, $0, $2; @$1 mbarrier.arrive.shared::cluster.b64 _, [there]; }"
)
COPIES_ARRIVE = "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [$0];"
EXPECT = "@$2 mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;"
LET_START = "griddepcontrol.launch_dependents;"  # the next kernel: its blocks wait for this one
FENCE = "fence.mbarrier_init.release.cluster;"


@dataclass
class State:
    """Where a role keeps its slot and the parity of its round."""

    slot: str
    parity: str


def text(m: Any, values: dict[Any, Any]) -> None:
    """Emit both programs."""
    from gristmill.compiler.targets import cuda_cluster, cuda_groups, cuda_windows

    function = m.function
    m.run(function.common, values)
    assembly(m, FENCE)
    cuda_windows.prefetch(m)
    let_start(m)
    m.wait_for_kernel()
    cuda_cluster.meet_all(m) if function.num_ctas > 1 else _meet(m)
    labels = [m.new_label(name) for name in ("producers", "consumers", "done")]
    first = m.constant(dt.i32, function.present_warps)
    is_producer = m.compare(">=", m.uniform_warp(), first)
    m.say(f"br i1 {is_producer.text}, label %{labels[0]}, label %{labels[1]}")
    for i, (program, change) in enumerate(((function.producer, "dec"), (function.body, "inc"))):
        m.begin_label(labels[i])
        m.role = ROLES[i]
        if function.registers:
            assembly(m, f"setmaxnreg.{change}.sync.aligned.u32 {function.registers[i]};")
        if program is function.body and function.takes_turns:
            cuda_groups.begin_turns(m)
        m.run(program, dict(values))
        if program is function.body:
            cuda_windows.finish(m)
            if function.takes_turns:
                cuda_groups.finish_turns(m)
        m.say(f"br label %{labels[2]}")
    m.begin_label(labels[2])
    if function.num_ctas > 1:  # others may still copy to this block, and arrive at its barriers
        cuda_cluster.meet_all(m)


def _meet(m: Any) -> None:
    m.say("call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)")
    m.declarations.add("declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32)")


def let_start(m: Any) -> None:
    """Let blocks of the next kernel start where there is room: they wait for this one before they touch memory."""
    assembly(m, LET_START)


def begin(m: Any, pipe: Any) -> Any:
    """Make a pipe's barriers ready, and a state for each role."""
    readers = (m.function.present_warps + m.function.producer_warps * pipe.has_tickets) * pipe.ctas
    counts = (32 * m.function.producer_warps * pipe.has_copies + (pipe.has_windows or pipe.has_tickets), readers)
    thread = m.thread_bits([(i, 1 << i) for i in range(5)], [(i, 32 << i) for i in range(5)], (), dt.i32)
    for i in range(2 * pipe.stages):
        assembly(
            m, INIT, thread, _barrier(m, pipe, m.constant(dt.i32, i)), m.constant(dt.i32, counts[i // pipe.stages])
        )
    pipe.state = {}
    filling, reading = ("drawers", ROLES) if pipe.has_tickets else ("producers", ("consumers",))
    for role, parity in ((filling, 1), *((role, 0) for role in reading)):
        names = State(m.fresh(), m.fresh())
        with m.in_prologue():
            for name, number in ((names.slot, 0), (names.parity, parity)):
                m.say(f"{name} = alloca i32")
                m.say(f"store i32 {number}, ptr {name}")
        pipe.state[role] = names
    return pipe


def take_turns(m: Any) -> V:
    """0 and 1 in turn, kept as a role keeps the number of its slot."""
    name = m.fresh()
    with m.in_prologue():
        m.say(f"{name} = alloca i32")
        m.say(f"store i32 0, ptr {name}")
    turn = _load(m, name)
    _store(m, name, m.bit_xor(turn, m.constant(dt.i32, 1)))
    return turn


def take(m: Any, pipe: Any, role: str = "consumers") -> V:
    """Wait for a full slot; what threads copied is then shown to the tensor cores."""
    state = pipe.state[role]
    slot = _load(m, state.slot)
    assembly(m, WAIT, _barrier(m, pipe, slot), _load(m, state.parity))
    if pipe.has_copies and not pipe.is_fetched:
        m.show_tensor_cores()
    return slot


def release(m: Any, pipe: Any, guard: V) -> None:
    """One thread of each consumer warp arrives: warpgroups have waited for their products, others for each other."""
    if not m.function.is_by_groups:
        m.warp_barrier()
    slot, last = _load(m, pipe.state["consumers"].slot), m.constant(dt.i32, pipe.stages - 1)
    before = m.select(_is(m, slot, 0), last, m.subtract(slot, m.constant(dt.i32, 1)))
    give_back(m, pipe, before, guard)


def give_back(m: Any, pipe: Any, slot: V, guard: V | None = None) -> None:
    """One thread of each warp arrives at a slot's barrier of what is read; of a cluster's slot one for each block."""
    if pipe.ctas > 1:
        lane = m.thread_bits([(i, 1 << i) for i in range(5)], (), (), dt.i32)
        arrives, text, blocks = m.compare("<", lane, m.constant(dt.i32, pipe.ctas)), ARRIVE_AT, [lane]
    else:
        arrives, text, blocks = m.is_thread(range(5), (), ()), ARRIVE, []
    place = m.add(slot, m.constant(dt.i32, pipe.stages))
    arrives = arrives if guard is None else m.bit_and(arrives, guard)
    assembly(m, text, _barrier(m, pipe, place), arrives, *blocks)


def next_slot(m: Any, pipe: Any, role: str = "consumers") -> None:
    """The next slot; behind the last the first, with the other parity."""
    state = pipe.state[role]
    slot, parity, one = _load(m, state.slot), _load(m, state.parity), m.constant(dt.i32, 1)
    is_last = _is(m, slot, pipe.stages - 1)
    _store(m, state.slot, m.select(is_last, m.constant(dt.i32, 0), m.add(slot, one)))
    _store(m, state.parity, m.bit_xor(parity, m.select(is_last, one, m.constant(dt.i32, 0))))


def acquire(m: Any, pipe: Any) -> V:
    """Wait for an empty slot; in the first round all are."""
    state = pipe.state[_filler(pipe)]
    slot = _load(m, state.slot)
    place = m.add(slot, m.constant(dt.i32, pipe.stages))
    assembly(m, WAIT, _barrier(m, pipe, place), _load(m, state.parity))
    return slot


def expect(m: Any, pipe: Any, size: int) -> None:
    """One thread arrives, and tells what else has to come."""
    assembly(m, EXPECT, filling(m, pipe), m.constant(dt.i32, size), is_first_producer(m))


def filling(m: Any, pipe: Any) -> V:
    """The barrier of the producers' slot."""
    return _barrier(m, pipe, _load(m, pipe.state[_filler(pipe)].slot))


def _filler(pipe: Any) -> str:
    return "drawers" if pipe.has_tickets else "producers"


def is_first_producer(m: Any) -> V:
    """Whether the thread is the one that speaks for all."""
    is_first_lane = m.is_thread(range(5), (), ())
    if m.function.producer_warps == 1:
        return is_first_lane
    return m.bit_and(is_first_lane, _is(m, m.uniform_warp(), m.function.present_warps))


def publish(m: Any, pipe: Any) -> None:
    """Each thread arrives when its copies have come; those of the hardware arrive by themselves."""
    if pipe.has_copies:
        assembly(m, COPIES_ARRIVE, filling(m, pipe))
    next_slot(m, pipe, "producers")


def _barrier(m: Any, pipe: Any, index: V) -> V:
    start = m.emit(f"ptrtoint ptr addrspace(3) {pipe.memory.text} to i32", dt.i32)
    return m.add(start, m.multiply(index, m.constant(dt.i32, 8)))


def _is(m: Any, x: V, number: int) -> V:
    return m.compare("==", x, m.constant(dt.i32, number))


def _load(m: Any, name: str) -> V:
    return m.emit(f"load i32, ptr {name}", dt.i32)


def _store(m: Any, name: str, x: V) -> None:
    m.say(f"store {m.typed(x)}, ptr {name}")


def assembly(m: Any, text: str, *operands: V) -> None:
    """Emit PTX that all threads come to, and that memory accesses do not pass."""
    letters = ["b" if x.dtype == dt.bool_ else "l" if x.dtype.bits == 64 else "r" for x in operands]
    constraints = ",".join([*letters, "~{memory}"])
    arguments = ", ".join(map(m.typed, operands))
    m.say(f'call void asm sideeffect "{text}", "{constraints}"({arguments}) convergent nounwind')
