"""What `gristmill list`, `info` and `doctor` print of a module of kernels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def list_text(module: Any) -> str:
    """Return one line for each kernel: its signature, dtypes and constants."""
    return "\n".join(_kernel_line(getattr(module, name)) for name in module.__all__)


def info_text(info: Mapping[str, Any]) -> str:
    """Return what a package holds, from its module's `info()`."""
    names: Sequence[str] = info["kernels"]
    head = f"{info['package']} {info['version']}: {len(names)} kernels, built by gristmill {info['gristmill_version']}"
    return "\n".join([head, _cpu_line(info), *_image_lines(info["images"])])


def doctor_text(lines: Iterable[tuple[str, str, str]]) -> str:
    """Return the checks of a module's `doctor()`, one below the other."""
    return "\n".join(f"{status:<8} {check:<10} {_indent(text)}" for check, status, text in lines)


def _kernel_line(dispatcher: Any) -> str:
    instances = dispatcher.instances
    dtypes = ", ".join(dict.fromkeys("/".join(i.dtypes.values()) for i in instances))
    constants: dict[str, dict[str, None]] = {}
    for instance in instances:
        for name, value in instance.constants.items():
            constants.setdefault(name, {})[str(value)] = None
    choices = [dtypes, *(f"{name}: {', '.join(values)}" for name, values in constants.items())]
    signature = getattr(dispatcher, "__text_signature__", None) or ""
    return f"{dispatcher.__name__}{signature}\n    " + "; ".join(filter(None, choices))


def _cpu_line(info: Mapping[str, Any]) -> str:
    if not info["host_levels"]:
        return "CPU: no code"
    here = f"{info['host_level']} is used here" if info["host_level"] else "none of them runs here"
    return f"CPU: {', '.join(info['host_levels'])}; {here}, with {info['threads']} threads"


def _image_lines(images: Sequence[Mapping[str, Any]]) -> list[str]:
    if not images:
        return ["CUDA: no code"]
    groups: dict[str, list[int]] = {}
    for image in images:
        version = f" {image['ptx_version']}" if image["ptx_version"] else ""
        groups.setdefault(f"{image['kind']}{version} {image['target']}", []).append(image["packed_bytes"])
    has_cubins = any(image["kind"] == "cubin" for image in images)
    kind = (
        "ready machine code, PTX for other devices"
        if has_cubins
        else "PTX only, which the driver compiles at first use"
    )
    rows = [f"  {name:<16} {len(sizes):>5} images {sum(sizes):>10,} bytes" for name, sizes in sorted(groups.items())]
    return [f"CUDA: {kind}", *rows]


def _indent(text: str) -> str:
    return text.replace("\n", "\n" + " " * 20)
