"""The client of the fork server. The client starts the server, requests forked copies of the server, and requests the
exit status of each copy.

The client has one connection for each copy. The connection carries the request for the copy, and later the copy's exit
status. The server kills the copy when the client closes the connection, so that no process is left behind. Forks of the
client may send requests, too.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from conformance.checks.child import NoCopy
from conformance.checks.clock import Clock, Process

#: Seconds of running time in which the server must load its modules and answer.
_PATIENCE: Final = 300.0
#: The server starts no driver, which does not survive a fork: torch asks NVML whether there is a GPU
#: (https://docs.pytorch.org/docs/stable/cuda_environment_variables.html).
_WITHOUT_DEVICES: Final = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
#: Seconds between two questions whether a copy has ended.
_LOOK: Final = 0.01
_START: Final = """\
import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)
import json, sys; sys.path[:] = json.loads(sys.argv[2])
from conformance.run.fork_server import main; main(int(sys.argv[1]))
"""


# -- what is asked and answered, in lines of JSON; then, for each byte that is sent, the status


class Start(msgspec.Struct, frozen=True):
    """A request to start a copy of the server. The file descriptors for stdin, stdout and stderr are sent with the
    request. For a child process, the pipe for the child's messages is sent too."""

    environment: dict[str, str]
    folder: str  # in which it works; empty if that was deleted
    child: bool  # of checks/child.py; otherwise a worker, which has children of its own


class Started(msgspec.Struct, frozen=True):
    """The server's reply to a request to start a copy of itself."""

    pid: int  # 0 if this is refused: no copy can be made
    copy: bool  # else the server itself is the worker now, and its socket closes


encode: Final = msgspec.json.Encoder().encode
read_start: Final = msgspec.json.Decoder(Start).decode
_read_started: Final = msgspec.json.Decoder(Started).decode
#: What is answered while a copy runs, and its exit status once it has ended, negative for a signal.
STATUS: Final = struct.Struct("<i")
RUNS: Final = 1 << 30


class ChildServer:
    """A connection to the server process ``pid``, which forks copies of itself on request. All threads and forks of
    this process may send requests."""

    def __init__(self, control: socket.socket, pid: int) -> None:
        self._control, self._pid = control, pid
        self._gone = False

    def start_child(self, stdin: int, output: int, pipe: int) -> Process:
        """Starts a child process with the given file descriptors. The child runs the line of Python that it reads from
        its stdin. Raises NoCopy if the server cannot start a child."""
        copy = self._start((stdin, output, output, pipe), child=True)
        assert copy is not None  # a server that cannot be copied refuses a child
        return copy

    def _start(
        self,
        descriptors: Sequence[int],
        *,
        child: bool,
        environment: Mapping[str, str] | None = None,
    ) -> Process | None:
        """Requests a forked copy of the server. Returns the copy, or None if the server itself became the requested
        worker."""
        if self._gone:
            raise NoCopy
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                socket.send_fds(self._control, [b"1"], [theirs.fileno()])
            given = dict(os.environ if environment is None else environment)
            text = encode(Start(given, _folder(), child)) + b"\n"
            sent = socket.send_fds(ours, [text], descriptors)
            if sent < len(text):  # sending nothing would fail, too, if it has answered and closed
                ours.sendall(text[sent:])
            answer = _read_started(self._answer(ours))
        except (OSError, EOFError) as error:
            ours.close()
            self._gone = True
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)  # its copies end with it
            raise NoCopy(str(error)) from error
        if answer.copy:
            return Forked(ours, answer.pid)
        ours.close()
        if not answer.pid:
            raise NoCopy("the server cannot fork itself")
        return None

    def _answer(self, connection: socket.socket) -> bytes:
        answer = b""
        clock = Clock(self._pid)
        while not answer.endswith(b"\n"):
            if not clock.wait(lambda seconds: _has_said(connection, seconds), _PATIENCE):
                raise TimeoutError(f"the server sent no answer in {_PATIENCE:g} s")
            more = connection.recv(4096)
            if not more:
                raise EOFError("the server closed the socket")
            answer += more
        return answer


class ForkServer(ChildServer):
    """The main fork server. The constructor starts the server process, which imports torch in the background."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-c", _START, str(theirs.fileno()), json.dumps(sys.path)],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env={**(os.environ if environment is None else environment), **_WITHOUT_DEVICES},
            )
        super().__init__(control, self._process.pid)

    def start(
        self, stdin: int, stdout: int, stderr: int, environment: Mapping[str, str] | None = None
    ) -> Process:
        """Starts a worker with the given file descriptors and environment variables. If no environment variables are
        given, the worker gets the variables of this process. The worker runs the line of Python that it reads from its
        stdin. Raises NoCopy if the server cannot start a worker."""
        copy = self._start((stdin, stdout, stderr), child=False, environment=environment)
        if copy is not None:
            return copy
        self._leave()  # the server is the worker now
        return self._process

    def close(self) -> None:
        """Kills the server, which may still be importing torch. The copies of the server end, too."""
        self._leave()
        self._process.kill()
        self._process.wait()

    def _leave(self) -> None:
        self._gone = True
        self._control.close()


def _folder() -> str:
    with suppress(FileNotFoundError):  # it was deleted
        return os.getcwd()
    return ""


def _has_said(connection: socket.socket, seconds: float) -> bool:
    return bool(select.select([connection], [], [], seconds)[0])


class Forked:
    """A process that the server forked, with the interface of ``subprocess.Popen``."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self._connection, self.pid = connection, pid
        self.returncode: int | None = None
        self._lock = threading.Lock()  # the server can tell a status only once

    def __del__(self) -> None:
        self._connection.close()  # nobody asks any more: the server ends it

    def poll(self) -> int | None:
        """Returns the exit status of the process, negative for a signal; None while the process runs."""
        with self._lock:
            if self.returncode is None:
                status = self._ask_status()
                if status != RUNS:
                    self.returncode = status
                    self._connection.close()
            return self.returncode

    def _ask_status(self) -> int:
        try:
            self._connection.sendall(b"?")
            answer = self._connection.recv(STATUS.size, socket.MSG_WAITALL)
            return int(STATUS.unpack(answer)[0])
        except (OSError, struct.error):
            return -signal.SIGKILL  # that is how copies end with their server

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the end of the process and returns its exit status. Raises subprocess.TimeoutExpired after
        ``timeout`` seconds."""
        until = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if until is not None and time.monotonic() >= until:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            time.sleep(_LOOK)
        return status

    def kill(self) -> None:
        """Kills the process if it still runs."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended since
                os.kill(self.pid, signal.SIGKILL)
