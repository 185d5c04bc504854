"""The command line: what list, info and doctor print, and errors without tracebacks."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from gristmill.cli import main
from gristmill.runtime.report import doctor_text, info_text, list_text

INFO = {
    "package": "my-package",
    "version": "1.2",
    "gristmill_version": "0.1.0",
    "kernels": ["gelu_forward"],
    "images": [
        {"kind": "cubin", "target": "sm_90a", "ptx_version": None, "packed_bytes": 1500},
        {"kind": "cubin", "target": "sm_90a", "ptx_version": None, "packed_bytes": 500},
        {"kind": "ptx", "target": "sm_80", "ptx_version": "7.0", "packed_bytes": 300},
    ],
    "host_levels": ["x86-64-v2", "x86-64-v3"],
    "host_level": "x86-64-v3",
    "threads": 2,
}


def test_info_sums_the_images_of_each_kind():
    assert info_text(INFO).splitlines() == [
        "my-package 1.2: 1 kernels, built by gristmill 0.1.0",
        "CPU: x86-64-v2, x86-64-v3; x86-64-v3 is used here, with 2 threads",
        "CUDA: ready machine code, PTX for other devices",
        "  cubin sm_90a         2 images      2,000 bytes",
        "  ptx 7.0 sm_80        1 images        300 bytes",
    ]


def test_info_is_honest_about_ptx():
    text = info_text({**INFO, "images": INFO["images"][2:]})
    assert "CUDA: PTX only, which the driver compiles at first use" in text


def test_info_says_what_is_missing():
    text = info_text({**INFO, "images": [], "host_levels": []})
    assert text.splitlines()[1:] == ["CPU: no code", "CUDA: no code"]
    assert "none of them runs here" in info_text({**INFO, "host_level": None})


def test_list_shows_signature_dtypes_and_constants():
    instances = [SimpleNamespace(dtypes={"D": d}, constants={"BLOCK": b}) for d in ("f16", "f32") for b in (256, 1024)]
    kernel = SimpleNamespace(__name__="gelu_forward", __text_signature__="(x, y)", instances=instances)
    module = SimpleNamespace(__all__=["gelu_forward"], gelu_forward=kernel)
    assert list_text(module) == "gelu_forward(x, y)\n    f16, f32; BLOCK: 256, 1024"


def test_doctor_fails_on_an_error(monkeypatch, capsys):
    module = ModuleType("some_kernels")
    module.doctor = lambda: [("cpu", "ok", "fine"), ("driver", "error", "too old\n  fix: update it")]
    monkeypatch.setitem(sys.modules, "some_kernels", module)
    assert main(["doctor", "some_kernels"]) == 1
    assert capsys.readouterr().out == doctor_text(module.doctor()) + "\n"
    assert "error    driver     too old\n                      fix: update it" in doctor_text(module.doctor())


def test_a_missing_module_is_an_error_without_traceback(capsys):
    assert main(["info", "no_such_package._kernels"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("there is no module `no_such_package._kernels` of kernels here")
    assert "fix: install the wheel" in error


def test_a_build_without_llvmlite_says_what_to_install(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "llvmlite", None)
    assert main(["build", "k.py", "--module", "p.k", "--out", str(tmp_path)]) == 1
    assert 'fix: pip install "gristmill[build]"' in capsys.readouterr().err


def test_a_constant_without_value_says_what_to_write(capsys):
    assert main(["explain", "k.py", "--const", "BLOCK"]) == 1
    assert "fix: write --const BLOCK=1024" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["build", "explain", "init", "list", "info", "doctor", "demo"])
def test_every_command_has_help(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert f"gristmill {command}" in capsys.readouterr().out
