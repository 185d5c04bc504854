"""Occupancy as the driver of a CUDA device tells it."""

from __future__ import annotations

import ctypes
import subprocess

import pytest

import test_usage
from device import DRIVER, _loaded, check, device_target
from gristmill.specialisation import VARIANTS
from machines import shipped_kernels
from test_embed import needs_compiler

pytestmark = [pytest.mark.gpu, needs_compiler]
occupancy = test_usage.occupancy
NUM_REGISTERS = 4  # CU_FUNC_ATTRIBUTE_NUM_REGS
KERNELS = [shipped_kernels()[name] for name in ("gelu_forward", "softmax_forward", "vector_add")]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
def test_occupancy_is_that_of_the_driver(occupancy, kernel):
    for specialisation in kernel.specialisations():
        function, artifact = _loaded(kernel, specialisation, VARIANTS[0], device_target())
        registers, blocks = ctypes.c_int(), ctypes.c_int()
        check(DRIVER.cuFuncGetAttribute(ctypes.byref(registers), NUM_REGISTERS, function))
        taken = (artifact.threads, ctypes.c_size_t(artifact.shared_bytes))
        check(DRIVER.cuOccupancyMaxActiveBlocksPerMultiprocessor(ctypes.byref(blocks), function, *taken))
        line = f"{registers.value} {artifact.threads} {artifact.shared_bytes} {device_target().sm}\n"
        said = subprocess.run([str(occupancy)], input=line, capture_output=True, text=True, check=True).stdout
        assert int(said.split()[0]) == blocks.value, specialisation.id
