"""Modules that a device lends while it runs: torch and the vendor's own, which importing a descriptor
must leave alone."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any


def lent(name: str) -> Any:
    """The module of that name, imported now. Only for functions that run on the device."""
    return importlib.import_module(name)


def is_installed(name: str) -> bool:
    """Whether a top-level module can be found, without importing it."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # a stub in sys.modules without a spec
        return False
