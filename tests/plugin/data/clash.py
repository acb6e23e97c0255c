"""A pytest plugin that has the option --device, as pytest-playwright does."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", help="the browser's device")
