"""The generated tables, read back by a C++ program, and what they are made of."""

from __future__ import annotations

import lzma
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import gristmill
from build_fakes import write_project
from gristmill.build.cache import Cache
from gristmill.build.code import Code
from gristmill.build.embed import IMAGES_CPP, Spans, Stream, TablesWriter, archive, pack_images, pack_stream, quote
from gristmill.build.manifest import MOST_MAP_AXES, MOST_MAPS, MOST_PARAMETERS, ImageRow, Manifest, unify_symbols
from gristmill.build.plain import unpack_images
from gristmill.build.run import build_module
from gristmill.build.settings import Settings
from gristmill.errors import BuildError
from gristmill.specialisation import VARIANTS, Specialisation

CXX = shutil.which("c++") or shutil.which("g++")
needs_compiler = pytest.mark.skipif(not CXX, reason="no C++ compiler")
PACKAGE = Path(gristmill.__file__).parent
LAUNCHER = next(path for path in (PACKAGE / "csrc", PACKAGE.parent.parent / "csrc") if path.exists())
READER = Path(__file__).parent / "data" / "read_tables.cpp"
FLAGS = ("-std=c++20", "-Wall", "-Wextra", "-Werror")


def compile_and_run(out: Path) -> str:
    sources = [READER, out / "tables.cpp", out / "images.cpp", out / "libhost.a"]
    command = [CXX, *FLAGS, f"-I{LAUNCHER}", f"-I{out}", *map(str, sources), "-o", str(out / "read")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return subprocess.run([str(out / "read")], capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    settings = Settings(
        sources=(write_project(folder),),
        module="pkg._kernels",
        out=folder / "out",
        project_dir=folder,
        package="my-package",
        version="1.2",
        targets=("sm_80", "sm_90a", "x86-64-v2", "x86-64-v3"),
        workers=2,
    )
    build_module(settings, compiler="build_fakes:compile_fake", cache=Cache(None))
    return settings.out


@pytest.fixture(scope="module")
def read(built) -> str:
    return compile_and_run(built)


@needs_compiler
def test_the_tables_say_whose_they_are(read):
    assert f"package my-package 1.2 by {gristmill.__version__}; levels 0 1\n" in read


@needs_compiler
def test_a_kernel_has_its_text_and_names(read):
    assert "kernel gelu_forward in kernels/gelu.py\n" in read
    assert 'doc y = "gelu"(x) \\ ä\n' in read
    assert "@gm.kernel(BLOCK=[256, 1024], grid=lambda n, BLOCK: gm.cdiv(n, BLOCK), backward=" in read
    assert "variables D; constants BLOCK; backward kernel 1\n" in read


@needs_compiler
def test_parameters_say_what_is_read_written_and_defaulted(read):
    assert "parameter x kind 0 variable 0 tensor -1 rw 10 default 0 0\n" in read
    assert "parameter y kind 0 variable 0 tensor -1 rw 01 default 0 0\n" in read
    assert "parameter scale kind 4 variable -1 tensor -1 rw 00 default 1 0.5\n" in read
    assert "parameter n kind 1 variable -1 tensor 0 rw 00 default 0 0\n" in read


@needs_compiler
def test_a_specialisation_is_paired_with_its_backward(read):
    divisors = "of 1 1 1 1 of 1 1 1 1 of 1 1 1 4"  # on the host, on sm_80, on sm_90a
    for row, backward in (
        ("gelu_forward__f32__1024 dtypes 2 values 1024", 1),
        ("gelu_backward__f16__256 dtypes 0 values 256", -1),
    ):
        assert f"specialisation {row} warps 4 divisibility {divisors} backward {backward}\n" in read


@needs_compiler
def test_entries_have_one_symbol_for_all_targets(read):
    entries = re.findall(r"entry gelu_forward__f32__256__(\w+) geometry 128,16,1,0,\d,\d 128,16,2,0,\d,\d host", read)
    assert entries == ["a32", "g32", "g64"]


@needs_compiler
def test_only_aligned_code_of_one_target_takes_maps(read):
    counts = set(re.findall(r"entry \w+__(\w+) geometry [\d,]+,(\d) [\d,]+,(\d) host", read))
    assert counts == {("a32", "0", "1"), ("g32", "0", "0"), ("g64", "0", "0")}


@needs_compiler
def test_code_that_draws_tiles_says_so(read):
    drawing = set(re.findall(r"entry \w+__(\w+) geometry [\d,]+,(\d),\d [\d,]+,(\d),\d host", read))
    assert drawing == {("a32", "0", "1"), ("g32", "0", "0"), ("g64", "0", "0")}


@needs_compiler
def test_a_map_is_that_of_the_compiler(read):
    line = "map of 0 dtype 0 extents (0 64) (1 3 0 64 6) strides (1 3) box 64 8 swizzle 128\n"
    assert read.count("map of") == read.count(line) == 8


def test_the_launcher_has_room_for_all_parameters_and_maps():
    assert f"most_parameters = {MOST_PARAMETERS};" in (LAUNCHER / "view.hpp").read_text()
    assert f"most_maps = {MOST_MAPS}, most_map_axes = {MOST_MAP_AXES};" in (LAUNCHER / "tables.hpp").read_text()


def test_equal_maps_are_written_once(built):
    tables = (built / "tables.cpp").read_text()
    assert tables.count("const TensorMap ") == 1
    assert len(re.findall("const Geometry geometry", tables)) == 2


@needs_compiler
def test_each_entry_finds_its_ptx_in_the_blob(read, built):
    blob = (built / "images.bin").read_bytes()
    images = re.findall(r"image sm (\d+) version (\d+) at (\d+) size (\d+) from (\d+) of (\d+) sum (\d+)\n", read)
    for symbol, *indices in re.findall(r"entry (\w+) geometry \S+ \S+ host 2 ptx (\d+) (\d+)\n", read):
        for index, expected in zip(indices, ((80, 70, "sm_80"), (90, 80, "sm_90a")), strict=True):
            sm, version, offset, size, start, raw_size, total = map(int, images[int(index)])
            packed = blob[offset : offset + size]
            text = lzma.decompress(packed)[start : start + raw_size]
            assert (sm, version, len(text), sum(packed)) == (*expected[:2], raw_size, total)
            assert text.startswith(f".version {version / 10}\n.target {expected[2]}\n".encode())
            assert f".visible .entry {symbol}(".encode() in text


@needs_compiler
def test_expressions_are_the_codes_of_the_declaration(read):
    assert read.count("grid 1 3 2 0 10\n") == 2


@needs_compiler
def test_host_functions_can_be_called(read):
    assert "called 32 host functions\n" in read


@needs_compiler
def test_a_manifest_without_kernels_compiles(tmp_path):
    writer = TablesWriter(Manifest("p", "1", ()), "0")
    (tmp_path / "tables.cpp").write_text(writer.write([]))
    (tmp_path / "images.cpp").write_text(IMAGES_CPP)
    (tmp_path / "images.bin").write_bytes(b"")
    (tmp_path / "libhost.a").write_bytes(archive({}, "ar"))
    assert "called 0 host functions" in compile_and_run(tmp_path)


def test_equal_spans_are_written_once():
    spans = Spans("code", "std::int64_t")
    assert [spans.refer(items) for items in (["1", "2"], ["3"], ["1", "2"], [])] == [
        "{code0}",
        "{code1}",
        "{code0}",
        "{}",
    ]
    assert spans.definitions() == ["const std::int64_t code0[]{1,2};", "const std::int64_t code1[]{3};"]


def test_text_is_quoted_for_cpp():
    assert quote('a"b\\c\n\t?é') == '"a\\"b\\\\c\\n\\t\\?\\303\\251"'


def test_images_are_compressed_by_group_and_stored_once():
    rows = [ImageRow("ptx", 80, "", 70, data, "", "k sm_80") for data in (b"a" * 1000, b"b", b"a" * 1000)]
    rows.append(ImageRow("cubin", 80, "", 0, b"c" * 9, "k cubin"))
    blob, placed = pack_images(rows)
    assert len({place.offset for place in placed}) == 2
    assert all(place.offset % 8 == 0 for place in placed)
    for row, place in zip(rows, placed, strict=True):
        content = lzma.decompress(blob[place.offset : place.offset + place.size])
        assert content[place.start : place.start + len(row.data)] == row.data
    assert [place.start for place in placed] == [0, 1008, 0, 0]


def test_cubins_of_a_kernel_share_a_stream_in_which_instructions_are_aligned():
    rows = [ImageRow("cubin", sm, "", 0, bytes([sm]) * 24, f"k cubin sm_{sm}", "k cubins") for sm in (80, 100)]
    _, placed = pack_images(rows)
    assert [(place.offset, place.start) for place in placed] == [(0, 0), (0, 32)]


def test_what_decides_how_a_stream_is_compressed_is_in_its_packing():
    streams = [Stream(kind, bytes(size)) for kind in ("ptx", "cubin") for size in (9000, 9001)]
    assert len({stream.packing for stream in streams}) == len({pack_stream(stream) for stream in streams}) == 4
    assert all(lzma.decompress(pack_stream(stream)) == stream.content for stream in streams)


def test_archives_do_not_depend_on_time_or_order():
    objects = {"b": b"second", "a": b"first"}
    assert archive(objects, "ar") == archive(dict(sorted(objects.items())), "ar")


def test_code_that_is_alike_stands_side_by_side_in_an_archive(tmp_path):
    symbols = [
        f"{kernel}__{dtype}__{block}__{variant}__{level}"
        for kernel in ("gelu", "relu")
        for dtype in ("bf16", "f16", "f64")
        for block in ("1024", "256")
        for variant in ("a32", "g64")
        for level in ("v2", "v4")
    ]
    (tmp_path / "lib.a").write_bytes(archive(dict.fromkeys(symbols, b""), "ar"))
    listing = subprocess.run(["ar", "t", str(tmp_path / "lib.a")], capture_output=True, text=True, check=True).stdout
    found = listing.replace(".o\n", "\n").split()
    assert sorted(found) == sorted(symbols)
    assert all(len({s.replace(s.split("__")[1], "") for s in found[i : i + 3]}) == 1 for i in range(0, len(found), 3))
    assert [s[-2:] for s in found] == ["v2"] * 24 + ["v4"] * 24


def test_an_archiver_that_fails_is_named():
    with pytest.raises(BuildError, match="`false` could not archive the host code"):
        archive({"a": b""}, "false")


def test_variants_keep_a_symbol_each_where_only_one_target_merges_them():
    specialisation = Specialisation("k", (), ())
    names = [specialisation.symbol(variant) for variant in VARIANTS]

    def rows(*symbols: str) -> list[Code]:
        return [Code(s, f"entry {s}(.param {s}_0)".encode(), 32, 0, 1, (), (), {}, 70, ()) for s in symbols]

    codes = {("k", "sm_80"): rows(names[1], names[1], names[2]), ("k", "sm_90a"): rows(*names)}
    unified = unify_symbols(codes, specialisation, ("sm_80", "sm_90a"))
    for found in unified.values():
        assert [code.symbol for code in found] == names
        assert [code.code for code in found] == [code.code for code in rows(*names)]


def test_variants_merged_on_all_targets_stay_merged():
    code = Code("k__g32", b"", 32, 0, 1, (), (), {}, 70, ())
    codes = {("k", target): [code] * 3 for target in ("sm_80", "sm_90a")}
    unified = unify_symbols(codes, Specialisation("k", (), ()), ("sm_80", "sm_90a"))
    assert all(found == [code] * 3 for found in unified.values())


def test_a_library_holds_the_same_images_without_compression():
    images = [ImageRow("cubin", 80, "", 0, bytes([i]) * 100, f"k{i}", "group") for i in range(3)]
    images += [ImageRow("ptx", 80, "", 70, b".version 7.0\n", "p"), ImageRow("cubin", 90, "a", 0, b"", "e")]
    blob, placed = pack_images(images)
    plain = unpack_images(blob, ((place.offset, place.size) for place in placed))
    starts = {int(offset): int(start) for offset, start in re.findall(r"\{(\d+), (\d+)\}", plain.code)}
    assert list(starts) == sorted({place.offset for place in placed})
    assert f"{{streams, {len(starts)}}}" in plain.code
    for image, place in zip(images, placed, strict=True):
        first = starts[place.offset] + place.start
        assert plain.content[first : first + len(image.data)] == image.data
