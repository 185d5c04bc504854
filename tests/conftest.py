"""Options and folders of the whole test run."""

from __future__ import annotations

import importlib.util

import pytest

import kept


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--thorough", action="store_true", help="more generated cases for each operation")
    parser.addoption("--end-to-end", action="store_true", help="also build packages of kernels with whole launchers")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that build for a minute run only if asked for."""
    if not config.getoption("--end-to-end"):
        for item in (item for item in items if item.get_closest_marker("end_to_end")):
            item.add_marker(pytest.mark.skip(reason="runs with --end-to-end"))


def pytest_configure(config: pytest.Config) -> None:
    """Code that tests compile for this processor is kept between runs, where pytest keeps its own."""
    if hasattr(config, "cache"):
        kept.keep_in(config.cache.mkdir("gristmill"))
    if importlib.util.find_spec("hypothesis"):
        from hypothesis import settings

        settings.register_profile("gristmill", deadline=None)  # other processes may share the machine
        settings.load_profile("gristmill")
