"""All that the suite uses of execnet's private names: the pipes of gateways, how they are started, and hosts not found.

``tests/plugin/test_adapters.py`` pins these names.
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
    """Whether a worker is a process of this machine, of this Python, in this folder."""
    said = {name for name, value in vars(spec).items() if value}
    return bool(spec.popen) and said <= _PLAIN


def process_of(gateway: Any) -> Process | None:
    """The worker's process, if this machine runs it and execnet or we started it."""
    if not getattr(gateway.spec, "popen", False):
        return None
    found: Process | None = getattr(getattr(gateway, "_io", None), "popen", None)
    return found


def where(gateway: Any) -> str:
    """Where a worker runs, as ``--tx`` says it."""
    return str(gateway.spec).removeprefix("execmodel=main_thread_only//")


def pipes_of(channel: Any) -> list[int]:
    """The descriptors over which a channel's gateway talks to the controller; empty if it is not over pipes."""
    io = getattr(channel.gateway, "_io", None)
    streams = (getattr(io, name, None) for name in ("infile", "outfile"))
    return [int(stream.fileno()) for stream in streams if stream is not None]


# -- gateways to workers that the fork server starts, instead of fresh interpreters


class WorkerIO(Popen2IO):
    """The pipes to a worker that the server starts. ``popen`` is its process, as on execnet's own. Raises NoCopy."""

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
        return self.popen.wait()

    def kill(self) -> None:
        self.popen.kill()


def start_through(server: ForkServer, group: Any, watcher: Controller) -> None:
    """Have a group of execnet make its plain gateways through the server, as long as the server answers.

    A worker is watched from its fork on: execnet waits without a limit until it is ready. One that ends before, or
    is ended by the watcher, is replaced by a fresh interpreter.
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
