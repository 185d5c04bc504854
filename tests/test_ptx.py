"""PTX of every kernel: ptxas accepts it for every device that it may run on, and what it takes there.

By default each kernel is tried on one kind of device, and kernels with many configurations in one dtype, both by
rotation; GRISTMILL_THOROUGH=1 tries all on all.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from gristmill.build.settings import SPILL_LIMIT
from gristmill.compiler.targets import TARGETS
from gristmill.declare import Kernel
from gristmill.specialisation import Specialisation
from machines import shipped_kernels
from ptx import PTXAS, Entry, Usage, assemble, compile_entries, count_instructions, needs_ptxas

pytest.importorskip("llvmlite")

IS_THOROUGH = os.environ.get("GRISTMILL_THOROUGH", "0") not in ("", "0")
# The target whose PTX is compiled, and a device that runs it.
DEVICES = (
    ("sm_90a", "sm_90a"), ("sm_80", "sm_80"), ("sm_80", "sm_86"), ("sm_80", "sm_89"), ("sm_80", "sm_90"),
    ("sm_80", "sm_100"), ("sm_80", "sm_120"),
)  # fmt: skip
OTHER_TARGETS = ("sm_75", "sm_86", "sm_89", "sm_90", "sm_100", "sm_100a", "sm_120")
KERNELS = shipped_kernels()
MANY = 40  # entries, from which on one dtype is tried
# Of one thread: what a build allows, and in configurations for rows of up to 16,384 columns, where bf16, f16 and f32
# stay in registers but for an odd address.
LOCAL_BYTES = {"f32": 16, "f16": 16, "bf16": 16}
MAX_ROW = 16_384


def plan() -> list[tuple[Kernel, str, str, list[Specialisation]]]:
    found = []
    for i, kernel in enumerate(KERNELS.values()):
        every = kernel.specialisations()
        for j, (target, device) in enumerate(DEVICES):
            if IS_THOROUGH:
                found.append((kernel, target, device, every))
            elif (i + j) % len(DEVICES) == 0:
                found.append((kernel, target, device, sample(every, i)))
    return found


def sample(specialisations: list[Specialisation], turn: int) -> list[Specialisation]:
    dtypes = list({s.dtypes: 0 for s in specialisations})
    chosen = dtypes[turn % len(dtypes)]
    return specialisations if len(specialisations) * 3 < MANY else [s for s in specialisations if s.dtypes == chosen]


PLAN = plan()


@needs_ptxas
@pytest.mark.parametrize(
    ("kernel", "target", "device", "specialisations"), PLAN, ids=[f"{k.name}-{t}-on-{d}" for k, t, d, _ in PLAN]
)
def test_every_entry_assembles_and_stays_in_registers(kernel, target, device, specialisations):
    entries = compile_entries(kernel, target, specialisations)
    for entry in entries:
        assert faults(entry, target) == []
    used = assemble(entries, device)
    assert set(used) == {entry.symbol for entry in entries}
    spilled = {e.symbol: used[e.symbol] for e in entries if used[e.symbol].local_bytes > allowed_bytes(e)}
    assert spilled == {}
    crowded = {e.symbol: used[e.symbol] for e in entries if used[e.symbol].registers * e.lowered.threads > 65536}
    assert crowded == {}


def faults(entry: Entry, target: str) -> list[str]:
    """What is wrong with the text of an entry before ptxas sees it."""
    version = TARGETS[target].ptx_version
    wanted = {
        f".version {version // 10}.{version % 10}": r"^\.version .*$",
        f".target {target}": r"^\.target .*$",
        f".visible .entry {entry.symbol}(": r"^\.visible \.entry .*$",
    }
    found = [f"no `{line}`" for line, pattern in wanted.items() if re.findall(pattern, entry.text, re.M) != [line]]
    found += [f"`{word}` in it" for word in (".extern .func", ".reqntid 0", "trap;", "vprintf") if word in entry.text]
    if f".reqntid {entry.lowered.threads}" not in entry.text:
        found.append(f"it is not for {entry.lowered.threads} threads")
    static = sum(map(int, re.findall(r"\.shared [^;]*\[(\d+)\];", entry.text)))
    if static > 48 << 10 or entry.lowered.shared_bytes > TARGETS[target].shared_bytes:
        found.append(f"{static} and {entry.lowered.shared_bytes} bytes of shared memory")
    return found


def allowed_bytes(entry: Entry) -> int:
    constants = dict(entry.specialisation.constants)
    is_row = constants.get("BLOCK", MAX_ROW + 1) <= MAX_ROW and constants.get("ONE_PASS", True)
    return max(LOCAL_BYTES.get(d.name, SPILL_LIMIT) for _, d in entry.specialisation.dtypes) if is_row else SPILL_LIMIT


@needs_ptxas
@pytest.mark.parametrize("target", OTHER_TARGETS)
def test_every_target_that_can_be_asked_for_assembles(target):
    for name in KERNELS if IS_THOROUGH else ("gelu_forward", "row_sum"):
        specialisations = KERNELS[name].specialisations()
        entries = compile_entries(KERNELS[name], target, specialisations if IS_THOROUGH else specialisations[:4])
        assert [fault for entry in entries for fault in faults(entry, target)] == []
        assert len(assemble(entries, target)) == len(entries)


def test_plan_tries_every_device():
    assert {(target, device) for _, target, device, _ in PLAN} == set(DEVICES)


# ---- goldens -------------------------------------------------------------------------------------------------------

GOLDENS = Path(__file__).parent / "data" / "ptx_counts.txt"
CHOSEN = (
    ("vector_add", "vector_add__f32__2048", "a32", "sm_80"),
    ("gelu_forward", "gelu_forward__bf16__2048", "a32", "sm_90a"),
    ("softmax_forward", "softmax_forward__bf16__1024__1024__true__w1", "a32", "sm_90a"),
    ("row_sum", "row_sum__f32__4096__w4", "g32", "sm_80"),
)


def versions() -> str:
    import llvmlite

    return f"llvmlite {llvmlite.__version__}, ptxas {PTXAS.version if PTXAS else 'none'}"


def entry_of(name: str, identity: str, variant: str, target: str) -> Entry:
    kernel = KERNELS[name]
    chosen = [s for s in kernel.specialisations() if s.id == identity]
    assert chosen, f"no {identity} among {[s.id for s in kernel.specialisations()]}"
    return next(e for e in compile_entries(kernel, target, chosen) if e.variant.name == variant)


def summary(entry: Entry, target: str, used: Usage) -> str:
    counts = count_instructions(entry.text)
    width = max(map(len, counts), default=0)
    lines = [f"=== {entry.symbol} {target}", f"registers {used.registers}, local bytes {used.local_bytes}"]
    return "\n".join([*lines, *(f"{name:{width}} {n}" for name, n in counts.items())]) + "\n"


@needs_ptxas
def test_instructions_and_registers_are_the_golden_counts():
    """Accept new ones with GRISTMILL_ACCEPT=1, after reading them."""
    parts = [versions() + "\n"]
    for chosen in CHOSEN:
        entry, target = entry_of(*chosen), chosen[3]
        parts.append(summary(entry, target, assemble([entry], target)[entry.symbol]))
    found = "\n".join(parts)
    if os.environ.get("GRISTMILL_ACCEPT"):
        GOLDENS.write_text(found)
    expected = GOLDENS.read_text()
    if expected.splitlines()[0] != versions():
        pytest.skip(f"the counts are of {expected.splitlines()[0]}")
    assert found == expected


def test_counts_tell_instructions_apart():
    text = """
    ld.global.nc.L1::no_allocate.v4.b32 {%r1, %r2, %r3, %r4}, [%rd1];
    @%p1 ld.global.b16 %rs1, [%rd2];
    @!%p1 st.global.v2.b64 [%rd3], {%rd4, %rd5};
    st.shared.b32 [%r9], %r1;
    { ex2.approx.ftz.f32 %f1, %f2; }
    bar.sync 0;
    shfl.sync.bfly.b32 %r1, %r2, 16, 31, -1;
    // bar.sync in a comment
    """
    counts = {"ld.global 128": 1, "ld.global 16": 1, "st.global 128": 1, "st.shared 32": 1}
    assert count_instructions(text) == counts | {"ex2": 1, "bar": 1, "shfl": 1}
