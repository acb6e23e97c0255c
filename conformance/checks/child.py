"""A subprocess that does some work: its start, its messages, its time limits, and how it ended.

The child is a fresh interpreter in a new session. If the caller allows it and a copier is set, the child is instead
forked from a process that has already loaded torch, which saves about two seconds. The child calls
``module.function(orders, tell)``. ``orders`` arrive as JSON on stdin. Each ``tell(message)`` sends one JSON value to
the parent through a separate pipe, so that the output of a backend does not interfere; stdout and stderr are kept. The
child and every process in its session are killed when the child exceeds a limit or the parent no longer needs the
child.

The module imports only the standard library, the clock and ConformError, because repro scripts contain it.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import math
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, Any, Protocol

from conformance.checks.clock import Clock, Process, ends_within
from devices.errors import ConformError

_PR_SET_PDEATHSIG = 1
#: Statuses of signals that may come from outside: from a person, a job's limit, or a kernel that is out of memory.
FROM_OUTSIDE = frozenset(
    -number
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, getattr(signal, "SIGHUP", None))
    if number is not None
)
_START = """
import json, sys
given = json.loads(sys.stdin.readline())
sys.path[:] = given["path"]
from conformance.checks.child import serve
serve(given, int(sys.argv[1]))
"""
#: The code that a forked copy runs. The copy finds its pipe in the variable ``pipe``.
_START_COPY = """
import json, sys
given = json.loads(sys.stdin.readline())
sys.path[:] = given["path"]
from conformance.checks.child import serve
serve(given, pipe)
"""


class NoCopy(Exception):
    """The exception raised if no copy could be forked, because there is no process to copy or the copier does not
    respond. The caller starts a fresh interpreter instead."""


class Copier(Protocol):
    """An object that forks copies of a process which has loaded torch and has used no device."""

    def start_child(self, stdin: int, output: int, pipe: int) -> Process:
        """Forks the process and returns the copy, which has these file descriptors and a session of its own. The copy
        reads one line of Python from stdin and executes it. Raises NoCopy if the fork fails."""


_copier: Copier | None = None


def use_copier(copier: Copier | None) -> None:
    """Sets the copier that this process and its forks use from now on. With None, children are fresh interpreters."""
    global _copier
    _copier = copier


@dataclass(frozen=True, slots=True)
class ChildLimits:
    """The time limits of a child, in seconds. The child is killed if it exceeds one. Only time in which the child could
    run counts."""

    start: float = 180.0  # until it is ready or sends a message; includes loading torch
    silence: float = math.inf  # after that, between two messages
    total: float = math.inf  # after that, until its last message
    exit: float = 60.0  # from its last message until it exits


@dataclass(frozen=True, slots=True)
class Ended:
    """The way in which a process ended.

    ``status`` is the exit status, negative for the signal that killed the process. It is None if the process had to be
    killed because it exceeded a limit; ``late`` then says which limit. ``printed`` is the text that the process wrote
    to stdout and stderr.
    """

    status: int | None
    late: str = ""
    printed: str = ""

    @property
    def well(self) -> bool:
        """True if the process exited by itself with status 0."""
        return self.status == 0

    @property
    def signal(self) -> str:
        """The name of the signal that killed the process, such as SIGSEGV; empty if no signal did."""
        if self.status is None or self.status >= 0:
            return ""
        try:
            return signal.Signals(-self.status).name
        except ValueError:
            return f"signal {-self.status}"

    @property
    def from_outside(self) -> bool:
        """True if the process was killed by a signal that may come from outside of the run."""
        return self.status in FROM_OUTSIDE

    @property
    def how(self) -> str:
        """The way in which the process ended, as the end of a sentence: "was killed by SIGSEGV"."""
        if self.status is None:
            return self.late or "ended with an unknown status"
        return (
            f"was killed by {self.signal}" if self.signal else f"exited with status {self.status}"
        )

    @property
    def last_line(self) -> str:
        """The last line that the process printed, which usually describes a crash. If a signal killed the process and
        faulthandler printed its stack, this is the line of the innermost frame."""
        lines = [line.strip() for line in self.printed.splitlines() if line.strip()]
        frames = (line for line in lines if self.signal and line.startswith('File "'))
        return next(frames, lines[-1] if lines else "")[:300]

    def __str__(self) -> str:
        last = "" if self.well else self.last_line
        return f"{self.how}: {last}" if last else self.how


class ChildDied(ConformError):
    """The exception raised if a child failed, was killed, or exceeded a limit."""

    exit_code = 3

    def __init__(self, ended: Ended) -> None:
        super().__init__(str(ended))
        self.ended = ended


@dataclass
class Child:
    """A child process from its start to its end::

        with Child("package.module:function", orders, ChildLimits(silence=60)) as child:
            for message in child:  # until the child ends or exceeds a limit
                ...
        child.ended.how

    Leaving the block kills a child that still runs; ``wait()`` inside the block waits for the end of the child.
    ``script`` is the path of a repro script that the child runs, with ``serve`` and the number of a pipe as arguments.
    ``copied=True`` allows the child to be forked instead of started as a fresh interpreter, if it has neither a script nor
    an environment. With ``stays=True`` the child reads further messages, which ``send`` writes, from its stdin.
    """

    target: str
    orders: Any
    limits: ChildLimits = field(default_factory=ChildLimits)
    environment: Mapping[str, str] = field(default_factory=dict)
    script: str = ""
    copied: bool = False
    stays: bool = False
    ready: bool = field(default=False, init=False)  # the child has sent something

    def __enter__(self) -> Child:
        self._ended: Ended | None = None
        self._late = ""
        self._held = b""
        self._stdin: IO[bytes] | None = None  # of a child that stays
        self._allowed = self.limits.total
        self._printed = tempfile.TemporaryFile()  # closed by _finish
        self._reader, writer = os.pipe()
        given: dict[str, Any] = {"path": sys.path, "target": self.target, "orders": self.orders}
        try:
            self._process = self._copy(given, writer) or self._fresh(given, writer)
        except OSError as error:
            os.close(self._reader)
            raise ConformError(f"{sys.executable} cannot be started: {error}") from error
        finally:
            os.close(writer)
        self._clock = Clock(self._process.pid)
        self._end = self._patience = self.limits.start
        return self

    def _fresh(self, given: Mapping[str, Any], writer: int) -> Process:
        process = subprocess.Popen(
            [
                sys.executable,
                *([self.script, "serve"] if self.script else ["-c", _START]),
                str(writer),
            ],
            stdin=subprocess.PIPE,
            stdout=self._printed,
            stderr=self._printed,
            pass_fds=(writer,),
            env={**os.environ, **self.environment},
            start_new_session=True,
        )
        assert process.stdin is not None
        self._begin(process.stdin, json.dumps({**given, "parent": os.getpid()}))
        return process

    def _copy(self, given: Mapping[str, Any], writer: int) -> Process | None:
        """Returns a forked copy, or None if the child must be fresh or no copier is available."""
        if _copier is None or not self.copied or self.environment or self.script:
            return None
        its_stdin, stdin = os.pipe()
        try:
            process = _copier.start_child(its_stdin, self._printed.fileno(), writer)
        except NoCopy:
            os.close(stdin)
            return None
        finally:
            os.close(its_stdin)
        self._begin(os.fdopen(stdin, "wb"), f"{_START_COPY!r}\n{json.dumps(given)}")
        return process

    def _begin(self, stdin: IO[bytes], lines: str) -> None:
        """Writes the first lines to the child's stdin, and closes it unless the child stays."""
        self._stdin = stdin
        self._write(f"{lines}\n")
        if not self.stays:
            self._close_stdin()

    def send(self, message: Any) -> None:
        """Sends one value that JSON can represent to a child that stays, which reads it as a line of its stdin."""
        self._write(f"{json.dumps(message)}\n")

    def _write(self, text: str) -> None:
        assert self._stdin is not None, "the child does not read messages"
        with contextlib.suppress(BrokenPipeError):  # the child has ended; its status says how
            self._stdin.write(text.encode())
            self._stdin.flush()

    def _close_stdin(self) -> None:
        if self._stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # what could not be written
                self._stdin.close()
            self._stdin = None

    def __exit__(self, kind: object, error: object, at: object) -> None:
        self._finish()

    def __iter__(self) -> Iterator[Any]:
        """Yields the messages of the child until it ends or exceeds one of its limits."""
        while (line := self._line()) is not None:
            if not self.ready:
                self.ready = True
                self._end = self._clock.now() + self.limits.total
            if line:  # an empty line says that the child is ready
                yield json.loads(line)
            # The consumer of the message may have set another limit.
            self._patience = self._clock.now() + self.limits.silence

    def wait(self) -> Ended:
        """Waits up to ``limits.exit`` seconds for the child to exit by itself, and returns how it ended."""
        waits = not self._late and self._ended is None
        if waits and not ends_within(self._process, self.limits.exit):
            self._late = f"had not ended {self.limits.exit:g} s after its last message"
        return self._finish()

    @property
    def ended(self) -> Ended:
        """The way in which the child ended. Available as soon as the ``with`` block has been left or ``wait()`` has
        returned."""
        assert self._ended is not None, "the child still runs"
        return self._ended

    def _line(self) -> bytes | None:
        """Returns the next line that the child sends; None when the child has ended or exceeds a limit."""
        while b"\n" not in self._held:
            if not self._clock.wait(self._has_said, min(self._end, self._patience)):
                self._late = self._time_limit_text()
                return None
            if not self._receive():
                return None  # ignore an incomplete last line: the child died while writing it
        line, _, self._held = self._held.partition(b"\n")
        return line

    def _receive(self) -> bool:
        """Reads the bytes that the child has sent. Returns False if the child has closed its pipe."""
        chunk = os.read(self._reader, 1 << 16)
        self._held += chunk
        return bool(chunk)

    # -- as one of several, which nobody waits for alone

    def fileno(self) -> int:
        """Returns the descriptor that becomes readable when the child sends a message or ends, for ``select``."""
        return self._reader

    def received(self) -> list[Any] | None:
        """Returns the messages that the child has sent since the last call, without waiting. Returns None if the child
        has closed its pipe and has sent nothing more."""
        more = True
        while more and self._has_said(0.0):
            more = self._receive()
        *lines, self._held = self._held.split(b"\n")
        if not lines and not more:
            return None
        if lines and not self.ready:
            self.ready = True
            self._end = self._clock.now() + self.limits.total
        return [json.loads(line) for line in lines if line]

    @property
    def running(self) -> bool:
        """True if the child has not ended."""
        return self._ended is None and self._process.poll() is None

    def allow(self, seconds: float) -> None:
        """Sets the time limit of the child's work to ``seconds`` from now."""
        self._end, self._patience = self._clock.now() + seconds, math.inf
        self._allowed = seconds

    def is_late(self) -> bool:
        """Returns True if the child exceeds its time limit."""
        late = self._clock.now() >= self._end
        self._late = self._time_limit_text() if late else self._late
        return late

    def give_up(self, why: str = "") -> None:
        """Sets the reason for which the child is killed when its ``with`` block is left, such as "was ended because
        another process failed". The default reason is the time limit. A reason that was set before is kept."""
        self._late = self._late or why or self._time_limit_text()

    def _has_said(self, seconds: float) -> bool:
        return bool(select.select([self._reader], [], [], seconds)[0])

    def _time_limit_text(self) -> str:
        if not self.ready:
            return f"had not started after {self.limits.start:g} s"
        if self._patience < self._end:
            return f"was silent for {self.limits.silence:g} s"
        return f"had not ended after {self._allowed:g} s"

    def _finish(self) -> Ended:
        """Kills the child if it still runs, reads its output, closes the pipes and files, and returns how the child
        ended."""
        if self._ended is None:
            status = self._process.poll()
            if status is None:
                self._process.kill()  # a forked copy may not lead its process group yet
            with contextlib.suppress(ProcessLookupError, PermissionError):  # no process is left
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._close_stdin()
            os.close(self._reader)
            self._printed.seek(0)
            printed = self._printed.read().decode(errors="replace")
            self._printed.close()
            late = "" if status is not None else self._late or "was stopped"
            self._ended = Ended(status, late, printed)
        return self._ended


def messages(child: Child) -> Iterator[Any]:
    """Yields the messages of a child. The child is killed when this generator is closed.

    Raises ChildDied if the child does not exit by itself with status 0.
    """
    with child:
        yield from child
        ended = child.wait()
    if not ended.well:
        raise ChildDied(ended)


def ask(child: Child) -> tuple[Any, Ended]:
    """Returns the first message of a child (None if the child sent none) and how the child ended. The child may still
    fail after its message."""
    with child:
        return next(iter(child), None), child.wait()


# -- in the child


class Tell:
    """A function object that sends messages from the child to the parent. Forks of the child cannot send: the pipe is
    closed in them, so that the parent notices the end of the child itself."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        os.register_at_fork(after_in_child=self._close)

    def ready(self) -> None:
        """Tells the parent that the preparation is over, so that the limits for the work apply from now on instead of
        the limit for the start."""
        self._send(b"\n")

    def __call__(self, message: Any) -> None:
        """Sends one value that JSON can represent."""
        self._send(json.dumps(message).encode() + b"\n")

    def _send(self, line: bytes) -> None:
        while line:
            line = line[os.write(self._pipe, line) :]

    def _close(self) -> None:
        os.close(self._pipe)
        self._pipe = -1


def end_with_parent(parent: int | None = None) -> None:
    """Makes the Linux kernel kill this process when its parent process ends, even if the parent is killed, so that a
    hanging child does not keep the device or a processor busy. Does nothing on other systems. ``parent`` is the process
    id of the parent, if known."""
    if not sys.platform.startswith("linux"):
        return
    parent = os.getppid() if parent is None else parent
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before the call
        os._exit(1)


def serve(given: Mapping[str, Any], pipe: int) -> None:
    if "parent" in given:  # a forked copy has done so already
        end_with_parent(given["parent"])
    module, _, name = given["target"].partition(":")
    getattr(importlib.import_module(module), name)(given["orders"], Tell(pipe))


def execute(code: str, tell: Tell) -> None:
    """Executes the source code of a program and sends the value of its variable ``told`` as the message."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(code, "<program>", "exec"), names)
    tell(names["told"])
