"""The file and folder formats in which kernels are found. Each format is a module with the functions of the protocol
``Format``. No format imports a kernel into this process."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from conformance.kernels.judgement import Judgement
from conformance.kernels.request import Request
from devices.errors import ConformError


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """The user's settings for all kernels of a path. ``target`` and ``reference`` are empty if the kernel's file
    determines them."""

    target: str = ""
    reference: str = ""
    samples: str = ""
    device: str = "cpu"
    descriptor: str | None = None
    dtypes: tuple[str, ...] = ("float32",)
    seconds: float = 10.0
    guard_pages: bool = True
    speed: bool = True

    def request(self, **fields: Any) -> Request:
        """Returns a request that combines these settings of the user with the given fields of Request."""
        common = ("device", "descriptor", "dtypes", "seconds", "guard_pages", "speed")
        given = {name: getattr(self, name) for name in common}
        return Request(**{**given, **fields})


class Format(Protocol):
    """The functions that the module of a format defines."""

    def takes(self, path: Path) -> bool:
        """Returns True if the file or folder has this format."""
        ...

    def requests(self, path: Path, wanted: Wanted) -> list[Request]:
        """Returns a request for each kernel in a file or folder, with the user's settings ``wanted``. Raises
        ConformError if the file cannot be read."""
        ...

    def record(self, path: Path, judged: Sequence[tuple[Request, Judgement]]) -> list[Path]:
        """Writes the verdicts to files of the format, if it has such files. Returns the paths of the files that were
        written."""
        ...


#: The formats, in the order in which a path is offered to them.
FORMATS: Final = (
    "flashinfer",
    "backendbench",
    "kernelbench",
    "library_module",
    "reference_file",
)


class NoKernel(ConformError):
    """The error for a path in which no known format finds a kernel."""

    exit_code = 4


def format_of(path: Path) -> Any:
    """Returns the module of the format of a file or folder; None if no format matches."""
    modules = (importlib.import_module(f"{__name__}.{name}") for name in FORMATS)
    return next((each for each in modules if each.takes(path)), None)
