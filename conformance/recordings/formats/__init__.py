"""The file formats of other programs in which calls of PyTorch are recorded. Each format is a module with the functions
of the protocol ``Format``, and is recognized by a file's content. No format runs code from a file: nothing is unpickled
or evaluated. The modules import torch only when they read a file."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, Final, Protocol

from conformance.recordings.formats.source_file import SourceFile
from conformance.recordings.wire import Recording, RecordingError
from devices.errors import suggestion


class Format(Protocol):
    """The functions that the module of a format defines."""

    TITLE: str  # such as "an execution trace of PyTorch"

    def takes(self, file: SourceFile) -> bool:
        """Returns True if a file has this format. Reads only the beginning of the file, and does not import torch."""
        ...

    def read(self, file: SourceFile) -> Recording:
        """Returns the recording in a file. The header's ``lacks`` lists the properties of the calls that the format
        does not store, such as strides. Raises RecordingError if the file is damaged."""
        ...


#: The format of ``conform record``.
OWN: Final = "recording"

#: The formats, in the order in which a file is offered to them.
FORMATS: Final = (
    *(OWN, "execution_trace", "kineto", "operator_inputs", "exported_program", "fx_graph"),
    *("msprobe", "spyre"),
)


def title_of(name: str) -> str:
    """Returns the description of a format, such as "an exported program of torch.export.save", given the format's
    name."""
    title: str = _module(name).TITLE
    return title


def recognize(file: SourceFile, name: str | None = None) -> Any:
    """Returns the module of the format called ``name`` or, without a name, of the format that the file has. Raises
    RecordingError if no format has this name, or if the file has no known format."""
    if name is not None:
        if name not in FORMATS:
            raise RecordingError(
                f"unknown format {name!r}: expected {', '.join(FORMATS)}{suggestion(name, FORMATS)}"
            )
        return _module(name)
    found = next((each for each in map(_module, FORMATS) if each.takes(file)), None)
    if found is None:
        known = "; ".join(f"{each} ({title_of(each)})" for each in FORMATS)
        raise RecordingError(
            f"{file.path} is not a recording of a known format: expected one of {known}; found {file.looks_like()}"
        )
    return found


def check_format(path: Path, name: str | None) -> None:
    """Raises RecordingError if a file has no known format, or if it is a damaged file of ``conform record``. Files of
    other formats are not read completely, because that needs torch."""
    file = SourceFile(path)
    found = recognize(file, name)
    if not file.head:
        raise file.damaged("the file is empty")
    if found is _module(OWN):
        found.read(file)


def is_own(path: Path, name: str | None = None) -> bool:
    """Returns True if a file has the format of ``conform record``. Raises RecordingError if it has no known format."""
    return recognize(SourceFile(path), name) is _module(OWN)


def read(path: Path, name: str | None = None) -> Recording:
    """Returns the recording in a file of any format. Raises RecordingError if the format is unknown, or if the file is
    damaged."""
    file = SourceFile(path)
    found: Recording = recognize(file, name).read(file)
    return found


def _module(name: str) -> Any:
    return importlib.import_module(f"{__name__}.{name}")
