"""As many arrays as a launch has tensor maps for are copied by the hardware, and none of more."""

from __future__ import annotations

import numpy as np
import pytest

from gristmill.build.manifest import MOST_MAPS
from machines import kernel_of
from test_windows_shapes import SQUARE, integers, on_each, prepared, run_windows, same, wide


def products_source(count: int) -> str:
    """Return a kernel that adds the products of each array of `count`, [64, n], with the next one's transpose."""
    arrays = "".join(f"a{i}: gm.ptr[gm.f16], " for i in range(count))
    lines = [f"of_{i} = tl.make_tensor_descriptor(a{i}, [64, n], [n, 1], [64, 32])" for i in range(count)]
    lines += ["acc = tl.zeros((64, 64), tl.float32)", "for start in range(0, n, 32):"]
    for i in range(0, count, 2):
        lines.append(f"    acc = tl.dot(of_{i}.load([0, start]), of_{(i + 1) % count}.load([0, start]).T, acc)")
    head = f'def k({arrays}c: gm.ptr[gm.f32], n: gm.shape["a0", 1]):'
    body = "".join(f"    {line}\n" for line in [*lines, f"tl.store(c + {SQUARE}, acc)"])
    return f"\n@gm.kernel(grid=1, num_warps=4, num_stages=2)\n{head}\n{body}"


@on_each
@pytest.mark.parametrize("count", [MOST_MAPS, MOST_MAPS + 1])
def test_more_arrays_than_a_launch_has_maps_for_are_read_through_pointers(run, count):
    kernel = kernel_of(products_source(count))
    used = {f"a{i}" for i in range(count)} if count <= MOST_MAPS else set()
    assert {m.parameter for m in prepared(kernel).maps} == used
    arrays, c = [integers(64, 88, seed=i) for i in range(count)], np.full((64, 64), np.nan, "f4")
    copied = run(kernel, None, *arrays, c)
    same(c, sum(wide(arrays[i]) @ wide(arrays[(i + 1) % count]).T for i in range(0, count, 2)))
    assert run is not run_windows or copied == used
