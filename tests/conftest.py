"""Options and folders of the whole test run."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Code that tests compile for this processor is kept between runs, where pytest keeps its own."""
    if not hasattr(config, "cache"):
        return
    try:
        import host
    except ImportError:
        return
    host.keep_in(config.cache.mkdir("gristmill-host"))
