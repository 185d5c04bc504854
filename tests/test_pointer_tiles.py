"""Tiles of addresses that change their layout: computed again where that is cheap, moved where a loop carries them."""

from __future__ import annotations

import numpy as np

from machines import kernel_of, on_each_machine

SOURCE = """
@gm.kernel(grid=1)
def k(p: gm.ptr[gm.f32], q: gm.ptr[gm.f32]):
    rows = p + tl.arange(0, 64) * 128
    total = tl.zeros((64, 32), tl.float32)
    cols = tl.arange(0, 32)[None, :]
    for i in range(4):
        total += tl.load(rows[:, None] + cols)
        rows += 32
    tl.store(q + tl.arange(0, 64)[:, None] * 32 + cols, total)
"""


@on_each_machine
def test_pointers_that_a_loop_carries_change_their_layout(run):
    x, y = np.random.default_rng(0).integers(0, 99, (64, 128)).astype(np.float32), np.zeros((64, 32), np.float32)
    run(kernel_of(SOURCE), None, x.reshape(-1), y.reshape(-1))
    assert (y == x.reshape(64, 4, 32).sum(1)).all()
