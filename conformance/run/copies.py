"""Copies of a process, which may die in its place: each is a copy of one that waits.

A vendor's module may take seconds to import. Once a copy has shown that it can be imported, the one that waits has a copy of
itself import it, which takes its place if it can be copied still: the module has started no thread and holds no device,
socket or shared memory, and a copy can open the device.
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
    """Copies of this process as it was when this was made, one at a time. Each runs ``work(connection)``. The later ones
    have run ``warm()`` before, if that has returned True, once, in a copy."""

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
        """The connection to the waiting copy; forks one first if none exists."""
        if self._connection is None:
            ours, theirs = socket.socketpair()
            with theirs:
                socket.send_fds(self._control, [b"1"], [theirs.fileno()])
            self._connection = Connection(ours.detach())
        return self._connection

    def end(self) -> int | None:
        """End the copy if there is one. Returns its exit status, negative for a signal."""
        if self._connection is None:
            return None
        self._connection.close()
        self._connection = None
        (status,) = _STATUS.unpack(self._control.recv(_STATUS.size, socket.MSG_WAITALL))
        return int(status)

    def close(self) -> None:
        """End the copy; no other copy will be asked for."""
        self.end()
        self._control.close()


@dataclass
class _Waiting:
    """The copy that is copied."""

    _control: socket.socket
    _work: Callable[[Connection], None]
    _warm: Callable[[], bool]

    def serve(self, parent: int, *, warm: bool = False) -> NoReturn:
        """Make a copy for each connection that arrives, until the other side closes."""
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
        """Fork a copy that does the work, and report its exit status."""
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
        """Replace this copy by a warm one, which takes over this connection; return if no warm one can be made."""
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
    """Import the device's module. True if copies of this process work afterwards: a copy opens the device to find out."""
    before = _held()
    descriptor = registry.find(bench.device, bench.descriptor)
    start_device(descriptor)
    if not may_copy() or not _held() <= before:
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


def _held() -> set[str]:
    """The open files that a copy would share with this process: devices, sockets, pipes, shared memory."""
    found = set()
    for each in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # that of the list itself
            found.add(os.readlink(f"/proc/self/fd/{each}"))
    for line in Path("/proc/self/maps").read_text().splitlines():
        found.add(line.split(maxsplit=5)[-1])
    return {each for each in found if each.startswith(_SHARED) and each not in _HARMLESS}
