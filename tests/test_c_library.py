"""Kernels called without Python: the example for C, and a library's calls, checks and launches."""

from __future__ import annotations

import ctypes
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from c_library import CUDA, Library, Place, array, integer, real
from gristmill.build.ptxas import find_ptxas
from gristmill.build.settings import default_targets
from projects import CMAKE, CXX, NINJA, PACKAGE, build_stub, needs_tools, run, run_bare
from runtime.fakes import Stub

EXAMPLE = Path(__file__).parent.parent / "examples" / "c"
PRINTED = "rowops 1.0: 1 kernel, axpy\n10.5 21 31.5 -1\n42 52.5 63 -1\n"
TUNED = """\
[[table]]
kernel = "axpy"
device = "Stub GPU"
architecture = "sm_90"
units = 132
key = ["columns"]
rows = [{ dtypes = ["f32"], key = [2048], variant = "a32", take = "axpy__f32__1024__w4" }]
"""
pytestmark = [needs_tools, pytest.mark.skipif(not EXAMPLE.exists(), reason="not in a checkout")]


def configure(build: Path, *options: str, project: Path = EXAMPLE) -> None:
    """Configure a project; without options C++ is not optimised, which the default run has no time for."""
    found = [f"-DCMAKE_MAKE_PROGRAM={NINJA}", f"-DPython_EXECUTABLE={sys.executable}"]
    found += [f"-Dgristmill_ROOT={PACKAGE / 'cmake'}", f"-DCMAKE_INSTALL_PREFIX={build / 'prefix'}"]
    run(CMAKE, "-G", "Ninja", "-S", project, "-B", build, *found, *options, cwd=build.parent)


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """The example's folder of results, without its Python module; calls with 2048 columns are tuned."""
    project = tmp_path_factory.mktemp("c") / "example"
    shutil.copytree(EXAMPLE, project)
    for file, old, new in (
        ("kernels/axpy.py", "BLOCK=[256, 1024]", 'configs=[gm.Config(BLOCK=n) for n in (256, 1024)], key=["columns"]'),
        ("CMakeLists.txt", "CXX_LIBRARY", "CXX_LIBRARY TUNING tuned.toml"),
    ):
        text = (project / file).read_text()
        assert old in text
        (project / file).write_text(text.replace(old, new))
    (project / "tuned.toml").write_text(TUNED)
    build = project.parent / "build"
    configure(build, project=project)
    run(NINJA, "-C", build, "example", cwd=build)
    return build


@pytest.fixture(scope="module")
def stub(built, tmp_path_factory) -> Stub:
    """The fake driver, which the library opens as CUDA's."""
    path = build_stub(tmp_path_factory.mktemp("stub"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRISTMILL_LIBCUDA", str(path))
        fake = Stub(ctypes.CDLL(str(path)))
        fake.reset()
        yield fake


@pytest.fixture(scope="module")
def library(built) -> Library:
    return Library(built / "librowops.so", "rowops")


def of(values: np.ndarray, **changes):
    """An argument of a numpy array."""
    strides = [stride // values.itemsize for stride in values.strides]
    dtype = {"float32": "f32", "float64": "f64", "float16": "f16"}[values.dtype.name]
    return array(**{"data": values.ctypes.data, "dtype": dtype, "shape": values.shape, "strides": strides, **changes})


def test_the_example_computes_what_it_prints(built):
    assert subprocess.run([built / "example"], capture_output=True, text=True, check=True).stdout == PRINTED


def test_the_library_needs_neither_python_nor_a_library_of_compression(built):
    listing = run("readelf", "-d", built / "librowops.so", cwd=built)
    needed = set(re.findall(r"NEEDED.*\[(.*?)\.so", listing))
    assert {name for name in needed if not name.startswith("ld-linux")} <= {
        "libc",
        "libm",
        "libgcc_s",
        "libstdc++",
        "libpthread",
        "libdl",
    }


def test_only_names_of_the_package_are_exported(built):
    names = {
        line.split()[-1] for line in run("nm", "-D", "--defined-only", built / "librowops.so", cwd=built).splitlines()
    }
    functions = ("version", "count", "name", "error", "find", "launch", "preload")
    assert names == {f"rowops_{function}" for function in functions}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(3, 1000), (1, 1), (5, 256), (0, 4), (70, 4097)])
def test_calls_compute_on_the_cpu(library, dtype, shape):
    random = np.random.default_rng(0)
    x, wide = (random.integers(-99, 99, (shape[0], shape[1] + pad)).astype(dtype) for pad in (0, 3))
    y = wide[:, : shape[1]]
    expected = 2 * x + y
    library.launch(library.find("axpy"), of(x), of(y), real(2))
    np.testing.assert_array_equal(y, expected)
    library.launch(library.find("axpy", [{"float32": "f32", "float64": "f64"}[dtype]]), of(x), of(y), integer(-2))
    np.testing.assert_array_equal(y, expected - 2 * x)


X, Y = np.ones((2, 300), np.float32), np.ones((2, 300), np.float32)


@pytest.mark.parametrize(
    ("find", "arguments", "message"),
    [
        ({"name": "axpi"}, (), "VALUE: there is no kernel `axpi`\n  built: axpy\n  fix: find one of these"),
        (
            {"dtypes": ["f16"]},
            (),
            "TYPE: axpy: no specialisation is built for this\n  asked: f16\n  built: axpy__f32__256",
        ),
        ({"dtypes": ["f32"] * 2}, (), "TYPE: axpy: wrong number of dtypes"),
        ({"BLOCK": "512"}, (), "VALUE: axpy: no specialisation is built for this\n  asked: BLOCK=512"),
        ({"BLOCK": "many"}, (), "VALUE: axpy: no specialisation has this value of `BLOCK`\n  found: many"),
        ({"SIZE": "1"}, (), "TYPE: axpy: has no constant `SIZE`\n  supported: BLOCK"),
        ({}, (of(X), of(Y)), "TYPE: axpy: `alpha` has no default"),
        ({}, (of(X),), "TYPE: axpy: `y` is an array\n  found: nothing"),
        ({}, (of(X), real(1), real(1)), "TYPE: axpy: `y` is an array\n  found: a real number"),
        ({}, (of(X), of(Y), of(X)), "TYPE: axpy: `alpha` is no number of its type\n  found: an array"),
        ({}, (of(X), of(Y), real(1), real(2)), "TYPE: axpy: `rows` is no number of its type\n  found: a real number"),
        ({}, (of(X), of(Y), real(1), integer(3)), "VALUE: axpy: `rows` does not fit `x`\n  found: rows=3"),
        (
            {},
            (of(X), of(Y.astype("f8")), real(1)),
            "TYPE: axpy: `y` has the wrong dtype\n  found: f64\n  supported: f32",
        ),
        ({"dtypes": ["f64"]}, (of(X), of(Y), real(1)), "TYPE: axpy: `x` has the wrong dtype\n  found: f32"),
        ({}, (of(X, dtype="f16"), of(Y, dtype="f16"), real(1)), "TYPE: axpy: no specialisation has these dtypes"),
        ({}, (of(X), of(Y[:, ::2]), real(1)), "VALUE: axpy: `y` is not contiguous"),
        (
            {},
            (of(X), of(Y[:1], shape=(2, 300), strides=(0, 1)), real(1)),
            "VALUE: axpy: `y` has elements that share memory",
        ),
        ({}, (of(X), of(X[:, 1:]), real(1)), "VALUE: axpy: `y` partly overlaps `x`"),
        ({}, (of(X, data=None), of(Y), real(1)), "VALUE: axpy: `x` has no memory"),
        ({}, (of(X, shape=(2, -1)), of(Y), real(1)), "VALUE: axpy: `x` has no shape"),
        ({}, (of(X),) * 8, "TYPE: axpy: too many arguments\n  found: 8"),
    ],
)
def test_wrong_calls_say_what_to_change(library, find, arguments, message):
    with pytest.raises(RuntimeError) as caught:
        library.launch(library.find(**{"name": "axpy", **find}), *arguments)
    assert str(caught.value).startswith(message)
    assert "\n  fix: " in str(caught.value)


def test_a_kernel_that_is_found_again_is_the_same(library):
    assert library.find("axpy", ["f32"], BLOCK="256").value == library.find("axpy", ["f32"], BLOCK="256").value
    assert library.find("axpy", ["f32"], BLOCK="256").value != library.find("axpy", ["f32"], BLOCK="1024").value


def test_calls_launch_on_a_device_and_stream(library, stub):
    stub.set_parameters("axpy__f32__1024__w4__a32", [8, 8, 4, 4, 4, 4, 4])
    x, y = (array(address, "f32", (3, 4096)) for address in (0x7F0000000000, 0x7F0000800000))
    grid = (ctypes.c_int64 * 3)(5, 6, 7)
    kernel = library.find("axpy", BLOCK="1024")
    library.launch(kernel, x, y, real(0.5), place=Place(CUDA, 1, 0x1234, None))
    library.launch(kernel, x, y, real(0.5), place=Place(CUDA, 1, None, grid))
    first, second = stub.launches
    assert (first.entry, first.grid, first.stream) == ("axpy__f32__1024__w4__a32", (4, 3, 1), 0x1234)
    assert (second.grid, second.stream) == ((5, 6, 7), 0)
    assert b"".join(first.parameters) == struct.pack("=QQf4i", 0x7F0000000000, 0x7F0000800000, 0.5, 3, 4096, 4096, 4096)


@pytest.mark.parametrize(("columns", "entry"), [(2048, "axpy__f32__1024__w4__a32"), (4096, "axpy__f32__256__w4__a32")])
def test_calls_take_what_a_tuned_table_says(library, stub, columns, entry):
    stub.set_parameters(entry, [8, 8, 4, 4, 4, 4, 4])
    x, y = (array(address, "f32", (3, columns)) for address in (0x7F0000000000, 0x7F0000800000))
    before = len(stub.launches)
    library.launch(library.find("axpy"), x, y, real(0.5), place=Place(CUDA, 0, None, None))
    assert [launch.entry for launch in stub.launches[before:]] == [entry]


no_cubins = pytest.mark.skipif(not find_ptxas(), reason="the package nvidia-cuda-nvcc-cu12 is not installed")


@pytest.mark.parametrize("images", [pytest.param("", marks=no_cubins), "ptx"])
def test_the_driver_is_given_whole_images(built, stub, images):
    """A cubin, or PTX for devices without one, each from its start on."""
    code = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
import ctypes, os
from c_library import *
from runtime.fakes import Stub
library = Library({str(built / "librowops.so")!r}, "rowops")
stub = Stub(ctypes.CDLL(os.environ["GRISTMILL_LIBCUDA"])); stub.reset()
library.preload(library.find("axpy"), 0)
print(*(line for line in stub.log if line.startswith("load ")), sep="\\n")
"""
    loads = run_bare(code, GRISTMILL_IMAGES=images).splitlines()
    starts = {line.split()[1] for line in loads}
    assert (len(loads), starts) == ((12, {".version"}) if images else (1, {"\x7fELF"}))


@pytest.mark.end_to_end
def test_cmake_alone_installs_library_header_and_module(tmp_path):
    build = tmp_path / "build"
    configure(build, "-DCMAKE_BUILD_TYPE=Release", f"-DGRISTMILL_TARGETS={default_targets()[-1]}")
    run(NINJA, "-C", build, "install", cwd=tmp_path)
    prefix = build / "prefix"
    (library,) = prefix.rglob("librowops.so")
    command = ["cc", "-std=c99", "-Wall", "-Wextra", "-Werror", EXAMPLE / "main.c", f"-I{prefix / 'include'}"]
    run(*command, library, f"-Wl,-rpath,{library.parent}", "-o", tmp_path / "by-hand", cwd=tmp_path)
    assert subprocess.run([tmp_path / "by-hand"], capture_output=True, text=True, check=True).stdout == PRINTED
    header = "#include <rowops.h>\nint main() { return rowops_count() != 1; }\n"
    (tmp_path / "uses.cpp").write_text(header)
    run(CXX, "-Wall", "-Wextra", "-Werror", "uses.cpp", f"-I{prefix / 'include'}", library, "-o", "uses", cwd=tmp_path)
    code = "from rowops._kernels import axpy, info; print(info()['version'], axpy.supported_dtypes)"
    assert run_bare(code, prefix) == "1.0 ('f32', 'f64')\n"
