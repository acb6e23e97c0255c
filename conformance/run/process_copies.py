"""Forked copies of a process, for code that may crash. All copies are forks of one idle fork of the process.

A vendor's module may take seconds to import. After the first copy has run, the idle fork therefore forks itself, and
the new fork imports the module. The new fork replaces the idle fork if it can itself be forked: if the module has
started no thread and holds no device, socket or shared memory, and if a test fork can open the device.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final, NoReturn

from conformance.checks.child import end_with_parent
from conformance.run.fork_server import may_copy
from conformance.search.minimise.tasks import Bench
from devices import registry
from opinfo.device import open_device, start_device

_STATUS: Final = struct.Struct("<i")
#: Seconds that the import of the device's module may take in a copy that is to be copied.
_WARM_SECONDS: Final = 60.0
#: How the names of what copies would share begin, and those that hold nothing of a process.
_SHARED: Final = ("/dev/", "/memfd:", "socket:", "pipe:", "anon_inode:")
_HARMLESS: Final = frozenset({"/dev/null", "/dev/zero", "/dev/random", "/dev/urandom", "/dev/tty"})


class Copies:
    """A source of forked copies of this process. Each copy has the state that the process had when the source was
    created, and runs ``work(connection)``. At most one copy exists at a time. After the first copy, one fork calls
    ``warm()``; if the call returns True, all later copies are forks of that fork."""

    def __init__(
        self, work: Callable[[Connection], None], warm: Callable[[], bool] = lambda: False
    ) -> None:
        self._control, theirs = socket.socketpair()
        self._connection: Connection | None = None
        worker = os.getpid()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of execnet's thread, which waits
            if os.fork() == 0:
                self._control.close()
                _Waiting(theirs, work, warm).serve(worker)
        theirs.close()

    def connection(self) -> Connection:
        """Returns the connection to the current copy; starts a copy first if none exists."""
        if self._connection is None:
            ours, theirs = socket.socketpair()
            with theirs:
                socket.send_fds(self._control, [b"1"], [theirs.fileno()])
            self._connection = Connection(ours.detach())
        return self._connection

    def end(self) -> int | None:
        """Ends the current copy. Returns its exit status (negative for a signal), or None if no copy exists."""
        if self._connection is None:
            return None
        self._connection.close()
        self._connection = None
        (status,) = _STATUS.unpack(self._control.recv(_STATUS.size, socket.MSG_WAITALL))
        return int(status)

    def close(self) -> None:
        """Ends the current copy and the idle fork, so that no further copy can be started."""
        self.end()
        self._control.close()


@dataclass
class _Waiting:
    """The idle fork of a process. It forks the copies that run the work."""

    _control: socket.socket
    _work: Callable[[Connection], None]
    _warm: Callable[[], bool]

    def serve(self, parent: int, *, warm: bool = False) -> NoReturn:
        """Forks a copy for each connection that is received, until the parent process closes its socket."""
        # Ctrl-C is for the controller, and for workers.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        end_with_parent(parent)
        made = 0
        while True:
            asked, descriptors, _, _ = socket.recv_fds(self._control, 1, 1)
            if not asked:
                os._exit(0)
            if made == 1 and not warm:
                self._hand_over(descriptors[0])
            self._copy(descriptors[0])
            made += 1

    def _copy(self, descriptor: int) -> None:
        """Forks a copy that does the work, waits until the copy ends, and sends its exit status to the parent
        process."""
        here = os.getpid()
        if (child := os.fork()) == 0:
            end_with_parent(here)
            self._control.close()
            try:
                self._work(Connection(descriptor))
            finally:
                os._exit(1)
        os.close(descriptor)
        _, status = os.waitpid(child, 0)
        self._control.sendall(_STATUS.pack(os.waitstatus_to_exitcode(status)))

    def _hand_over(self, descriptor: int) -> None:
        """Replaces this process by a fork that has imported the device's module and that takes over the connection.
        Returns only if no such fork can be made."""
        ready, theirs = os.pipe()
        here = os.getpid()
        if (child := os.fork()) == 0:
            try:
                end_with_parent(here)
                if self._warm():
                    os.write(theirs, b"1")
                    os.close(theirs)
                    self._copy(descriptor)
                    self.serve(here, warm=True)
            finally:  # what the module raised, each copy runs into again, and reports
                os._exit(1)
        os.close(theirs)
        said = select.select([ready], [], [], _WARM_SECONDS)[0] and os.read(ready, 1)
        os.close(ready)
        if said:
            os.close(descriptor)  # a death is noticed when it closes
        else:
            os.kill(child, signal.SIGKILL)  # it may have ended, but is not yet forgotten
        _, status = os.waitpid(child, 0)
        if said:
            os._exit(os.waitstatus_to_exitcode(status) and 1)


def loads_for_copies(bench: Bench, index: int) -> bool:
    """Imports the device's module. Returns True if this process can still be forked afterwards, which is tested with a
    fork that opens the device."""
    before = _shared_files()
    descriptor = registry.find(bench.device, bench.descriptor)
    start_device(descriptor)
    if not may_copy() or not _shared_files() <= before:
        return False
    here = os.getpid()
    if (child := os.fork()) == 0:
        try:
            end_with_parent(here)
            open_device(descriptor, index)
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    return status == 0


def _shared_files() -> set[str]:
    """Returns the names of the open files and mappings that a fork would share with this process: devices, sockets,
    pipes and shared memory."""
    found = set()
    for each in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # that of the list itself
            found.add(os.readlink(f"/proc/self/fd/{each}"))
    for line in Path("/proc/self/maps").read_text().splitlines():
        found.add(line.split(maxsplit=5)[-1])
    return {each for each in found if each.startswith(_SHARED) and each not in _HARMLESS}
