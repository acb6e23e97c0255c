"""The contract for PyTorch devices, and the suites that test a device against the contract. Importing this package
needs no torch.

A vendor's descriptor imports these names::

    from conformance import Descriptor, Tolerance, common_facts

The packages ``devices``, ``opinfo`` and ``reports`` belong to the suite. Their names are common words, so a folder of
the user may have the same name and come first in ``sys.path``. This module therefore makes Python import the three
packages from the folder in which the suite is installed, whatever ``sys.path`` says. Every process of the suite imports
this module first.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Final

#: The folder that holds the packages of the suite.
_ROOT: Final = Path(__file__).resolve().parents[1]
_OURS: Final = frozenset({"devices", "opinfo", "reports"})


class _Ours:
    """An import finder for the packages ``devices``, ``opinfo`` and ``reports``, whose folders are next to the folder
    of ``conformance``."""

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(name, [str(_ROOT)]) if name in _OURS else None


def _put_ours_first() -> None:
    """Makes Python search for the suite's packages first in the folder in which the suite is installed. Raises
    ImportError if a different package of the same name has already been imported, because Python cannot import both."""
    for name in sorted(_OURS & sys.modules.keys()):
        folders = [*getattr(sys.modules[name], "__path__", ())]
        if os.path.realpath(folders[0] if folders else "") != str(_ROOT / name):
            where = getattr(sys.modules[name], "__file__", None) or next(iter(folders), "memory")
            raise ImportError(
                f"torch-conformance has a package named '{name}', but another module of that name was imported "
                f"before it, from {where}. Import conformance first, or rename the other module."
            )
    sys.meta_path.insert(0, _Ours)


_put_ours_first()

from devices.descriptor import (  # noqa: E402  (found by the lines above)
    Autocast,
    Capability,
    Descriptor,
    Fact,
    ProcessGroup,
    Tolerance,
    common_facts,
)

__all__ = [
    "Autocast",
    "Capability",
    "Descriptor",
    "Fact",
    "ProcessGroup",
    "Tolerance",
    "common_facts",
]
