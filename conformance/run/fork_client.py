"""The controller's side of the fork server: starts it, asks it for workers, and asks how they ended."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Final

import msgspec

from conformance.checks.clock import Clock

#: Seconds in which the server could run, for it to load what it loads and to answer.
_PATIENCE: Final = 300.0
#: The server starts no driver, which does not survive a fork: torch asks NVML whether there is a GPU
#: (https://docs.pytorch.org/docs/stable/cuda_environment_variables.html).
_WITHOUT_DEVICES: Final = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
#: Seconds between two questions whether a worker has ended.
_LOOK: Final = 0.01
_START: Final = """\
import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)
import json, sys; sys.path[:] = json.loads(sys.argv[2])
from conformance.run.fork_server import main; main(int(sys.argv[1]))
"""


# -- what is asked and answered, in lines of JSON


class StartWorker(msgspec.Struct, frozen=True, tag="start"):
    """Start a worker; its stdin, stdout and stderr come along as descriptors."""

    environment: dict[str, str]


class Started(msgspec.Struct, frozen=True):
    pid: int
    copy: bool  # else the server itself is the worker now, and its socket closes


class Poll(msgspec.Struct, frozen=True, tag="poll"):
    pid: int


class Status(msgspec.Struct, frozen=True):
    """None while the worker runs, else its exit status, negative for a signal."""

    status: int | None


encode: Final = msgspec.json.Encoder().encode
read_request: Final = msgspec.json.Decoder(StartWorker | Poll).decode
_read_started: Final = msgspec.json.Decoder(Started).decode
_read_status: Final = msgspec.json.Decoder(Status).decode


class ServerGone(Exception):
    """The fork server does not answer: workers are started without it."""


class ForkServer:
    """Starts loading at once, in the background. Any thread may ask."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair()
        self._lock = threading.Lock()
        self._gone = False
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-c", _START, str(theirs.fileno()), json.dumps(sys.path)],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env={**os.environ, **_WITHOUT_DEVICES},
            )

    def start(self, stdin: int, stdout: int, stderr: int) -> Process:
        """A worker with these descriptors, which runs the line of Python from its stdin. Raises ServerGone."""
        request = StartWorker(dict(os.environ))
        answer = _read_started(self._ask(request, (stdin, stdout, stderr)))
        if answer.copy:
            return Forked(self, answer.pid)
        self._leave()  # the server is the worker now
        return self._process

    def status(self, pid: int) -> int | None:
        """The exit status of a worker, None while it runs. Raises ServerGone."""
        return _read_status(self._ask(Poll(pid))).status

    def close(self) -> None:
        """End the server, which may still be loading. Workers that still run end with it."""
        self._leave()
        self._process.kill()
        self._process.wait()

    def _leave(self) -> None:
        self._gone = True
        self._control.close()

    def _ask(self, request: msgspec.Struct, descriptors: tuple[int, ...] = ()) -> bytes:
        text = encode(request) + b"\n"
        with self._lock:
            if self._gone:
                raise ServerGone
            try:
                sent = socket.send_fds(self._control, [text], descriptors)
                self._control.sendall(text[sent:])
                answer = b""
                clock = Clock(self._process.pid)
                while not answer.endswith(b"\n"):
                    if not clock.wait(self._has_answered, _PATIENCE):
                        raise TimeoutError(f"no answer in {_PATIENCE:g} s")
                    more = self._control.recv(4096)
                    if not more:
                        raise EOFError("the socket is closed")
                    answer += more
            except (OSError, EOFError) as error:
                self._gone = True  # a late answer must not be taken for the next one
                self._process.kill()  # its workers end with it
                raise ServerGone(str(error)) from error
        return answer

    def _has_answered(self, seconds: float) -> bool:
        return bool(select.select([self._control], [], [], seconds)[0])


class Forked:
    """A worker that the server forked, as ``subprocess.Popen`` would show it."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self._server, self.pid = server, pid
        self.returncode: int | None = None
        self._lock = threading.Lock()  # the server can tell a status only once

    def poll(self) -> int | None:
        with self._lock:
            if self.returncode is None:
                try:
                    self.returncode = self._server.status(self.pid)
                except ServerGone:
                    self.returncode = -signal.SIGKILL  # that is how workers end with their server
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status. Raises subprocess.TimeoutExpired."""
        until = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if until is not None and time.monotonic() >= until:
                raise subprocess.TimeoutExpired(f"worker {self.pid}", timeout or 0.0)
            time.sleep(_LOOK)
        return status

    def kill(self) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended since
                os.kill(self.pid, signal.SIGKILL)


Process = subprocess.Popen[bytes] | Forked
