"""The passes between the frontend and lowering, in order, with the reason for each one's place."""

from __future__ import annotations

from collections.abc import Callable

from gristmill.compiler.ir import Function
from gristmill.compiler.passes import (
    access,
    apart,
    carried,
    change,
    divisions,
    gather,
    hold,
    late,
    layout,
    overlap,
    pipeline,
    shared,
    signs,
    simplify,
    spread,
    tail,
    tensor,
    units,
    unroll,
    whole,
)

Pass = Callable[[Function], None]

PIPELINE: tuple[tuple[str, Pass, tuple[str, ...]], ...] = (
    # First: what follows sees steps side by side.
    ("unroll", unroll.run, ("cuda", "host")),
    # Before all that look at how loads lie, and which of them products take.
    ("units", units.run, ("cuda",)),
    # Early: signs and facts go round loops with what is carried.
    ("carried", carried.run, ("cuda", "host")),
    # Before tail versioning, which needs masks that are upper bounds; before `simplify`, which drops the comparisons.
    ("signs", signs.run, ("cuda", "host")),
    # Then: later passes look at masks and addresses, which should stand once.
    ("simplify", simplify.run, ("cuda", "host")),
    # Tail versioning needs to know what masks cost; on the host they always cost.
    ("access", access.run, ("cuda",)),
    # Before the final access widths: the copies without masks have wider ones.
    ("tail", tail.run, ("cuda", "host")),
    # Before layouts, which take the vector width from it.
    ("access", access.run, ("cuda", "host")),
    # After tail versioning, which splits loops by masks of accesses.
    ("whole", whole.run, ("cuda",)),
    # Before layouts, which spread tiles over warps and blocks.
    ("spread", spread.run, ("cuda",)),
    # After it: blocks of a cluster exchange what several reductions need at once.
    ("gather", gather.run, ("cuda",)),
    # After `spread`: what a thread has to hold depends on the number of threads.
    ("hold", hold.run, ("cuda",)),
    # After all that look at what indices are divided by; before loops become several programs.
    ("divisions", divisions.run, ("cuda",)),
    # After `hold`: what is held may be read late.
    ("late", late.run, ("cuda",)),
    # Before layouts: tensor cores have their own.
    ("tensor", tensor.run, ("cuda",)),
    # After it: loops that fill shared memory for products can fill it ahead.
    ("pipeline", pipeline.run, ("cuda",)),
    # After it, which knows whose rows they are; before loops are shifted.
    ("apart", apart.run, ("cuda",)),
    # After it, which looks at choices as such; before a layout says who has an element.
    ("change", change.run, ("cuda",)),
    # After `pipeline`: shifted products take from the rings that it made.
    ("overlap", overlap.run, ("cuda",)),
    # After all that change tiles: every one of a threaded machine gets a layout. A host thread holds whole tiles.
    ("layout", layout.run, ("cuda",)),
    # Last: what threads exchange depends on the layouts.
    ("shared", shared.run, ("cuda",)),
)
