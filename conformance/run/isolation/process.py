"""A worker's own process: it leaves its stack when it dies or is asked for it, ends with its controller, and says why if it
ends by itself. On another machine it also reports what it begins, as the controller cannot read its journal there."""

from __future__ import annotations

import faulthandler
import os
import platform
import re
import signal
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn, TextIO

import msgspec

from conformance.checks.child import end_with_parent
from conformance.checks.clock import LEAST_ELSEWHERE
from conformance.run.isolation.watch import Journal, Place, close_in_child
from conformance.run.outcomes import Lost, LostCells
from devices.cell import CellKey

#: Asks a process for its stack. faulthandler answers in the signal's own handler, which needs no GIL.
ASK: Final = getattr(signal, "SIGUSR1", None)
#: Statuses of signals that come from outside: from a person, a job's limit, or a kernel that is out of memory.
FROM_OUTSIDE: Final = frozenset(
    -number
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, getattr(signal, "SIGHUP", None))
    if number is not None
)
#: Seconds that a worker may take to load torch and the op database and to open its device, at least.
START_SECONDS: Final = 300.0
#: The exit status of a worker that ends by itself.
LEFT: Final = 86

# Stacks: the frames that a message shows, without those of what drives a cell.
_FRAMES: Final = 6
_FRAME: Final = re.compile(r'^\s+File "([^"]*)", line (\d+) in (.*)$', re.MULTILINE)
_THREAD: Final = re.compile(r"^(Current thread|Thread) .*\n((?:\s+File .*\n?)*)", re.MULTILINE)
_DRIVERS: Final = ("/_pytest/", "/pluggy/", "/xdist/", "/execnet/", "<string>")
#: The folders of the suite's own code; the folder of the devices is not among them, as a device's module may be there.
_OURS: Final = tuple(
    f"{Path(__file__).resolve().parents[3] / name}{os.sep}" for name in ("conformance", "opinfo")
)

_streams: list[TextIO] = []  # open as long as the process: faulthandler writes to their descriptors


# -- what controller and worker send each other


class Start(msgspec.Struct, frozen=True):
    """What the controller gives a worker as it starts."""

    results: str
    index: int  # of the device
    remote: bool  # on another machine, or at least not started by the controller
    lost: tuple[Lost, ...]


class Unable(msgspec.Struct, frozen=True, tag="unable"):
    """Why a worker cannot work; ``refused`` if its machine is not like the controller's."""

    text: str
    refused: bool = False


class Begun(msgspec.Struct, frozen=True, tag="begun"):
    """A remote worker has begun a cell, or has ended it (None)."""

    cell: CellKey | None


class Remark(msgspec.Struct, frozen=True, tag="remark"):
    """A line for the user."""

    text: str


class Host(msgspec.Struct, frozen=True, tag="host"):
    """The name of a remote worker's machine."""

    name: str


Note = Lost | Unable  # what a worker says as it ends by itself
Said = Begun | Host | Lost | Remark | Unable
encode: Final = msgspec.msgpack.Encoder().encode
read_lost: Final = msgspec.msgpack.Decoder(Lost).decode
read_said: Final = msgspec.msgpack.Decoder(Said).decode
read_start: Final = msgspec.msgpack.Decoder(Start).decode
_read_note: Final = msgspec.msgpack.Decoder(Note).decode


def note_path(folder: Path, worker: str) -> Path:
    """Where a worker that ends by itself says why."""
    return folder / f"{worker}.lost"


def read_note(folder: Path, worker: str) -> Lost | Unable | None:
    """What a worker said as it ended by itself, if it did."""
    try:
        note: Lost | Unable = _read_note(note_path(folder, worker).read_bytes())
    except (OSError, msgspec.DecodeError):
        return None
    return note


# -- the worker


class RemoteJournal(Journal):
    """The journal of a worker on another machine: it also reports to the controller, and ends a process that hangs.
    Nobody there sees how long it waited for a processor, so its limits are longer."""

    def __init__(self, folder: Path, worker: str, say: Callable[[bytes], None]) -> None:
        super().__init__(folder, worker)
        self._say = say

    def begin(self, cell: CellKey, limit: float, clauses: tuple[str, ...] = ()) -> None:
        super().begin(cell, limit, clauses)
        self._say(encode(Begun(cell if cell.clause else None)))
        faulthandler.dump_traceback_later(limit / LEAST_ELSEWHERE, exit=True)

    def end(self) -> None:
        super().end()
        faulthandler.cancel_dump_traceback_later()
        self._say(encode(Begun(None)))


def begin_worker(
    start: Start, name: str, channel: Any, pipes: Iterable[int]
) -> tuple[Place, Callable[[Lost | Unable], NoReturn]]:
    """Prepare this process, a worker of xdist; returns where its items run, and its way out. Over ``channel`` (of
    execnet) arrive the cells that ended other workers; ``pipes`` connect it to the controller."""
    lost = LostCells(start.lost)
    scratch = Path(tempfile.mkdtemp(prefix="conform-")) if start.remote else None
    journals = scratch or Path(start.results) / "journal"
    channel.setcallback(lambda encoded: lost.add(read_lost(encoded)))
    close_in_children(pipes)
    leave_stacks(journals, name)
    journal: Journal
    if start.remote:
        journal = RemoteJournal(journals, name, channel.send)
        channel.send(encode(Host(platform.node())))
    else:
        end_with_parent()
        journal = Journal(journals, name)

    def end(note: Lost | Unable) -> NoReturn:
        if start.remote:
            channel.send(encode(note))
        note_path(journals, name).write_bytes(encode(note))
        os._exit(LEFT)  # at once: the device's own clean-up could hang

    def say(text: str) -> None:
        channel.send(encode(Remark(text)))

    return Place(journal, start.index, lost, end, say, scratch), end


def close_in_children(descriptors: Iterable[int]) -> None:
    """Close pipes in forked children: xdist notices a death when the pipe closes, which a child would hold open."""
    held = tuple(descriptors)
    if held and hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=partial(close_in_child, held))


# -- stacks


#: The frame in which the CPU computes the reference.
_OF_CPU: Final = "value_answer (opinfo/reference.py:"


def leave_stacks(folder: Path, worker: str) -> None:
    """Have a fatal signal, and ``ASK``, write the stacks of all threads to the worker's file."""
    folder.mkdir(parents=True, exist_ok=True)
    stream = _stack_path(folder, worker).open("w")
    _streams.append(stream)
    faulthandler.enable(file=stream)
    if ASK is not None:
        faulthandler.register(ASK, file=stream, all_threads=True, chain=False)


def _stack_path(folder: Path, worker: str) -> Path:
    return folder / f"{worker}.stack"


def stack_of(folder: Path, worker: str) -> str:
    """The stack of the thread that was running, the innermost frame first; empty if none was left."""
    try:
        return shortened(_stack_path(folder, worker).read_text(errors="replace"))
    except OSError:
        return ""


def place_of(stack: str) -> str:
    """Where a process ended, as part of a sentence. The CPU may end it too, as it computes what the device is compared
    with: then the device is not to blame."""
    of_cpu = any(each.startswith(_OF_CPU) for each in stack.split(" < "))
    return (
        f"as the CPU, which is the reference, made the call: in {stack}"
        if of_cpu
        else f"in {stack}"
    )


def shortened(text: str) -> str:
    """A stack as faulthandler writes it, in one line without the suite's own frames: ``f (a/b.py:3) < g (a/c.py:5)``.

    Of several threads it is the current one's, else the last one's (the main thread comes last). The frame in which the
    CPU computes the reference is kept: it says that the device is not to blame.
    """
    threads: list[
        tuple[bool, list[tuple[str, str]]]
    ] = []  # whether it is the current one, its frames
    for head, frames in _THREAD.findall(text):
        shown = [
            (file, f"{name} ({'/'.join(Path(file).parts[-2:])}:{number})")
            for file, number, name in _FRAME.findall(frames)
            if not any(part in file for part in _DRIVERS)
        ]
        if shown:
            threads.append((head == "Current thread", shown))
    # The last of the current ones, of which a second signal leaves one more.
    _, chosen = max(reversed(threads), key=lambda thread: thread[0], default=(False, []))
    found = [
        frame for file, frame in chosen if not file.startswith(_OURS) or frame.startswith(_OF_CPU)
    ]
    more = " < …" if len(found) > _FRAMES else ""
    return " < ".join(found[:_FRAMES]) + more
