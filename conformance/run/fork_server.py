"""The fork server: a process that imports torch and the op database once, and then forks itself for each worker.

Each worker also has a fork server of its own. That server is a fork of the worker, made before the worker has run any
item, and it forks itself for each subprocess that a case needs.

A server answers one request at a time, over sockets (the protocol is in fork_client.py). A forked process that has
ended stays a zombie until its exit status was requested, so that its process id is not given to another process.

A process may be forked if it has one thread and has initialized no accelerator, because a driver's threads and handles
do not survive a fork (``fork(2)``; https://docs.pytorch.org/docs/stable/notes/multiprocessing.html). Backends that
torch imports automatically are therefore imported only when a worker opens its device. If the server process may not be
forked, the server becomes the first worker itself and closes its socket.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import sys
import warnings
from typing import Any, Final, NoReturn

from conformance.checks.child import end_with_parent, use_copier
from conformance.run.fork_client import (
    RUNS,
    STATUS,
    ChildServer,
    Start,
    Started,
    encode,
    read_start,
)

_LINE: Final = 1 << 16
#: Linux lists a process' threads here. On other systems they cannot be counted, so nothing is copied.
_THREADS: Final = "/proc/self/task"
#: The modules of torch that know whether their device was started before a fork.
_KINDS: Final = ("cuda", "xpu", "mtia")

_is_copy = False  # of the server, as a worker


def main(descriptor: int) -> None:
    """Answers requests until the socket with this file descriptor closes. In a forked process the function returns when
    the work of that process is done."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the controller, and for workers
    end_with_parent()
    control = socket.socket(fileno=descriptor)
    _load()
    _serve(control, may_copy())


def _serve(control: socket.socket, can_copy: bool) -> None:
    copies: dict[socket.socket, int] = {}  # the connection of each, and its id
    while True:
        ready, _, _ = select.select([control, *copies], [], [])
        for each in ready:
            if each is not control:
                _look_after(each, copies)
        if control not in ready:
            continue
        if (connection := _connection(control)) is None:
            os._exit(0)  # who asks has gone
        if (asked := _receive(connection)) is None:
            connection.close()
            continue
        request, descriptors = asked
        if request.child and not can_copy:
            _close(descriptors)
            _answer(connection, Started(0, False))
            connection.close()
            continue
        server = os.getpid()
        if can_copy and (pid := os.fork()):
            _close(descriptors)
            _answer(connection, Started(pid, True))
            copies[connection] = pid
            continue
        if can_copy:
            end_with_parent(server)
        else:
            _answer(connection, Started(server, False))
        for each in (control, connection, *copies):
            each.close()
        if can_copy and not request.child and (of_worker := _branch()) is not None:
            _close(descriptors)
            control, copies = of_worker, {}
            continue
        _work(request, descriptors)
        if can_copy and not request.child:
            _end_at_once()
        return


def _branch() -> socket.socket | None:
    """Forks this process, which is a new worker that has run no item yet. The fork becomes the worker's own fork
    server, which starts the subprocesses of cases. Returns the server's socket in the fork, and None in the worker."""
    ours, theirs = socket.socketpair()
    worker = os.getpid()
    if pid := os.fork():
        theirs.close()
        use_copier(ChildServer(ours, pid))
        return None
    ours.close()
    end_with_parent(worker)
    return theirs


def _look_after(connection: socket.socket, copies: dict[socket.socket, int]) -> None:
    """Sends the exit status of a forked process to the client, or kills the process if the client has closed the
    connection."""
    pid = copies[connection]
    try:
        asked = connection.recv(1)
    except OSError:
        asked = b""
    found, status = os.waitpid(pid, os.WNOHANG)
    if asked:
        with contextlib.suppress(OSError):
            connection.sendall(STATUS.pack(os.waitstatus_to_exitcode(status) if found else RUNS))
    elif not found:
        for kill in (os.kill, os.killpg):  # a child leads a group; a worker does not
            with contextlib.suppress(ProcessLookupError):
                kill(pid, signal.SIGKILL)
    if found or not asked:
        del copies[connection]
        connection.close()


def _load() -> None:
    """Imports the modules and reads the data that every worker needs. This takes some seconds."""
    try:
        import torch

        torch.set_num_threads(1)  # before anything starts more, which would outlast a fork
        preloaded = importlib.import_module("conformance.run.xdist_adapter").PRELOADED
        for name in (*preloaded, "conformance.run.worker"):
            importlib.import_module(name)
        importlib.import_module("conformance.suites").suites()
        importlib.import_module("opinfo.database").DATABASE.subjects()
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
    """Returns True if this process can be forked. ``waiting`` is the number of its threads that only wait for messages.

    Some threads end before a fork and are started again when they are needed (OpenBLAS registers this with
    ``pthread_atfork``). The function therefore forks the process once as a test, and counts only the threads that are
    left after that fork. The fork exits with an error if a device was initialized that a fork cannot use.
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
    """Returns True in a forked process if a device was initialized before the fork, so the process cannot use the
    device."""
    kinds = (*_KINDS, torch._C._get_privateuse1_backend_name())
    modules = (getattr(torch, name, None) for name in kinds)
    asked = (getattr(module, "_is_in_bad_fork", None) for module in modules)
    try:
        return any(ask() for ask in asked if ask is not None)
    except Exception:  # a vendor's: it cannot say
        return True


def is_copy() -> bool:
    """Returns True if this process is a worker that the fork server forked."""
    return _is_copy


def _work(request: Start, descriptors: list[int]) -> None:
    """Sets up this process as ``python -u -c`` would do, and runs the line of Python that arrives over stdin. The line
    of a child may use the variable ``pipe``."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if request.child:
        os.setsid()
    if request.folder:
        os.chdir(request.folder)
    for target, each in enumerate(descriptors[:3]):
        os.dup2(each, target)
        os.close(each)
    global _is_copy
    _is_copy = not request.child
    for name in os.environ.keys() - request.environment.keys():
        del os.environ[name]
    os.environ.update(request.environment)
    line = sys.stdin.readline()
    if line:  # else who asked has gone
        exec(eval(line), {"__name__": "__main__", "pipe": descriptors[-1]})


def _end_at_once() -> NoReturn:
    """Ends a forked process without freeing its objects, because freeing a million objects would take a second.
    multiprocessing ends its processes in the same way."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _connection(control: socket.socket) -> socket.socket | None:
    """Receives the connection for the next copy; returns None if the client has closed the socket."""
    asked, descriptors, _, _ = socket.recv_fds(control, 1, 1)
    return socket.socket(fileno=descriptors[0]) if asked else None


def _receive(connection: socket.socket) -> tuple[Start, list[int]] | None:
    """Receives a request and its file descriptors; returns None if the client has closed the connection."""
    text, descriptors, _, _ = socket.recv_fds(connection, _LINE, 4)
    while text and not text.endswith(b"\n"):
        more = connection.recv(_LINE)
        if not more:
            _close(descriptors)
            return None
        text += more
    return (read_start(text), descriptors) if text else None


def _close(descriptors: list[int]) -> None:
    for each in descriptors:
        os.close(each)


def _answer(connection: socket.socket, answer: Started) -> None:
    with contextlib.suppress(OSError):  # who asked has gone: that is seen at the next look
        connection.sendall(encode(answer) + b"\n")
