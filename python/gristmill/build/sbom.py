"""The bill of materials of a module (PEP 770, CycloneDX): what is compiled in, from what, and with which tools."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gristmill import __version__
from gristmill.build.ptxas import PACKAGE as PTXAS_PACKAGE
from gristmill.build.sources import source_closure

if TYPE_CHECKING:
    from gristmill.build.embed import Outputs
    from gristmill.build.manifest import Manifest
    from gristmill.build.settings import Settings

SCHEMA = "http://cyclonedx.org/schema/bom-1.6.schema.json"
ROBIN_MAP_VERSION = "ext/robin_map/include/tsl/robin_growth_policy.h"
Component = dict[str, Any]


def write_sbom(settings: Settings, manifest: Manifest, outputs: Outputs) -> str:
    """Return the document. It has no time and no serial number, so that equal builds give equal bytes."""
    reference = f"pkg:pypi/{settings.package}@{settings.version}"
    subject = {"type": "library", "bom-ref": reference, "name": settings.package, "version": settings.version}
    components = [*_launcher(), *_compiled(manifest, outputs), *_sources(settings)]
    document = {
        "$schema": SCHEMA,
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"tools": {"components": _tools(settings)}, "component": {**subject, "purl": reference}},
        "components": components,
        "dependencies": [{"ref": reference, "dependsOn": sorted(made["bom-ref"] for made in components)}],
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _launcher() -> list[Component]:
    """What is compiled from C++ into every module."""
    return [
        _library("gristmill", __version__, "Apache-2.0", "the launcher"),
        _library("nanobind", installed_version("nanobind"), "BSD-3-Clause", "the binding to Python"),
        _library("robin-map", robin_map_version(), "MIT", "a hash table in nanobind", "github/tessil/robin-map"),
    ]


def _library(name: str, version: str, licence: str, what: str, place: str = "") -> Component:
    purl = f"pkg:{place or f'pypi/{name}'}" + (f"@{version}" if version else "")
    told = {"version": version} if version else {}
    licences = [{"license": {"id": licence}}]
    return {"type": "library", "bom-ref": purl, "name": name, **told, "description": what} | {
        "licenses": licences,
        "purl": purl,
    }


def _compiled(manifest: Manifest, outputs: Outputs) -> list[Component]:
    kinds = sorted({f"{row.kind} sm_{row.sm}{row.suffix}" for row in manifest.images})
    images = f"{len(manifest.images)} CUDA images: {', '.join(kinds) or 'none'}"
    host = f"{len(manifest.objects)} functions for processors: {', '.join(manifest.host_levels) or 'none'}"
    made = [_file("images", outputs.images, images), _file("host code", outputs.host_code, host)]
    if outputs.plain:
        made.append(
            _file("plain images", outputs.plain.content, "the same images in the library for C, not compressed")
        )
    return made


def _sources(settings: Settings) -> list[Component]:
    files = sorted({file for source in settings.sources for file in source_closure(source)})
    told = [*((file, "source of kernels") for file in files), *((file, "tuned table") for file in settings.tuning)]
    return [_file(_shown(file, settings.project_dir), file.read_bytes(), what) for file, what in told]


def _file(name: str, data: bytes, what: str) -> Component:
    digest = {"alg": "SHA-256", "content": hashlib.sha256(data).hexdigest()}
    return {"type": "file", "bom-ref": f"file:{name}", "name": name, "description": what, "hashes": [digest]}


def _shown(file: Path, root: Path) -> str:
    return file.relative_to(root).as_posix() if file.is_relative_to(root) else file.name


def _tools(settings: Settings) -> list[Component]:
    """What was run, and is not in the module."""
    ptxas = [(PTXAS_PACKAGE, settings.ptxas.version)] if settings.ptxas else []
    names = [("gristmill", __version__), ("llvmlite", installed_version("llvmlite")), *ptxas]
    return [{"type": "application", "name": name, "version": version} for name, version in names]


def installed_version(package: str) -> str:
    """Return the version of an installed distribution, or "" where there is none."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def robin_map_version() -> str:
    """Return the version of the hash table that nanobind comes with, or "" where it cannot be read."""
    found = importlib.util.find_spec("nanobind")
    for folder in (found.submodule_search_locations or ()) if found else ():
        header = Path(folder, ROBIN_MAP_VERSION)
        if header.is_file():
            return ".".join(_numbers(header.read_text(encoding="utf-8").splitlines(), ("MAJOR", "MINOR", "PATCH")))
    return ""


def _numbers(lines: Iterable[str], names: Sequence[str]) -> list[str]:
    matches = [re.match(r"#define TSL_RH_VERSION_(\w+) (\d+)", line) for line in lines]
    found = {match[1]: match[2] for match in matches if match}
    return [found[name] for name in names if name in found]
