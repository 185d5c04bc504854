"""What code takes of a device: read from ptxas, kept in the tables, told by `info`, and refused where it cannot run."""

from __future__ import annotations

import re
import subprocess
from types import SimpleNamespace

import pytest

from build_fakes import PTX, SLOW, SPILLING
from gristmill.build.assembly import find_spills
from gristmill.build.cache import Cache
from gristmill.build.ptxas import Assembled, AssemblyError, Loss, Usage, assemble, find_ptxas, read_losses, read_usage
from gristmill.build.run import build_module
from gristmill.build.settings import Settings, choose_spills
from gristmill.cli import main
from gristmill.errors import BuildError
from gristmill.runtime.report import kernel_text, usage_text
from test_build import build, needs_ptxas
from test_embed import CXX, FLAGS, LAUNCHER, READER, compile_and_run, needs_compiler

CULPRIT = "kernels/gelu.py:13:5: error: `gelu_backward__f16__256` for sm_90a: "

# ---- ptxas ---------------------------------------------------------------------------------------------------------

REPORT = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'first' for 'sm_90a'
ptxas info    : Function properties for first
    224 bytes stack frame, 232 bytes spill stores, 252 bytes spill loads
ptxas info    : Used 24 registers, used 1 barriers, 240 bytes cumulative stack size
ptxas info    : Compile time = 13.672 ms
ptxas info    : Function properties for first__exp
    16 bytes stack frame, 8 bytes spill stores, 8 bytes spill loads
ptxas info    : Compiling entry function 'second' for 'sm_90a'
ptxas info    : Function properties for second
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers, 400 bytes cmem[0]
"""


def test_a_report_is_read_by_entry_with_the_functions_that_it_calls():
    assert read_usage(REPORT) == {"first": Usage(24, 240, 240), "second": Usage(8, 0, 0)}


def test_what_a_report_does_not_say_is_not_known():
    assert read_usage("") == {}
    assert read_usage(REPORT.replace("registers", "things")) == {}


def test_a_cubin_is_kept_with_what_it_takes():
    assembled = Assembled(b"\x7fELF\n\0{}", {"a": Usage(255, 16, 8)}, (Loss("a", "(C7508) it's slow\n"),))
    assert Assembled.unpack(assembled.pack()) == assembled


LOSSES = """\
ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored; unable to determine register count at entry.
ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored; unable to determine register count at entry.
ptxas warning : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized in the function 'first'
ptxas info    : (C7602) another thing in function 'first'
"""


def test_messages_that_tell_of_slow_code_are_read_once():
    ignored, serialised = read_losses(LOSSES + REPORT)
    assert ignored.function == ""
    assert ignored.message.startswith("(C7508) Potential Performance Loss: 'setmaxnreg' ignored;")
    assert serialised.function == "first"
    assert serialised.message.endswith("are serialized in the function 'first'")
    assert read_losses(REPORT) == ()


def test_local_bytes_are_those_of_the_stack_or_of_spills():
    assert [Usage(255, 16, 8).local_bytes, Usage(255, 4, 8).local_bytes] == [16, 8]


@needs_ptxas
def test_ptxas_says_what_each_entry_takes():
    plain = PTX.format(version="7.0", target="sm_80", symbol="plain", body="")
    spilling = PTX.format(version="7.0", target="sm_80", symbol="spilling", body=SPILLING)
    entry = spilling[spilling.index(".visible") :].replace(".maxntid 128", ".maxntid 128 .maxnreg 24")
    for arch in ("sm_80", "sm_90", "sm_120"):
        used = assemble(find_ptxas(), (plain + entry).encode(), arch).usage
        assert used["plain"].spill_bytes == used["plain"].stack_bytes == 0 < used["plain"].registers
        assert used["spilling"].registers == 24
        assert used["spilling"].spill_bytes > 0 < used["spilling"].stack_bytes


@pytest.mark.parametrize(
    ("output", "message", "function", "is_of_size"),
    [
        ("ptxas info : 0 bytes\nptxas fatal   : (C7602) Insufficient registers (64) in function bad. Try\n",
         "(C7602) Insufficient registers (64) in function bad. Try", "bad", True),
        ("ptxas error   : Entry function 'k__a32' uses too much shared data (0xea60 bytes, 0xc000 max)\n",
         "Entry function 'k__a32' uses too much shared data (0xea60 bytes, 0xc000 max)", "k__a32", True),
        ("no such file", "no such file", "", False),
    ],
)  # fmt: skip
def test_an_error_without_a_line_may_name_a_function(output, message, function, is_of_size):
    from gristmill.build.ptxas import _assembly_error

    error = _assembly_error(output, b"")
    assert (str(error), error.line, error.function, error.is_of_size) == (message, 0, function, is_of_size)


# ---- the build -----------------------------------------------------------------------------------------------------


@needs_ptxas
@pytest.mark.parametrize("limit", [None, 100_000])
def test_code_that_spills_is_a_warning(tmp_path, capsys, limit):
    for _ in range(2):  # the second time out of the cache
        out = build(tmp_path, "compile_spilling", ptxas=find_ptxas(), cache=tmp_path / "cache", spill_limit=limit)
        warnings = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: ")]
        (line,) = warnings
        assert re.fullmatch(
            r"warning: `gelu_backward__f16__256` for sm_90a: registers of a thread spill "
            r"(\d+) bytes \(a32\), \1 bytes \(g32\), \1 bytes \(g64\)",
            line,
        )
        assert line in (out / "build.log").read_text()


@needs_ptxas
def test_code_that_spills_more_than_its_limit_is_an_error(tmp_path):
    for _ in range(2):  # the second time out of the cache
        with pytest.raises(BuildError) as caught:
            build(tmp_path, "compile_spilling", ptxas=find_ptxas(), cache=tmp_path / "cache")
        assert re.match(
            re.escape(CULPRIT) + r"registers of a thread spill (\d+) bytes \(a32\), \1 .* \(g64\), of at most 100\n",
            str(caught.value),
        )
        assert str(caught.value).endswith("or accept it with SPILLS WARN in gristmill_add_kernels(...)")
        assert not (tmp_path / "out" / "tables.cpp").exists()
    build(tmp_path, "compile_fake", ptxas=find_ptxas(), spill_limit=0)


def test_a_stack_without_spills_counts_above_the_limit():
    usage = {"a__a32": Usage(40, 104, 0), "a__g64": Usage(40, 100, 4), "b__a32": Usage(40, 100, 0)}
    entries = [(symbol[0], SimpleNamespace(symbol=symbol)) for symbol in usage]
    plan = SimpleNamespace(arch="sm_90a")

    def found(limit):
        return [(s.specialisation, s.variant, s.spill_bytes) for s in find_spills(None, plan, entries, usage, limit)]

    assert found(None) == [("a", "g64", 100)]
    assert found(100) == [("a", "a32", 104), ("a", "g64", 100)]


@needs_ptxas
def test_code_that_ptxas_makes_slow_is_an_error_or_a_warning(tmp_path, capsys):
    message = r"ptxas: \(C7508\) Potential Performance Loss: 'setmaxnreg' ignored; [\w ]+\. \(a32\)"
    for _ in range(2):  # the second time out of the cache
        with pytest.raises(BuildError) as caught:
            build(tmp_path, "compile_slow", ptxas=find_ptxas(), cache=tmp_path / "cache")
        assert re.match(re.escape(CULPRIT) + message + r", and 2 more \(see build.log\)\n", str(caught.value))
    capsys.readouterr()
    build(tmp_path, "compile_slow", ptxas=find_ptxas(), cache=tmp_path / "cache", spill_limit=None)
    warnings = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: ")]
    assert re.fullmatch("warning: `gelu_backward__f16__256` for sm_90a: " + message, warnings[0])
    assert [line[-5:] for line in warnings] == ["(a32)", "(g32)", "(g64)"]


@needs_ptxas
def test_a_function_that_ptxas_names_is_not_looked_for(tmp_path, monkeypatch):
    def assemble_slowly(ptxas, ptx, arch):
        is_slow = b"gelu_backward__f16__256__g32" in ptx and arch == "sm_90a"
        assert ptx.count(b".entry") > 1, "an entry was tried alone"
        message = "(C7510) serialized in the function 'gelu_backward__f16__256__g32'"
        return Assembled(b"", {}, (Loss("gelu_backward__f16__256__g32", message),) if is_slow else ())

    monkeypatch.setattr("gristmill.build.worker.assemble", assemble_slowly)
    with pytest.raises(BuildError, match=r"`gelu_backward__f16__256` for sm_90a: ptxas: \(C7510\) .* \(g32\)"):
        build(tmp_path, ptxas=find_ptxas())


@needs_ptxas
def test_what_no_entry_makes_slow_alone_is_of_the_kernel(tmp_path, monkeypatch):
    def assemble_slowly(ptxas, ptx, arch):
        is_slow = arch == "sm_90a" and ptx.count(b".entry") > 1
        return Assembled(b"", {}, (Loss("", "(C7509) across compilation units"),) if is_slow else ())

    monkeypatch.setattr("gristmill.build.worker.assemble", assemble_slowly)
    with pytest.raises(BuildError, match=r"`gelu_\w+` for sm_90a: ptxas: \(C7509\) across compilation units \(all\)"):
        build(tmp_path, ptxas=find_ptxas())


@needs_ptxas
def test_ptxas_tells_of_registers_that_it_does_not_give():
    ptx = PTX.format(version="8.0", target="sm_90a", symbol="slow", body=SLOW)
    (loss,) = assemble(find_ptxas(), ptx.encode(), "sm_90a").losses
    assert loss.message.startswith("(C7508) ")


def test_the_limit_of_spills_is_a_number_or_none():
    ptxas = SimpleNamespace()
    assert [choose_spills(choice, ptxas) for choice in ("", "0", "240", "WARN", "warn")] == [100, 0, 240, None, None]
    assert choose_spills("", None) == 100
    for choice in ("maybe", "ERROR", "-1", "1.5"):
        with pytest.raises(BuildError, match=f"a number of bytes or WARN, found `{choice}`"):
            choose_spills(choice, ptxas)
    with pytest.raises(BuildError, match=r"only ptxas tells of them[\s\S]*fix: set GRISTMILL_CUBINS=ON"):
        choose_spills("0", None)


@needs_ptxas
def test_too_few_registers_for_an_instruction_name_the_specialisation(tmp_path):
    with pytest.raises(BuildError) as caught:
        build(tmp_path, "compile_crowded", ptxas=find_ptxas())
    assert str(caught.value).startswith(CULPRIT + "ptxas: ")
    assert "registers (64)" in str(caught.value)
    assert str(caught.value).endswith("fix: take smaller blocks, or another number of warps (`num_warps=`)")


@needs_ptxas
def test_a_specialisation_that_ptxas_does_not_name_is_found(tmp_path, monkeypatch):
    def assemble_mutely(ptxas, ptx, arch):
        if b"gelu_backward__f16__256__g32" in ptx and arch == "sm_90a":
            raise AssemblyError("it crashed", 0)
        return Assembled(b"", {})

    monkeypatch.setattr("gristmill.build.worker.assemble", assemble_mutely)
    with pytest.raises(BuildError, match="`gelu_backward__f16__256` for sm_90a: ptxas: it crashed"):
        build(tmp_path, ptxas=find_ptxas())


@pytest.mark.parametrize(
    ("compiler", "problem", "fix"),
    [
        ("compile_large", "a block takes 1,056 threads, the target has 1,024", "take fewer warps (`num_warps=`)"),
        (
            "compile_wide",
            "a block takes 232,449 bytes of shared memory, the target has 232,448",
            "take smaller blocks, and more programs",
        ),
    ],
)
def test_blocks_that_no_device_can_run_name_the_specialisation(tmp_path, compiler, problem, fix):
    with pytest.raises(BuildError) as caught:
        build(tmp_path, compiler)
    assert str(caught.value).startswith(CULPRIT + problem)
    assert str(caught.value).endswith(f"fix: {fix}")


WIDE = """\
import gristmill as gm
import gristmill.language as tl


@gm.kernel(BLOCK=[256], num_stages=8, grid=1)
def product(x: gm.ptr[gm.f32], y: gm.ptr[gm.f32], BLOCK: gm.constexpr):
    i, j = tl.arange(0, BLOCK)[:, None], tl.arange(0, 2 * BLOCK)[None, :]
    a = tl.load(x + i * 2 * BLOCK + j)
    tl.store(y + i + j * BLOCK, tl.trans(tl.cumsum(a, 1)).T)
"""


def test_more_shared_memory_than_the_target_has_names_the_specialisation(tmp_path):
    """The compiler itself, in its worker."""
    file = tmp_path / "k.py"
    file.write_text(WIDE)
    settings = Settings((file,), "pkg._kernels", tmp_path / "out", tmp_path, targets=("sm_75",))
    with pytest.raises(BuildError) as caught:
        build_module(settings, cache=Cache(None))
    assert re.search(
        r"k.py:\d+:\d+: error: a block needs \d+ bytes of shared memory, the target has 65536\n", str(caught.value)
    )
    assert str(caught.value).endswith("while compiling `product__256__w4s8` for sm_75")


# ---- tables and reports --------------------------------------------------------------------------------------------


@needs_ptxas
@needs_compiler
def test_tables_say_what_each_entry_takes_in_each_cubin(tmp_path):
    out = build(tmp_path, "compile_spilling", ptxas=find_ptxas(), spill_limit=None)
    found = re.findall(r"usage (\w+) (\d) (\w+) (\d+) (\d+) (\d+)\n", compile_and_run(out))
    assert len(found) == 2 * 4 * 4 * 3
    spilling = {(name, cubin) for name, cubin, _, registers, _, spilled in found if int(spilled) or registers == "24"}
    assert spilling == {("gelu_backward__f16__256", "1")}
    assert all(int(registers) > 0 for *_, registers, _, _ in found)


@needs_compiler
@pytest.mark.parametrize(
    ("registers", "threads", "shared_bytes", "sm", "blocks", "share"),
    [
        (32, 128, 0, 90, 16, 1.0),
        (64, 512, 20_000, 120, 2, 2 / 3),
        (16, 64, 40_000, 120, 2, 1 / 12),
        (128, 64, 0, 120, 8, 1 / 3),
        (40, 32, 0, 120, 24, 0.5),
        (200, 64, 16_888, 89, 4, 1 / 6),  # registers: each of four partitions holds two warps
        (168, 64, 16_888, 89, 5, 5 / 24),
        (168, 384, 230_000, 90, 1, 0.1875),
        (32, 128, 113_000, 90, 2, 0.125),
        (32, 128, 232_448, 90, 1, 0.0625),
        (32, 1024, 0, 86, 1, 2 / 3),
        (8, 32, 0, 86, 16, 1 / 3),
        (8, 32, 0, 80, 32, 0.5),
        (8, 32, 0, 75, 16, 0.5),
        (65, 1024, 0, 80, 0, 0),
        (32, 128, 0, 121, 12, 1.0),
        (32, 128, 0, 70, -1, 0),
        (0, 128, 0, 90, -1, 0),
    ],
)
def test_occupancy_is_that_of_the_architecture(occupancy, registers, threads, shared_bytes, sm, blocks, share):
    line = f"{registers} {threads} {shared_bytes} {sm}\n"
    found = subprocess.run([str(occupancy)], input=line, capture_output=True, text=True, check=True).stdout.split()
    assert (int(found[0]), float(found[1])) == (blocks, pytest.approx(share, rel=1e-5))


@pytest.fixture(scope="module")
def occupancy(tmp_path_factory):
    program = tmp_path_factory.mktemp("occupancy") / "print"
    sources = [READER.parent / "print_occupancy.cpp", LAUNCHER / "occupancy.cpp"]
    subprocess.run([CXX, *FLAGS, f"-I{LAUNCHER}", *map(str, sources), "-o", str(program)], check=True)
    return program


def code(variant, image="cubin sm_90a", **known):
    taken = {"blocks_per_multiprocessor": 4, "occupancy": 0.25, **known} if known else {}
    return {
        "image": image,
        "variant": variant,
        "entry_point": f"k__{variant}",
        "threads": 128,
        "shared_bytes": 0,
        **taken,
    }


def module_with(*codes):
    instance = SimpleNamespace(info=lambda: {"code": list(codes)})
    return SimpleNamespace(__all__=["k"], k=SimpleNamespace(__name__="k", instances=(instance,)))


CODES = [
    code("a32", registers=255, spill_bytes=1200, shared_bytes=65536),
    code("g32", registers=40, spill_bytes=0, blocks_per_multiprocessor=8, occupancy=0.5),
    code("a32", "PTX 7.0 sm_80"),
]


def test_info_shows_what_the_code_of_each_cubin_takes():
    head, line = usage_text(module_with(*CODES)).splitlines()
    assert head.split() == [
        "kernel",
        "image",
        "threads",
        "registers",
        "shared",
        "bytes",
        "spilled",
        "bytes",
        "blocks",
        "warps",
    ]
    assert re.split(r"  +", line) == [
        "k",
        "cubin sm_90a",
        "128",
        "40 to 255",
        "0 to 65,536",
        "0 to 1,200",
        "4 to 8",
        "25 to 50%",
    ]
    assert usage_text(module_with(CODES[-1])) == ""


def test_info_of_a_kernel_shows_every_entry(monkeypatch, capsys):
    module = module_with(*CODES)
    assert [line.split() for line in kernel_text(module.k).splitlines()[1:]] == [
        ["k__a32", "cubin", "sm_90a", "128", "255", "65,536", "1,200", "4", "25%"],
        ["k__g32", "cubin", "sm_90a", "128", "40", "0", "0", "8", "50%"],
        ["k__a32", "PTX", "7.0", "sm_80", "128", "-", "0", "-", "-", "-"],
    ]
    module.__name__ = "some_kernels"
    monkeypatch.setattr("gristmill.cli._kernels_of", lambda name: module)
    assert main(["info", "--kernel", "k"]) == 0
    assert capsys.readouterr().out == kernel_text(module.k) + "\n"
    assert main(["info", "--kernel", "no"]) == 1
    assert "there is no kernel `no`" in capsys.readouterr().err
