"""`gristmill check-wheel`: what a good wheel looks like, and what is said of each way to be a bad one."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from gristmill import cli
from gristmill.build import wheel
from gristmill.build.wheel import Finding, check_wheel
from gristmill.errors import GristmillError
from test_build import build

CC = shutil.which("cc") or shutil.which("gcc")
needs_readelf = pytest.mark.skipif(not (CC and shutil.which("readelf")), reason="needs a C compiler and readelf")
INFO = "demo-1.2.dist-info"
MODULE = "demo/_kernels.abi3.so"
METADATA = """\
Metadata-Version: 2.4
Name: demo
Version: 1.2
License-File: LICENSE
Requires-Dist: numpy
Requires-Dist: gristmill[build]; extra == "build"
"""
WHEEL = "Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: cp312-abi3-linux_x86_64\n"
MATERIALS = {
    "metadata": {
        "component": {"name": "Demo"},
        "tools": {"components": [{"name": "llvmlite", "version": "0.50"}]},
    },
    "components": [{"name": name, "version": "1"} for name in ("gristmill", "nanobind", "robin-map")]
    + [{"name": "images"}, {"name": "host code"}],
}
FILES = {
    MODULE: b"no ELF file",
    f"{INFO}/METADATA": METADATA,
    f"{INFO}/WHEEL": WHEEL,
    f"{INFO}/licenses/LICENSE": "ours",
    f"{INFO}/licenses/gristmill/nanobind-BSD-3-Clause.txt": "theirs",
    f"{INFO}/licenses/gristmill/robin_map-MIT.txt": "theirs",
    f"{INFO}/sboms/demo._kernels.cdx.json": json.dumps(MATERIALS),
}


@pytest.fixture
def auditwheel(monkeypatch):
    """What auditwheel is asked, which takes a second, and can say nothing of a module that is none."""
    asked = wheel.platform
    monkeypatch.setattr(wheel, "platform", lambda _: [])
    return asked


pytestmark = pytest.mark.usefixtures("auditwheel")


def write_wheel(folder: Path, changes: dict[str, str | bytes | None] | None = None, *, tag: str = "cp312-abi3") -> Path:
    """Write the good wheel with other contents, or without a file where they are None."""
    files = {name: data for name, data in {**FILES, **(changes or {})}.items() if data is not None}
    rows = []
    path = folder / f"demo-1.2-{tag}-linux_x86_64.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            data = text.encode() if isinstance(text, str) else text
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            rows.append(f"{name},sha256={digest},{len(data)}")
            archive.writestr(name, data)
        archive.writestr(f"{INFO}/RECORD", "\n".join([*rows, f"{INFO}/RECORD,,"]))
    return path


def failures(path: Path) -> dict[str, Finding]:
    return {finding.check: finding for finding in check_wheel(path) if finding.holds is False}


def test_a_good_wheel_passes(tmp_path):
    assert failures(write_wheel(tmp_path)) == {}


@pytest.mark.parametrize(
    ("check", "changes", "said"),
    [
        ("tags", {f"{INFO}/WHEEL": WHEEL.replace("abi3", "cp312")}, "WHEEL says cp312-cp312-linux_x86_64"),
        ("tags", {MODULE: None, "demo/_kernels.cpython-312-x86_64-linux-gnu.so": b""}, "in a wheel for cp312-abi3"),
        ("requires", {f"{INFO}/METADATA": METADATA.replace("numpy", "llvmlite>=0.50")}, "llvmlite>=0.50"),
        ("requires", {f"{INFO}/METADATA": METADATA.replace("numpy", "nvidia-cuda-nvcc")}, "nvidia-cuda-nvcc"),
        ("size", {"demo/table.txt": bytes(10_000_000)}, "times that when unpacked"),
        ("licences", {f"{INFO}/licenses/LICENSE": None}, "missing: LICENSE"),
        ("licences", {f"{INFO}/licenses/gristmill/robin_map-MIT.txt": None}, "missing: a text for robin_map"),
        ("materials", {f"{INFO}/sboms/demo._kernels.cdx.json": None}, "no .dist-info/sboms"),
        (
            "materials",
            {f"{INFO}/sboms/demo._kernels.cdx.json": json.dumps(MATERIALS).replace("nanobind", "pybind11")},
            "missing: nanobind",
        ),
        (
            "materials",
            {f"{INFO}/sboms/demo._kernels.cdx.json": json.dumps(MATERIALS).replace("Demo", "other")},
            "missing: demo._kernels of demo",
        ),
    ],
)
def test_each_fault_is_found_and_has_a_fix(tmp_path, check, changes, said):
    found = failures(write_wheel(tmp_path, changes))
    assert set(found) == {check}
    assert said in found[check].found
    assert "fix: " in str(found[check])


def test_a_changed_file_is_not_what_the_record_says(tmp_path):
    path = write_wheel(tmp_path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("demo/more.py", "")
    assert failures(path)["record"].found == "differs: demo/more.py"


@needs_readelf
@pytest.mark.parametrize(("link", "is_good"), [((), True), (("-lm",), True), (("-lz",), False)])
def test_modules_link_to_system_libraries_only(tmp_path, link, is_good):
    library = tmp_path / "libz.so"
    subprocess.run([CC, "-shared", "-nostdlib", "-Wl,-soname,libz.so.1", "-o", library, "-xc", "/dev/null"], check=True)
    module = tmp_path / "m.so"
    options = ["-shared", "-Wl,--no-as-needed", f"-L{tmp_path}", "-o", module]
    subprocess.run([CC, *options, "-xc", "/dev/null", *link], check=True)
    found = failures(write_wheel(tmp_path, {MODULE: module.read_bytes()}))
    assert ("libraries" not in found) == is_good
    assert is_good or "libz.so.1" in found["libraries"].fix


@needs_readelf
def test_auditwheel_names_a_platform(tmp_path, auditwheel):
    pytest.importorskip("auditwheel")
    module = tmp_path / "m.so"
    subprocess.run([CC, "-shared", "-o", module, "-xc", "/dev/null"], check=True)
    (finding,) = auditwheel(wheel.Wheel(write_wheel(tmp_path, {MODULE: module.read_bytes()})))
    assert finding.holds
    assert finding.found.startswith("manylinux")


@pytest.mark.parametrize(
    ("tag", "suffix", "is_good"),
    [
        ("cp311-cp311", "cpython-311-x86_64-linux-gnu", True),
        ("cp314-cp314t", "cpython-314t-x86_64-linux-gnu", True),
        ("cp314-cp314t", "cpython-314-x86_64-linux-gnu", False),
        ("cp311-abi3", "abi3", False),
    ],
)
def test_the_suffix_fits_the_tag(tmp_path, tag, suffix, is_good):
    changes = {MODULE: None, f"demo/_kernels.{suffix}.so": b"", f"{INFO}/WHEEL": WHEEL.replace("cp312-abi3", tag)}
    assert ("tags" not in failures(write_wheel(tmp_path, changes, tag=tag))) == is_good


def test_what_is_no_wheel_is_an_error(tmp_path):
    (tmp_path / "a-1-py3-none-any.whl").write_text("text")
    for name in ("a-1-py3-none-any.whl", "missing.whl"):
        with pytest.raises(GristmillError, match="is no wheel"):
            check_wheel(tmp_path / name)


def test_the_command_prints_each_check_and_fails_if_one_does(tmp_path, capsys):
    assert cli.main(["check-wheel", str(write_wheel(tmp_path, {f"{INFO}/licenses/LICENSE": None}))]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "demo-1.2-cp312-abi3-linux_x86_64.whl"
    assert "ok       requires   numpy" in lines


def test_a_build_writes_a_bill_of_materials(tmp_path):
    out = build(tmp_path, package="a-package", version="1.2")
    text = (out / "pkg._kernels.cdx.json").read_text()
    document = json.loads(text)
    parts = {part["name"]: part for part in document["components"]}
    assert document["metadata"]["component"]["purl"] == "pkg:pypi/a-package@1.2"
    assert {"gristmill", "nanobind", "robin-map", "images", "host code", "kernels/gelu.py"} <= set(parts)
    for name, file in (("images", out / "images.bin"), ("kernels/helper.py", tmp_path / "kernels" / "helper.py")):
        assert parts[name]["hashes"][0]["content"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert {tool["name"] for tool in document["metadata"]["tools"]["components"]} >= {"gristmill", "llvmlite"}
    assert str(tmp_path) not in text
    if importlib.util.find_spec("cyclonedx") and importlib.util.find_spec("jsonschema"):
        from cyclonedx.schema import SchemaVersion
        from cyclonedx.validation.json import JsonStrictValidator

        assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
