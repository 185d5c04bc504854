"""`gristmill.compat.triton`: files for Triton import it and their kernels compile; launches say what to do instead."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest

import gristmill as gm
import gristmill.language
from gristmill.compat import record, triton
from gristmill.compat.triton import language as tl
from gristmill.compat.triton.tools.tensor_descriptor import TensorDescriptor
from gristmill.declare import load_kernels
from gristmill.errors import DeclarationError
from machines import bfloat16, on_each_machine

IMPORTS = """\
import gristmill.compat.triton as triton
import gristmill.compat.triton.language as tl
import gristmill.compat.triton.language.extra.cuda.libdevice
from gristmill.compat.triton.language import core
from gristmill.compat.triton.language.extra import libdevice
from gristmill.compat.triton.language.extra.cuda.libdevice import rsqrt
from gristmill.compat.triton.language.math import tanh
from gristmill.compat.triton.language.standard import sigmoid
from gristmill.compat.triton.runtime import driver
from gristmill.compat.triton.runtime.autotuner import OutOfResources
from gristmill.compat.triton.runtime.jit import JITFunction
from gristmill.compat.triton.tools.tensor_descriptor import TensorDescriptor
"""
KERNEL = """
SCALE: tl.constexpr = tl.constexpr(2.0)


@triton.jit
def shifted(x: tl.tensor, by: tl.constexpr = 1.0) -> tl.tensor:
    return x + by


@triton.constexpr_function
def first(names):
    return min({name: len(name) for name in names}.values())


@triton.jit
def inside(i: tl.constexpr, n: tl.constexpr):
    return i < n


@triton.jit(do_not_specialize=["n"], debug=False)
def kernel(x_ptr: tl.pointer_type, y_ptr, n: tl.int32, BLOCK: "tl.constexpr"):
    tl.static_assert(first(("i", "one")) == 1)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=inside(i, n))
    start = tl.float32(0.5)
    one: tl.constexpr = tl.constexpr(1.0)
    v = libdevice.tanh(x.to(tl.float32)) * SCALE + rsqrt(tl.math.exp(x.to(tl.float32))) + start
    tl.store(y_ptr + i, shifted(shifted(v), by=one * 2).to(y_ptr.dtype.element_ty), mask=i < n)


import gristmill as gm

built = gm.specialise(
    kernel, name="built", signature={"x_ptr": "*bf16:16", "y_ptr": "*fp16", "n": "i32"}, constants={"BLOCK": 64},
    grid=lambda n, BLOCK: gm.cdiv(n, BLOCK),
)
"""


@on_each_machine
def test_a_file_compiles_with_its_imports_changed(run, tmp_path):
    file = tmp_path / "k.py"
    file.write_text(IMPORTS + KERNEL)
    (kernel,) = load_kernels(file, tmp_path)
    x, y = np.linspace(-4, 4, 100).astype(bfloat16), np.full(100, -77, np.float16)
    run(kernel, None, x, y, 100)
    wide = x.astype(np.float64)
    want = np.tanh(wide) * 2 + np.exp(-wide / 2) + 3.5
    np.testing.assert_allclose(y.astype(np.float64), want, rtol=2.0**-10)


def test_the_language_is_gristmills():
    for name in set(gristmill.language.__all__) - {"extra", "math"}:
        assert getattr(tl, name) is getattr(gristmill.language, name)
    assert tl.pointer_type(tl.float32) == tl.pointer_type(tl.float32) != tl.pointer_type(tl.int32)
    with pytest.raises(AttributeError, match=r"module 'triton.language' has no attribute 'nothing'"):
        _ = tl.nothing
    assert {"load", "extra", "tensor"} <= set(dir(tl))


def test_host_helpers_are_numbers():
    assert (triton.cdiv(7, 2), triton.next_power_of_2(5)) == (4, 8)
    assert triton.__version__.startswith("3.")


@triton.jit
def copy_kernel(x_ptr, y_ptr, n, scale, dtype: tl.constexpr, BLOCK: tl.constexpr, FLAG: tl.constexpr = True):
    pass


@pytest.mark.parametrize(
    "launch",
    [
        lambda: copy_kernel[(1,)](None, None, 3),
        lambda: copy_kernel[lambda meta: (1,)](None, None, 3, BLOCK=4),
        lambda: copy_kernel(None, None, 3),
        lambda: triton.autotune([triton.Config({"BLOCK": 4})], key=[])(copy_kernel)[(1,)](None),
        lambda: copy_kernel.warmup(None, grid=(1,)),
    ],
)
def test_a_launch_says_how_kernels_are_compiled_and_called(launch):
    with pytest.raises(DeclarationError, match="`copy_kernel` is not compiled when it is launched") as caught:
        launch()
    assert "gm.specialise(copy_kernel" in caught.value.fix
    assert "from gristmill.kernels import copy_kernel" in caught.value.fix
    assert caught.value.position.file.endswith("test_triton_door.py")


COPY_TYPES = {"x_ptr": gm.ptr[gm.f32], "y_ptr": gm.ptr[gm.f32], "n": gm.i32, "scale": gm.f32}


def tuned_copy(configs=None, **tuning):
    """Declare a kernel whose tuning asks for Python at each launch."""
    tuned = triton.autotune([triton.Config({"BLOCK": 4})], key=["n"], **tuning)(copy_kernel)
    return gm.specialise(tuned, signature=COPY_TYPES, constants={"dtype": gm.f32}, configs=configs, grid=1)


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda: triton.testing.do_bench, "measures kernels that are compiled when they are launched"),
        (lambda: triton.runtime.driver.active.utils, "asks a device, and kernels are built without one"),
        (lambda: tuned_copy(prune_configs_by={"early_config_prune": print}), "cannot run `prune_configs_by`"),
        (lambda: tuned_copy(pre_hook=print), "cannot run `pre_hook`"),
        (lambda: triton.autotune([], key=[], budget=3), "`triton.autotune` has no argument `budget`"),
        (lambda: triton.jit(3), "decorates a function"),
    ],
)
def test_what_needs_a_compiler_or_a_device_at_run_time_says_what_to_do_instead(use, message):
    with pytest.raises(DeclarationError, match=message) as caught:
        use()
    assert caught.value.fix


def test_a_kernel_that_is_pruned_when_it_is_launched_compiles_in_configurations_of_the_declaration():
    kernel = tuned_copy([gm.Config(BLOCK=8)], prune_configs_by={"early_config_prune": print})
    assert [s.id for s in kernel.specialisations()] == ["copy_kernel__8__true__w4"]


def test_tuning_hints_are_accepted_and_change_nothing():
    tuned = triton.autotune(
        [triton.Config({"BLOCK": 4}, num_warps=2)],
        key=["n"],
        reset_to_zero=["y"],
        warmup=5,
        rep=10,
        use_cuda_graph=True,
    )(copy_kernel)
    assert [c.all_kwargs() for c in tuned.configs] == [{"BLOCK": 4, "num_warps": 2, "num_stages": 3, "num_ctas": 1}]
    assert tuned.function is copy_kernel.fn and tuned.arg_names[0] == "x_ptr"


# ---- recording -----------------------------------------------------------------------------------------------------

RECORDED = """\
import gristmill as gm

COPY_D = gm.dtype_var("COPY_D", [gm.f32, gm.bf16])


copy = gm.specialise(
    copy_kernel,
    name="copy",
    signature={
        "x_ptr": gm.ptr[COPY_D],
        "y_ptr": gm.ptr[gm.f32],
        "n": gm.i32,  # or gm.shape["x_ptr", 0], which it was each time
        "scale": gm.f32,
    },
    constants={
        "dtype": COPY_D,
        "FLAG": True,
    },
    configs=[
        gm.Config(BLOCK=32, num_warps=1),
        gm.Config(BLOCK=1024, num_warps=4),
    ],
    grid=lambda n, BLOCK: gm.cdiv(n, BLOCK),
)
"""


COPY = """\
from gristmill.compat import triton
from gristmill.compat.triton import language as tl


@triton.jit
def copy_kernel(x_ptr, y_ptr, n, scale, dtype: tl.constexpr, BLOCK: tl.constexpr, FLAG: tl.constexpr = True):
    pass
"""


def launch_copies(kernel=copy_kernel):
    for dtype, name in ((np.float32, tl.float32), (bfloat16, tl.bfloat16)):
        for n, block in ((100, 32), (5000, 1024)):
            x, y = np.zeros(n, dtype), np.zeros(n, np.float32)
            grid = lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),)  # noqa: E731
            kernel[grid](x, y, n, 0.5, name, BLOCK=block, num_warps=max(1, block // 256))


def test_launches_become_a_declaration_of_their_dtypes_constants_and_grid():
    with record() as recording:
        launch_copies()
    assert recording.text() == RECORDED


def test_a_recorded_declaration_loads_and_is_added_to_a_file(tmp_path):
    file = tmp_path / "k.py"
    file.write_text(COPY)
    with record(file):
        launch_copies()
    (kernel,) = load_kernels(file, tmp_path)
    assert [s.id.removeprefix("copy__") for s in kernel.specialisations()] == [
        "f32__32__true__w1", "f32__1024__true__w4", "bf16__32__true__w1", "bf16__1024__true__w4",
    ]  # fmt: skip


def test_a_grid_of_rows_is_read_from_an_array():
    @triton.jit
    def rows_kernel(x_ptr, x_stride, flag, BLOCK: tl.constexpr, w_ptr=None):
        pass

    with record() as recording:
        for rows in (3, 5):
            rows_kernel[(rows, 2)](np.zeros((rows, 8), np.int32), 8, True, BLOCK=16)
    text = recording.text()
    assert '"x_stride": gm.i32,  # or gm.stride["x_ptr", 0], which it was each time' in text
    assert '"x_ptr_size_0": gm.shape["x_ptr", 0],  # for the grid' in text
    assert "grid=lambda x_ptr_size_0: (x_ptr_size_0, 2)," in text
    assert '"flag": gm.bool_,' in text and '"w_ptr": None,' in text and '"BLOCK": 16,' in text


def test_what_no_expression_gives_is_a_choice():
    @triton.jit
    def odd_kernel(x_ptr, n, dtype: tl.constexpr):
        pass

    with record() as recording:
        odd_kernel[(7,)](np.zeros(4), 2**40, tl.int32)
        odd_kernel[(9,)](np.zeros(4), 5, tl.int8)
    text = recording.text()
    assert "grid=...,  # choose: the programs, as in lambda n, BLOCK: gm.cdiv(n, BLOCK); was (7,), (9,)" in text
    assert '"dtype": ...,  # choose: it was gm.i32 and gm.i8; declare a kernel for each' in text
    assert '"n": gm.i64,' in text


def test_launches_of_an_installed_triton_are_noted_and_run(monkeypatch):
    """A stand-in with the members that Triton's JITFunction has."""
    ran = []

    class JITFunction:
        def __init__(self, fn):
            self.fn = fn

        def __getitem__(self, grid):
            return lambda *arguments, **keywords: self.run(*arguments, grid=grid, warmup=False, **keywords)

        def run(self, *arguments, grid, warmup, **keywords):
            ran.append(len(arguments))
            return "compiled"

    module = types.ModuleType("triton.runtime.jit")
    module.JITFunction = JITFunction
    monkeypatch.setitem(sys.modules, "triton.runtime.jit", module)
    original = JITFunction.run
    kernel = JITFunction(copy_kernel.fn)
    with record() as recording:
        launch_copies(kernel)
    assert recording.text() == RECORDED and ran == [5] * 4
    assert JITFunction.run is original
    launch_copies(kernel)
    assert len(recording.launches["copy_kernel"]) == 4 and len(ran) == 8


def test_a_warm_up_is_not_noted(monkeypatch):
    """Its arguments have dtypes and nothing else."""
    monkeypatch.setitem(sys.modules, "triton.runtime.jit", types.ModuleType("triton.runtime.jit"))
    with record() as recording:
        copy_kernel.warmup(types.SimpleNamespace(dtype="float32"), grid=(1,))
    assert not recording.launches


def test_arrays_of_torch_are_noted_with_their_strides():
    torch = pytest.importorskip("torch")

    @triton.jit
    def strided_kernel(x_ptr, stride):
        pass

    with record() as recording:
        strided_kernel[(4,)](torch.zeros(8, 6, dtype=torch.bfloat16)[::2], 12)
    text = recording.text()
    assert '"x_ptr": gm.ptr[gm.bf16],' in text and 'gm.stride["x_ptr", 0]' in text and "x_ptr_size_0" in text


@pytest.mark.parametrize(
    ("launch", "message"),
    [
        (lambda: copy_kernel[(1,)](np.zeros(3), "text", 3, 0.5, tl.int32, BLOCK=4), "neither an array nor a number"),
        (lambda: copy_kernel[(1,)](np.zeros(3), blocks=4), "takes no argument `blocks`"),
        (lambda: copy_kernel[(1,)](*range(9)), "takes no argument `9`"),
        (lambda: copy_kernel[(1,)](np.zeros(3), dtype=[1]), "is no constant of a kernel"),
    ],
)
def test_a_launch_that_cannot_be_noted_is_an_error(launch, message):
    with record(), pytest.raises(DeclarationError, match=message) as caught:
        launch()
    assert caught.value.fix


@pytest.mark.parametrize(
    ("blocks", "entry"),
    [
        ([(16, 32), (16, 32)], "gm.descriptor[gm.f32, 16, 32],"),
        ([(16, 32), (64, 32)], "gm.descriptor[gm.f32, 'BLOCK', 32],"),
        ([(1, 1), (1, 1)], '...,  # choose: the sizes of a block, as in gm.descriptor[gm.f32, "BLOCK_M", 64]'),
        ([(8, 32), (64, 32)], '...,  # choose: the sizes of a block, as in gm.descriptor[gm.f32, "BLOCK_M", 64]'),
    ],
)
def test_a_descriptor_is_noted_with_its_block(blocks, entry):
    torch = pytest.importorskip("torch")

    @triton.jit
    def block_kernel(desc, BLOCK: tl.constexpr):
        pass

    with record() as recording:
        for block, size in zip(blocks, (16, 64), strict=True):
            block_kernel[(1,)](TensorDescriptor.from_tensor(torch.zeros(64, 32), list(block)), BLOCK=size)
    assert f'"desc": {entry}' in recording.text()


def test_a_recording_without_launches_is_an_error():
    with record() as recording:
        pass
    with pytest.raises(DeclarationError, match="nothing was launched"):
        recording.text()
