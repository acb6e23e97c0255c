"""The resources that a process needs to run items: the journal, the time limits, the lock of the device, and the check
that the device still works.

The journal is a small file, mapped into memory, that survives SIGKILL. It names the current cell, with the number of
seconds that the cell may take, and often also the current call of the cell. The file is not synced to disk: its pages
outlive the process, and a machine that loses power loses the run anyway.

After a failure the process runs a tiny op on the device. If the op fails, too, the last call has left the device
unusable (a sticky error), and everything after it would fail for this reason alone. The cell then counts as a crash and
the process ends.
"""

from __future__ import annotations

import contextlib
import gc
import mmap
import os
import platform
import re
import struct
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, NamedTuple, NoReturn, TypeVar

import msgspec

try:
    import fcntl
except ImportError:  # Windows: a case that needs a device alone may share it there
    fcntl = None  # type: ignore[assignment]

from conformance.checks.call_hooks import INPUTS, Guard, allows, on_cpu
from conformance.checks.cells import NO_CHECK, VALUES, CellRecord
from conformance.run.item_report import GroupCall, Guilty, Lost, LostCells
from devices.cell import CallKey, CellKey, CellOutcome, OtherChecks, Outcome
from devices.errors import ConformError
from devices.files import cache_root, file_name

T = TypeVar("T")
Say = Callable[[str], None]

# -- the journal

# A number, a byte and two parts, each after its length: what is running (pid, limit in seconds, cell, the clauses that
# share its calls), and its next call. The byte is the place of the clause that is charged for it; the highest bit says
# that the call has returned, and that the clause is judged.
_NUMBER: Final = struct.Struct("<Q")
_LENGTH: Final = struct.Struct("<I")
_CHARGED: Final = 8
_JUDGED: Final = 0x80
_RUNNING: Final = 64
_CALL: Final = 2048
_SIZE: Final = 4096
_ROOM: Final = _CALL - _RUNNING - _LENGTH.size
_encode: Final = msgspec.msgpack.Encoder().encode
_read_running: Final = msgspec.msgpack.Decoder(
    tuple[int, float, CellKey | None, tuple[str, ...]]
).decode
_read_call: Final = msgspec.msgpack.Decoder(GroupCall).decode


class Entry(NamedTuple):
    """The content of a journal. ``number`` is increased when a cell begins or ends; an odd number means that the
    process died while it wrote the journal. A cell with an empty clause means that the item did other work than running
    a cell, such as drawing samples. ``call`` names the call that was about to be made, if it is known. ``judged`` is
    True if the call had returned and its result was being checked."""

    number: int
    pid: int
    limit: float
    cell: CellKey | None
    call: GroupCall | None = None
    judged: bool = False


class Journal:
    """The journal of a worker, open for writing. The constructor raises OSError if the file cannot be created."""

    def __init__(self, folder: Path, worker: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path_of(folder, worker), os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            os.ftruncate(descriptor, _SIZE)
            self._map = mmap.mmap(descriptor, _SIZE)
        finally:
            os.close(descriptor)
        self._number, self._pid = 0, os.getpid()
        self._write(None, 0.0)

    def begin(self, cell: CellKey, limit: float, clauses: tuple[str, ...] = ()) -> None:
        """Writes to the journal: the cell that is about to run, the number of seconds that it may take, and the clauses
        that share its calls."""
        self._write(cell, limit, clauses)

    def call(self, call: GroupCall, charged: int = 0) -> None:
        """Writes the next call of the cell to the journal. ``charged`` is the index, in the ``clauses`` of ``begin``,
        of the clause that counts as crashed if the call ends the process."""
        self._map[_CHARGED] = charged
        self._write_text(_CALL, _encode(call))

    def charge(self, charged: int, *, judged: bool = False) -> None:
        """Sets the index, in the ``clauses`` of ``begin``, of the clause that counts as crashed if the process ends
        now. ``judged`` is True if the call has returned and its result is being checked."""
        self._map[_CHARGED] = charged | _JUDGED if judged else charged

    def end(self) -> None:
        """Removes the cell from the journal, because nothing runs any more."""
        self._write(None, 0.0)

    def _write(self, cell: CellKey | None, limit: float, clauses: tuple[str, ...] = ()) -> None:
        self._number += 2
        # Odd while it is being written, so that a reader sees that the process died here.
        _NUMBER.pack_into(self._map, 0, self._number - 1)
        self._write_text(_CALL, b"")
        self._map[_CHARGED] = 0
        self._write_text(_RUNNING, _encode((self._pid, limit, cell, clauses)))
        _NUMBER.pack_into(self._map, 0, self._number)

    def _write_text(self, place: int, text: bytes) -> None:
        text = text if len(text) <= _ROOM else b""  # it is not known then
        self._map[place : place + _LENGTH.size + len(text)] = _LENGTH.pack(len(text)) + text


def path_of(folder: Path, worker: str) -> Path:
    """Returns the path of a worker's journal."""
    return folder / f"{worker}.cur"


def read_entry(folder: Path, worker: str) -> Entry | None:
    """Returns the content of a worker's journal; None if the journal does not exist. If the process died while it wrote
    the journal, the content names no cell."""
    try:
        raw = path_of(folder, worker).read_bytes()
    except FileNotFoundError:
        return None
    if len(raw) < _SIZE:
        return None
    (number,) = _NUMBER.unpack_from(raw)
    running = None if number % 2 else _part(raw, _RUNNING, _read_running)
    pid, limit, cell, clauses = running or (0, 0.0, None, ())
    call = _part(raw, _CALL, _read_call) if cell else None
    place = raw[_CHARGED] & ~_JUDGED
    if cell is None or call is None or place >= len(clauses):
        return Entry(number, pid, limit, cell, call)
    charged = cell._replace(clause=clauses[place])
    return Entry(number, pid, limit, charged, call, bool(raw[_CHARGED] & _JUDGED))


def _part(raw: bytes, place: int, read: Callable[[bytes], T]) -> T | None:
    """Returns the part of a journal that begins at byte ``place``, decoded by ``read``; None if the part is empty or
    incomplete."""
    (length,) = _LENGTH.unpack_from(raw, place)
    start = place + _LENGTH.size
    try:
        return read(raw[start : start + length]) if length else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


# -- limits

#: Seconds that an item has outside of its cells, at least.
OUTSIDE: Final = 60.0


class CellLimits(msgspec.Struct, frozen=True):
    """The time limits of cells. A cell may take ``seconds`` times the factor of the longest pattern that matches its
    clause. The first cell of an op and dtype in a process may take ``first_use`` seconds more."""

    seconds: float
    factors: Mapping[str, float] = {}
    first_use: float = 0.0

    def of(self, clause: str) -> float:
        """Returns the number of seconds that a cell of a clause may take. An empty clause stands for the work of an
        item that is not the work of a cell, such as drawing samples; the limit for it is at least one minute."""
        if not clause:
            return max(self.seconds, OUTSIDE)
        pattern = max(
            (each for each in self.factors if fnmatchcase(clause, each)), key=len, default=""
        )
        return self.seconds * self.factors.get(pattern, 1.0)

    def at_first(self, cell: CellKey) -> float:
        """Returns the number of seconds that a cell may take if it is the first cell of its op and dtype in the
        process."""
        return self.of(cell.clause) + self.first_use


def limits_for(
    plan: str, scale: float, first_use: float = 0.0, override: float | None = None
) -> CellLimits:
    """Returns the time limits of a plan on a device that is ``scale`` times as slow as usual, and that needs
    ``first_use`` extra seconds at its first use. If ``override`` is given, each cell may take this number of seconds
    instead."""
    if override is not None:
        return CellLimits(override)
    file = Path(__file__).with_name("limits.toml")
    table = msgspec.toml.decode(file.read_bytes(), type=dict[str, dict[str, float]])
    seconds = table["seconds"]
    return CellLimits(seconds.get(plan, max(seconds.values())) * scale, table["factors"], first_use)


# -- the lock of a device
#
# An item holds its device's lock shared while it runs; what needs the device alone holds it exclusively. ``flock`` is not
# fair, so a gate before the lock stops those that want to share it from overtaking one that waits to be alone. Locks end
# with their process, however it ends. Other runs on the same machine respect them too.


#: Seconds after which somebody who waits for a device says so.
_LONG: Final = 10.0


class DeviceLock:
    """The lock of one device index. After a wait of ten seconds, ``say`` is called with a text that names the process
    that holds the lock. The constructor raises ConformError if the lock files cannot be created."""

    def __init__(
        self, device: str, index: int, folder: Path | None = None, say: Say | None = None
    ) -> None:
        folder = folder or cache_root() / "locks"
        self._open, self._device, self._say = True, f"{device}:{index}", say
        # A home folder may be shared between machines, and their devices are not.
        name = file_name(f"{platform.node()}-{device}-{index}")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT, 0o666)
            self._gate = os.open(folder / f"{name}.gate", os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise ConformError(
                f"{folder}: the lock files of {device}:{index} cannot be created: {error.strerror or error}. "
                "Set $TORCH_CONFORMANCE_CACHE to a writable folder"
            ) from None
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._let_go)

    def share(self) -> None:
        """Takes the lock as a shared lock. Waits until no process has exclusive use of the device or waits for
        exclusive use."""
        if fcntl is not None:
            self._wait(self._gate, fcntl.LOCK_SH)
            self._wait(self._lock, fcntl.LOCK_SH)
            fcntl.flock(self._gate, fcntl.LOCK_UN)

    def take(self) -> None:
        """Takes the lock for exclusive use of the device. If this process has a shared lock, it is released first."""
        if fcntl is not None:
            fcntl.flock(self._lock, fcntl.LOCK_UN)
            self._wait(self._gate, fcntl.LOCK_EX)
            self._wait(self._lock, fcntl.LOCK_EX)
            fcntl.flock(self._gate, fcntl.LOCK_UN)

    def release(self) -> None:
        """Releases the lock."""
        if fcntl is not None:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _wait(self, file: int, how: int) -> None:
        try:
            fcntl.flock(file, how | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            timer = threading.Timer(_LONG, self._print_holder, (file,))
        timer.daemon = True
        timer.start()
        try:
            fcntl.flock(file, how)
        finally:
            timer.cancel()

    def _print_holder(self, file: int) -> None:
        """Prints which process holds the lock, unless all holders are workers of the same run, whose cases have time
        limits of their own."""
        pids = pids_of(file)
        of_this_run = bool(pids) and all(map(_is_sibling, pids))
        if self._say is not None and not of_this_run:
            self._say(
                f"{self._device} has been in use for {_LONG:g} s by {holders(file)}: waiting until it is free, "
                "or until you end that process"
            )

    def close(self) -> None:
        """Closes the lock files, which releases the lock."""
        self._open = False
        os.close(self._lock)
        os.close(self._gate)

    def _let_go(self) -> None:
        """Closes the lock files in a forked child process, which would otherwise keep the lock after this process has
        ended."""
        if self._open:
            close_in_child((self._lock, self._gate))


def pids_of(file: int) -> list[int]:
    """Returns the ids of the processes that hold a lock on an open file; an empty list where the system does not list
    locks as Linux does."""
    inode = os.fstat(file).st_ino
    try:
        locks = Path("/proc/locks").read_text(encoding="ascii")
    except OSError:
        return []
    found = re.findall(rf"^\d+: FLOCK .* (\d+) [0-9a-f]+:[0-9a-f]+:{inode} ", locks, re.MULTILINE)
    return sorted(set(map(int, found)))


def _is_sibling(pid: int) -> bool:
    """Returns True if another process has the same parent process as this process."""
    with contextlib.suppress(OSError, IndexError):
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return pid != os.getpid() and int(after_name[1]) == os.getppid() != 1
    return False


def holders(file: int) -> str:
    """Returns a text that names the processes that hold a lock on an open file, such as "process 4711"."""
    pids = pids_of(file)
    return f"process {', '.join(map(str, pids))}" if pids else "another process"


def close_in_child(descriptors: Iterable[int]) -> None:
    """Closes inherited file descriptors in a forked child process. Each descriptor is replaced by the null device, so
    that the child cannot open another file under its number."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in descriptors:
        os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)


# -- around cells and calls

#: Failures of one group of clauses after each of which the device is looked at.
_LOOKS: Final = 20
#: Calls of one group that ended a process, after which it makes no other: where no call has returned, and elsewhere.
_DEATHS: Final = 3
_MOST_DEATHS: Final = 6
#: Calls of one group that ended a process and have the same layout or the same sample, after which it makes no other
#: call with this layout or sample.
_ALIKE: Final = 2


class DeviceLost(ConformError):
    """The error for a device that no longer works in a run without workers, in which no other process could
    continue."""

    exit_code = 3

    def __init__(self, lost: Lost) -> None:
        super().__init__(f"{lost.cell} {lost.text}")
        self.lost = lost


@dataclass(eq=False)
class Watch(Guard):
    """The guard of a process that runs items. It names each cell and call in the journal, skips calls that
    have already ended a process, and checks the device after a failure."""

    _journal: Journal
    _limits: CellLimits
    _lock: DeviceLock
    _alive: Callable[[], None]
    _leave: Callable[[Lost], NoReturn]
    _guilty: Guilty = field(default_factory=Guilty)
    _item: tuple[str, ...] = ("", "", "")
    _group: tuple[str, ...] = ()
    # Of the clauses of the group that can be charged: their places in it.
    _places: Mapping[str, int] = field(default_factory=dict)
    # The calls of the group that have come up and that ended a process before, with the cell that is charged.
    _gone: dict[CallKey, CellKey] = field(default_factory=dict)
    _returned: bool = False  # a call of the group was made
    _again: bool = False  # a cell that ended its process runs again without its deadly calls
    _only: CallKey | None = None
    _elsewhere: Collection[str] = ()
    _dead: CellKey | None = None  # what is charged if every call of the op ends the process
    _records: Sequence[CellRecord] = ()
    _known: int = 0  # troubles of the group that were looked into
    _looks: int = 0
    _call: GroupCall | None = None
    # By clause, the calls that were not made, with the cell that is charged for each.
    _left_out: dict[str, dict[GroupCall, CellKey]] = field(default_factory=dict)
    _used: set[tuple[str, ...]] = field(default_factory=set)  # items of which a cell has run here

    @contextmanager
    def item(
        self,
        cell: CellKey,
        guilty: Guilty,
        *,
        alone: bool,
        elsewhere: Collection[str] = (),
        only: CallKey | None = None,
        again: bool = False,
    ) -> Iterator[None]:
        """Holds the device's lock while the item of a cell runs in the ``with`` block, and names the item in the
        journal. ``alone`` takes the lock for exclusive use. ``elsewhere`` has the clauses of the same op that are
        expected to end their process and run as separate items; a crash here may count for these clauses, too. If
        ``only`` is given, all other calls are skipped. ``again`` says that the cell ended a process and runs again
        without the calls that did; a further crash then counts for this cell."""
        self._only, self._elsewhere, self._again = only, elsewhere, again
        self._guilty, self._item, self._left_out, self._dead = guilty, cell[1:], {}, None
        (self._lock.take if alone else self._lock.share)()
        self._outside()
        try:
            yield
        finally:
            self._journal.end()
            self._lock.release()

    def begin(
        self, group: Sequence[str], records: Sequence[CellRecord], at_least: float = 0.0
    ) -> None:
        """Starts a group of clauses that share their calls, and names its first cell in the journal."""
        self._group, self._records, self._call, self._gone = tuple(group), records, None, {}
        self._known, self._looks, self._returned = self._troubles(), 0, False
        known = {record.key.clause for record in records}
        if not self._again:
            known.update(self._guilty.clauses, self._elsewhere)
        self._places = {clause: place for place, clause in enumerate(group) if clause in known}
        cell = records[0].key
        limit = max(at_least, self._limits.of(cell.clause))
        if self._item not in self._used:
            limit += self._limits.first_use
        self._journal.begin(cell, limit, self._group)

    def call(self, call: CallKey, clauses: Collection[str] = ()) -> bool:
        """Names a call in the journal before it is made. Returns False if the call must be skipped."""
        charged = 0
        for clause, place in self._places.items():
            if not clauses or clause in clauses:
                charged = place
                break
        if self._call is not None and self._call.call == call:  # its inputs have been laid out
            self._journal.charge(charged)
            return True
        if self._looks < _LOOKS and self._troubles() != self._known:
            self._check_device()
        full = GroupCall(self._group[0], call)
        if self._only is not None and not allows(self._only, call):
            return False
        if self._guilty.clauses and (cell := self._ended_by(full)) is not None:
            for record in self._records:
                self._left_out.setdefault(record.key.clause, {})[full] = cell
            return False
        if self._call is not None and self._call.call.layout != INPUTS:
            self._returned = True
        self._call = full
        self._journal.call(full, charged)
        return True

    def first_on_cpu(self, call: CallKey, clauses: Collection[str] = ()) -> bool:
        """Names the call on the CPU in the journal. Returns False unless the call is made again alone."""
        return self._only == call and self.call(on_cpu(call), clauses)

    def judging(self, clause: str) -> None:
        """Writes to the journal that the result of the call is about to be checked for a clause."""
        self._journal.charge(self._places.get(clause, 0), judged=True)

    def _ended_by(self, call: GroupCall) -> CellKey | None:
        """Returns the cell that counts as crashed if this call must not be made; None if it may be made. Calls that
        ended a process are not made. If two of those have the same layout or sample, other calls with this layout or
        sample are not made either. After six calls that ended a process (three, if no call of the group has returned)
        no further call is made."""
        if (cell := self._charged_for(call)) is not None:
            self._gone[call.call] = cell
            return cell
        if self._dead is not None or not self._gone:
            return self._dead
        alike = [
            sum(getattr(each, name) == getattr(call.call, name) for each in self._gone)
            for name in CallKey._fields
        ]
        most = _MOST_DEATHS if self._returned else _DEATHS
        if len(self._gone) < most and max(alike) < _ALIKE:
            return None
        return next(iter(self._gone.values()))

    def _charged_for(self, call: GroupCall) -> CellKey | None:
        """Returns the cell that counts as crashed because of a call that ended a process; None for a call that did not.
        If a call returned, and the check of its result for one clause ended the process, the call is made for the other
        clauses."""
        if (cell := self._guilty.calls.get(call)) is not None:
            return cell
        clause = self._guilty.judged.get(call) if self._again else None
        own = (record.key for record in self._records if record.key.clause == clause)
        return next(own, None)

    def end(self) -> None:
        """Ends a group of clauses, and checks the device if there was a failure."""
        if self._troubles() != self._known:
            self._check_device()
        values = self._group[0] == VALUES and len(self._gone) >= _DEATHS
        if values and not any(record.checks for record in self._records):
            self._dead = next(iter(self._gone.values()))
        self._records = ()
        self._used.add(self._item)
        self._outside()

    def noted(self, found: CellOutcome) -> CellOutcome:
        """Returns the outcome of a cell, with a note about the calls that were skipped."""
        calls = self._left_out.get(found.cell.clause)
        if self._again:
            return self._as_rest(found, calls or {})
        if not calls:
            return found
        left_out = list(calls.values())
        cells = ", ".join(str(cell) for cell in dict.fromkeys(left_out))
        if not found.checks and found.outcome is Outcome.ERROR:
            by = left_out[0].clause
            why = "every call whose result this clause checks ends the process"
            text = f"blocked by {by}: {why}, see {cells}"
            given = {"outcome": Outcome.BLOCKED, "blocked_by": by, "note": text}
            return msgspec.structs.replace(found, **given)
        text = (
            f"{len(left_out)} calls were skipped because they, or calls of another cell that runs them, ended a process earlier in this run"
            if len(left_out) > 1
            else "1 call was skipped because it, or a call of another cell that runs it, ended a process earlier in this run"
        )
        text = f"{text}, see {cells}"
        return msgspec.structs.replace(found, note="; ".join(filter(None, (found.note, text))))

    def _as_rest(self, found: CellOutcome, calls: Mapping[GroupCall, CellKey]) -> CellOutcome:
        """Returns the outcome of a cell that ran without the calls that end its process. This outcome is stored as the
        result of its other checks, unless no other check was made."""
        if found.declared or (found.outcome is Outcome.ERROR and found.note == NO_CHECK):
            return found
        deadly = sum(call in self._guilty.calls or call in self._guilty.judged for call in calls)
        names = ("outcome", "layouts", "raises", "failure", "failed", "also", "note", "said")
        rest = OtherChecks(
            left_out=deadly,
            skipped=len(calls) - deadly,
            blocked_by=found.blocked_by,
            **{name: getattr(found, name) for name in names},
        )
        return msgspec.structs.replace(found, rest=rest)

    def _outside(self) -> None:
        """Writes to the journal that the item is about to do work other than running a cell, such as drawing
        samples."""
        self._journal.begin(CellKey("", *self._item), self._limits.of(""))

    def _troubles(self) -> int:
        return sum([record.troubles for record in self._records])

    def _check_device(self) -> None:
        """Runs a tiny op on the device after a failure. If the op fails twice, the cell with the most failures counts
        as a crash and the process ends."""
        self._looks += 1
        self._known = self._troubles()
        try:
            self._alive()
            return
        except ConformError:
            gc.collect()  # the device may only be out of memory
        try:
            self._alive()
        except ConformError as error:
            worst = max(self._records, key=lambda record: record.troubles)
            first = worst.to_outcome().message
            more = f"first failure: {first}" if first else ""
            message = f"the cell left the device unusable: {error}"
            self._leave(Lost(worst.key, Outcome.CRASH, message, self._call, more))


@dataclass(frozen=True, slots=True)
class Place:
    """The resources that a process needs to run items: its journal, its device index, the cells that have already ended
    a process, and functions for ending the process and for printing messages."""

    journal: Journal
    index: int  # of the device
    lost: LostCells  # already
    leave: Callable[[Lost], NoReturn]  # if the device dies
    say: Say  # to the user
    scripts: Path | None = None  # the folder of repro scripts, if it is not the results folder


def in_process(folder: Path, lost: LostCells, say: Say) -> Place:
    """Returns the resources for running items in pytest's own process (``-n 0``), where a crash or hang ends the run.
    The run can be resumed."""

    def leave(one: Lost) -> NoReturn:
        raise DeviceLost(one)

    return Place(Journal(folder / "journal", "main"), 0, lost, leave, say)
