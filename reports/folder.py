"""The results folder of a run: the names of the files that a run writes, a check for other files, and the state of an
interrupted run."""

from __future__ import annotations

import os
from collections.abc import Collection
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import msgspec

from devices.cell import CellKey
from devices.errors import ConformError
from devices.files import MOST_RECORD, read_regular
from reports.model import RunError

RECORD_FILE: Final = "run.conform"
#: The complete record that the folder held before; kept until the run that takes its place is complete, too.
EARLIER_FILE: Final = "earlier.conform"
#: Present while a run goes on, and after a run that was interrupted.
PROGRESS_FILE: Final = ".progress.jsonl"
MANIFEST_FILE: Final = "expected.toml"
#: The outcomes of the calls of a replayed recording.
CALLS_FILE: Final = "calls.json"
#: A copy of the replayed recording, from which `conform minimise` takes the calls.
RECORDING_FILE: Final = "recording.jsonl"

_FILES: Final = (
    *(RECORD_FILE, EARLIER_FILE, PROGRESS_FILE, MANIFEST_FILE, "junit*.xml", "missing.txt"),
    *("failures.json", "failures.md", CALLS_FILE, RECORDING_FILE, "explore.json", "explore.jsonl"),
)
#: With Python's own: a descriptor in the current folder leaves its bytecode there.
_FOLDERS: Final = ("repro", "explore", "journal", "scratch", "__pycache__")
#: By-products of people and CI systems, such as the log of the command. No run deletes them.
_HARMLESS: Final = (".*", "*.log", "*.txt")


def foreign_files(folder: Path, also: Collection[Path] = ()) -> list[str]:
    """Returns the names of the files in a folder that no run wrote there. ``also`` are further files that may be in the
    folder.

    ``expected.toml`` counts as a copy of the manifest only if the folder has a record or the progress of a run;
    otherwise the file may be a device's own manifest. Returns an empty list for a folder that does not exist. Raises
    OSError if the folder cannot be read.
    """
    try:
        found = sorted(folder.iterdir())
    except FileNotFoundError:
        return []
    names = {path.name for path in found}
    ran = not names.isdisjoint((RECORD_FILE, EARLIER_FILE, PROGRESS_FILE))
    return [
        path.name
        for path in found
        if (path not in also and not _belongs(path)) or (path.name == MANIFEST_FILE and not ran)
    ]


def check_folder(given: str, folder: Path, also: Collection[Path] = ()) -> None:
    """Raises ConformError if a run must not write into a folder: the path is a file, the folder is not writable, or it
    holds files that no run wrote. ``given`` is the option with its value, for the text of the error. ``also`` are
    further files that may be in the folder."""
    if folder.exists() and not folder.is_dir():
        raise ConformError(f"{given}: expected a folder, found a file")
    there = folder.absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise ConformError(f"{given}: cannot be written: {there} is a file; expected a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConformError(f"{given}: cannot be written: no permission to write in {there}")
    try:
        foreign = foreign_files(folder, also)
    except OSError as error:
        raise ConformError(f"{given}: cannot be read: {error.strerror or error}") from None
    if foreign:
        names = ", ".join(foreign[:3]) + (", …" if len(foreign) > 3 else "")
        raise ConformError(
            f"{given}: the folder holds files that no run wrote ({names}); give a new folder, an empty folder, or the folder of an earlier run"
        )


def _belongs(path: Path) -> bool:
    if path.is_dir():
        return path.name in _FOLDERS or path.name.startswith(".")
    return any(fnmatchcase(path.name, pattern) for pattern in (*_FILES, *_HARMLESS))


# -- a run that was interrupted


class Interrupted(RunError):
    """The error for a folder that holds a run which has not finished."""

    exit_code = 2


class _Cell(msgspec.Struct, frozen=True):
    cell: CellKey


class _Report(msgspec.Struct, frozen=True):
    cells: tuple[_Cell, ...] = ()


class _Line(msgspec.Struct, frozen=True):
    """The part of a line of the progress file that this module reads. conformance/run/progress.py writes the lines."""

    type: str
    planned: int = 0
    run: dict[str, msgspec.Raw] = {}
    report: _Report = _Report()
    cell: CellKey | None = None


_read_line: Final = msgspec.json.Decoder(_Line).decode


class Begun(msgspec.Struct, frozen=True):
    """The progress of an unfinished run: ``done`` of ``planned`` cells have finished (``planned`` is 0 if the file does
    not contain that number). ``whole`` is True if all cells of the plan or of a shard were selected."""

    folder: Path
    done: int
    planned: int
    whole: bool

    def __str__(self) -> str:
        return (
            f"{self.done:,} of {self.planned:,} cells" if self.planned else f"{self.done:,} cells"
        )


def interrupted_run(folder: Path) -> Begun | None:
    """Returns the progress of a run that was interrupted in a folder or is still running there; None if the folder has
    no such run."""
    try:
        lines = read_regular(folder / PROGRESS_FILE, MOST_RECORD).splitlines()
    except OSError:
        return None
    done: set[CellKey] = set()
    planned, whole = 0, False
    for text in lines:
        try:
            line = _read_line(text)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue  # cut off by what ended the run
        if line.type == "begun":
            planned = max(planned, line.planned)
            whole = bytes(line.run.get("selection", b"{}")) == b"{}"
        elif line.type == "finished":
            done.update(each.cell for each in line.report.cells)
        elif line.type == "lost" and line.cell is not None:
            done.add(line.cell)
    return Begun(folder, len(done), planned, whole) if lines else None


def without_end(folder: Path) -> Interrupted | None:
    """Returns the error for a folder that has the progress of a run but no record; None if the folder has no progress
    either."""
    found = interrupted_run(folder)
    if found is None:
        return None
    return Interrupted(
        f"incomplete: {folder} holds {found} of a run that was interrupted or is still running; after an interruption, "
        "run the same command with --resume to continue"
    )
