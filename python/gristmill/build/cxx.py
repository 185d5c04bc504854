"""Keeps objects of C++ in the cache, as a compiler launcher of CMake: `python -m gristmill.build.cxx g++ ...`.

An object is found by what the preprocessor gives, the options and the compiler's version; whatever is not plain
compilation of one file runs as it is.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from gristmill.build.cache import Cache, make_key, write_atomically
from gristmill.errors import BuildError

# Options whose value says where something is: what is there is in the preprocessed text.
PLACES = ("-o", "-MF", "-MT", "-MQ", "-I", "-isystem", "-include")
JOINED_PLACES = ("-I", "-isystem", "-ffile-prefix-map=", "-fmacro-prefix-map=")
# What cannot be kept: other outputs, and files that are read after the preprocessor.
NOT_KEPT = ("-g", "-save-temps", "-fprofile", "--coverage", "-fplugin", "@", "-march=native", "-mcpu=native")
READ_LATER = (b".incbin", b"#embed")


def main(command: Sequence[str]) -> int:
    """Run a compiler's command line, or write the object that it gave before; return the exit status."""
    output = output_of(command)
    try:
        cache = Cache.from_environment()
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    if not output or not cache.folder or not (key := key_of(command)):
        return subprocess.call(command)
    if stored := cache.get(key):
        write_atomically(output, stored)
        return 0
    done = subprocess.run(command, stderr=subprocess.PIPE, check=False)
    sys.stderr.buffer.write(done.stderr)
    if not done.returncode and not done.stderr:  # warnings are to be seen in every build
        cache.put(key, output.read_bytes())
    return done.returncode


def output_of(command: Sequence[str]) -> Path | None:
    """Return the object that a plain compilation of one file writes; None for anything else."""
    options = command[1:]
    if "-c" not in options or options.count("-o") != 1 or options[-1] == "-o":
        return None
    if any(option.startswith(NOT_KEPT) and option != "-g0" for option in options):
        return None
    return Path(options[options.index("-o") + 1])


def key_of(command: Sequence[str]) -> str | None:
    """Return the key of the object; None if the preprocessor fails, or does not see all that is compiled.

    The preprocessor also writes the depfile, as the command would.
    """
    compiler, *options = command
    place = options.index("-o")
    done = subprocess.run(
        [compiler, *options[:place], *options[place + 2 :], "-E", "-P"], capture_output=True, check=False
    )
    if done.returncode or any(word in done.stdout for word in READ_LATER):
        return None
    version = subprocess.run([compiler, "--version"], capture_output=True, check=True).stdout
    return make_key("object", version, *what_matters(options), done.stdout)


def what_matters(options: Sequence[str]) -> list[str]:
    """Return the options that are not places of files."""
    kept, is_place = [], False
    for option in options:
        if is_place or option in PLACES:
            is_place = not is_place
        elif not option.startswith(JOINED_PLACES) and not os.path.isfile(option):
            kept.append(option)
    return kept


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
