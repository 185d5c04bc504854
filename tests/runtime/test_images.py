"""Which image runs where, and what is said when none does."""

import pytest

ROWS = [
    # capability, scale (cubins 80, 90a; PTX 80 of 7.0, 90a of 8.0), new_only (cubins 100f, 120; no PTX)
    ((8, 0), "cubin sm_80", None),
    ((8, 6), "cubin sm_80", None),
    ((8, 9), "cubin sm_80", None),
    ((9, 0), "cubin sm_90a", None),
    ((10, 0), "PTX 7.0 sm_80", "cubin sm_100f"),
    ((10, 3), "PTX 7.0 sm_80", "cubin sm_100f"),
    ((11, 0), "PTX 7.0 sm_80", None),
    ((12, 0), "PTX 7.0 sm_80", "cubin sm_120"),
    ((12, 1), "PTX 7.0 sm_80", "cubin sm_120"),
    ((7, 5), None, None),
]


@pytest.mark.parametrize(("capability", "scale", "new_only"), ROWS)
def test_choice(native, stub, capability, scale, new_only):
    stub.set_device(*capability)
    for kernel, expected in ((native.scale, scale), (native.new_only, new_only)):
        if expected:
            assert set(kernel.info(device=0)["images"].values()) == {expected}
        else:
            with pytest.raises(RuntimeError, match="no image fits this device"):
                kernel.info(device=0)


def test_ptx_can_be_forced(native, stub, monkeypatch):
    monkeypatch.setenv("GRISTMILL_IMAGES", "ptx")
    assert set(native.scale.info(device=0)["images"].values()) == {"PTX 8.0 sm_90a"}
    with pytest.raises(RuntimeError, match="no image fits this device"):
        native.new_only.info(device=0)


def test_no_image_names_device_and_what_is_embedded(native, stub):
    stub.set_device(7, 5)
    with pytest.raises(RuntimeError) as info:
        native.scale.info(device=1)
    assert str(info.value).splitlines() == [
        "scale: no image fits this device",
        "  asked: Stub GPU, sm_75",
        "  built: cubin sm_80, cubin sm_90a, PTX 7.0 sm_80, PTX 8.0 sm_90a",
        "  fix: add `sm_75` to TARGETS in gristmill_add_kernels(...), then rebuild",
    ]


SCRIPT = """
stub = Stub(__import__("ctypes").CDLL(__import__("os").environ["GRISTMILL_LIBCUDA"]))
stub.set_device({major}, {minor})
stub.library.stub_set_driver_version({driver})
x, y, i = CudaArray((8,)), CudaArray((8,), pointer=ADDRESS + 4096), CudaArray((8,), "i32", pointer=ADDRESS + 8192)
{setup}
try:
    {call}
    print(stub.launches[0].entry)
    print([line for line in stub.log if line.startswith("load")][0])
except RuntimeError as error:
    print(error)
"""
GATHER = "native.gather(x, i, y)"


def attempt(run_python, call, driver=12080, capability=(9, 0), setup="pass"):
    major, minor = capability
    return run_python(SCRIPT.format(call=call, driver=driver, major=major, minor=minor, setup=setup))


def test_ptx_newer_than_the_driver(run_python):
    text = attempt(run_python, GATHER, driver=12090)
    assert "gather: the CUDA driver is too old for the PTX of this kernel" in text
    assert "found: a driver for CUDA 12.9; PTX 9.0 sm_80 needs CUDA 13.0" in text
    assert "fix: update NVIDIA's driver" in text


def test_ptx_that_the_driver_takes(run_python):
    text = attempt(run_python, GATHER, driver=13000)
    assert "gather_a" in text
    assert "load .version 9.0 .target sm_80" in text


def test_driver_older_than_libraries(run_python):
    text = attempt(run_python, GATHER, driver=11080)
    assert "the CUDA driver is too old" in text
    assert "supports CUDA 11.8" in text
    assert "525.60.13" in text


def test_no_gpu(run_python):
    text = attempt(run_python, GATHER, setup='stub.fail("cuInit", 100)')
    assert "initialising CUDA (cuInit): CUDA_ERROR_NO_DEVICE (100)" in text
    assert "nvidia-smi" in text


def test_cuda_initialised_by_others_before_a_fork(run_python):
    assert 'use the "spawn" method' in attempt(run_python, GATHER, setup='stub.fail("cuInit", 3)').replace(
        "start workers with", "use"
    )


def test_compilers_log_is_shown(run_python):
    text = attempt(run_python, GATHER, driver=13000, setup='stub.fail("cuLibraryGetKernel", 218)')
    assert "gather: loading PTX 9.0 sm_80 failed: CUDA_ERROR_INVALID_PTX (218)" in text
    assert "found: ptxas: line 1; fatal: the stub does not like this" in text


def test_cubin_that_does_not_fit(run_python):
    text = attempt(run_python, "native.scale(x, y)", setup='stub.fail("cuLibraryGetKernel", 209)')
    assert "scale: loading cubin sm_90a failed: CUDA_ERROR_NO_BINARY_FOR_GPU (209)" in text
    assert "fix: rebuild" in text
