"""What blocks of a cluster tell each other: numbers pushed into slots of each other's shared memory.

Each block has a slot for every block's number, and a transaction barrier that opens when the bytes of all slots have
come. Nobody waits for memory in general, as at the cluster's own barrier, which drops the L1 cache and holds back loads
and stores: that one is passed once, while the first loads are on their way, so that no number comes before its slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gristmill import dtypes as dt
from gristmill.compiler.machine import V

ARM = (
    "{ .reg .pred p; setp.eq.u32 p, $0, 0; "
    "@p mbarrier.init.shared::cta.b64 [$1], 1; "
    "@p mbarrier.arrive.expect_tx.shared::cta.b64 _, [$1], $2; "
    "@p fence.mbarrier_init.release.cluster; }"
)
PUSH = (
    "{ .reg .pred p; .reg .b32 slot, gate; setp.lt.u32 p, $0, $1; "
    "mapa.shared::cluster.u32 slot, $2, $0; "
    "mapa.shared::cluster.u32 gate, $3, $0; "
    "@p st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.%s [slot], $4, [gate]; }"
)
WAIT = "{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [$0], 0; @p bra come; bra again; come: }"


def from_blocks(m: Any, own: Sequence[V]) -> list[list[V]]:
    """Return what each block of the cluster has in place of each of `own`, which all threads of a block hold."""
    assert m.loop_depth == 0, "a transaction barrier opens once"
    blocks, dtype = m.num_blocks, own[0].dtype
    bits = 64 if dtype.bits == 64 else 32
    word = dt.u64 if bits == 64 else dt.u32
    slots, gate = m.shared(word, len(own) * blocks), _address(m, m.shared(dt.u64, 1))
    thread = m.thread_bits([(i, 1 << i) for i in range(5)], [(i, 32 << i) for i in m.warp_bits], (), dt.i32)
    with m.in_prologue():
        _assembly(m, ARM, thread, gate, m.constant(dt.i32, len(own) * blocks * bits // 8))
    _enter(m)
    rank = m.thread_bits((), (), [(i, bits // 8 << i) for i in range(blocks.bit_length() - 1)], dt.i32)
    for i, x in enumerate(own):
        first = m.add_index(_address(m, slots), m.constant(dt.i32, i * blocks * bits // 8))
        value = m.bitcast(x, word) if dtype.bits == bits else m.to_word(x)
        _assembly(m, PUSH % f"b{bits}", thread, m.constant(dt.i32, blocks), m.add_index(first, rank), gate, value)
    _assembly(m, WAIT, gate)
    came = [m.shared_load(slots, m.constant(dt.i32, i), word) for i in range(len(own) * blocks)]
    each = [m.bitcast(w, dtype) if dtype.bits == bits else m.from_word(w, dtype) for w in came]
    return [each[i : i + blocks] for i in range(0, len(each), blocks)]


def _enter(m: Any) -> None:
    """Wait until all barriers are armed: before the first exchange on each way to the end."""
    if not m.has_met:
        m.has_met = True
        _step(m, "wait")


def meet(m: Any, ends: Sequence[tuple[bool, int]]) -> None:
    """Of branches, whether blocks have met in each and the line where it ends: they meet in all or in none."""
    m.has_met = any(has_met for has_met, _ in ends)
    for has_met, line in reversed(ends):
        if m.has_met and not has_met:
            following, m.lines[line:] = m.lines[line:], []
            _step(m, "wait")
            m.lines += following


def arrive(m: Any) -> None:
    """Tell the cluster that this block's barriers are armed: the prologue's last step."""
    if m.has_met:
        with m.in_prologue():
            _step(m, "arrive.relaxed")


def meet_all(m: Any) -> None:
    """Let all threads of the cluster wait for each other."""
    _step(m, "arrive")
    _step(m, "wait")


def _address(m: Any, memory: V) -> V:
    with m.in_prologue():
        return m.emit(f"ptrtoint ptr addrspace(3) {memory.text} to i32", dt.i32)


def _step(m: Any, step: str) -> None:
    m.declarations.add(f"declare void @llvm.nvvm.barrier.cluster.{step}.aligned()")
    m.say(f"call void @llvm.nvvm.barrier.cluster.{step}.aligned()")


def _assembly(m: Any, text: str, *operands: V) -> None:
    constraints = ",".join(["l" if x.dtype.bits == 64 else "r" for x in operands] + ["~{memory}"])
    arguments = ", ".join(map(m.typed, operands))
    m.say(f'call void asm sideeffect "{text}", "{constraints}"({arguments})')
