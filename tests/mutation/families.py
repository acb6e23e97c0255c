"""Families of mutants that have a module of their own: they are of no single op of the database, and of no source of the device.

A module has two functions. ``names(seed, count)`` gives the names of mutants 0 to count - 1, which say all that there is
to them; ``tried(seed, number, name, tell)`` breeds the mutant of that name, tells of it before it is tried, and returns
its ``Result``.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Final

MODULES: Final = {
    "gradients": "tests.mutation.gradients",
    "optim": "tests.mutation.optimisers",
    "nn": "tests.mutation.modules",
    "autocast": "tests.mutation.autocasts",
}


def module_of(family: str) -> ModuleType:
    return importlib.import_module(MODULES[family])
