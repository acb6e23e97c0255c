"""What descriptors ask a machine without importing torch, and the modules that they borrow while a
device runs. Importing a descriptor imports none of them."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import re
from collections.abc import Iterable
from pathlib import Path
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


def torch_lacks(library: str) -> str | None:
    """Why the installed torch cannot drive a device: None where its ``lib`` folder holds ``library``.

    ``library`` is a name without prefix and suffix, such as ``torch_cuda``.
    """
    spec = importlib.util.find_spec("torch") if is_installed("torch") else None
    if spec is None:
        return "torch is not installed"
    for folder in spec.submodule_search_locations or ():
        lib = Path(folder) / "lib"
        if any((lib / name).exists() for name in _file_names(library)):
            return None
    return f"the installed torch is built without it (torch/lib holds no {_file_names(library)[0]})"


def _file_names(library: str) -> tuple[str, ...]:
    return (f"lib{library}.so", f"{library}.dll", f"lib{library}.dylib")


def first_that_loads(libraries: Iterable[str]) -> str | None:
    """The first shared library that the loader finds: a driver's, which torch needs too."""
    for name in libraries:
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        return name
    return None


def version_in(path: str | Path, pattern: str = r"\d+(?:\.\d+)+") -> str:
    """The first version in a text file; empty where there is none, or no such file."""
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    found = re.search(pattern, text)
    return found.group() if found else ""


def plain_version(text: str | None) -> str:
    """The leading numbers of a version that PEP 440 does not take whole ("6.2.41-dd7f" is "6.2.41")."""
    found = re.match(r"\d+(?:\.\d+)*", text or "")
    return found.group() if found else ""


def known(facts: dict[str, str | None]) -> dict[str, str]:
    """The facts that have a value: what the machine does not know is left out, never guessed."""
    return {name: value for name, value in facts.items() if value}
