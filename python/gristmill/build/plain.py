"""The images of a C library, as they are: it has no Python whose lzma could unpack those of a module."""

from __future__ import annotations

import lzma
from collections.abc import Iterable
from dataclasses import dataclass

ALIGNMENT = 16

# The blob of images, as the assembler reads it from a file.
BLOB = """\
__asm__(
    ".section .rodata.gristmill_images,\\"a\\",%progbits\\n"
    ".balign 16\\n"
    ".globl gristmill_images\\n"
    ".hidden gristmill_images\\n"
    "gristmill_images:\\n"
    ".incbin \\"{file}\\"\\n"
    ".byte 0\\n"
    ".previous\\n");
"""
PLAIN_IMAGES_CPP = """\
// Generated: the images without compression, as the assembler reads them from plain_images.bin, and where they are.
#include "c/plain_images.hpp"

{blob}
namespace gristmill {{

static const PlainStream streams[]{{{rows}{{0xFFFFFFFF, 0}}}};
const std::span<const PlainStream> plain_streams{{streams, {count}}};

}}  // namespace gristmill
"""


@dataclass(frozen=True)
class PlainImages:
    """What plain_images.bin holds, and the C++ that tells where a stream is in it."""

    content: bytes
    code: str


def unpack_images(blob: bytes, streams: Iterable[tuple[int, int]]) -> PlainImages:
    """Return the content of `streams`, (offset, size) of compressed ones in `blob`."""
    content, rows = bytearray(), []
    for offset, size in sorted(set(streams)):
        rows.append(f"{{{offset}, {len(content)}}}, ")
        content += lzma.decompress(blob[offset : offset + size])
        content += bytes(-len(content) % ALIGNMENT)
    code = PLAIN_IMAGES_CPP.format(blob=BLOB.format(file="plain_images.bin"), rows="".join(rows), count=len(rows))
    return PlainImages(bytes(content), code)
