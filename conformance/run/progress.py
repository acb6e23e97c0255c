"""The state of a run that is not finished yet: its results folder, the progress file from which ``--resume`` continues,
and the line that shows the progress.

The controller appends one line for each item to the progress file. The line is written at once, so that the file is
complete even if the run is killed. An incomplete last line is ignored.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NoReturn

import msgspec

try:
    import fcntl
except ModuleNotFoundError:  # Windows
    fcntl = None  # type: ignore[assignment]

from conformance.checks.scratch import delete_scratch
from conformance.plan.options import Request
from conformance.plan.selection import Machine
from conformance.run.isolation.watch import holders, read_entry
from conformance.run.item_report import BAD, ItemReport, Lost
from devices.cell import CellKey, Outcome
from devices.errors import ConformError
from opinfo.plan import plan_specs
from reports import folder as folders
from reports.folder import CALLS_FILE, EARLIER_FILE, RECORD_FILE, interrupted_run
from reports.folder import PROGRESS_FILE as FILE
from reports.model import Run, RunError
from reports.run import load_run

_FORMAT: Final = 3
_DAMAGED: Final = "--resume: {path}:{number} is damaged, or from another version of the suite: start again without --resume"
#: What an earlier run may have left in a results folder.
_STALE: Final = (
    *("junit-*.xml", RECORD_FILE, "failures.json", "failures.md", CALLS_FILE),
    *("explore.json", "explore.jsonl", "explore/*/*.py"),
)
_STALE_UNLESS_RESUMED: Final = (FILE, "repro/*/*.py")


class Identity(msgspec.Struct, frozen=True):
    """The properties of a run that must be unchanged when the run is resumed."""

    device: str
    plan: str
    machine: Machine
    selection: dict[str, str]
    shard: str

    def differences(self, now: Identity) -> list[str]:
        """Returns one text for each field in which ``now`` differs from this identity: ``name was …, now it is …``."""
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
    """The first line of a progress file, which identifies the run."""

    run: Identity
    start: str
    format: int = _FORMAT
    planned: int = 0  # cells of the whole run; files of version 0.1 do not have it


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """A line of a progress file for an item that has run."""

    worker: str
    report: ItemReport


class Doubt(msgspec.Struct, frozen=True, tag="doubt"):
    """A line of a progress file for a cell: pytest's own process ended while it ran this cell. The cell is not
    necessarily the cause, because somebody may have killed the process."""

    cell: CellKey


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(Begun | Finished | Lost | Doubt).decode


@dataclass(slots=True)
class Done:
    """The work that an interrupted run had done before it was resumed; empty if no run is resumed."""

    start: str = ""
    items: list[Finished] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    doubts: list[CellKey] = field(default_factory=list)  # see Doubt


@dataclass
class Progress:
    """The progress file of a run, open for writing. The files of an earlier run stay in the folder until ``begin`` is
    called. The methods raise ConformError if the folder cannot be written."""

    _folder: Path
    _head: Begun
    _before: Done
    _claimed: int | None  # the descriptor that holds the folder's lock
    _keep_record: bool  # the record in the folder is of a complete run: it stays until this run is complete, too
    _file: int = -1

    def begin(self) -> None:
        """Deletes the files of an earlier run and opens the progress file. The method must be called before the first
        item runs."""
        if self.begun:
            return
        with _writing(self._folder):
            record = self._folder / RECORD_FILE
            if self._keep_record and record.exists():
                record.replace(self._folder / EARLIER_FILE)
            for pattern in (*_STALE, *(() if self._before.start else _STALE_UNLESS_RESUMED)):
                for stale in self._folder.glob(pattern):
                    stale.unlink(missing_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            self._file = os.open(self._folder / FILE, flags, 0o644)
        self.add(self._head)
        for cell in self._before.doubts:
            self.add(Doubt(cell))
        for lost in self._before.lost:
            self.add(lost)

    def add(self, entry: Begun | Finished | Lost | Doubt) -> None:
        """Appends one line to the progress file."""
        self.begin()
        with _writing(self._folder):
            os.write(self._file, _encode(entry) + b"\n")

    @property
    def begun(self) -> bool:
        """True if the progress file was opened, so items may have run."""
        return self._file >= 0

    @property
    def keeps_earlier(self) -> bool:
        """True if the folder still has the record of an earlier run that was complete."""
        return (self._folder / EARLIER_FILE).exists()

    def close(self, *, complete: bool) -> None:
        """Closes the progress file at the end of the run. If the run is complete, the progress file and the record of
        the earlier run are deleted."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            if complete:
                (self._folder / FILE).unlink(missing_ok=True)
                (self._folder / EARLIER_FILE).unlink(missing_ok=True)
        if self._claimed is not None:
            os.close(self._claimed)
            self._claimed = None

    def abandon(self) -> None:
        """Closes a run in which no item has run, and leaves the folder as it was before the run."""
        self.close(complete=False)
        _delete_journals(self._folder)
        for folder in (self._folder / "journal", self._folder):
            with contextlib.suppress(OSError):  # something is in it
                folder.rmdir()


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = error.strerror or error
        raise ConformError(f"--results {folder}: cannot be written: {why}") from error


def read_progress(folder: Path, identity: Identity) -> Done:
    """Returns the work that the interrupted run in a folder had done. Raises ConformError if the folder has no
    interrupted run, or if the identity of the run differs."""
    path = folder / FILE
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        read_nothing(folder)
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


def check_folder(folder: Path, request: Request, also: Collection[Path] = ()) -> None:
    """Raises ConformError for a results folder that a run must not use. The check is made before torch is imported and
    before anything is written.

    A run deletes the files of an earlier run. The folder must therefore contain no other files (except those in
    ``also``), no complete run that is larger than the requested run, and no interrupted run that could be resumed.
    """
    given = f"--results {folder}"
    folders.check_folder(given, folder, also)
    if request.resume:
        if not (folder / FILE).exists():
            read_nothing(folder)
        return
    if (why := _lesser(folder, request)) is not None:
        raise ConformError(
            f"{given}: the folder holds a complete run, which {why} must not replace: give another folder"
        )
    begun = interrupted_run(folder)
    if begun is not None and begun.whole and begun.done and not request.no_resume:
        raise ConformError(
            f"{folder} holds an interrupted run with {begun}: continue it with --resume, or delete it and start again "
            "with --no-resume"
        )


def read_nothing(folder: Path) -> NoReturn:
    """Raises the ConformError for a folder that has no run to resume."""
    state = (
        "the run in the folder is complete"
        if (folder / RECORD_FILE).exists()
        else "the folder holds no run"
    )
    raise ConformError(f"--resume: nothing to resume in {folder}: {state}; leave --resume out")


def _lesser(folder: Path, request: Request) -> str | None:
    """Returns a phrase for the requested run, such as "a shard", if the run must not replace the complete run in the
    folder; None if it may replace that run."""
    narrow = bool(request.selection)
    if not (folder / RECORD_FILE).exists():
        return None
    if not narrow and request.shard is None and request.plan == _plans()[-1]:
        return None  # nothing is larger
    held = complete_run(folder)
    if held is None:
        return None
    if narrow:
        return f"a partial run ({', '.join(request.selection)})"
    if request.shard is not None:
        return "a shard" if held.provenance.shard != request.shard else None
    plans = _plans()
    if (request.plan in plans) != (held.provenance.plan in plans):
        return f"a run of plan {request.plan} (the complete run is of plan {held.provenance.plan})"
    if request.plan not in plans:
        return None
    if plans.index(request.plan) < plans.index(held.provenance.plan):
        larger = held.provenance.plan
        return f"a run of the smaller plan {request.plan} (the complete run is of plan {larger})"
    return None


def _plans() -> list[str]:
    """Returns the names of the plans in the order of their size, with the smallest plan first."""
    return list(plan_specs())


def complete_run(folder: Path) -> Run | None:
    """Returns the run in a folder if it has an outcome for every cell of a whole plan or of a whole shard;
    otherwise None."""
    try:
        run = load_run(folder)
    except RunError:
        return None
    wanted = run.parsed.selected if run.provenance.is_shard else run.parsed.cells
    whole = not run.provenance.partial and set(run.missing).isdisjoint(wanted)
    return run if whole else None


def look_back(folder: Path, identity: Identity, *, resume: bool) -> Done:
    """Returns the work that the interrupted run in a folder had done; an empty ``Done`` if ``resume`` is False. Deletes
    the journals of the earlier run. Raises ConformError if the folder has no run that can be resumed."""
    if not resume:
        _delete_journals(folder)
        return Done()
    done = read_progress(folder, identity)
    entry = read_entry(folder / "journal", "main")
    # Without workers, pytest's own process ended in this cell: somebody killed it, or the cell crashed it. The second
    # time it counts as a crash.
    if entry is not None and entry.cell is not None and entry.cell.clause:
        if entry.cell in done.doubts:
            message = "pytest's own process, which runs the cells with -n 0, ended twice while it ran this cell"
            done.lost.append(Lost(entry.cell, Outcome.CRASH, message, entry.call))
        else:
            done.doubts.append(entry.cell)
    _delete_journals(folder)
    return done


def _delete_journals(folder: Path) -> None:
    """Deletes the journals and scratch files of an earlier run. The function must not be called once the current run has opened a journal,
    because the controller and ``--resume`` find journals by their file name."""
    with _writing(folder):
        for journal in (folder / "journal").glob("*"):
            journal.unlink(missing_ok=True)
    delete_scratch(folder)


def claim(folder: Path) -> int | None:
    """Creates the folder of the journals in a results folder, and locks the results folder for this run. Returns the
    file descriptor that holds the lock until it is closed; None on systems that cannot lock files. Raises ConformError
    if another run writes to the folder now."""
    with _writing(folder):
        (folder / "journal").mkdir(parents=True, exist_ok=True)
        if fcntl is None:
            return None
        held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        whose = holders(held)
        os.close(held)
        raise ConformError(
            f"--results {folder}: {whose} writes the results of another run there: wait until that run has ended, or "
            "give another folder with --results=DIR"
        ) from None
    except OSError:  # a file system without locks
        os.close(held)
        return None
    return held


def failed_in(folder: Path) -> frozenset[CellKey]:
    """Returns the cells that failed unexpectedly in the run whose results are in the folder; an empty set if the folder
    has no readable run."""
    try:
        results = load_run(folder).results.values()
    except RunError:
        return frozenset()
    return frozenset(result.key for result in results if result.verdict in BAD)


# -- how far it is: a line now and then, few enough for the log of a CI job

#: Seconds until the first line, and between two lines.
FIRST: Final = 30.0
EVERY: Final = 60.0
#: Seconds between two lines about a plan that is being made.
_PLANNING: Final = 5.0
#: The time that is left is estimated only after this share of the cells: the first cells say little about the others.
_ENOUGH: Final = 0.05


@dataclass(slots=True)
class Pace:
    """The speed of a run, from which the remaining time is estimated. The run has ``planned`` cells, of which
    ``before`` were done when the run began. ``began`` is the time at which the run began, in seconds of
    the monotonic clock."""

    planned: int
    before: int
    began: float
    due: float = 0.0

    def __post_init__(self) -> None:
        self.due = self.began + FIRST

    def line(self, done: int, failing: int, now: float) -> str:
        """Returns the progress line to print at time ``now``; an empty text if it is too early for another line.
        ``done`` is the number of cells that have run, and ``failing`` is the number of unexpected failures."""
        if now < self.due or not self.before < done < self.planned:
            return ""
        self.due = now + EVERY
        text = f"{done:,} of {self.planned:,} cells, {failing:,} failing"
        ran, left = done - self.before, self.planned - done
        if ran < _ENOUGH * (ran + left):
            return text
        return f"{text}, about {duration((now - self.began) / ran * left)} left"


class OutOfTime(ConformError):
    """The error for a replay whose time is over before its plan is made."""

    exit_code = 2


@dataclass
class Planning:
    """Prints lines while a plan is made that takes more than some seconds, and ends a replay whose time is over. ``deadline``
    is the time of the clock at which it is over; None if the time is not limited."""

    say: Callable[[str], None]
    what: str  # what is planned, such as "ops"
    deadline: float | None = None
    due: float = field(default_factory=lambda: time.monotonic() + _PLANNING)

    def step(self, done: int, count: int) -> None:
        """Notes that ``done`` of ``count`` ops are planned. Raises OutOfTime."""
        if self.deadline is not None and time.time() > self.deadline:
            raise OutOfTime(
                f"--max-time was over when {done:,} of {count:,} {self.what} were planned, and nothing was tested: "
                "expected a longer time"
            )
        if time.monotonic() > self.due:
            self.due = time.monotonic() + _PLANNING
            self.say(f"planning: {done:,} of {count:,} {self.what}")


def duration(seconds: float) -> str:
    """Returns a duration as rounded text, such as ``40 s``, ``3 min`` or ``2 h 10 min``."""
    if seconds < 60:
        return f"{max(10, round(seconds, -1)):.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
