"""xdist's gateways to workers that the fork server starts, instead of fresh interpreters."""

from __future__ import annotations

import os
from typing import Any, Final

import execnet
from execnet.gateway_base import Popen2IO
from execnet.gateway_bootstrap import bootstrap

from conformance.forking.client import ForkServer, Process, ServerGone

#: What a spec may say for a worker that is like any other of this machine.
_PLAIN: Final = frozenset({"popen", "execmodel", "id", "_spec"})


def is_plain(spec: execnet.XSpec) -> bool:
    """Whether a worker is a process of this machine, of this Python, in this folder."""
    said = {name for name, value in vars(spec).items() if value}
    return bool(spec.popen) and said <= _PLAIN


class WorkerIO(Popen2IO):
    """The pipes of a worker. ``popen`` is its process, as on execnet's own."""

    def __init__(self, process: Process, stdin: int, stdout: int, execmodel: Any) -> None:
        super().__init__(os.fdopen(stdin, "wb"), os.fdopen(stdout, "rb"), execmodel)
        self.popen = process

    def wait(self) -> int | None:
        return self.popen.wait()

    def kill(self) -> None:
        self.popen.kill()


def start_through(server: ForkServer, group: Any) -> None:
    """Have a group of execnet make its plain gateways through the server, as long as there is one."""
    otherwise = group.makegateway

    def makegateway(spec: Any = None) -> Any:
        if not isinstance(spec, execnet.XSpec) or not is_plain(spec):
            return otherwise(spec)
        group.allocate_id(spec)
        if spec.execmodel is None:
            spec.execmodel = group.remote_execmodel.backend
        try:
            gateway = bootstrap(_worker_io(server, group.execmodel), spec)
        except ServerGone:
            return otherwise(spec)
        gateway.spec = spec
        group._register(gateway)
        return gateway

    group.makegateway = makegateway


def _worker_io(server: ForkServer, execmodel: Any) -> WorkerIO:
    """Raises ServerGone."""
    its_stdin, to_worker = os.pipe()
    from_worker, its_stdout = os.pipe()
    try:
        process = server.start(its_stdin, its_stdout, 2)
    except ServerGone:
        os.close(to_worker)
        os.close(from_worker)
        raise
    finally:
        os.close(its_stdin)
        os.close(its_stdout)
    return WorkerIO(process, to_worker, from_worker, execmodel)
