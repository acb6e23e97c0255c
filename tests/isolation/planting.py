"""A pytest plugin that plants mishaps at the beginning of cells: crashes, hangs, poisoned devices.

``PLANTED='{"layout.values::mm[float32]": "segfault"}'`` does what it says each time that the cell begins, in a
worker or in pytest itself. With ``PLANTED_ONCE=FOLDER`` each does it once, whichever process it is in.
``PLANTED_CALL=neg`` ends the process in each call of that layout or kind.
Each worker ends as it starts with the status ``PLANTED_START``, or has the suite in the version ``PLANTED_VERSION``.
With ``PLANTED_END`` pytest dies when everything is done, before it writes its results.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import re
import signal
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

if "PYTEST_XDIST_WORKER" in os.environ and "PLANTED_START" in os.environ:
    os._exit(int(os.environ["PLANTED_START"]))  # before torch is loaded, which takes seconds

from conformance.checks.cells import CellRecord
from conformance.checks.ops.context import OpContext
from conformance.plan import selection
from conformance.run import worker
from conformance.run.isolation.watch import Watch
from conformance.run.session import Session
from devices.cell import CallKey
from opinfo.device import DeviceUnusable


class Poison:
    """A sticky error: from now on every call on the device fails, and so does asking after it."""

    on = False


def _segfault() -> None:
    ctypes.memset(0, 0, 1)


def _sleep() -> None:
    time.sleep(10_000)


def _holds_the_gil() -> None:
    re.match(r"(a+)+$", "a" * 64 + "b")


def _spins_in_c() -> None:
    hashlib.pbkdf2_hmac("sha256", b"x", b"y", 2**31 - 1)  # without the GIL


def _sleeps_with_the_gil() -> None:
    ctypes.PyDLL(None).sleep(10_000)


def _controller() -> int:
    """The process that runs pytest: the parent of the fork server, if this worker is a copy of one."""
    parent = os.getppid()
    command = Path(f"/proc/{parent}/cmdline").read_bytes()
    if b"conformance.run.fork_server" not in command:
        return parent
    status = Path(f"/proc/{parent}/status").read_text()
    return int(status.partition("PPid:")[2].split()[0])


def _stops() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _poison() -> None:
    Poison.on = True


def _forks_a_keeper() -> None:
    """A child that lives on would hold the worker's pipe."""
    if os.fork() == 0:
        time.sleep(30)
        os._exit(0)
    os.abort()


MISHAPS: dict[str, Callable[[], object]] = {
    "segfault": _segfault,
    "abort": os.abort,
    "exit": lambda: os._exit(9),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "sleep": _sleep,
    "gil": _holds_the_gil,
    "gil-sleep": _sleeps_with_the_gil,
    "spin": _spins_in_c,
    "stop": _stops,
    "poison": _poison,
    "fork": _forks_a_keeper,
    "kill-controller": lambda: os.kill(_controller(), signal.SIGKILL),
    "kill-server": lambda: os.kill(os.getppid(), signal.SIGKILL),
    "interrupt-self": lambda: os.kill(os.getpid(), signal.SIGINT),
    "interrupt-controller": lambda: (os.kill(_controller(), signal.SIGINT), time.sleep(1)),
}

_begin = Watch.begin
_made = Watch.call
_call = OpContext.call
_preflight = worker.preflight


def _planted(
    self: Watch, group: Sequence[str], records: Sequence[CellRecord], at_least: float = 0.0
) -> None:
    _begin(self, group, records, at_least)
    cell = str(records[0].key)
    what = json.loads(os.environ.get("PLANTED", "{}")).get(cell)
    if what is None:
        return
    once = os.environ.get("PLANTED_ONCE")
    if once:
        mark = Path(once) / re.sub(r"\W", "_", cell)
        if mark.exists():
            return
        mark.touch()
    MISHAPS[what]()


def _deadly(self: Watch, call: CallKey, clauses: Collection[str] = ()) -> bool:
    made = _made(self, call, clauses)
    if made and call.layout == os.environ.get("PLANTED_CALL"):
        _segfault()
    return made


def _broken(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("device-side error, sticky")


def _poisoned_call(
    self: OpContext, laid: Any, function: Callable[..., Any] | None = None, *mode: Any
) -> Any:
    return _call(self, laid, _broken if Poison.on else function, *mode)


def _poisoned_preflight(device: Any) -> None:
    if Poison.on:
        raise DeviceUnusable(
            "device failed to run a tiny op: RuntimeError: device-side error, sticky"
        )
    _preflight(device)


if "PLANTED_END" in os.environ:
    Session.finish = lambda *_, **__: os._exit(9)  # type: ignore[method-assign]
if "PLANTED_VERSION" in os.environ:
    selection.VERSION = os.environ["PLANTED_VERSION"]
Watch.begin = _planted  # type: ignore[method-assign]
Watch.call = _deadly  # type: ignore[method-assign]
OpContext.call = _poisoned_call  # type: ignore[method-assign]
worker.preflight = _poisoned_preflight  # type: ignore[assignment]
