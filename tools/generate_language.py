#!/usr/bin/env python3
"""Writes docs/language.md, the reference of the language, from the op table; `--check` says whether it is stale."""

import sys
from pathlib import Path

from gristmill.compiler.catalogue import Operation, operations
from gristmill.dtypes import BOUNDS

FILE = Path(__file__).resolve().parent.parent / "docs" / "language.md"
HEAD = """\
# The language

`import gristmill.language as tl`. Blocks have sizes that are powers of two, known when the package is built; a number
takes the dtype of the block beside it. Every operation runs on every target, and is tested on three machines: the
interpreter (numpy), the CPU, and the simulator, which executes the CUDA code's steps thread by thread.

This page is written by `tools/generate_language.py` from the table that the compiler reads.

"""


def main() -> int:
    text = HEAD + "\n".join(sections(operations()))
    if "--check" not in sys.argv[1:]:
        FILE.write_text(text)
        return 0
    if FILE.exists() and FILE.read_text() == text:
        return 0
    print(f"{FILE.name} is stale: run tools/generate_language.py", file=sys.stderr)
    return 1


def sections(found: list[Operation]) -> list[str]:
    lines: list[str] = []
    for family in dict.fromkeys(operation.family for operation in found):
        lines += [f"## {family.capitalize()}", ""]
        for operation in found:
            if operation.family == family:
                lines += [
                    f"### `tl.{operation.signature}`",
                    "",
                    operation.doc,
                    "",
                    f"Dtypes: {spelled(operation)}.",
                    "",
                ]
    return lines


def spelled(operation: Operation) -> str:
    """The dtypes, by the names of sets where they fill some."""
    left, names = set(operation.dtypes), []
    for bound in sorted(BOUNDS, key=lambda b: -len(b.members)):
        members = {d.name for d in bound.members}
        if members <= left:
            names.append(f"`gm.{bound.name}`")
            left -= members
    return ", ".join(names + [d for d in operation.dtypes if d in left]) or "none of its own"


if __name__ == "__main__":
    sys.exit(main())
