"""Reads the files that ``conform record`` writes."""

from __future__ import annotations

from typing import Final

from conformance.recordings.formats.source_file import SourceFile
from conformance.recordings.wire import FORMAT, Recording, read_recording

TITLE: Final = "a file of conform record"


def takes(file: SourceFile) -> bool:
    """Returns True if the first line of a file has the name of the format."""
    return FORMAT.encode() in file.head.partition(b"\n")[0]


def read(file: SourceFile) -> Recording:
    """Returns the recording in a file. Raises RecordingError if the file is damaged."""
    return read_recording(file.path)
