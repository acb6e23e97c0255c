"""The code that uses private names of execnet: the pipes of gateways, the start of gateways, and the error for an
unknown host.

``tests/plugin/test_adapters.py`` checks that these names exist.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any, Final

import execnet
from execnet.gateway_base import Popen2IO
from execnet.gateway_bootstrap import HostNotFound, bootstrap

from conformance.checks.child import NoCopy
from conformance.checks.clock import Process
from conformance.run.fork_client import ForkServer
from conformance.run.isolation.controller import Controller

__all__ = ["HostNotFound"]

#: What the spec of a worker may say that is like any other worker of this machine.
_PLAIN: Final = frozenset({"popen", "execmodel", "id", "_spec"})


def is_plain(spec: execnet.XSpec) -> bool:
    """Returns True if the spec of a worker describes a local process with the same Python and the same current folder
    as this process."""
    said = {name for name, value in vars(spec).items() if value}
    return bool(spec.popen) and said <= _PLAIN


def process_of(gateway: Any) -> Process | None:
    """Returns the local process of a worker; None if the worker runs on another machine or was started by other
    means."""
    if not getattr(gateway.spec, "popen", False):
        return None
    found: Process | None = getattr(getattr(gateway, "_io", None), "popen", None)
    return found


def where(gateway: Any) -> str:
    """Returns a text that says where a worker runs, in the notation of the option ``--tx``."""
    return str(gateway.spec).removeprefix("execmodel=main_thread_only//")


def pipes_of(channel: Any) -> list[int]:
    """Returns the file descriptors of the pipes between a channel's gateway and the controller; an empty list if the
    gateway uses no pipes."""
    io = getattr(channel.gateway, "_io", None)
    streams = (getattr(io, name, None) for name in ("infile", "outfile"))
    return [int(stream.fileno()) for stream in streams if stream is not None]


# -- gateways to workers that the fork server starts, instead of fresh interpreters


class WorkerIO(Popen2IO):
    """The pipes to a worker that the fork server starts. ``popen`` is the process of the worker, as in execnet's own
    class. The constructor raises NoCopy if the server cannot start a worker."""

    def __init__(self, server: ForkServer, execmodel: Any) -> None:
        its_stdin, to_worker = os.pipe()
        from_worker, its_stdout = os.pipe()
        try:
            self.popen = server.start(its_stdin, its_stdout, 2)
        except NoCopy:
            os.close(to_worker)
            os.close(from_worker)
            raise
        finally:
            os.close(its_stdin)
            os.close(its_stdout)
        super().__init__(os.fdopen(to_worker, "wb"), os.fdopen(from_worker, "rb"), execmodel)

    def wait(self) -> int | None:
        """Waits for the end of the worker and returns its exit status."""
        return self.popen.wait()

    def kill(self) -> None:
        """Kills the worker."""
        self.popen.kill()


def start_through(server: ForkServer, group: Any, watcher: Controller) -> None:
    """Changes an execnet group so that the fork server starts the group's local workers while the server responds.

    The watchdog watches each worker as soon as the worker is forked, because execnet waits without a time limit until
    the worker is ready. A worker that ends or is killed before it is ready is replaced by a new Python interpreter.
    """
    otherwise = group.makegateway

    def makegateway(spec: Any = None) -> Any:
        if not isinstance(spec, execnet.XSpec) or not is_plain(spec):
            return otherwise(spec)
        group.allocate_id(spec)
        if spec.execmodel is None:
            spec.execmodel = group.remote_execmodel.backend
        try:
            io = WorkerIO(server, group.execmodel)
        except NoCopy:
            return otherwise(spec)
        name = str(spec.id)
        watcher.watch(name, io.popen.pid)
        try:
            gateway = bootstrap(io, spec)
            gateway._rinfo()  # xdist asks for this next; the gateway keeps the answer
        except (EOFError, OSError):  # its pipes are closed
            watcher.watchdog.forget(name)
            io.kill()
            io.wait()
            for close in (io.close_read, io.close_write):
                with contextlib.suppress(OSError):  # what was to be written has no reader
                    close()
            return otherwise(spec)
        gateway.spec = spec
        group._register(gateway)
        return gateway

    group.makegateway = makegateway
