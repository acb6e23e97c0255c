"""What descriptors ask the machine: installed modules, drivers and their versions. Importing this module does not
import torch."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.metadata
import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any


def lent(name: str) -> Any:
    """Import a module at the moment when it is needed. For functions that run on the device only."""
    return importlib.import_module(name)


def counting(module: str) -> Callable[[], int]:
    """A ``device_count`` for a descriptor, which imports the module and asks it when it is called."""
    return lambda: int(lent(module).device_count())


def is_installed(name: str) -> bool:
    """Whether a top-level module can be found; it is not imported."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # a stub in sys.modules without a spec
        return False


def torch_lacks(library: str) -> str | None:
    """The reason why the installed torch cannot drive a device; None if torch's ``lib`` folder contains ``library``.

    ``library`` is a name without prefix and suffix, such as ``torch_cuda``.
    """
    spec = importlib.util.find_spec("torch") if is_installed("torch") else None
    if spec is None:
        return "torch is not installed"
    for folder in spec.submodule_search_locations or ():
        lib = Path(folder) / "lib"
        if any((lib / name).exists() for name in _file_names(library)):
            return None
    return (
        f"the installed torch is built without it (there is no torch/lib/{_file_names(library)[0]})"
    )


def torch_has_header(path: str) -> bool:
    """Whether the installed torch includes a C++ header, such as ``ATen/ATen.h``. False without torch."""
    spec = importlib.util.find_spec("torch") if is_installed("torch") else None
    folders = spec.submodule_search_locations or () if spec is not None else ()
    return any((Path(each) / "include" / path).exists() for each in folders)


def _file_names(library: str) -> tuple[str, ...]:
    return (f"lib{library}.so", f"{library}.dll", f"lib{library}.dylib")


def loads(*libraries: str) -> bool:
    """Whether one of these shared libraries of a driver can be loaded."""
    for name in libraries:
        with contextlib.suppress(OSError):
            ctypes.CDLL(name)
            return True
    return False


def version_in(path: str | Path, pattern: str = r"\d+(?:\.\d+)+") -> str:
    """The first version number in a text file; empty if there is none, or no such file."""
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    found = re.search(pattern, text)
    return found.group() if found else ""


def plain_version(text: str | None) -> str:
    """The leading numbers of a version that is not valid under PEP 440 ("6.2.41" for "6.2.41-dd7f")."""
    found = re.match(r"\d+(?:\.\d+)*", text or "")
    return found.group() if found else ""
