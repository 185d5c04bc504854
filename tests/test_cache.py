"""The cache of compiled code: keys, damage, limits and concurrent builds."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from build_fakes import MAP, artifact
from gristmill.build.cache import Cache, default_folder, make_key, write_atomically, write_if_changed
from gristmill.build.code import pack_codes, unpack_codes
from gristmill.build.sources import compiler_files
from gristmill.errors import BuildError

KEY = make_key("a key")


def test_an_entry_comes_back(tmp_path):
    cache = Cache(tmp_path)
    assert cache.get(KEY) is None
    cache.put(KEY, b"code")
    assert Cache(tmp_path).get(KEY) == b"code"


def test_keys_of_different_parts_differ():
    assert len({make_key(*parts) for parts in (["ab", "c"], ["a", "bc"], ["abc"], ["abc", ""], ["2:ab", "c"])}) == 5


@pytest.mark.parametrize("damage", [b"", b"short", b"x" * 100])
def test_a_damaged_entry_counts_as_absent(tmp_path, damage):
    cache = Cache(tmp_path)
    cache.put(KEY, b"code")
    (tmp_path / KEY[:2] / KEY).write_bytes(damage)
    assert cache.get(KEY) is None


def test_a_folder_that_cannot_be_used_fails_nothing(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    cache = Cache(tmp_path / "file")
    cache.put(KEY, b"code")
    assert cache.get(KEY) is None
    cache.trim()


def test_what_was_used_longest_ago_goes_first(tmp_path):
    cache = Cache(tmp_path, limit_bytes=1000)
    keys = [make_key(str(i)) for i in range(10)]
    for age, key in enumerate(keys):
        cache.put(key, bytes(200))
        os.utime(tmp_path / key[:2] / key, (1000 + age, 1000 + age))
    cache.get(keys[0])
    cache.trim()
    kept = [key for key in keys if cache.get(key) is not None]
    assert kept == [keys[0], *keys[-2:]]


def test_a_cache_within_its_limit_is_left_alone(tmp_path):
    cache = Cache(tmp_path, limit_bytes=1000)
    cache.put(KEY, bytes(900))
    cache.trim()
    assert cache.get(KEY) == bytes(900)


def test_what_killed_builds_left_is_deleted(tmp_path):
    cache = Cache(tmp_path, limit_bytes=1000)
    cache.put(KEY, bytes(900))
    left, written = (tmp_path / KEY[:2] / f".writing-{name}" for name in ("left", "written"))
    for path in (left, written):
        path.write_bytes(bytes(900))
    os.utime(left, (1000, 1000))
    cache.trim()
    assert [path.exists() for path in (left, written)] == [False, True]
    assert cache.get(KEY)


def test_a_limit_that_is_no_number_says_what_to_write():
    with pytest.raises(BuildError, match="found `1G`\n  fix: write 0"):
        Cache.from_environment({"GRISTMILL_CACHE_BYTES": "1G"})


def test_the_environment_chooses_folder_and_limit(tmp_path):
    assert Cache.from_environment({"GRISTMILL_CACHE_DIR": str(tmp_path)}).folder == tmp_path
    assert Cache.from_environment({"GRISTMILL_CACHE_BYTES": "0"}).folder is None
    assert Cache.from_environment({"GRISTMILL_CACHE_BYTES": "5", "HOME": "/h"}).limit_bytes == 5
    if sys.platform == "linux":
        assert default_folder({"XDG_CACHE_HOME": "/c"}).as_posix() == "/c/gristmill"


WRITER = """
import sys
from pathlib import Path
from gristmill.build.cache import Cache
cache = Cache(Path(sys.argv[1]), 200_000)
for i in range(150):
    for key in ("aa1", "aa2", "bb3"):
        data = (key * 20_000).encode()
        cache.put(key, data)
        found = cache.get(key)
        assert found in (None, data), len(found)
    cache.trim()
"""


def test_concurrent_builds_see_whole_entries(tmp_path):
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    running = [subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) for _ in range(3)]
    assert [process.communicate()[1].decode() for process in running] == ["", "", ""]
    assert not list(tmp_path.rglob(".writing-*"))


def test_writing_the_same_keeps_the_file(tmp_path):
    path = tmp_path / "file"
    assert write_if_changed(path, b"a")
    before = path.stat().st_mtime_ns
    assert not write_if_changed(path, b"a")
    assert path.stat().st_mtime_ns == before
    assert write_if_changed(path, b"b")


def test_a_failed_write_leaves_no_file(tmp_path):
    with pytest.raises(TypeError):
        write_atomically(tmp_path / "file", "text")
    assert not list(tmp_path.iterdir())


def test_packed_code_comes_back_and_shares_equal_symbols():
    code = artifact("k__g32", b"\0code\n" * 1000, divisibility={"n": 4}, ptx_version=70, tensor_maps=(MAP, MAP))
    packed = pack_codes([code, code, artifact("k__g64", b"")])
    assert len(packed) < 2 * len(code.code)
    first, second, third = unpack_codes(packed)
    assert first == second
    assert vars(first) == vars(code)
    assert third.code == b""


def test_what_packed_code_holds_is_part_of_its_key():
    assert {"code.py", "tensor_map.py"} <= {path.name for path in compiler_files()}


def test_truncated_code_is_refused():
    packed = pack_codes([artifact("k", b"code")])
    with pytest.raises(ValueError, match="truncated"):
        unpack_codes(packed[:-1])
