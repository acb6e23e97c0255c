"""Families of mutants with a module of their own: they belong neither to an op nor to a source file of the device.

Each module has two functions. ``names(seed, count)`` returns the names of mutants 0 to count - 1; a name describes its
mutant completely. ``tried(seed, number, name, tell)`` breeds the mutant of that name, calls ``tell`` before it tries the
mutant, and returns its ``Result``. A module may have a context manager ``prepared()``, in which its mutants are tried.
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
    "compile": "tests.mutation.compile.draw",
    "compilers": "tests.mutation.compilers",
    "compiled_ops": "tests.mutation.compile.op_graphs",
    "fake_kernels": "tests.mutation.compile.fake_kernels",
    "device_interface": "tests.mutation.compile.interfaces",
    "compiled_autograd": "tests.mutation.compile.traced_backward",
    "runtime_wrappers": "tests.mutation.compile.runtime_wrappers",
    "export": "tests.mutation.compile.exported",
    "stride_tags": "tests.mutation.compile.stride_tags",
    "profiles": "tests.mutation.profiles",
    "sizes": "tests.mutation.sizes",
    "distributed": "tests.mutation.groups",
    "recordings": "tests.recordings.mutants",
}


def module_of(family: str) -> ModuleType:
    return importlib.import_module(MODULES[family])
