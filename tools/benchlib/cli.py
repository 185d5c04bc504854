"""The command line of tools/bench."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

DESCRIPTION = """\
Times kernels on their bench cases beside torch, Triton and NumPy, in shuffled rounds in one process.

  tools/bench                              all kernels, bf16 and f32, on CUDA where there is a device
  tools/bench softmax_forward --sweep      every specialisation that fits a case: which configuration is best
  tools/bench matmul --dtypes f16,bf16     products, in TFLOP/s beside torch's (cuBLAS)
  tools/bench matmul --plot matmul.svg     the same, drawn over the size
  tools/bench attention                    beside cuDNN, FlashAttention-2 and Triton: sustained, and in bursts
  tools/bench attention_forward --columns 128 --dtypes f16     one of its kernels, one size of heads, one dtype
  tools/bench --device cpu                 one CPU thread, f32, 4096 x 4096, beside NumPy
  tools/bench attention_forward --device cpu --threads 2       on the CPU beside torch
  tools/bench launch                       the cost of a call, beside a C loop around cuLaunchKernel
  tools/bench start                        time to import the kernels and to the first result in a new process
"""
CPU_KERNELS = ("vector_add", "gelu_forward", "softmax_forward", "rms_norm_forward")


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all options."""
    parser = argparse.ArgumentParser(
        prog="tools/bench", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="*", metavar="KERNEL", help="kernels; or `attention`, `launch`, `start`")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda where there is a device")
    parser.add_argument(
        "--dtypes", help="as in bf16,f32; default: bf16,f32 on CUDA, f32 on the CPU, all halves for attention"
    )
    parser.add_argument("--columns", help="only cases whose arrays have this many columns, as in 1024,4096")
    parser.add_argument("--threads", type=int, default=1, help="threads on the CPU; default: 1")
    parser.add_argument("--sweep", action="store_true", help="time every specialisation that fits a case")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds; of attention, fewer cases")
    parser.add_argument("--json", metavar="FILE", help="write machine and results as JSON")
    parser.add_argument("--markdown", metavar="FILE", help="write machine and results as a page")
    parser.add_argument("--plot", metavar="FILE", help="draw speed over size, as .svg or .png; needs matplotlib")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 1 if a result was wrong."""
    options = make_parser().parse_args(arguments)
    if options.what == ["launch"]:
        from benchlib.launch import main as measure_launch

        return measure_launch(options)
    if options.what == ["start"]:
        from benchlib.start import main as measure_start

        return measure_start(options)
    from benchlib import attention

    if attention.is_asked(options.what):
        return attention.main(options)
    return run(options)


def run(options: argparse.Namespace) -> int:
    """Time kernels."""
    device = options.device or default_device()
    if device == "cpu":
        os.environ["GRISTMILL_NUM_THREADS"] = str(options.threads)
    from benchlib import arenas, contest, machine, plot, report, timing, work

    plot.check(options.plot)
    facts = machine.describe(device)
    print(machine.text(facts), flush=True)
    arena = arenas.cpu_arena() if device == "cpu" else arenas.cuda_arena()
    dtypes = (options.dtypes or ("f32" if device == "cpu" else "bf16,f32")).split(",")
    columns = [int(c) for c in options.columns.split(",")] if options.columns else []
    names = options.what or (CPU_KERNELS if device == "cpu" else ())
    results = []
    for row in work.plan(names, dtypes, device == "cpu", columns):
        if not contest.is_built(row):
            print(f"{row.title}: not in the installed wheel", flush=True)
            continue
        measured = arena.measure(row, timing.QUICK if options.quick else timing.Effort(), options.sweep)
        print(report.lines(measured), flush=True)
        results += measured
        report.save(options.json, report.as_json(facts, results))
    report.save(options.markdown, report.as_markdown(facts, results))
    plot.save(options.plot, results, machine.text(facts).splitlines()[0])
    print("\n".join(report.verdicts(results)), flush=True)
    return int(any(r.error is not None and not r.error <= 1 for r in results))


def default_device() -> str:
    """Return "cuda" where torch sees a device, else "cpu"."""
    try:
        import torch
    except ImportError:
        return "cpu"
    return "cuda" if torch.cuda.is_available() else "cpu"
