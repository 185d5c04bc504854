"""The pages of the documentation, and the blocks of code that they show."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.M | re.S)
KERNEL_FILE = re.compile(r"# (kernels/\w+\.py)\n")


@dataclass(frozen=True)
class Block:
    """What stands between fences: its page, its number there, its language ("" for commands) and its text."""

    page: str
    number: int
    language: str
    text: str

    @property
    def file(self) -> str | None:
        """The file of kernels that it shows, or None."""
        match = KERNEL_FILE.match(self.text) if self.language == "python" else None
        return match.group(1) if match else None

    def __str__(self) -> str:
        return f"{self.page}:{self.file or self.number}"


def blocks_of(page: Path) -> list[Block]:
    """Return the blocks of a page, in order."""
    found = FENCED.findall(page.read_text())
    name = page.relative_to(DOCS).as_posix()
    return [Block(name, i, language, textwrap.dedent(text)) for i, (_, language, text) in enumerate(found)]


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
