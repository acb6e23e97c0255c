"""Work in another process: start it, receive its messages, limit its time, and report how it ended.

The child is a fresh interpreter in a new session. Where that makes no difference to what is asked, and this process knows
who makes them, it is a copy of a process that has torch loaded, which spares two seconds. It calls
``module.function(orders, tell)``: ``orders`` arrive as JSON on its stdin, and each ``tell(message)`` sends one JSON value
back through a separate pipe, so that the output of a backend does not interfere; the output is kept. The child is killed,
with everything that it has started in its session, when it exceeds a limit or when the parent no longer needs it.

Imports only the standard library, the clock and the root of our errors, because repro scripts contain this module.
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
from typing import Any, Protocol

from conformance.checks.clock import Clock, Process, ends_within
from devices.errors import ConformError

_PR_SET_PDEATHSIG = 1
_START = """
import json, sys
given = json.load(sys.stdin)
sys.path[:] = given["path"]
exec(compile(given["preamble"], "<preamble>", "exec"))
import importlib
importlib.import_module("conformance.checks.child").serve(given, int(sys.argv[1]))
"""
#: What a copy runs, which finds its pipe by that name.
_START_COPY = """
import json, sys
given = json.load(sys.stdin)
sys.path[:] = given["path"]
from conformance.checks.child import serve
serve(given, pipe)
"""


class NoCopy(Exception):
    """No process can be copied, or nobody answers: a fresh interpreter is started instead."""


class Copier(Protocol):
    """Makes copies of a process that has torch loaded and has used no device."""

    def start_child(self, stdin: int, output: int, pipe: int) -> Process:
        """A copy with these descriptors, which runs the line of Python from its stdin, as in a session of its own.
        Raises NoCopy."""


_copier: Copier | None = None


def use_copier(copier: Copier | None) -> None:
    """Whom this process and its forks ask for copies from now on."""
    global _copier
    _copier = copier


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds in which a child could run, before it is killed."""

    start: float = 180.0  # until it is ready, or sends its first message: torch has to be loaded
    silence: float = math.inf  # from then on, between two messages
    total: float = math.inf  # from then on, until its last message
    exit: float = 60.0  # from its last message to its end


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended.

    ``status`` is its exit status, negative for the signal that killed it; None if it had to be killed
    because a limit was over, which ``late`` then names. ``printed`` is what it wrote to stdout and stderr.
    """

    status: int | None
    late: str = ""
    printed: str = ""

    @property
    def well(self) -> bool:
        """Whether it ended by itself with status 0."""
        return self.status == 0

    @property
    def signal(self) -> str:
        """The name of the signal that killed it, such as SIGSEGV; empty if none did."""
        if self.status is None or self.status >= 0:
            return ""
        try:
            return signal.Signals(-self.status).name
        except ValueError:
            return f"signal {-self.status}"

    @property
    def how(self) -> str:
        """How it ended, as the end of a sentence: "was killed by SIGSEGV"."""
        if self.status is None:
            return self.late or "ended unseen"
        return (
            f"was killed by {self.signal}" if self.signal else f"exited with status {self.status}"
        )

    @property
    def last_line(self) -> str:
        """The last line that it printed: most often what a crash says of itself. Of faulthandler's stack it is the
        innermost frame."""
        lines = [line.strip() for line in self.printed.splitlines() if line.strip()]
        frames = (line for line in lines if self.signal and line.startswith('File "'))
        return next(frames, lines[-1] if lines else "")[:300]

    def __str__(self) -> str:
        last = "" if self.well else self.last_line
        return f"{self.how}: {last}" if last else self.how


class ChildDied(ConformError):
    """A child failed, was killed, or exceeded a limit."""

    exit_code = 3

    def __init__(self, ended: Ended) -> None:
        super().__init__(str(ended))
        self.ended = ended


@dataclass
class Child:
    """A child, from its start to its end::

        with Child("package.module:function", orders, Limits(silence=60)) as child:
            for message in child:  # until it ends, or a limit is over
                ...
        child.ended.how

    Leaving the block kills it if it still runs; ``wait()`` inside of it waits for its end.
    ``preamble`` is Python that the child executes before it imports anything of ours. ``copied`` says that the child need
    not be a fresh interpreter, if it has neither a preamble nor an environment of its own.
    """

    target: str
    orders: Any
    limits: Limits = field(default_factory=Limits)
    environment: Mapping[str, str] = field(default_factory=dict)
    preamble: str = ""
    copied: bool = False
    ready: bool = field(default=False, init=False)  # it has sent something

    def __enter__(self) -> Child:
        self._ended: Ended | None = None
        self._late = ""
        self._held = b""
        self._printed = tempfile.TemporaryFile()  # closed by _finish
        self._reader, writer = os.pipe()
        given: dict[str, Any] = {"path": sys.path, "preamble": self.preamble}
        given |= {"target": self.target, "orders": self.orders}
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
            [sys.executable, "-c", _START, str(writer)],
            stdin=subprocess.PIPE,
            stdout=self._printed,
            stderr=self._printed,
            pass_fds=(writer,),
            env={**os.environ, **self.environment},
            start_new_session=True,
        )
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it ended at once: its status says how
            process.stdin.write(json.dumps({**given, "parent": os.getpid()}).encode())
            process.stdin.close()
        return process

    def _copy(self, given: Mapping[str, Any], writer: int) -> Process | None:
        """A copy, if it may be one and there is somebody who makes it."""
        if _copier is None or not self.copied or self.environment or self.preamble:
            return None
        its_stdin, stdin = os.pipe()
        try:
            process = _copier.start_child(its_stdin, self._printed.fileno(), writer)
        except NoCopy:
            os.close(stdin)
            return None
        finally:
            os.close(its_stdin)
        with contextlib.suppress(BrokenPipeError), os.fdopen(stdin, "wb") as orders:
            orders.write(f"{_START_COPY!r}\n{json.dumps(given)}".encode())
        return process

    def __exit__(self, kind: object, error: object, at: object) -> None:
        self._finish()

    def __iter__(self) -> Iterator[Any]:
        """Its messages, until it ends or one of its limits is over."""
        while (line := self._line()) is not None:
            if not self.ready:
                self.ready = True
                self._end = self._clock.now() + self.limits.total
            if line:  # an empty one says that it is ready
                yield json.loads(line)
            # Who heard it may have set another limit.
            self._patience = self._clock.now() + self.limits.silence

    def wait(self) -> Ended:
        """How it ended, after it has been given ``limits.exit`` seconds to do so by itself."""
        waits = not self._late and self._ended is None
        if waits and not ends_within(self._process, self.limits.exit):
            self._late = f"had not ended {self.limits.exit:g} s after its last message"
        return self._finish()

    @property
    def ended(self) -> Ended:
        """How it ended; known once the block was left, or ``wait()`` has returned."""
        assert self._ended is not None, "the child still runs"
        return self._ended

    def _line(self) -> bytes | None:
        """The next line that it sends; None at its end, and where a limit is over."""
        while b"\n" not in self._held:
            if not self._clock.wait(self._has_said, min(self._end, self._patience)):
                self._late = self._over()
                return None
            chunk = os.read(self._reader, 1 << 16)
            if not chunk:
                return None  # a line that was cut off belongs to the death
            self._held += chunk
        line, _, self._held = self._held.partition(b"\n")
        return line

    def _has_said(self, seconds: float) -> bool:
        return bool(select.select([self._reader], [], [], seconds)[0])

    def _over(self) -> str:
        if not self.ready:
            return f"had not started after {self.limits.start:g} s"
        if self._patience < self._end:
            return f"was silent for {self.limits.silence:g} s"
        return f"had not ended after {self.limits.total:g} s"

    def _finish(self) -> Ended:
        """End what still runs, read what was printed, and close everything."""
        if self._ended is None:
            status = self._process.poll()
            if status is None:
                self._process.kill()  # a copy may not lead its group yet
            with contextlib.suppress(ProcessLookupError, PermissionError):  # no process is left
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            os.close(self._reader)
            self._printed.seek(0)
            printed = self._printed.read().decode(errors="replace")
            self._printed.close()
            late = "" if status is not None else self._late or "was stopped"
            self._ended = Ended(status, late, printed)
        return self._ended


def messages(child: Child) -> Iterator[Any]:
    """The messages of a child, one after the other. It is killed when this generator is closed.

    Raises ChildDied if it does not end by itself with status 0.
    """
    with child:
        yield from child
        ended = child.wait()
    if not ended.well:
        raise ChildDied(ended)


def ask(child: Child) -> tuple[Any, Ended]:
    """The one message of a child (None if it sent none), and how it ended: it may fail after its answer."""
    with child:
        return next(iter(child), None), child.wait()


# -- in the child


class Tell:
    """Sends messages to the parent. Forks of the child cannot: their pipe is closed, so that the parent
    sees when the child itself has ended."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        os.register_at_fork(after_in_child=self._close)

    def ready(self) -> None:
        """Say that the preparation is over: from now on the other limits count."""
        self._send(b"\n")

    def __call__(self, message: Any) -> None:
        """Send one value that JSON can hold."""
        self._send(json.dumps(message).encode() + b"\n")

    def _send(self, line: bytes) -> None:
        while line:
            line = line[os.write(self._pipe, line) :]

    def _close(self) -> None:
        os.close(self._pipe)
        self._pipe = -1


def end_with_parent(parent: int | None = None) -> None:
    """On Linux: be killed when the process that started this one ends (``parent``, if its id is known), even if that is
    killed itself. Otherwise one that hangs would keep the device, or a processor."""
    if not sys.platform.startswith("linux"):
        return
    parent = os.getppid() if parent is None else parent
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the call
        os._exit(1)


def serve(given: Mapping[str, Any], pipe: int) -> None:
    if "parent" in given:  # else it is a copy, and has seen to that
        end_with_parent(given["parent"])
    module, _, name = given["target"].partition(":")
    getattr(importlib.import_module(module), name)(given["orders"], Tell(pipe))


def execute(code: str, tell: Tell) -> None:
    """Execute a program; what it leaves in ``told`` is its message."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(code, "<program>", "exec"), names)
    tell(names["told"])
