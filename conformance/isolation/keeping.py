"""What a run keeps while it goes on, so that it can be gone on with: done cells, lost cells, and doubts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.isolation.journal import path_of, read_entry
from conformance.isolation.lost import Lost, LostCells
from conformance.isolation.progress import Done, Progress, read_progress
from devices.cell import Outcome
from devices.errors import ConformError


@dataclass
class Keeper:
    """The progress file of a run that goes on, and the cells that ended a process in it."""

    progress: Progress
    lost: LostCells
    before: Done  # what an earlier run of the folder had done; nothing where none is resumed

    def cells(self, worker: str, documents: Sequence[dict[str, Any]]) -> None:
        """An item is done."""
        self.progress.cells(worker, documents)

    def lose(self, lost: Lost) -> None:
        """A cell ended its process. Whoever runs items is told by others."""
        self.progress.lost(lost)

    def close(self, *, complete: bool) -> None:
        self.progress.close(complete=complete)


def look_back(folder: Path, identity: Mapping[str, Any], *, resume: bool) -> Done:
    """What is to be gone on from, before the folder is cleared. Raises CannotResume."""
    if not resume:
        return Done()
    done = read_progress(folder, identity)
    entry = read_entry(folder / "journal", "main")
    # pytest itself, without workers, ended in this cell: killed, or because of it. The second time it is the
    # cell's own fault.
    if entry is not None and entry.cell is not None and entry.cell.clause:
        if entry.cell in done.doubts:
            message = "pytest itself, which ran it (-n 0), ended in it twice"
            done.lost.append(Lost(entry.cell, Outcome.CRASH, message, entry.call))
        else:
            done.doubts.append(entry.cell)
    path_of(folder / "journal", "main").unlink(missing_ok=True)
    return done


def keep(folder: Path, identity: Mapping[str, Any], start: str, before: Done) -> Keeper:
    """Begin to keep a run, or go on. Raises ConformError where the folder cannot be written."""
    try:
        progress = Progress(folder)
        progress.begin(identity, start)
        for cell in before.doubts:
            progress.doubt(cell)
        for lost in before.lost:
            progress.lost(lost)
    except OSError as error:
        raise ConformError(f"--results {folder}: cannot be written: {error}") from error
    return Keeper(progress, LostCells(before.lost), before)
