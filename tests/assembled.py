"""PTX of kernels that a test writes, and whether ptxas takes it."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from functools import cache
from typing import Any

from gristmill.compiler.compile import generate, lower_variant
from gristmill.compiler.targets import TARGETS
from gristmill.specialisation import VARIANTS
from kept import compiler_version, kept
from machines import kernel_of
from ptx import Entry, Usage, assemble


def _ignore(stage: str, thing: Any) -> None:
    return None


@cache
def entry_of(source: str, target: str, *, name: str = "k", variant: int = 0) -> Entry:
    """Compile the kernel `k` of a source text, which is named `name` so that several assemble together."""
    kernel = kernel_of(textwrap.dedent(source).replace("def k(", f"def {name}("))
    specialisation = kernel.specialisations()[0]
    lowered = lower_variant(kernel, specialisation, VARIANTS[variant], TARGETS[target], _ignore)
    contents = (lowered.text, target, compiler_version())
    file = kept(".ptx", contents, lambda path: path.write_bytes(generate(lowered, TARGETS[target], _ignore).code))
    return Entry(specialisation, VARIANTS[variant], lowered, file.read_text())


def ptx_of(source: str, target: str, *, name: str = "k", variant: int = 0) -> str:
    """Return the PTX of the kernel `k`."""
    return entry_of(source, target, name=name, variant=variant).text


def assemble_text(texts: Sequence[str], target: str) -> dict[str, Usage]:
    """Assemble PTX texts together; fails with ptxas's own words."""
    return assemble([_Text(text) for text in texts], target)  # type: ignore[list-item]


class _Text:
    def __init__(self, text: str):
        self.text = text
