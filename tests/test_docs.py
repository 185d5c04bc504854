"""The documentation as a site: every page is reached, every link leads somewhere, every error is explained."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pages import DOCS, PAGES, ROOT

pytestmark = pytest.mark.skipif(not PAGES, reason="needs a checkout")

CONFIGURATION = ROOT / "mkdocs.yml"
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"^( *)```.*?^\1```$|`[^`\n]*`", re.M | re.S)
LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"')
WHAT = re.compile(r"\.what\s*=\s*(.*?)(?=,\s*\.(?:asked|found|supported|built|fix)\b|\}\))", re.S)
FATAL = re.compile(r'FATAL_ERROR "gristmill_add_kernels: (.*?)(?:\\n|"$)', re.M)
LEAST = 4  # letters that tell an error from others

# ---- pages ---------------------------------------------------------------------------------------------------------


def test_every_page_is_in_the_navigation_once():
    navigation = CONFIGURATION.read_text().partition("\nnav:\n")[2]
    named = re.findall(r"(\S+\.md)$", navigation, re.M)
    assert sorted(named) == sorted(page.relative_to(DOCS).as_posix() for page in PAGES)


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_and_images_of_a_page_exist(page):
    folder = ROOT if page.parent == ROOT else DOCS
    for link in LINK.findall(CODE.sub("", page.read_text())):
        if not re.match(r"https?://|#", link):
            target = (page.parent / link.partition("#")[0]).resolve()
            assert target.exists(), link
            assert target.is_relative_to(folder), f"{link} is not part of the site"


@pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("mkdocs", "material")), reason="needs gristmill[docs]"
)
def test_the_site_builds_without_a_warning(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(CONFIGURATION)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        [*command, "--site-dir", str(tmp_path / "site")], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    made = {path.relative_to(tmp_path / "site") for path in (tmp_path / "site").rglob("*.html")}
    assert made >= {page.relative_to(DOCS).with_suffix(".html") for page in PAGES}
    assert (tmp_path / "site" / "benchmarks" / "matmul-h200.svg").exists()


# ---- errors --------------------------------------------------------------------------------------------------------


def plain(text: str) -> str:
    return " ".join(text.replace("`", "").split())


def longest(pieces: list[str]) -> str:
    """Return the longest piece of a message that is always the same."""
    kept = (plain(piece).removesuffix("found").removesuffix("found:").strip(" :,.()") for piece in pieces)
    return max(kept, key=len, default="")


def of_the_launcher() -> Iterator[str]:
    """What each Failure of the launcher says."""
    for path in (ROOT / "csrc").rglob("*.cpp"):
        yield from (longest(LITERAL.findall(what)) for what in WHAT.findall(path.read_text()))


def of_cmake() -> Iterator[str]:
    """What each error of `gristmill_add_kernels` says."""
    text = (ROOT / "python" / "gristmill" / "cmake" / "gristmillConfig.cmake").read_text()
    yield from (longest(re.split(r"\$\{\w+\}", what)) for what in FATAL.findall(text))


def of_the_build() -> Iterator[str]:
    """What each BuildError says, also where the message has a name of its own."""
    for folder in ("build", "compiler"):
        for path in (ROOT / "python" / "gristmill" / folder).rglob("*.py"):
            for function in ast.walk(ast.parse(path.read_text())):
                if isinstance(function, ast.FunctionDef):
                    yield from build_errors(function)


def build_errors(function: ast.FunctionDef) -> Iterator[str]:
    named = {n.targets[0].id: n.value for n in ast.walk(function) if is_assignment(n)}
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "BuildError":
            message = node.args[0]
            message = named.get(message.id, message) if isinstance(message, ast.Name) else message
            yield longest([n.value for n in ast.walk(message) if isinstance(n, ast.Constant) and is_text(n)])


def is_assignment(node: ast.AST) -> bool:
    return isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)


def is_text(node: ast.Constant) -> bool:
    return isinstance(node.value, str)


@pytest.mark.parametrize(("errors", "least"), [(of_the_launcher, 60), (of_cmake, 13), (of_the_build, 20)])
def test_every_error_has_its_place_among_the_troubles(errors, least):
    page = plain(Path(DOCS / "troubleshooting.md").read_text())
    said = {error for error in errors() if len(error) >= LEAST}
    assert len(said) >= least
    assert sorted(error for error in said if error not in page) == []
