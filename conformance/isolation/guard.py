"""What a process does around each cell and each call: the journal, the device's lock, and a look at the device.

After a failure a tiny op is run. A device that does not answer it was left unusable by what ran last (a sticky
error); everything behind would fail for that reason alone. So the cell is noted as lost, and the process ends.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol

import msgspec

from conformance.isolation.journal import Journal
from conformance.isolation.limits import Limits
from conformance.isolation.locks import DeviceLock
from conformance.isolation.lost import Guilty, Lost
from devices.cell import CellKey, Outcome
from devices.errors import ConformError

#: The status of a worker that ends because its device does.
LEFT: Final = 86
#: Failures of one group of clauses after each of which the device is looked at.
_LOOKS: Final = 20


class Record(Protocol):
    """What is read of a cell's record."""

    @property
    def key(self) -> CellKey: ...
    @property
    def troubles(self) -> int: ...
    def message(self) -> str: ...


class DeviceLost(ConformError):
    """The device answers no more, and there is no other process that could go on."""

    exit_code = 3

    def __init__(self, lost: Lost) -> None:
        super().__init__(f"{lost.cell} {lost.message}")
        self.lost = lost


class Guard:
    """Nothing is watched: what checks outside of a run are given (tests, minimising, exploring)."""

    def begin(self, group: Sequence[str], records: Sequence[Record], at_least: float = 0.0) -> None:
        """A group of clauses that share their calls is about to run; ``records`` are those that are wanted.
        They have ``at_least`` so many seconds, whatever their limit is."""

    def call(self, name: str) -> bool:
        """Whether the group may make this call: not, where it ended a process before."""
        return True

    def done(self) -> None:
        """The group is over."""


UNWATCHED: Final = Guard()


class Watch(Guard):
    """The guard of a process that runs items."""

    def __init__(
        self,
        journal: Journal,
        limits: Limits,
        lock: DeviceLock,
        alive: Callable[[], None],
        leave: Callable[[Lost], NoReturn],
    ) -> None:
        self._journal, self._limits, self._lock = journal, limits, lock
        self._alive, self._leave = alive, leave
        self._guilty = Guilty()
        self._item: tuple[str, str] = ("", "")
        self._group = ""
        self._records: Sequence[Record] = ()
        self._known = 0  # troubles of the group that were looked into
        self._looks = 0
        self._call = ""
        self._left_out: dict[
            str, list[CellKey]
        ] = {}  # by clause, for each call the cell it counts in

    @contextmanager
    def item(self, cell: CellKey, guilty: Guilty, *, alone: bool) -> Iterator[None]:
        """Run the item of a cell: under the device's lock, and named in the journal."""
        self._guilty, self._item = guilty, cell[1:]
        self._left_out = {}
        if alone:
            self._lock.take()
        else:
            self._lock.share()
        self._outside()
        try:
            yield
        finally:
            self._journal.end()
            self._lock.release()

    def begin(self, group: Sequence[str], records: Sequence[Record], at_least: float = 0.0) -> None:
        self._group, self._records, self._call = group[0], records, ""
        self._known, self._looks = self._troubles(), 0
        cell = records[0].key
        self._journal.begin(cell, max(at_least, self._limits.of(cell.clause)))

    def call(self, name: str) -> bool:
        if self._looks < _LOOKS and self._troubles() != self._known:
            self._look()
        full = f"{self._group}|{name}"
        if (cell := self._guilty.calls.get(full)) is not None:
            for record in self._records:
                self._left_out.setdefault(record.key.clause, []).append(cell)
            return False
        self._call = full
        self._journal.call(full)
        return True

    def done(self) -> None:
        if self._troubles() != self._known:
            self._look()
        self._records = ()
        self._outside()

    def noted(self, document: dict[str, Any]) -> dict[str, Any]:
        """A cell's document, with what had to be left out of it."""
        left_out = self._left_out.get(document["cell"][0])
        if not left_out:
            return document
        cells = ", ".join(str(cell) for cell in dict.fromkeys(left_out))
        if not document["checks"] and document["outcome"] == Outcome.ERROR.value:
            text = f"not checked: the only calls that it judges end the process, see {cells}"
            return {**document, "outcome": Outcome.CRASH.value, "message": text}
        many = f"{len(left_out)} call{'s were' if len(left_out) > 1 else ' was'} left out"
        text = f"{many}: the process ended in it, see {cells}"
        message = document["message"]
        return {**document, "message": f"{message}; {text}" if message else text}

    def _outside(self) -> None:
        """The item runs, and none of its cells."""
        self._journal.begin(CellKey("", *self._item), self._limits.of(""))

    def _troubles(self) -> int:
        return sum(record.troubles for record in self._records)

    def _look(self) -> None:
        """Ask the device for a sign of life, after a failure."""
        self._looks += 1
        self._known = self._troubles()
        try:
            self._alive()
            return
        except ConformError:
            gc.collect()  # it may have run out of memory, which is no death
        try:
            self._alive()
        except ConformError as error:
            worst = max(self._records, key=lambda record: record.troubles)
            said = worst.message()
            now = str(error).removesuffix("Nothing was tested.").rstrip(". ")
            message = f"left the device unusable: {now}" + (f" (first: {said})" if said else "")
            self._leave(Lost(worst.key, Outcome.CRASH, message, self._call))


def note_path(folder: Path, worker: str) -> Path:
    """Where a worker that ends by itself says why."""
    return folder / f"{worker}.lost"


def leave_note(folder: Path, worker: str, said: dict[str, Any]) -> NoReturn:
    """Say why, and end the process at once: the device's own tidying up could hang."""
    note_path(folder, worker).write_bytes(msgspec.json.encode(said))
    os._exit(LEFT)


def read_note(folder: Path, worker: str) -> dict[str, Any] | None:
    """What a worker said when it ended by itself; None where it said nothing."""
    try:
        found: dict[str, Any] = msgspec.json.decode(note_path(folder, worker).read_bytes())
    except (OSError, msgspec.DecodeError):
        return None
    return found
