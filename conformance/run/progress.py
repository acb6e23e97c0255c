"""A run while it goes on: its results folder, cleared of an earlier run; what ``--resume`` continues from; how far it is.

The controller writes one line an item into the progress file, straight to the file: it survives whatever ends the run.
A last line that was cut off is ignored.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

try:
    import fcntl
except ModuleNotFoundError:  # Windows
    fcntl = None  # type: ignore[assignment]

from conformance.plan.selection import Machine
from conformance.run.isolation.watch import holders, path_of, read_entry
from conformance.run.outcomes import BAD, ItemReport, Lost
from devices.cell import CellKey, Outcome
from devices.errors import ConformError
from reports.run import PROGRESS_FILE as FILE
from reports.run import RECORD_FILE, RunError, load_run

_FORMAT: Final = 3
_DAMAGED: Final = "--resume: {path}:{number} is damaged, or from another version of the suite: start again without --resume"
#: What an earlier run may have left in a results folder.
_STALE: Final = (
    *("junit-*.xml", RECORD_FILE, "failures.json", "failures.md"),
    *("explore.json", "explore.jsonl", "explore/*/*.py", "journal/*"),
)
_STALE_UNLESS_RESUMED: Final = (FILE, "repro/*/*.py")


class Identity(msgspec.Struct, frozen=True):
    """What must be the same for a run to be resumed."""

    device: str
    plan: str
    machine: Machine
    selection: dict[str, str]
    shard: str

    def differences(self, now: Identity) -> list[str]:
        """What was different in this one, as ``name was … and is …``."""
        before, after = _flat(self), _flat(now)
        return [
            f"{name} was {value!r}, now it is {after[name]!r}"
            for name, value in before.items()
            if value != after[name]
        ]


def _flat(identity: Identity) -> dict[str, object]:
    fields: dict[str, object] = msgspec.structs.asdict(identity)
    return {**fields, "machine": None, **identity.machine.named}


class Begun(msgspec.Struct, frozen=True, tag="begun"):
    run: Identity
    start: str
    format: int = _FORMAT


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    worker: str
    report: ItemReport


class Doubt(msgspec.Struct, frozen=True, tag="doubt"):
    """pytest itself ended in this cell, perhaps for another reason."""

    cell: CellKey


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(Begun | Finished | Lost | Doubt).decode


@dataclass(slots=True)
class Done:
    """What an earlier run of the same folder had done; nothing if none is resumed."""

    start: str = ""
    items: list[Finished] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    doubts: list[CellKey] = field(default_factory=list)  # in which pytest itself has ended


class Progress:
    """The writing side. Raises OSError if the file cannot be written."""

    def __init__(self, folder: Path, claimed: int | None = None) -> None:
        self._path, self._claimed = folder / FILE, claimed
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def add(self, entry: Begun | Finished | Lost | Doubt) -> None:
        os.write(self._file, _encode(entry) + b"\n")

    def close(self, *, complete: bool) -> None:
        """The run is over. A complete one needs no resuming."""
        os.close(self._file)
        if complete:
            self._path.unlink(missing_ok=True)
        if self._claimed is not None:
            os.close(self._claimed)


def read_progress(folder: Path, identity: Identity) -> Done:
    """What the run in this folder had done. Raises ConformError."""
    path = folder / FILE
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        state = "its run is complete" if (folder / RECORD_FILE).exists() else "it holds no run"
        raise ConformError(f"--resume: nothing to resume in {folder}: {state}") from None
    except OSError as error:
        raise ConformError(f"--resume: {path} cannot be read: {error.strerror}") from None
    done: Done | None = None
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            entry = _decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            if done is not None and number >= len(lines) - 1:
                break  # cut off by what ended the run
            raise ConformError(_DAMAGED.format(path=path, number=number)) from None
        if done is None:
            done = _begun(entry, identity, path)
        elif isinstance(entry, Finished):
            done.items.append(entry)
        elif isinstance(entry, Lost) and entry not in done.lost:
            done.lost.append(entry)
        elif isinstance(entry, Doubt) and entry.cell not in done.doubts:
            done.doubts.append(entry.cell)
    if done is None:
        raise ConformError(f"--resume: nothing to resume in {folder}: {path.name} is empty")
    return done


def _begun(entry: object, identity: Identity, path: Path) -> Done:
    if not isinstance(entry, Begun) or entry.format != _FORMAT:
        raise ConformError(_DAMAGED.format(path=path, number=1))
    if differences := entry.run.differences(identity):
        raise ConformError(
            f"--resume: {path.parent} is from a different run: {'; '.join(differences)}. Repeat the original "
            "command, or start again without --resume"
        )
    return Done(entry.start)


# -- before a run


def look_back(folder: Path, identity: Identity, *, resume: bool) -> Done:
    """What there is to resume, before the folder is cleared. Raises ConformError."""
    if not resume:
        return Done()
    done = read_progress(folder, identity)
    entry = read_entry(folder / "journal", "main")
    # pytest itself, without workers, ended in this cell: it was killed, or the cell did it. The second time it counts
    # against the cell.
    if entry is not None and entry.cell is not None and entry.cell.clause:
        if entry.cell in done.doubts:
            message = "pytest itself, which ran it (-n 0), ended in it twice"
            done.lost.append(Lost(entry.cell, Outcome.CRASH, message, entry.call))
        else:
            done.doubts.append(entry.cell)
    path_of(folder / "journal", "main").unlink(missing_ok=True)
    return done


def claim(folder: Path) -> int | None:
    """Take the results folder for this run: until the descriptor that is returned is closed, no other run writes there.
    None where files cannot be locked. Raises ConformError if another run writes there now."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if fcntl is None:
            return None
        held = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise ConformError(f"--results {folder}: cannot be written: {error}") from error
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        whose = holders(held)
        os.close(held)
        raise ConformError(
            f"--results {folder}: {whose} writes the results of another run there: wait for its end, or give another "
            "folder with --results=DIR"
        ) from None
    except OSError:  # a file system without locks
        os.close(held)
        return None
    return held


def begin(
    folder: Path, identity: Identity, start: str, before: Done, claimed: int | None
) -> Progress:
    """Clear the folder of an earlier run's files, and write what is known so far. Raises ConformError."""
    try:
        (folder / "journal").mkdir(parents=True, exist_ok=True)
        for pattern in (*_STALE, *(() if before.start else _STALE_UNLESS_RESUMED)):
            for stale in folder.glob(pattern):
                stale.unlink(missing_ok=True)
        progress = Progress(folder, claimed)
        progress.add(Begun(identity, start))
        for cell in before.doubts:
            progress.add(Doubt(cell))
        for lost in before.lost:
            progress.add(lost)
    except OSError as error:
        raise ConformError(f"--results {folder}: cannot be written: {error}") from error
    return progress


def failed_in(folder: Path) -> frozenset[CellKey]:
    """The failures that an earlier run in the same folder recorded; none if there is no readable run."""
    try:
        results = load_run(folder).results.values()
    except RunError:
        return frozenset()
    return frozenset(result.key for result in results if result.verdict in BAD)


# -- how far it is: a line now and then, sparse enough for the log of a CI

#: Seconds until the first line, and between two.
FIRST: Final = 30.0
EVERY: Final = 60.0


@dataclass(slots=True)
class Pace:
    """Of a run that began at ``began`` (monotonic seconds) with ``before`` cells done already, of ``planned``."""

    planned: int
    before: int
    began: float
    due: float = 0.0

    def __post_init__(self) -> None:
        self.due = self.began + FIRST

    def line(self, done: int, failing: int, now: float) -> str:
        """The line to print now; empty if none is due. ``failing`` cells fail unexpectedly."""
        if now < self.due or not self.before < done < self.planned:
            return ""
        self.due = now + EVERY
        left = (now - self.began) / (done - self.before) * (self.planned - done)
        return (
            f"{done:,} of {self.planned:,} cells, {failing:,} failing, about {duration(left)} left"
        )


def duration(seconds: float) -> str:
    """Roughly: ``40 s``, ``3 min``, ``2 h 10 min``."""
    if seconds < 60:
        return f"{max(10, round(seconds, -1)):.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
