"""Options and folders of the whole test run."""

from __future__ import annotations

import importlib.util

import pytest

import kept


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--thorough", action="store_true", help="more generated cases for each operation")


def pytest_configure(config: pytest.Config) -> None:
    """Code that tests compile for this processor is kept between runs, where pytest keeps its own."""
    if hasattr(config, "cache"):
        kept.keep_in(config.cache.mkdir("gristmill"))
    if importlib.util.find_spec("hypothesis"):
        from hypothesis import settings

        settings.register_profile("gristmill", deadline=None)  # other processes may share the machine
        settings.load_profile("gristmill")
