"""Runs kernels that tests write on a CUDA device: compiled for it, loaded and launched through ctypes.

Importing it skips a module of tests where there is no device.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping, Sequence
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gristmill.compiler.interpreter import _choose, _evaluate, _fill, _variant, obstacle_of, without
from gristmill.compiler.simt.run import can_be_made
from gristmill.compiler.targets import TARGETS, Target
from gristmill.declare import Kernel
from gristmill.specialisation import VARIANTS, Specialisation, Variant
from gristmill.symbolic import evaluate
from gristmill.tensor_map import TensorMap
from host import fields

pytest.importorskip("llvmlite")
ALIGNMENT = 256
MAX_DYNAMIC_SHARED_SIZE_BYTES = 8  # CU_FUNC_ATTRIBUTE_...
MAP_BYTES, MAP_ALIGNMENT = 128, 64
MAP_DTYPES = {
    "f8e4m3": 0,
    "f8e5m2": 0,
    "u8": 0,
    "i8": 0,
    "i32": 3,
    "f16": 6,
    "f32": 7,
    "bf16": 9,
}  # CU_TENSOR_MAP_DATA_TYPE_...
SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}  # CU_TENSOR_MAP_SWIZZLE_...
PROMOTES_128_BYTES = 2  # CU_TENSOR_MAP_L2_PROMOTION_...
COMPUTE_CAPABILITY = (75, 76)  # CU_DEVICE_ATTRIBUTE_..._MAJOR and _MINOR


def _driver() -> Any:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        pytest.skip("no CUDA driver", allow_module_level=True)
    count = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        pytest.skip("no CUDA device", allow_module_level=True)
    return driver


DRIVER = _driver()


def check(code: int) -> None:
    """Fail with the driver's name for an error."""
    if code:
        name = ctypes.c_char_p()
        DRIVER.cuGetErrorName(code, ctypes.byref(name))
        raise RuntimeError(f"the driver answers {name.value!r}")


@cache
def device_target() -> Target:
    """Make the first device's primary context current, and return the best target that it runs."""
    device, context = ctypes.c_int(), ctypes.c_void_p()
    check(DRIVER.cuDeviceGet(ctypes.byref(device), 0))
    check(DRIVER.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    check(DRIVER.cuCtxSetCurrent(context))
    major, minor = (_attribute(number, device) for number in COMPUTE_CAPABILITY)
    sm = 10 * major + minor
    if sm < 75:
        pytest.skip(f"no target for sm_{sm}", allow_module_level=True)
    fitting = [t for t in TARGETS.values() if t.kind == "cuda" and (t.sm <= sm if not t.suffix else t.sm == sm)]
    return max(fitting, key=lambda t: (t.sm, t.suffix))


def _attribute(number: int, device: ctypes.c_int) -> int:
    value = ctypes.c_int()
    check(DRIVER.cuDeviceGetAttribute(ctypes.byref(value), number, device))
    return value.value


def run_on_device(
    kernel: Kernel,
    specialisation: Specialisation | None = None,
    *arguments: Any,
    grid: Sequence[int] | None = None,
    variant: Variant | None = None,
    target: Target | None = None,
    **named: Any,
) -> Specialisation:
    """Call a kernel as its dispatcher would; arguments are those of the interpreter's `run_kernel`.

    Arrays are contiguous; they are copied to the device, as far off alignment as they are here, and back.
    """
    constants = {name: named.pop(name) for name in kernel.constant_names if name in named}
    values = _fill(kernel, dict(zip((p.name for p in kernel.parameters), arguments, strict=False)) | named)
    target = target or device_target()
    obstacle = partial(_obstacle, kernel, values, target)
    chosen = _choose(kernel, values, constants, without(variant) or obstacle, specialisation)
    sizes = tuple(grid) if grid is not None else tuple(_evaluate(code, kernel, values, chosen) for code in kernel.grid)
    if all(size > 0 for size in sizes):
        variant = variant or (_variant(kernel, values) if obstacle(chosen) else VARIANTS[0])
        _launch(kernel, chosen, variant, target, values, sizes)
    return chosen


def _obstacle(kernel: Kernel, values: Mapping[str, Any], target: Target, chosen: Specialisation) -> str:
    """What keeps the call from aligned code for the target."""
    found = obstacle_of(kernel, values, lambda: _loaded(kernel, chosen, VARIANTS[0], target)[1].divisibility)
    maps = () if found else _loaded(kernel, chosen, VARIANTS[0], target)[1].tensor_maps
    return found or ("" if all(can_be_made(m, kernel, values) for m in maps) else "an array cannot have a tensor map")


@cache
def _loaded(kernel: Kernel, specialisation: Specialisation, variant: Variant, target: Target) -> tuple[Any, Any]:
    """Return the function on the device and the artifact that it was loaded from."""
    from gristmill.compiler.compile import compile_variant

    device_target()
    artifact = compile_variant(kernel, specialisation, variant, target)
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    check(DRIVER.cuModuleLoadData(ctypes.byref(module), artifact.code + b"\0"))
    check(DRIVER.cuModuleGetFunction(ctypes.byref(function), module, artifact.symbol.encode()))
    check(DRIVER.cuFuncSetAttribute(function, MAX_DYNAMIC_SHARED_SIZE_BYTES, artifact.shared_bytes))
    return function, artifact


def _launch(
    kernel: Kernel,
    specialisation: Specialisation,
    variant: Variant,
    target: Target,
    values: Mapping[str, Any],
    grid: Sequence[int],
) -> None:
    function, artifact = _loaded(kernel, specialisation, variant, target)
    arrays = {p.name: values[p.name] for p in kernel.parameters if p.kind == "pointer"}
    placed = {name: _copied(array) for name, array in arrays.items()}
    pointers = {name: SimpleNamespace(ctypes=SimpleNamespace(data=place)) for name, (_, place) in placed.items()}
    given = [*fields(kernel, specialisation, variant, {**values, **pointers})]
    places = {**values, **{name: place for name, (_, place) in placed.items()}}
    given += [_encoded(tensor_map, kernel, places) for tensor_map in artifact.tensor_maps]
    counter = np.zeros(1, np.uint64)
    drawn = _copied(counter) if artifact.draws else None
    given += [struct.pack("<Q", drawn[1])] if drawn else []
    buffers = [ctypes.create_string_buffer(field, len(field)) for field in given]
    parameters = (ctypes.c_void_p * len(buffers))(*map(ctypes.addressof, buffers))
    sizes = (*grid, 1, 1, 1)[:3]
    blocks = (sizes[0] * artifact.ctas, *sizes[1:])
    check(
        DRIVER.cuLaunchKernel(function, *blocks, artifact.threads, 1, 1, artifact.shared_bytes, None, parameters, None)
    )
    check(DRIVER.cuCtxSynchronize())
    ctypes.CDLL(None).fflush(None)  # what the driver has printed for the kernel
    for array, (memory, place) in [*((arrays[n], placed[n]) for n in arrays), *([(counter, drawn)] if drawn else [])]:
        check(DRIVER.cuMemcpyDtoH_v2(ctypes.c_void_p(array.ctypes.data), ctypes.c_uint64(place), _bytes(array)))
        check(DRIVER.cuMemFree_v2(memory))
    assert counter[0] == 0, "the last program to draw sets the counter back"


def _encoded(tensor_map: TensorMap, kernel: Kernel, values: Mapping[str, Any]) -> bytes:
    """Return the map that the driver makes; an axis without elements, of which nothing is read, counts as one."""
    size, rank = tensor_map.dtype.itemsize, len(tensor_map.box)
    room = ctypes.create_string_buffer(MAP_BYTES + MAP_ALIGNMENT)
    place = -(-ctypes.addressof(room) // MAP_ALIGNMENT) * MAP_ALIGNMENT
    numbers = [int(values[p.name]) for p in kernel.parameters]
    extents = [max(1, evaluate(code, numbers)) for code in tensor_map.extents]
    steps = [evaluate(code, numbers) * size for code in tensor_map.strides]
    lengths, strides = (ctypes.c_uint64 * rank)(*extents), (ctypes.c_uint64 * rank)(*steps)
    box, ones = (ctypes.c_uint32 * rank)(*tensor_map.box), (ctypes.c_uint32 * rank)(*[1] * rank)
    address = ctypes.c_uint64(values[tensor_map.parameter])
    array = (MAP_DTYPES[tensor_map.dtype.name], rank, address, lengths, strides, box, ones)
    modes = (0, SWIZZLES[tensor_map.swizzle], PROMOTES_128_BYTES, 0)
    check(DRIVER.cuTensorMapEncodeTiled(ctypes.c_void_p(place), *array, *modes))
    return ctypes.string_at(place, MAP_BYTES)


def _bytes(array: np.ndarray) -> ctypes.c_size_t:
    assert array.flags.c_contiguous
    return ctypes.c_size_t(array.nbytes)


def _copied(array: np.ndarray) -> tuple[ctypes.c_uint64, int]:
    """Copy an array to the device; returns the allocation and the address in it."""
    memory, shift = ctypes.c_uint64(), array.ctypes.data % 16
    check(DRIVER.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(array.nbytes + ALIGNMENT)))
    place = memory.value + shift
    check(DRIVER.cuMemcpyHtoD_v2(ctypes.c_uint64(place), ctypes.c_void_p(array.ctypes.data), _bytes(array)))
    return memory, place
