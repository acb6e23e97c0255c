"""The fork server: a process that loads torch and the op database once, and copies itself for each worker.

It answers one request at a time, over a socket (``StartWorker`` and ``Poll`` of fork_client.py). A worker that has ended
stays a zombie until its status was asked for, so that its id is not given to another process.

A process may be copied if it has one thread and has started no accelerator: a driver's threads and handles
do not survive (``fork(2)``; https://docs.pytorch.org/docs/stable/notes/multiprocessing.html). Backends that load
themselves with torch are put off until a worker opens its device. If it may not be copied, the server turns into the
first worker itself, and its socket closes.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import signal
import socket
import sys
import warnings
from collections.abc import Mapping
from typing import Any, Final, NoReturn

import msgspec

from conformance.checks.child import end_with_parent
from conformance.run.fork_client import Poll, Started, StartWorker, Status, encode, read_request

_LINE: Final = 1 << 16
#: Linux lists a process' threads here. On other systems they cannot be counted, so nothing is copied.
_THREADS: Final = "/proc/self/task"
#: The modules of torch that know whether their device was started before a fork.
_KINDS: Final = ("cuda", "xpu", "mtia")

_is_copy = False  # of the server: a worker


def main(descriptor: int) -> None:
    """Serve until the socket closes. Returns in each worker too, when that one has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the controller, and for workers
    end_with_parent()
    control = socket.socket(fileno=descriptor)
    _load()
    can_copy = may_copy()
    while (request := _receive(control)) is not None:
        given, descriptors = request
        if isinstance(given, Poll):
            _answer(control, Status(_status(given.pid)))
            continue
        server = os.getpid()
        pid = os.fork() if can_copy else 0
        if pid:
            for each in descriptors:
                os.close(each)
            _answer(control, Started(pid, True))
            continue
        if can_copy:
            end_with_parent(server)
        else:
            _answer(control, Started(server, False))
        control.close()
        _work(given.environment, descriptors)
        if can_copy:
            _end_at_once()
        return


def _load() -> None:
    """What every worker needs and takes seconds to load."""
    try:
        import torch

        torch.set_num_threads(1)  # before anything starts more, which would outlast a fork
        preloaded = importlib.import_module("conformance.run.xdist_adapter").PRELOADED
        for name in (*preloaded, "conformance.run.worker"):
            importlib.import_module(name)
        importlib.import_module("conformance.suites").suites()
        importlib.import_module("opinfo.catalog").catalogue()
        importlib.import_module("conformance.contract").load()
    except Exception:
        # Whatever it is, the worker runs into it again, and reports it where people see it.
        return
    for module in list(sys.modules.values()):
        # As it starts in a worker, pytest would warn of every plugin's package that is already loaded. This tells it
        # not to rewrite the asserts of a module.
        with contextlib.suppress(AttributeError, TypeError):  # one that takes no attributes
            module.__doc__ = f"{module.__doc__ or ''}\nPYTEST_DONT_REWRITE"
    gc.freeze()  # a collection that walked through these objects would copy their pages


def may_copy(waiting: int = 0) -> bool:
    """Whether a copy of this process works, which has so many threads that only wait for messages.

    Threads that end themselves before a fork (OpenBLAS registers that with ``pthread_atfork``) are started again
    when they are needed. So a first copy is made, and the threads that are left after it count. The copy says whether
    a device was started that it cannot use.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None or not os.path.isdir(_THREADS):
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads
        pid = os.fork()
    if not pid:
        os._exit(has_lost_a_device(torch))
    _, status = os.waitpid(pid, 0)
    return status == 0 and len(os.listdir(_THREADS)) == 1 + waiting


def has_lost_a_device(torch: Any) -> bool:
    """In a copy: whether some device was started before the copy was made."""
    kinds = (*_KINDS, torch._C._get_privateuse1_backend_name())
    modules = (getattr(torch, name, None) for name in kinds)
    asked = (getattr(module, "_is_in_bad_fork", None) for module in modules)
    try:
        return any(ask() for ask in asked if ask is not None)
    except Exception:  # a vendor's: it cannot say
        return True


def is_copy() -> bool:
    """Whether this process is a worker that the server made."""
    return _is_copy


def _work(environment: Mapping[str, str], descriptors: list[int]) -> None:
    """Be what ``python -u -c`` would be to execnet: run the line that comes over stdin."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for target, each in enumerate(descriptors):
        os.dup2(each, target)
        os.close(each)
    global _is_copy
    _is_copy = True
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment)
    line = sys.stdin.readline()
    if line:  # else the controller has gone
        exec(eval(line), {"__name__": "__main__"})


def _end_at_once() -> NoReturn:
    """End a copy as multiprocessing ends its own: freeing its million objects one by one would take a second."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _status(pid: int) -> int | None:
    found, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


def _receive(control: socket.socket) -> tuple[StartWorker | Poll, list[int]] | None:
    """A request and its descriptors; None if the controller has gone."""
    text, descriptors, _, _ = socket.recv_fds(control, _LINE, 3)
    while text and not text.endswith(b"\n"):
        more = control.recv(_LINE)
        if not more:
            return None
        text += more
    return (read_request(text), descriptors) if text else None


def _answer(control: socket.socket, answer: msgspec.Struct) -> None:
    control.sendall(encode(answer) + b"\n")
