"""The process of a worker. The worker writes its stack to a file when it dies or receives a certain signal. It exits
when its controller exits. If it exits by itself, it leaves a note with the reason. A worker on another machine also
reports each cell that it begins, because the controller cannot read its journal."""

from __future__ import annotations

import faulthandler
import importlib.util
import os
import platform
import re
import signal
import sysconfig
import tempfile
from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, NoReturn, TextIO

import msgspec

from conformance.checks.child import end_with_parent
from conformance.checks.clock import LEAST_ELSEWHERE
from conformance.run.isolation.watch import Journal, Place, close_in_child
from conformance.run.item_report import Lost, LostCells
from devices.cell import CellKey

#: Asks a process for its stack. faulthandler answers in the signal's own handler, which needs no GIL.
ASK: Final = getattr(signal, "SIGUSR1", None)
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
#: The folder of Python's standard library. Installed packages are in a folder below it.
_STDLIB: Final = sysconfig.get_path("stdlib") + os.sep
_PACKAGES: Final = frozenset({"site-packages", "dist-packages"})

_streams: list[TextIO] = []  # open as long as the process: faulthandler writes to their descriptors


# -- what controller and worker send each other


class Start(msgspec.Struct, frozen=True):
    """The data that the controller sends to a worker at its start."""

    results: str
    index: int  # of the device
    remote: bool  # on another machine, or at least not started by the controller
    lost: tuple[Lost, ...]


class Unable(msgspec.Struct, frozen=True, tag="unable"):
    """The reason why a worker cannot run items. ``refused`` is True if no other worker on the same machine could run
    them, for example because the machine has a different version of torch."""

    text: str
    refused: bool = False


class Begun(msgspec.Struct, frozen=True, tag="begun"):
    """A message from a remote worker: the cell that has begun, or None if the cell has ended."""

    cell: CellKey | None


class Remark(msgspec.Struct, frozen=True, tag="remark"):
    """A message from a worker: a line of text for the user."""

    text: str


class Host(msgspec.Struct, frozen=True, tag="host"):
    """A message from a remote worker: the name of its machine."""

    name: str


Note = Lost | Unable  # what a worker says as it ends by itself
Said = Begun | Host | Lost | Remark | Unable
encode: Final = msgspec.msgpack.Encoder().encode
read_lost: Final = msgspec.msgpack.Decoder(Lost).decode
read_said: Final = msgspec.msgpack.Decoder(Said).decode
read_start: Final = msgspec.msgpack.Decoder(Start).decode
_read_note: Final = msgspec.msgpack.Decoder(Note).decode


def note_path(folder: Path, worker: str) -> Path:
    """Returns the path of the file in which a worker that exits by itself writes the reason."""
    return folder / f"{worker}.lost"


def read_note(folder: Path, worker: str) -> Lost | Unable | None:
    """Returns the reason that a worker wrote to its file before it exited by itself; None if it wrote no reason."""
    try:
        note: Lost | Unable = _read_note(note_path(folder, worker).read_bytes())
    except (OSError, msgspec.DecodeError):
        return None
    return note


# -- the worker


class RemoteJournal(Journal):
    """The journal of a worker on another machine. In addition to writing its file, the journal sends messages to the
    controller, and ends the process if a cell hangs. The time limits of a remote worker are longer, because they
    include the time in which the process waits for a processor."""

    def __init__(self, folder: Path, worker: str, say: Callable[[bytes], None]) -> None:
        super().__init__(folder, worker)
        self._say = say

    def begin(self, cell: CellKey, limit: float, clauses: tuple[str, ...] = ()) -> None:
        """Writes the cell that is about to run to the journal, reports it to the controller and starts a timer that
        ends the process."""
        super().begin(cell, limit, clauses)
        self._say(encode(Begun(cell if cell.clause else None)))
        faulthandler.dump_traceback_later(limit / LEAST_ELSEWHERE, exit=True)

    def end(self) -> None:
        """Removes the cell from the journal, reports its end to the controller and stops the timer."""
        super().end()
        faulthandler.cancel_dump_traceback_later()
        self._say(encode(Begun(None)))


def begin_worker(
    start: Start, name: str, channel: Any, pipes: Iterable[int]
) -> tuple[Place, Callable[[Lost | Unable], NoReturn]]:
    """Prepares this process, a worker of pytest-xdist. Returns the resources that are needed to run items, and a
    function that writes a note with a reason and ends the process. ``channel`` is the execnet channel over which the
    controller sends the cells that ended other workers; ``pipes`` are the file descriptors that connect the worker to
    the controller."""
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
    """Arranges that forked child processes close the given pipes. pytest-xdist notices the death of a worker when the
    pipe closes, and a child process would keep the pipe open."""
    held = tuple(descriptors)
    if held and hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=partial(close_in_child, held))


# -- stacks


#: The frame in which the CPU computes the reference.
_OF_CPU: Final = "value_answer (opinfo/reference.py:"


def leave_stacks(folder: Path, worker: str) -> None:
    """Makes the process write the stacks of all threads to the worker's file on a fatal signal, and on the signal
    ``ASK`` (SIGUSR1)."""
    folder.mkdir(parents=True, exist_ok=True)
    stream = _stack_path(folder, worker).open("w")
    _streams.append(stream)
    faulthandler.enable(file=stream)
    if ASK is not None:
        faulthandler.register(ASK, file=stream, all_threads=True, chain=False)


def device_frame_of(folder: Path, worker: str) -> str:
    """Returns the innermost frame of a dead worker's stack whose code is not part of torch, Python or this project, such
    as ``kernel (vendor/ops.py:3)``; an empty text if there is none, because the code is not written in Python."""
    try:
        return device_frame(_stack_path(folder, worker).read_text(errors="replace"))
    except OSError:
        return ""


def device_frame(text: str) -> str:
    """Returns the innermost frame of faulthandler's output that is part of the device's own code; an empty text if no
    frame is."""
    own = (frame for file, frame in _frames_of(text) if not _is_shared(file))
    return next(own, "")


def _is_shared(file: str) -> bool:
    """Returns True if a file belongs to this project, to torch or to Python, which all devices share."""
    if file.startswith((*_OURS, *_folders_of_torch(), "<")):
        return True
    return file.startswith(_STDLIB) and _PACKAGES.isdisjoint(Path(file).parts)


@cache
def _folders_of_torch() -> tuple[str, ...]:
    """Returns the folder of torch's Python code. torch is not imported."""
    spec = importlib.util.find_spec("torch")
    folders = spec.submodule_search_locations if spec is not None else None
    return tuple(f"{folder}{os.sep}" for folder in folders or ())


def _stack_path(folder: Path, worker: str) -> Path:
    return folder / f"{worker}.stack"


def stack_of(folder: Path, worker: str) -> str:
    """Returns the stack of the thread that was running when a worker died, with the innermost frame first; an empty
    text if the worker left no stack."""
    try:
        return shortened(_stack_path(folder, worker).read_text(errors="replace"))
    except OSError:
        return ""


def place_of(stack: str) -> str:
    """Returns a phrase about the place in which a process ended, such as "in f (a/b.py:3)". If the process ended in the
    call on the CPU that computes the reference, the phrase says this, because the device is not the cause in this
    case."""
    of_cpu = any(each.startswith(_OF_CPU) for each in stack.split(" < "))
    return (
        f"in the call on the CPU that computes the reference: in {stack}"
        if of_cpu
        else f"in {stack}"
    )


def shortened(text: str) -> str:
    """Returns a stack from faulthandler's output as one line, without the suite's own frames: ``f (a/b.py:3) < g
    (a/c.py:5)``.

    If the output has several threads, the stack of the current thread is chosen. If no thread is marked as current,
    the stack of the last thread is chosen, which is the main thread. The frame in which the CPU computes
    the reference is kept, because it shows that the device is not the cause of a crash.
    """
    found = [
        frame
        for file, frame in _frames_of(text)
        if not file.startswith(_OURS) or frame.startswith(_OF_CPU)
    ]
    more = " < …" if len(found) > _FRAMES else ""
    return " < ".join(found[:_FRAMES]) + more


def _frames_of(text: str) -> list[tuple[str, str]]:
    """Returns the frames of the thread that ``shortened`` chooses from faulthandler's output, the innermost first: the
    file of each frame, and the frame as text."""
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
    return max(reversed(threads), key=lambda thread: thread[0], default=(False, []))[1]
