"""Functions with which descriptors query the machine: installed modules, drivers and their versions. Importing the
module does not import torch."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.metadata
import importlib.util
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any


def late_module(name: str) -> Any:
    """Imports a module by its name and returns it. Descriptors call the function inside of their own functions, so
    that torch and the device's modules are imported only when they are needed."""
    return importlib.import_module(name)


def counting(module: str) -> Callable[[], int]:
    """Returns a ``device_count`` function for a descriptor. When called, that function imports the named module and
    returns its ``device_count()``."""
    return lambda: int(late_module(module).device_count())


def is_installed(name: str) -> bool:
    """Returns True if a top-level module can be found. The module is not imported."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # a stub in sys.modules without a spec
        return False


def torch_lacks(library: str) -> str | None:
    """Returns the reason why the installed torch does not support a device; None if torch's ``lib`` folder contains
    ``library``.

    ``library`` is a name without prefix and suffix, such as ``torch_cuda``.
    """
    spec = importlib.util.find_spec("torch") if is_installed("torch") else None
    if spec is None:
        return "torch is not installed"
    for folder in spec.submodule_search_locations or ():
        lib = Path(folder) / "lib"
        if any((lib / name).exists() for name in _file_names(library)):
            return None
    return f"the installed torch is built without support for the device (expected torch/lib/{_file_names(library)[0]})"


def torch_has_header(path: str) -> bool:
    """Returns True if the installed torch includes a C++ header, such as ``ATen/ATen.h``; False if torch is not
    installed."""
    spec = importlib.util.find_spec("torch") if is_installed("torch") else None
    folders = spec.submodule_search_locations or () if spec is not None else ()
    return any((Path(each) / "include" / path).exists() for each in folders)


def _file_names(library: str) -> tuple[str, ...]:
    return (f"lib{library}.so", f"{library}.dll", f"lib{library}.dylib")


def loads(*libraries: str) -> bool:
    """Returns True if at least one of the given shared libraries of a driver can be loaded."""
    for name in libraries:
        with contextlib.suppress(OSError):
            ctypes.CDLL(name)
            return True
    return False


#: Where Linux says how much memory the process' control group may use, in the two versions of the interface.
_GROUP_LIMITS = (
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
)


def host_memory() -> int:
    """Returns the bytes of memory that the machine has, or those that the container may use if they are fewer."""
    bytes_ = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _GROUP_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # another version, or "max"
            bytes_.append(int(Path(path).read_text(encoding="ascii")))
    return min(bytes_)


def version_in(path: str | Path, pattern: str = r"\d+(?:\.\d+)+") -> str:
    """Returns the first version number in a text file; an empty text if the file contains none or does not exist."""
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    found = re.search(pattern, text)
    return found.group() if found else ""


def plain_version(text: str | None) -> str:
    """Returns the leading numbers of a version that is not valid under PEP 440 ("6.2.41" for "6.2.41-dd7f")."""
    found = re.match(r"\d+(?:\.\d+)*", text or "")
    return found.group() if found else ""
