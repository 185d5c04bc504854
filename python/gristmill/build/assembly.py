"""The cubins of a build: one for a kernel and an architecture, and what to say of entries that do not fit a device."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gristmill.build.cache import Cache, make_key
from gristmill.build.code import Code
from gristmill.build.ptxas import Assembled, AssemblyError, Loss, Ptxas, Usage, join_entries
from gristmill.build.settings import Cubin
from gristmill.build.worker import position_of
from gristmill.errors import BuildError

if TYPE_CHECKING:
    from gristmill.declare import Kernel

Entries = Sequence[tuple[str, Code]]
Assembler = Callable[[Ptxas, bytes, str], Assembled]
SMALLER = "take smaller blocks, or another number of warps (`num_warps=`)"
ACCEPT = f"{SMALLER}; or accept it with SPILLS WARN in gristmill_add_kernels(...)"


@dataclass(frozen=True)
class Spill:
    """An entry of a specialisation whose registers do not hold what it computes, on one architecture."""

    kernel: Kernel
    specialisation: str
    variant: str
    arch: str
    spill_bytes: int


@dataclass(frozen=True)
class Slow:
    """An entry of a specialisation of which ptxas says on one architecture what makes it slow."""

    kernel: Kernel
    specialisation: str
    variant: str
    arch: str
    message: str


def assemble_kernel(
    ptxas: Ptxas, cache: Cache, kernel: Kernel, plan: Cubin, entries: Entries, assembler: Assembler
) -> tuple[Assembled, float, bool]:
    """Return the cubin of all entries, the seconds that it took, and whether it was in the cache.

    `assembler` is `ptxas.assemble`, or does the same elsewhere.
    Raises BuildError that names the specialisation if ptxas refuses its code.
    """
    ptx, starts = join_entries([code.code for _, code in entries])
    key = make_key("cubin, usage and losses", ptxas.version, plan.arch, ptx)
    if stored := cache.get(key):
        return Assembled.unpack(stored), 0.0, True
    begun = time.perf_counter()
    try:
        assembled = assembler(ptxas, ptx, plan.arch)
    except AssemblyError as error:
        culprit = _find_culprit(assembler, ptxas, plan, entries, starts, error)
        raise assembly_failure(kernel, culprit, plan, error) from None
    losses = _find_slow(assembler, ptxas, plan, entries, assembled.losses)
    assembled = replace(assembled, losses=losses)
    cache.put(key, assembled.pack())
    return assembled, time.perf_counter() - begun, False


def _find_culprit(
    assembler: Assembler, ptxas: Ptxas, plan: Cubin, entries: Entries, starts: Sequence[int], error: AssemblyError
) -> str:
    """The specialisation whose code ptxas refuses: by the line or the function that it names, or by trying each."""
    if error.line:
        return entries[max(0, bisect_right(starts, error.line) - 1)][0]
    for specialisation, code in entries:
        if _is_of(code, error.function):
            return specialisation
    for specialisation, code in entries:
        try:
            assembler(ptxas, code.code, plan.arch)
        except AssemblyError:
            return specialisation
    return ""


def _is_of(code: Code, function: str) -> bool:
    """Whether a function is an entry, or one that it calls."""
    return function == code.symbol or function.startswith(f"{code.symbol}__")


def _find_slow(
    assembler: Assembler, ptxas: Ptxas, plan: Cubin, entries: Entries, losses: Sequence[Loss]
) -> tuple[Loss, ...]:
    """The same messages, each with the entry that it is about: by the function that it names, or by trying each."""
    symbols = [code.symbol for _, code in entries]
    found = [Loss(code.symbol, loss.message) for loss in losses for _, code in entries if _is_of(code, loss.function)]
    if {loss.message for loss in losses} <= {loss.message for loss in found}:
        return tuple(found)
    alone = [assembler(ptxas, code.code, plan.arch).losses for _, code in entries]
    found += [Loss(symbol, loss.message) for symbol, own in zip(symbols, alone, strict=True) for loss in own]
    return tuple(dict.fromkeys(found)) or tuple(losses)


def assembly_failure(kernel: Kernel, specialisation: str, plan: Cubin, error: AssemblyError) -> BuildError:
    """Return what to say when ptxas refuses the PTX of a kernel."""
    what = f"`{specialisation or kernel.name}` for {plan.arch}: ptxas: {error}"
    fix = "leave the cubins to the driver with GRISTMILL_CUBINS=OFF, and report this as a bug of Gristmill"
    return BuildError(what, fix=SMALLER if error.is_of_size else fix, position=position_of(kernel))


def find_spills(
    kernel: Kernel, plan: Cubin, entries: Entries, usage: dict[str, Usage], limit: int | None = None
) -> list[Spill]:
    """Return the entries that spill, or have more than `limit` bytes in memory, in order."""
    most = float("inf") if limit is None else limit
    counted = [(specialisation, code.symbol, usage.get(code.symbol)) for specialisation, code in entries]
    return [
        Spill(kernel, specialisation, symbol.rpartition("__")[2], plan.arch, used.local_bytes)
        for specialisation, symbol, used in counted
        if used and (used.spill_bytes or used.local_bytes > most)
    ]


def find_slow(kernel: Kernel, plan: Cubin, entries: Entries, losses: Sequence[Loss]) -> list[Slow]:
    """Return the entries of which ptxas says what makes them slow, and the kernel for what is about none of them."""
    owners = {code.symbol: (specialisation, code.symbol.rpartition("__")[2]) for specialisation, code in entries}
    found = [(owners.get(loss.function, (kernel.name, "all")), loss.message) for loss in losses]
    return [Slow(kernel, *owner, plan.arch, message) for owner, message in found]


def spill_lines(spills: Iterable[Spill]) -> list[str]:
    """Return a line for each specialisation and architecture."""
    groups: dict[tuple[str, str], list[str]] = {}
    for spill in spills:
        said = groups.setdefault((spill.specialisation, spill.arch), [])
        said.append(f"{spill.spill_bytes:,} bytes ({spill.variant})")
    return [
        f"`{name}` for {arch}: registers of a thread spill {', '.join(said)}" for (name, arch), said in groups.items()
    ]


def slow_lines(slow: Iterable[Slow]) -> list[str]:
    """Return a line for each message."""
    return [f"`{each.specialisation}` for {each.arch}: ptxas: {each.message} ({each.variant})" for each in slow]


def check_entries(slow: Sequence[Slow], spills: Sequence[Spill], limit: int) -> None:
    """Raise BuildError at the first kernel that ptxas makes slow, or whose threads spill more than `limit` bytes."""
    large = [spill for spill in spills if spill.spill_bytes > limit]
    kernels = [each.kernel for each in slow] + [each.kernel for each in large]
    if not kernels:
        return
    first, *others = [*slow_lines(slow), *spill_lines(large)]
    more = f", and {len(others)} more (see build.log)" if others else ""
    most = "" if slow else f", of at most {limit:,}"
    raise BuildError(first + most + more, fix=ACCEPT, position=position_of(kernels[0]))
