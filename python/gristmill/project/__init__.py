"""`gristmill init`: a new project of kernels, complete enough for `pip wheel .`."""

from __future__ import annotations

import keyword
import re
import sys
from importlib import resources
from pathlib import Path

from gristmill import __version__
from gristmill.errors import GristmillError

# From templates to the project; in names as in texts, @MODULE@ is the package.
FILES = {
    "pyproject.toml.in": "pyproject.toml",
    "CMakeLists.txt.in": "CMakeLists.txt",
    "README.md.in": "README.md",
    "LICENSE.in": "LICENSE",
    "gitignore.in": ".gitignore",
    "github/wheels.yml.in": ".github/workflows/wheels.yml",
    "kernels/squared_relu.py.in": "kernels/squared_relu.py",
    "src/__init__.py.in": "src/@MODULE@/__init__.py",
    "src/__main__.py.in": "src/@MODULE@/__main__.py",
    "src/py.typed.in": "src/@MODULE@/py.typed",
    "tests/test_kernels.py.in": "tests/test_kernels.py",
}
NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*([-_][A-Za-z0-9]+)*")


def write_project(name: str, parent: Path) -> list[Path]:
    """Write a project into the folder `name` of `parent`; return its files.

    Raises GristmillError, and writes nothing, if the name cannot be a package's or a file is there already.
    """
    module = module_name(name)
    texts = {parent / name / fill(path, name, module): fill(_read(file), name, module) for file, path in FILES.items()}
    if present := sorted(path for path in texts if path.exists()):
        message = f"{', '.join(path.relative_to(parent).as_posix() for path in present)} would be overwritten"
        raise GristmillError(message, fix=f"choose another name, or remove the folder `{name}`")
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return list(texts)


def module_name(name: str) -> str:
    """Return the package that a distribution of this name holds. Raises GristmillError if it cannot be one."""
    module = name.replace("-", "_").lower()
    if not NAME.fullmatch(name):
        problem = "is no name of a package"
    elif keyword.iskeyword(module) or keyword.issoftkeyword(module):
        problem = "is a word of Python's"
    elif module in sys.stdlib_module_names or module in ("gristmill", "tests", "kernels"):
        problem = "would hide another module"
    else:
        return module
    fix = "use letters and digits, and `-` or `_` between them, as in `python -m gristmill init my-kernels`"
    raise GristmillError(f"`{name}` {problem}", fix=fix)


def fill(text: str, name: str, module: str) -> str:
    """Put names and versions into a template."""
    minor = ".".join(__version__.split(".")[:2])
    values = {"NAME": name, "MODULE": module, "GRISTMILL": f"{minor}.0", "GRISTMILL_MINOR": minor}
    return re.sub("@([A-Z_]+)@", lambda match: values[match[1]], text)


def _read(file: str) -> str:
    return (resources.files(__name__) / "template" / file).read_text(encoding="utf-8")
