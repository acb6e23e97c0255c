"""A process, the zygote, that has loaded torch and the suite, and is forked to create the processes of a judgement. The
zygote loads no kernel and computes no expected value, so its forks have none in memory."""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

from conformance.checks.child import Ended
from conformance.checks.clock import Clock
from devices.errors import ConformError

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_START = """
import json, sys
sys.path[:] = json.loads(open(0, "rb", buffering=0, closefd=False).readline())
from conformance.kernels.zygote import serve
serve()
"""
#: Seconds between two looks at a process.
_LOOK = 0.01


class ZygoteDied(ConformError):
    """The error for a zygote that could not be started, or that has ended."""

    exit_code = 3


class Zygote:
    """The zygote, seen from the process that started it. Use :func:`zygote` to get the object."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="conform-kernels-"))
        self.process = subprocess.Popen(
            [sys.executable, "-c", _START],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,  # a line that was read ahead would not wake select
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        self.owner = os.getpid()
        self._say(json.dumps(sys.path))
        self._say(json.dumps({"folder": str(self.folder)}))

    def run(
        self,
        target: str,
        given: list[str],
        printed: Path,
        is_late: Callable[[float], str] = lambda now: "",
    ) -> Ended:
        """Calls ``module:function(*given)`` in a fork of the zygote, and returns how the fork ended. The fork's output
        is written to the file ``printed``. ``is_late(seconds)`` is called repeatedly with the time that the fork has
        run; when it returns a reason, the fork is killed. Raises ZygoteDied if the zygote has ended."""
        order = {"target": target, "given": given, "printed": str(printed), "path": sys.path}
        self._say(json.dumps({**order, "cwd": os.getcwd()}))
        pid = int(self._hear()["pid"])
        clock, late = Clock(pid), ""
        while not select.select([self._stdout], [], [], _LOOK)[0]:
            late = is_late(clock.now())
            if late:
                break
        if late:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        status = int(self._hear()["status"])
        text = printed.read_text(errors="replace") if printed.exists() else ""
        return Ended(None if late else status, late, text)

    def close(self) -> None:
        """Ends the zygote and its forks, and removes its folder."""
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        with suppress(ProcessLookupError):
            self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _say(self, line: str) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(f"{line}\n".encode())
            self.process.stdin.flush()
        except OSError as error:
            raise ZygoteDied(f"the process that starts kernels has ended: {error}") from error

    @property
    def _stdout(self) -> IO[bytes]:
        assert self.process.stdout is not None
        return self.process.stdout

    def _hear(self) -> Any:
        line = self._stdout.readline()
        if not line:
            raise ZygoteDied("the process that starts kernels has ended")
        return json.loads(line)


_lock = threading.Lock()
_running: Zygote | None = None
_is_fork = False


def is_fork() -> bool:
    """Returns True in the forks of a zygote, in which kernels are loaded and results are compared."""
    return _is_fork


def zygote() -> Zygote:
    """Returns this process's zygote, and starts it if it does not exist yet. The zygote ends when this process ends."""
    global _running
    with _lock:
        if _running is None or _running.owner != os.getpid() or _running.process.poll() is not None:
            _running = Zygote()
            atexit.register(close)
        return _running


def close() -> None:
    """Ends this process's zygote if it exists."""
    global _running
    with _lock:
        if _running is not None and _running.owner == os.getpid():
            _running.close()
        _running = None


# -- in the zygote


def serve() -> None:
    """Reads orders (a function with its arguments) from stdin, one per line, and runs each in a fork of this process,
    until stdin is closed. Then removes the folder of the judgements."""
    from conformance.kernels import judging, kernel_process  # noqa: F401  (for the copies)
    from devices.registry import installed
    from opinfo.database import DATABASE
    from opinfo.device import limit_threads

    limit_threads()
    DATABASE.subjects()
    installed()
    gc.collect()
    gc.freeze()  # a collection in a fork would copy all pages of these objects
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # to kill what a kernel's process leaves
    wakes, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    out = os.dup(1)
    os.dup2(2, 1)
    orders = os.fdopen(os.dup(0), "rb", buffering=0)
    folder = json.loads(orders.readline())["folder"]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        while line := orders.readline():
            order = json.loads(line)
            pid = os.fork()
            if not pid:
                _become(order, (out, wakes, wake, orders.fileno()))
            os.write(out, b'{"pid": %d}\n' % pid)
            _read_definitions()
            if not _waits(pid, orders.fileno(), wakes, out):
                return
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the process ends already
        _kill_children()
        shutil.rmtree(folder, ignore_errors=True)


@cache
def _read_definitions() -> None:
    """Reads the definitions that the repro script of almost every fault contains, so that no later fork has to. The first
    fork runs in the meantime."""
    from conformance.checks.ops.evidence import called_and_written_to
    from conformance.checks.ops.roundings import allowance, exact_answer
    from conformance.checks.repro.bundle import Bundle
    from conformance.suites.layout.reads import judge_inputs, judge_strides, judge_values

    judges = [judge_values, judge_strides, judge_inputs]
    Bundle().take([called_and_written_to, allowance, exact_answer, *judges])


def _waits(pid: int, orders: int, wakes: int, out: int) -> bool:
    """Waits until a fork ends, and writes its exit status to the pipe ``out``. Returns False if stdin is closed first,
    because then this process is no longer needed."""
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            _kill_children()
            code = os.waitstatus_to_exitcode(status)
            os.write(out, b'{"status": %d}\n' % code)
            return True
        readable, _, _ = select.select([orders, wakes], [], [], 1.0)
        if wakes in readable:
            os.read(wakes, 4096)
        if orders in readable:  # only its end comes while a copy runs
            return False


def _kill_children() -> None:
    """Kills all children of this process, including the children of a kernel's process that outlived it."""
    for _ in range(100):
        found = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        if not found:
            return
        for pid in map(int, found):
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def _become(order: dict[str, Any], inherited: tuple[int, ...]) -> None:
    """Runs the function that an order names in this fork, and ends the fork. ``inherited`` are file descriptors to
    close first."""
    global _is_fork
    status, _is_fork = 1, True
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        printed = os.open(order["printed"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, place in ((nothing, 0), (printed, 1), (printed, 2)):
            os.dup2(source, place)
        for each in inherited:
            os.close(each)
        sys.path[:] = order["path"]
        os.chdir(order["cwd"])
        module, _, name = order["target"].partition(":")
        getattr(importlib.import_module(module), name)(*order["given"])
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
