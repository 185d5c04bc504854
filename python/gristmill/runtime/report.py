"""`list`, `info` and `doctor`: what they print of a module of kernels.

Packages of kernels get a copy of this file beside their module, so it imports nothing but Python's own.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def main(module: Any, arguments: Sequence[str] | None = None) -> int:
    """Run one command for the kernels of `module`; return its exit status."""
    package = module.__name__.rpartition(".")[0] or module.__name__
    parser = argparse.ArgumentParser(prog=f"python -m {package}", description=f"The kernels of {package}.")
    add_commands(parser.add_subparsers(required=True, metavar="command"))
    options = parser.parse_args(arguments)
    status: int = options.report(module, options)
    return status


def add_commands(commands: Any) -> list[argparse.ArgumentParser]:
    """Add a parser for each command; its default `report` is a function of a module and the options."""
    parsers = []
    for function, name, summary in (
        (_list, "list", "list the kernels of a wheel and what they are compiled for"),
        (_info, "info", "show which images a wheel holds, and what their code takes"),
        (_doctor, "doctor", "check CPU, driver and devices, and say which images they use"),
    ):
        parsers.append(commands.add_parser(name, help=summary, description=summary))
        parsers[-1].set_defaults(report=function)
        if name == "info":
            parsers[-1].add_argument("--kernel", help="show every entry of this kernel")
    return parsers


def _list(module: Any, options: argparse.Namespace) -> int:
    print(list_text(module))
    return 0


def _info(module: Any, options: argparse.Namespace) -> int:
    if options.kernel is None:
        print("\n".join(filter(None, [info_text(module.info()), usage_text(module)])))
    elif options.kernel in module.__all__:
        print(kernel_text(getattr(module, options.kernel)))
    else:
        message = f"there is no kernel `{options.kernel}` in {module.__name__}"
        print(f"{message}\n  fix: use one of {', '.join(module.__all__)}", file=sys.stderr)
        return 1
    return 0


def _doctor(module: Any, options: argparse.Namespace) -> int:
    """Return 1 if something is wrong."""
    checks = module.doctor()
    print(doctor_text(checks))
    return int(any(status == "error" for _, status, _ in checks))


def list_text(module: Any) -> str:
    """Return one line for each kernel: its signature, dtypes and constants."""
    return "\n".join(_kernel_line(getattr(module, name)) for name in module.__all__)


def info_text(info: Mapping[str, Any]) -> str:
    """Return what a package holds, from its module's `info()`."""
    names: Sequence[str] = info["kernels"]
    head = f"{info['package']} {info['version']}: {len(names)} kernels, built by gristmill {info['gristmill_version']}"
    return "\n".join([head, _cpu_line(info), *_image_lines(info["images"])])


def usage_text(module: Any) -> str:
    """Return what the code of each kernel takes, one line for each cubin: from least to most of its entries."""
    rows: list[tuple[str, ...]] = []
    for name in module.__all__:
        images: dict[str, dict[str, Mapping[str, Any]]] = {}
        for code in (code for instance in getattr(module, name).instances for code in instance.info()["code"]):
            if "registers" in code:
                images.setdefault(code["image"], {})[code["entry_point"]] = code
        rows += [(name, image, *_taken(list(images[image].values()))) for image in sorted(images, key=_by_number)]
    return _table(rows, ("kernel", *_TAKEN)) if rows else ""


def kernel_text(dispatcher: Any) -> str:
    """Return what each entry of a kernel takes in each CUDA image."""
    codes = [code for instance in dispatcher.instances for code in instance.info()["code"]]
    entries = {(code["entry_point"], code["image"]): code for code in codes}
    rows = [(entry, image, *_taken([code])) for (entry, image), code in entries.items()]
    return _table(rows, ("entry", *_TAKEN)) if rows else f"{dispatcher.__name__}: no CUDA code"


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


_TAKEN = ("image", "threads", "registers", "shared bytes", "spilled bytes", "blocks", "warps")


def _taken(codes: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The cells for some entries: of a block, of a thread, and of what a multiprocessor holds."""
    names = ("threads", "registers", "shared_bytes", "spill_bytes", "blocks_per_multiprocessor")
    shares = [round(100 * code["occupancy"]) for code in codes if "occupancy" in code]
    cells = [_range([code[name] for code in codes if name in code]) for name in names]
    return (*cells, f"{_range(shares)}%" if shares else "-")


def _by_number(image: str) -> tuple[int, str]:
    """Sort key for "cubin sm_90a"."""
    return int("".join(filter(str.isdigit, image))), image


def _range(numbers: Sequence[int]) -> str:
    if not numbers:
        return "-"
    least, most = min(numbers), max(numbers)
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def _table(rows: Sequence[tuple[str, ...]], head: tuple[str, ...]) -> str:
    """Columns as wide as they must be: two of names, then numbers."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    aligned = [
        [
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        for row in (head, *rows)
    ]
    return "\n".join("  ".join(cells).rstrip() for cells in aligned)


def _indent(text: str) -> str:
    return text.replace("\n", "\n" + " " * 20)
