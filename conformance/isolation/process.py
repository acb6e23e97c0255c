"""A worker's own process: it tells its stack when it dies or is asked, and ends with its controller."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, TextIO

from conformance.isolation.deaths import stack_path

#: Asks a process for its stack. faulthandler answers in the signal's own handler, which needs no GIL.
ASK: Final = getattr(signal, "SIGUSR1", None)
_PR_SET_PDEATHSIG: Final = 1

_stacks: list[TextIO] = []  # open as long as the process: faulthandler writes to their descriptors


def tell_stacks(folder: Path, worker: str) -> None:
    """Have a fatal signal, and ``ASK``, write the stacks of all threads to the worker's file."""
    folder.mkdir(parents=True, exist_ok=True)
    stream = stack_path(folder, worker).open("w")
    _stacks.append(stream)
    faulthandler.enable(file=stream)
    if ASK is not None:
        faulthandler.register(ASK, file=stream, all_threads=True, chain=False)


def end_with_parent(parent: int | None = None) -> None:
    """On Linux: be killed when the process that started this one ends (``parent``, where its id is known), even
    if that is killed itself. A worker that hangs would otherwise keep the device."""
    if not sys.platform.startswith("linux"):
        return
    parent = os.getppid() if parent is None else parent
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the call
        os._exit(1)


def close_in_children(descriptors: Iterable[int]) -> None:
    """Have forked children let go of these: xdist takes a worker for dead when its pipe closes, and a child
    that holds it would hide the death."""
    held = tuple(descriptors)

    def let_go() -> None:
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in held:
            os.dup2(nothing, descriptor)
        os.close(nothing)

    if held and hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=let_go)


def pipes_of(gateway: Any) -> list[int]:
    """The descriptors over which a gateway of execnet talks; none where it does not say."""
    found = []
    for name in ("infile", "outfile"):
        stream = getattr(getattr(gateway, "_io", None), name, None)
        if stream is not None:
            found.append(int(stream.fileno()))
    return found
