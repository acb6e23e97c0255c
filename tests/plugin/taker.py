"""A pytest plugin of somebody else that takes reports, where they are printed."""

from __future__ import annotations

import pytest


class Taker:
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """As one that writes a page of them."""


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Taker())
