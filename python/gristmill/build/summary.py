"""What a build made, in numbers: by kernel, the largest images, and how much of a wheel it takes."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gristmill.errors import BuildError

if TYPE_CHECKING:
    from gristmill.build.embed import Embedded, Outputs

LARGEST = 10
LAUNCHER_BYTES = 250_000  # of a wheel: the launcher and the tables of few kernels, compressed
MB = 1_000_000


@dataclass(frozen=True)
class KernelLine:
    """One kernel: its images and their bytes, compressed; bytes of its code for processors; seconds of one process."""

    name: str
    images: int
    image_bytes: int
    host_bytes: int
    seconds: float


@dataclass(frozen=True)
class Summary:
    """`wheel_bytes` is about what a wheel has of the module and a library for C; `largest` are the largest images."""

    kernels: tuple[KernelLine, ...]
    largest: tuple[Embedded, ...]
    wheel_bytes: int

    @property
    def images(self) -> int:
        return sum(line.images for line in self.kernels)

    @property
    def image_bytes(self) -> int:
        return sum(line.image_bytes for line in self.kernels)

    @property
    def host_bytes(self) -> int:
        return sum(line.host_bytes for line in self.kernels)

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return head and rows, a row for a kernel and one for all."""
        head = ["kernel", "images", "bytes", "bytes for CPUs", "seconds"]
        rows = [
            [k.name, str(k.images), f"{k.image_bytes:,}", f"{k.host_bytes:,}", f"{k.seconds:.1f}"] for k in self._all
        ]
        return head, rows

    @property
    def _all(self) -> list[KernelLine]:
        seconds = sum(line.seconds for line in self.kernels)
        return [*self.kernels, KernelLine("in all", self.images, self.image_bytes, self.host_bytes, seconds)]


def summarise(outputs: Outputs, seconds: Mapping[str, float]) -> Summary:
    """Return the summary of what goes into a module; `seconds` by kernel. Kernels of most bytes come first."""
    names = {*seconds, *outputs.host_sizes, *(image.kernel for image in outputs.embedded)}
    lines = [_line(name, outputs, seconds.get(name, 0.0)) for name in sorted(names)]
    lines.sort(key=lambda line: -line.image_bytes - line.host_bytes)
    largest = sorted(outputs.embedded, key=lambda image: (-image.size, image.name))[:LARGEST]
    return Summary(tuple(lines), tuple(largest), _wheel_bytes(outputs))


def _wheel_bytes(outputs: Outputs) -> int:
    code = len(zlib.compress(outputs.host_code)) + LAUNCHER_BYTES
    module = len(outputs.images) + code
    return module + len(zlib.compress(outputs.plain.content)) + code if outputs.plain else module


def _line(kernel: str, outputs: Outputs, seconds: float) -> KernelLine:
    sizes = [image.size for image in outputs.embedded if image.kernel == kernel]
    return KernelLine(kernel, len(sizes), sum(sizes), outputs.host_sizes.get(kernel, 0), seconds)


def plain_lines(summary: Summary) -> list[str]:
    """Return the tables as text of columns."""
    head, rows = summary.table()
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [_columns(cells, widths) for cells in (head, *rows)]
    lines.append("largest images:")
    return [*lines, *(f"  {image.name:<60} {image.size:>10,} bytes" for image in summary.largest)]


def _columns(cells: list[str], widths: list[int]) -> str:
    first, *others = zip(cells, widths, strict=True)
    return "  " + "  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)])


def check_limit(summary: Summary, max_wheel_mb: float | None) -> None:
    """Raise BuildError if the module takes more of a wheel than `max_wheel_mb`."""
    if max_wheel_mb is None or summary.wheel_bytes <= max_wheel_mb * MB:
        return
    found = summary.wheel_bytes / MB
    largest = summary.kernels[0].name
    fix = (
        f"declare fewer dtypes, constants or configurations of `{largest}`, name fewer TARGETS, or allow it with "
        f"GRISTMILL_MAX_WHEEL_MB={int(found) + 1}"
    )
    raise BuildError(f"the module takes about {found:.1f} MB of a wheel, and {max_wheel_mb:g} MB are allowed", fix=fix)
