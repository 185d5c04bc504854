"""Write the images of the fixture: a blob, an assembly file that embeds it, and the rows of its table."""

import lzma
import sys
from pathlib import Path

# kind, sm, suffix, PTX version; the order is that of the constants in tables_fixture.cpp.
IMAGES = [
    ("cubin", 80, "", 0),
    ("cubin", 90, "a", 0),
    ("ptx", 80, "", 70),
    ("ptx", 90, "a", 80),
    ("ptx", 80, "", 90),
    ("cubin", 100, "f", 0),
    ("cubin", 120, "", 0),
]


def content(kind: str, sm: int, suffix: str, ptx_version: int) -> bytes:
    """Return bytes that name the image, long enough to be worth compressing."""
    if kind == "ptx":
        text = f".version {ptx_version // 10}.{ptx_version % 10}\n.target sm_{sm}{suffix}\n.address_size 64\n"
        return (text + "// padding\n" * 50).encode()
    return b"\x7fELF" + f" cubin sm_{sm}{suffix} ".encode() + bytes(500)


def row(image: tuple[str, int, str, int], offset: int, size: int) -> str:
    kind, sm, suffix, ptx_version = image
    letter, source = f"'{suffix}'" if suffix else "0", int(suffix == "a")
    numbers = (sm, letter, ptx_version, source, offset, size, 0, len(content(*image)))
    return f"{{ImageKind::{kind}, {', '.join(map(str, numbers))}}},\n"


def main(folder: Path) -> None:
    blob, rows = b"", ""
    for image in IMAGES:
        packed = lzma.compress(content(*image))
        rows += row(image, len(blob), len(packed))
        blob += packed
    (folder / "blob.bin").write_bytes(blob)
    (folder / "blob_rows.inc").write_text(rows)
    assembly = f"""    .section .rodata
    .global gristmill_blob
    .hidden gristmill_blob
gristmill_blob:
    .incbin "{folder / "blob.bin"}"
    .section .note.GNU-stack,"",@progbits
"""
    (folder / "blob.S").write_text(assembly)


main(Path(sys.argv[1]))
