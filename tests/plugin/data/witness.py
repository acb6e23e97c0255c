"""A pytest plugin that says at the end whether torch was imported."""

from __future__ import annotations

import sys


def pytest_unconfigure() -> None:
    print("torch imported:", "torch" in sys.modules)
