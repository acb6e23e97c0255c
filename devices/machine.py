"""What descriptors ask the machine: modules, drivers and their versions. Nothing here imports torch by itself."""

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
    """Import a module when it is needed. Only for functions that run on the device."""
    return importlib.import_module(name)


def counting(module: str) -> Callable[[], int]:
    """A descriptor's ``device_count``: it asks the module, which is imported when it is called."""
    return lambda: int(lent(module).device_count())


def is_installed(name: str) -> bool:
    """Whether a top-level module can be found, without importing it."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # a stub in sys.modules without a spec
        return False


def torch_lacks(library: str) -> str | None:
    """Why the installed torch cannot drive a device; None if its ``lib`` folder holds ``library``.

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
    """Whether the installed torch comes with a C++ header, ``ATen/ATen.h`` for example. False without torch."""
    spec = importlib.util.find_spec("torch") if is_installed("torch") else None
    folders = spec.submodule_search_locations or () if spec is not None else ()
    return any((Path(each) / "include" / path).exists() for each in folders)


def _file_names(library: str) -> tuple[str, ...]:
    return (f"lib{library}.so", f"{library}.dll", f"lib{library}.dylib")


def loads(*libraries: str) -> bool:
    """Whether one of a driver's shared libraries can be loaded."""
    for name in libraries:
        with contextlib.suppress(OSError):
            ctypes.CDLL(name)
            return True
    return False


def version_in(path: str | Path, pattern: str = r"\d+(?:\.\d+)+") -> str:
    """The first version in a text file; empty if there is none, or no such file."""
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    found = re.search(pattern, text)
    return found.group() if found else ""


def plain_version(text: str | None) -> str:
    """The leading numbers of a version that is not valid under PEP 440 ("6.2.41-dd7f" is "6.2.41")."""
    found = re.match(r"\d+(?:\.\d+)*", text or "")
    return found.group() if found else ""
