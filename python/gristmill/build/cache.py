"""A content-addressed store of compiled code in the user's cache folder, shared by concurrent builds."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gristmill.errors import BuildError

DEFAULT_LIMIT_BYTES = 1 << 30
DIGEST_BYTES = 32
TEMPORARY = ".writing-"
ABANDONED_S = 3600.0  # no write takes so long: its build was killed


@dataclass(frozen=True)
class Cache:
    """Entries by key; `folder` None keeps nothing. A folder that cannot be used never fails a build."""

    folder: Path | None
    limit_bytes: int = DEFAULT_LIMIT_BYTES

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Cache:
        """Read GRISTMILL_CACHE_DIR and GRISTMILL_CACHE_BYTES (0: no cache). Raises BuildError if that is no number."""
        text = environment.get("GRISTMILL_CACHE_BYTES") or str(DEFAULT_LIMIT_BYTES)
        if not text.isdigit():
            raise BuildError(f"GRISTMILL_CACHE_BYTES is a number of bytes, found `{text}`", fix="write 0 for no cache")
        limit_bytes = int(text)
        return cls(default_folder(environment) if limit_bytes > 0 else None, limit_bytes)

    def get(self, key: str) -> bytes | None:
        """Return what was put under `key`, or None; a damaged entry counts as absent."""
        if not self.folder:
            return None
        path = self._path(key)
        try:
            stored = path.read_bytes()
        except OSError:
            return None
        data = stored[DIGEST_BYTES:]
        if hashlib.sha256(data).digest() != stored[:DIGEST_BYTES]:
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return data

    def put(self, key: str, data: bytes) -> None:
        """Store `data`; readers see all of it or nothing, whoever else writes the same key."""
        if not self.folder:
            return
        with contextlib.suppress(OSError):
            write_atomically(self._path(key), hashlib.sha256(data).digest() + data)

    def trim(self) -> None:
        """Delete what killed builds left, and entries used longest ago until the rest are nine tenths of the limit."""
        self._delete_abandoned()
        entries = sorted(self._entries())
        total = sum(size for _, size, _ in entries)
        if total <= self.limit_bytes:
            return
        for _, size, path in entries:
            if total <= self.limit_bytes * 9 // 10:
                return
            with contextlib.suppress(OSError):
                path.unlink()
            total -= size

    def _path(self, key: str) -> Path:
        assert self.folder
        return self.folder / key[:2] / key

    def _entries(self) -> Iterable[tuple[float, int, Path]]:
        """Time of last use, size in bytes and path of each entry that another build does not delete meanwhile."""
        for path in self.folder.glob("??/*") if self.folder else ():
            with contextlib.suppress(OSError):
                status = path.stat()
                if not path.name.startswith(TEMPORARY):
                    yield status.st_mtime, status.st_size, path

    def _delete_abandoned(self) -> None:
        for path in self.folder.glob(f"??/{TEMPORARY}*") if self.folder else ():
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > ABANDONED_S:
                    path.unlink()


def default_folder(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return GRISTMILL_CACHE_DIR or the platform's cache folder for the user; None where there is no home."""
    if chosen := environment.get("GRISTMILL_CACHE_DIR"):
        return Path(chosen)
    try:
        return _platform_folder(environment) / "gristmill"
    except RuntimeError:
        return None


def _platform_folder(environment: Mapping[str, str]) -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    if sys.platform == "win32" and (local := environment.get("LOCALAPPDATA")):
        return Path(local)
    return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def make_key(*parts: str | bytes) -> str:
    """Hash the parts, each with its length so that no two lists of parts agree by chance."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(f"{len(data)}:".encode() + data)
    return digest.hexdigest()


def write_atomically(path: Path, data: bytes) -> None:
    """Write through a temporary file beside `path`, made with the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=TEMPORARY)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def delete_temporaries(folder: Path) -> None:
    """Delete what a build that was killed left unfinished in `folder`, which no other build writes to."""
    for path in folder.glob(f"{TEMPORARY}*"):
        path.unlink(missing_ok=True)


def write_if_changed(path: Path, data: bytes) -> bool:
    """Write `data` unless the file holds it already, so that what depends on it stays up to date."""
    with contextlib.suppress(OSError):
        if path.read_bytes() == data:
            return False
    write_atomically(path, data)
    return True
