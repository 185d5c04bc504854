"""What dispatchers and instances tell of themselves."""

import inspect

import numpy as np
import pytest
from fakes import array

SCALE = [8, 8, 4, 4]
SCALE64 = [8, 8, 4, 8]
ROWS = [8, 8, 4, 4, 4]
ROWS64 = [8, 8, 8, 8, 8]


@pytest.mark.parametrize(
    "spelling", ["f32", "float32", np.float32, np.dtype("float32"), type("D", (), {"name": "f32"})()]
)
def test_spellings_of_dtypes(native, spelling):
    assert native.scale.dispatch(spelling, 1024).id == "scale__f32__1024"
    assert native.scale.dispatch(spelling, BLOCK=1024).constants == {"BLOCK": 1024}


def test_dispatch_with_several_dtype_variables(native):
    assert native.gather.dispatch(("f32", "i64")).id == "gather__f32_i64"
    assert native.gather.dispatch({"A": "f64"}).dtypes == {"A": "f64", "B": "i32"}
    with pytest.raises(TypeError, match=r"(?s)wrong number of dtypes.*2: A, B"):
        native.gather.dispatch("f32")


def test_dispatch_says_what_is_built(native):
    with pytest.raises(
        TypeError, match=r"(?s)scale: no specialisation is built.*asked: f16.*scale__f64__256.*`gm.f16`"
    ):
        native.scale.dispatch("float16")
    with pytest.raises(ValueError, match=r"(?s)asked: f32, BLOCK=512.*built: scale__f32__256, scale__f32__1024"):
        native.scale.dispatch("f32", 512)
    with pytest.raises(TypeError, match=r"`floot` is not a known dtype"):
        native.scale.dispatch("floot")
    with pytest.raises(TypeError, match=r"has no constant `BLOK`"):
        native.scale.dispatch("f32", BLOK=1)


def test_an_instance_describes_itself(native):
    k = native.row_scale.dispatch("f32", 64)
    assert (k.name, k.id, k.entry_point, k.dtypes, k.constants) == (
        "row_scale",
        "row_scale__f32__64",
        "row_scale_64_a32",
        {"D": "f32"},
        {"BLOCK": 64},
    )
    assert k.backward == native.row_scale_backward.dispatch("f32", 64)
    assert k.backward.backward is None
    assert k.source.startswith("def row_scale")
    assert repr(k) == "<KernelInstance row_scale__f32__64>"
    assert k.ptx("sm_80").startswith(".version 7.0\n.target sm_80\n")
    with pytest.raises(ValueError, match=r"(?s)no PTX for sm_75.*built: sm_80.*`sm_75` to TARGETS"):
        k.ptx("sm_75")
    assert [(image["kind"], image["target"]) for image in k.images][:3] == [
        ("cubin", "sm_80"),
        ("cubin", "sm_90a"),
        ("ptx", "sm_80"),
    ]


def test_an_instance_with_its_own_grid(native, stub):
    k = native.scale.dispatch("f32", 1024)
    x, y = array(8), array(8, offset=4096)
    k.launch(x, y, grid=(12,))
    k[12, 2](x, y, n=4)
    k[(3,)](x, y, 2.0, 4)
    k.launch(x, y)
    assert [launch.grid for launch in stub.launches] == [(12, 1, 1), (12, 2, 1), (3, 1, 1), (1, 1, 1)]


def test_dispatcher_looks_like_a_function(native):
    assert (native.scale.__name__, native.scale.__doc__) == ("scale", "y = factor * x")
    assert (
        str(inspect.signature(native.scale))
        == native.scale.__text_signature__
        == "(x, y, factor=2.0, n=None, *, BLOCK=None, stream=None)"
    )
    assert native.__all__ == sorted(native.__all__)
    assert len(native.__all__) == 16
    assert native.scale.supported_dtypes == ("f32", "f64", "bf16")
    assert native.gather.supported_dtypes == (("f32", "i32"), ("f32", "i64"), ("f64", "i32"))


def test_info_says_what_would_run(native, stub):
    x = np.zeros(8, np.float32)
    assert native.scale.info(x, x)["image"].startswith("host ")
    told = native.scale.info(array(8), array(8, offset=4100))
    assert (told["variant"], told["device"], told["image"], told["threads"]) == ("g32", "cuda:0", "cubin sm_90a", 128)
    assert (told["shared_bytes"], "cluster" in told) == (0, False)
    told = native.scale.info(array(8, dtype="f64", offset=8), array(8, dtype="f64", offset=4096))
    assert (told["threads"], told["shared_bytes"], told["cluster"], told["grid"]) == (256, 1024, 2, (1, 1, 1))
    assert not stub.launches
    assert [image["target"] for image in native.info()["images"]][:2] == ["sm_80", "sm_90a"]


def test_info_says_what_the_code_of_a_cubin_takes(native, stub):
    told = native.scale.info(array(8), array(8, offset=4096))
    names = ("registers", "stack_bytes", "spill_bytes", "blocks_per_multiprocessor", "occupancy")
    assert tuple(told[name] for name in names) == (32, 16, 0, 16, 1.0)
    told = native.scale.info(array(8, dtype="f64", offset=8), array(8, dtype="f64", offset=4096))
    assert tuple(told[name] for name in names) == (255, 144, 128, 1, 0.125)
    for call in ({"dtype": "f64"}, {"offset": 4}):  # entries, and images, of which nothing is known
        assert "registers" not in native.scale.info(array(8, **call), array(8, **{"offset": 4096, **call}))


def test_an_instance_says_what_its_code_takes_in_each_image(native):
    told = native.scale.dispatch("f32", 256).info()
    assert (told["kernel"], told["specialisation"]) == ("scale", "scale__f32__256")
    seen = [(code["image"], code["variant"], code.get("registers")) for code in told["code"]]
    assert seen[:4] == [
        ("cubin sm_80", "a32", 40),
        ("cubin sm_90a", "a32", 32),
        ("PTX 7.0 sm_80", "a32", None),
        ("PTX 8.0 sm_90a", "a32", None),
    ]
    assert [image for image, variant, _ in seen if variant == "g64"] == [image for image, *_ in seen[:4]]
    assert told["code"][0] == {
        "image": "cubin sm_80", "variant": "a32", "entry_point": "scale__f32__256__a32", "threads": 128,
        "shared_bytes": 0, "registers": 40, "stack_bytes": 0, "spill_bytes": 0, "blocks_per_multiprocessor": 12,
        "occupancy": 0.75,
    }  # fmt: skip
    lacks_sm_80 = native.long_rows.dispatch("f32", 64).info()["code"]
    assert {code["image"] for code in lacks_sm_80} == {"cubin sm_90a"}


def test_doctor_reports_devices_and_images(native, stub):
    lines = native.doctor()
    assert ("cuda:0", "ok", "Stub GPU, sm_90, 132 multiprocessors") in lines
    assert {status for _, status, _ in lines} <= {"ok", "warning", "error"}


def test_specialisations_that_a_target_lacks_are_passed_over(native, stub):
    x, y = array(2, 8), array(2, 8, offset=4096)
    assert native.long_rows.info(x, y)["specialisation"] == "long_rows__f32__64"
    x = np.zeros((2, 8), np.float32)
    assert native.long_rows.info(x, x)["image"].startswith("host ")


def test_configurations_are_for_their_devices(native, stub):
    x, y = array(2, 8), array(2, 8, offset=4096)
    native.own_rows(x, y)
    assert [launch.entry for launch in stub.launches] == ["own_64_a32"]
    on_cpu, result = np.ones((2, 8), np.float32), np.zeros((2, 8), np.float32)
    native.own_rows(on_cpu, result)
    assert (result == 2).all()
    assert native.own_rows.info(on_cpu, result)["specialisation"] == "own_rows__f32__256"
    refused = "not built for this device: .*, or it is declared for others"
    with pytest.raises(RuntimeError, match=refused):
        native.own_rows.dispatch("f32", 64).launch(on_cpu, result)
    with pytest.raises(RuntimeError, match=refused):
        native.own_rows.dispatch("f32", 256).launch(x, y)
    with pytest.raises(ValueError, match="no specialisation"):
        native.own_rows(x, y, BLOCK=256)
    codes = [{c["image"].split()[0] for c in it.info()["code"]} for it in native.own_rows.instances]
    assert codes == [{"cubin", "PTX"}, set()]


def test_specialisations_that_a_target_lacks_are_refused_by_name(run_python):
    script = """
stub = Stub(__import__("ctypes").CDLL(__import__("os").environ["GRISTMILL_LIBCUDA"]))
stub.set_device(8, 0, count=1)
x, y = CudaArray((2, 8)), CudaArray((2, 8), pointer=ADDRESS + 4096)
print(native.long_rows.info(x, y)["specialisation"])
native.long_rows.preload()
print(sum(line.startswith("function") for line in stub.log))
try:
    native.long_rows.dispatch("f32", 64).launch(x, y)
except RuntimeError as error:
    print(error)
"""
    lines = run_python(script).splitlines()
    assert lines[:2] == ["long_rows__f32__256", "3"]
    assert (
        lines[2] == "long_rows__f32__64: not built for this device: its tiles do not fit, or it is declared for others"
    )
    assert "fix: call `long_rows(...)`" in lines[3]


def test_calls_with_names_are_the_same_by_every_way_in(native, stub):
    x, y = array(1000), array(1000, offset=8192)
    instance = native.scale.dispatch("f32", 1024)
    native.scale(x, y=y, stream=7, BLOCK=1024)
    rest = {"stream": 7, "y": y}
    native.scale(x, BLOCK=1024, **rest)
    instance.launch(x, y=y, stream=7)
    instance.launch(x=x, **rest)
    instance[4](x, **rest)
    assert len(stub.launches) == 5
    assert len(set(map(str, stub.launches))) == 1


@pytest.mark.parametrize("count", [5, 65, 300])
def test_too_many_arguments(native, stub, count):
    instance = native.scale.dispatch("f32")
    for call in (native.scale, instance.launch, instance[1]):
        with pytest.raises(TypeError, match=rf"(?s)takes 4 arguments.*found: {count} arguments"):
            call(*[array(8)] * count)
        with pytest.raises(TypeError, match="has no parameter `z0`"):
            call(**{f"z{i}": 1 for i in range(count)})


def test_methods_of_kernels_refuse_another_self(native):
    kind = type(native.scale)
    with pytest.raises(TypeError, match="no kernel"):
        kind.info(3)
    with pytest.raises(TypeError, match="cannot create"):
        kind()
