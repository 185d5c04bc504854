"""The command line. Each command imports what it needs, so that those for an installed wheel need no compiler."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gristmill import __version__
from gristmill.errors import GristmillError
from gristmill.runtime.report import add_commands

OWN_KERNELS = "default: Gristmill's own kernels"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit status. Errors that users read go to standard error without a traceback."""
    options = make_parser().parse_args(arguments)
    try:
        return options.command(options) or 0
    except GristmillError as error:
        print(error, file=sys.stderr)
        return 1
    except BrokenPipeError:
        return 1


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser(prog="gristmill", description="Python kernels, precompiled into wheels.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="command")
    _add_build(commands)
    wheels = _add(commands, "check-wheel", check_wheels, "check built wheels before they are published")
    wheels.add_argument("wheels", nargs="+", type=Path, metavar="FILE", help="dist/*.whl")
    _add_explain(commands)
    ops = _add(commands, "ops", list_operations, "list the operations of the language")
    ops.add_argument("--json", action="store_true", help="name, family, signature, dtypes and machines of each")
    _add_simulate(commands)
    _add_port(commands)
    init = _add(commands, "init", run_init, "write a new project of kernels into a folder")
    init.add_argument("name", metavar="NAME", help="of the distribution and its folder, as in my-kernels")
    _add(commands, "cmake-dir", show_cmake_dir, "print the folder for CMake's -Dgristmill_ROOT=")
    for report in add_commands(commands):
        report.add_argument("module", nargs="?", default="gristmill.kernels", help=OWN_KERNELS)
        report.set_defaults(command=run_report)
    _add_tune(commands)
    _add(commands, "demo", run_demo, "run each kernel on real input and compare it with its reference")
    return parser


Command = Callable[[argparse.Namespace], int | None]


def _add(commands: argparse._SubParsersAction, name: str, command: Command, summary: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=summary, description=summary)
    parser.set_defaults(command=command)
    return parser


def _add_build(commands: argparse._SubParsersAction) -> None:
    parser = _add(commands, "build", run_build, "compile kernels into the sources of an extension module")
    parser.add_argument("sources", nargs="+", type=Path, metavar="FILE", help="files that declare kernels")
    parser.add_argument("--module", required=True, help="full name of the module, as in my_package._kernels")
    parser.add_argument("--out", required=True, type=Path, help="folder for the results")
    parser.add_argument("--package", default="kernels", help="name of the distribution, for `info`")
    parser.add_argument("--version", default="0", help="version of the distribution, for `info`")
    parser.add_argument("--targets", default="", help="as in `sm_80;sm_90a;x86-64-v3`; default: all usual ones")
    parser.add_argument("--processor", help="that the module is compiled for, as in aarch64; default: this one")
    parser.add_argument("--cubins", default="AUTO", help="AUTO, ON or OFF")
    parser.add_argument("--spills", default="", help="bytes that a thread may spill, or WARN; default: 100")
    parser.add_argument("--tuning", action="append", default=[], type=Path, metavar="FILE", help="a tuned table")
    parser.add_argument("--project-dir", type=Path, default=Path(), help="folder that file names are shown from")
    parser.add_argument("--depfile", type=Path, help="where to list the files that the results depend on")
    parser.add_argument("--ar", help="archiver to use; default: ar")
    parser.add_argument("--library", action="store_true", help="also write the images of a C library")
    parser.add_argument("--check", action="store_true", help="only say what is wrong with these options")
    parser.add_argument("--workers", type=int, help="processes; default: CMAKE_BUILD_PARALLEL_LEVEL or all CPUs")
    executor = "compile elsewhere: `module:factory` of a concurrent.futures executor"
    parser.add_argument("--executor", default=os.environ.get("GRISTMILL_EXECUTOR", ""), help=executor)
    limit = os.environ.get("GRISTMILL_MAX_WHEEL_MB", "")
    parser.add_argument("--max-wheel-mb", default=limit, help="fail if the module takes more of a wheel")


def _add_explain(commands: argparse._SubParsersAction) -> None:
    parser = _add(commands, "explain", explain, "show what a kernel becomes at one stage of compilation")
    parser.add_argument("file", type=Path, metavar="FILE", help="a file that declares kernels")
    parser.add_argument("--kernel", help="name of the kernel; default: the only one in the file")
    parser.add_argument("--target", default="sm_90a", help="as in sm_80, x86-64-v3")
    parser.add_argument("--stage", default="tile", help="tile, the name of a pass, llvm, ptx or object")
    parser.add_argument("--variant", default="a32", help="a32 (aligned), g32 (general) or g64 (64-bit offsets)")
    parser.add_argument("--dtype", action="append", default=[], help="dtype of each dtype variable, in order")
    parser.add_argument("--const", action="append", default=[], metavar="NAME=VALUE", help="value of a constant")


def _add_simulate(commands: argparse._SubParsersAction) -> None:
    summary = "run the declared cases of kernels as a GPU would, on the CPU, with every access checked"
    parser = _add(commands, "simulate", simulate, summary)
    parser.add_argument("file", type=Path, metavar="FILE", help="a file that declares kernels")
    parser.add_argument("--kernel", help="name of the kernel; default: all in the file")
    parser.add_argument("--target", default="sm_90a", help="a CUDA target, as in sm_80")
    parser.add_argument("--dtype", action="append", default=[], help="dtype of each dtype variable, in order")
    parser.add_argument("--const", action="append", default=[], metavar="NAME=VALUE", help="value of a constant")


def _add_port(commands: argparse._SubParsersAction) -> None:
    parser = _add(commands, "port", port, "write declarations for the Triton kernels of a file")
    parser.add_argument("file", type=Path, metavar="FILE", help="a file of kernels under `triton.jit`")
    parser.add_argument("--write", action="store_true", help="add them to the file, and change its imports of Triton")


def _add_tune(commands: argparse._SubParsersAction) -> None:
    summary = "measure every configuration of a kernel on this device, and write a tuned table"
    parser = _add(commands, "tune", tune, summary)
    parser.add_argument("module", nargs="?", default="gristmill.kernels", help=OWN_KERNELS)
    parser.add_argument("--kernel", required=True, help="name of the kernel")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--case", action="append", default=[], help="a declared case, by name or use; default: bench")
    what.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="CALL",
        help='as in "x=f32[1000,4096] y=f32[1000,4096] eps=1e-5"',
    )
    parser.add_argument("--dtype", action="append", default=[], help="of the cases, as in f16; default: all")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda where there is a device")
    parser.add_argument("--out", type=Path, metavar="FILE", help="tuned table to write to, or to add to")
    parser.add_argument("--warm", action="store_true", help="calls find their arrays in the cache")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each call; default: 5")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")


def run_build(options: argparse.Namespace) -> None:
    """Run `gristmill build`."""
    _require_compiler()
    from gristmill.build.settings import (
        Settings,
        choose_ptxas,
        choose_spills,
        count_workers,
        find_archiver,
        parse_targets,
        read_limit,
    )

    ptxas = choose_ptxas(options.cubins)
    settings = Settings(
        sources=tuple(path.resolve() for path in options.sources),
        module=options.module,
        out=options.out.resolve(),
        project_dir=options.project_dir.resolve(),
        package=options.package,
        version=options.version,
        targets=parse_targets(options.targets, options.processor),
        ptxas=ptxas,
        spill_limit=choose_spills(options.spills, ptxas),
        tuning=tuple(path.resolve() for path in options.tuning),
        has_library=options.library,
        depfile=options.depfile,
        ar=find_archiver(options.ar),
        workers=options.workers or count_workers(),
        executor=options.executor,
        max_wheel_mb=read_limit(options.max_wheel_mb),
    )
    if not options.check:
        from gristmill.build.run import build_module

        build_module(settings)


def check_wheels(options: argparse.Namespace) -> int:
    """Print what holds of each wheel and what does not; return 1 if something does not."""
    from gristmill.build.wheel import check_wheel

    good = True
    for path in options.wheels:
        findings = check_wheel(path)
        print("\n".join([path.name, *map(str, findings)]))
        good &= all(finding.holds is not False for finding in findings)
    return int(not good)


def list_operations(options: argparse.Namespace) -> None:
    """Print every operation of the language."""
    import json

    from gristmill.compiler.catalogue import as_json, operations

    found = operations()
    if options.json:
        print(json.dumps(as_json(found), indent=1))
        return
    width = max(len(o.name) for o in found)
    for o in found:
        print(f"{o.family:12} {o.name:{width}}  {' '.join(o.dtypes)}")
    print(f"{len(found)} operations")


def explain(options: argparse.Namespace) -> None:
    """Run `gristmill explain`."""
    constants = dict(_split_constant(text) for text in options.const)
    _require_compiler()
    from gristmill.compiler.explain import explain as show

    text = show(
        options.file,
        kernel=options.kernel,
        target=options.target,
        stage=options.stage,
        dtypes=options.dtype,
        constants=constants,
        variant=options.variant,
    )
    print(text, end="")


def simulate(options: argparse.Namespace) -> int:
    """Run `gristmill simulate`; return 1 if a case is wrong."""
    from gristmill.compiler.simt.report import print_outcomes, simulate_cases

    constants = dict(_split_constant(text) for text in options.const)
    choice = {"kernel": options.kernel, "target": options.target, "dtypes": options.dtype, "constants": constants}
    return int(print_outcomes(simulate_cases(options.file, **choice)) > 0)


def port(options: argparse.Namespace) -> None:
    """Run `gristmill port`."""
    from gristmill.porting import port as show
    from gristmill.porting import port_into

    if options.write:
        return port_into(options.file)
    print(show(options.file), end="")
    return None


def run_report(options: argparse.Namespace) -> int:
    """Run `gristmill list`, `info` or `doctor`."""
    status: int = options.report(_kernels_of(options.module), options)
    return status


def run_init(options: argparse.Namespace) -> None:
    """Run `gristmill init`."""
    from gristmill.project import write_project

    for path in write_project(options.name, Path()):
        print(path.as_posix())
    print(f"next: pip install ./{options.name}")


def show_cmake_dir(options: argparse.Namespace) -> None:
    """Print the folder that `find_package(gristmill)` is to be pointed at."""
    print(Path(__file__).resolve().parent.joinpath("cmake").as_posix())


def tune(options: argparse.Namespace) -> int:
    """Run `gristmill tune`; return 1 if a call could not be tuned."""
    from gristmill.runtime.tuning_run import run

    return run(options, _kernels_of(options.module))


def run_demo(options: argparse.Namespace) -> int | None:
    """Run `gristmill demo`."""
    from gristmill.runtime.demo import main as demo

    return demo()


def _kernels_of(module: str) -> Any:
    """Return the module of kernels of this name. Raises GristmillError if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        message = f"there is no module `{module}` of kernels here: {error}"
        raise GristmillError(message, fix="install the wheel that holds it, or name another module") from None


def _split_constant(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise GristmillError(f"--const {text} has no value", fix=f"write --const {text}=1024")
    return name, value


def _require_compiler() -> None:
    try:
        import llvmlite  # noqa: F401
    except ImportError:
        fix = 'pip install "gristmill[build]"; in pyproject.toml, requires = ["scikit-build-core", "gristmill[build]"]'
        raise GristmillError("compiling kernels needs llvmlite, which is not installed here", fix=fix) from None
