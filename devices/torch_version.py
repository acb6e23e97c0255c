"""The versions of torch that the suite supports, and a check of the installed version that does not import torch.

torch is not among the dependencies that pip installs with the suite, so that pip never replaces the torch for which a
backend is built. The suite uses private names of torch, which differ between minor versions. Without the check, an
unsupported version would cause an AttributeError at some later point.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import sys
from pathlib import Path
from typing import Final

from devices.errors import ConformError

#: The first and the last supported minor version.
FIRST: Final = (2, 9)
LAST: Final = (2, 13)
#: Set to 1, every version of torch is tried.
ANY: Final = "TORCH_CONFORMANCE_ANY_TORCH"

_MINOR: Final = re.compile(r"(\d+)\.(\d+)")
_VERSION: Final = re.compile(r"^__version__\s*(?::[^=]*)?=\s*['\"]([^'\"]+)['\"]", re.MULTILINE)
_COMMIT: Final = re.compile(
    r"^git_version\s*(?::[^=]*)?=\s*['\"]([0-9a-fA-F]{40})['\"]", re.MULTILINE
)


class NoTorch(ConformError):
    """The error that is raised if torch is not installed, or if its version is not supported."""

    exit_code = 3


def supported() -> str:
    """Returns the supported versions as messages name them: ``torch 2.9 to 2.13``."""
    return "torch {}.{} to {}.{}".format(*FIRST, *LAST)


def installed() -> str | None:
    """Returns the version of the torch that is imported, or that importing torch would find; None if torch is not
    installed.

    The version is empty if torch does not state one.
    """
    if (loaded := sys.modules.get("torch")) is not None:
        return str(getattr(loaded, "__version__", ""))
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:  # a folder that happens to be named torch
        return None
    try:
        text = Path(found.origin).with_name("version.py").read_text(encoding="utf-8")
    except OSError:
        text = ""
    if said := _VERSION.search(text):
        return said[1]
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return ""


def commit() -> str | None:
    """Returns the commit of PyTorch from which the installed torch was built. torch is not imported. Returns None if
    torch is not installed or does not state a commit."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return None
    try:
        text = Path(found.origin).with_name("version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    said = _COMMIT.search(text)
    return said[1] if said else None


def require_torch() -> None:
    """Raises NoTorch unless a supported torch is installed. torch is not imported."""
    version = installed()
    if version is None:
        raise NoTorch(
            f"torch is not installed for {sys.executable}: install the torch that your backend is built for, or "
            "run: python -m pip install 'torch-conformance[torch]'"
        )
    if os.environ.get(ANY) == "1":
        return
    # Repro scripts carry this module and need torch only, so that packaging does not parse the version.
    if not (parts := _MINOR.match(version)):  # an unusual build: anything that it lacks shows later
        return
    minor = int(parts[1]), int(parts[2])
    if not FIRST <= minor <= LAST:
        raise NoTorch(
            f"torch {version} is installed, but torch-conformance supports {supported()}: install one of these versions, or set "
            f"{ANY}=1 to try torch {version} anyway"
        )


def has_torch() -> bool:
    """Returns True if a supported torch is installed."""
    try:
        require_torch()
    except NoTorch:
        return False
    return True
