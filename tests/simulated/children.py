"""Children for probes that end a process, hang it or need a fresh one.

They are forked from a server that has torch loaded and never used the device, so that each begins as a new process
would after its imports, without the seconds that these take.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable
from typing import IO, Any, Final

TRUE, FALSE = 41, 40  # exit statuses of a function that answered
HANGS: Final = "hangs"

#: In a child of the bare nursery, importing the device switches the faults on; in the other they are planted.
_BACKEND: Final = "devices.simulated.backend"


class Nursery:
    """Forks a child a request: with the device imported where this process had it when the nursery was made."""

    def __init__(self) -> None:
        asked, ask = os.pipe()
        answered, answer = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(ask)
            os.close(answered)
            _serve(os.fdopen(asked), os.fdopen(answer, "w", buffering=1))
            os._exit(0)
        os.close(asked)
        os.close(answer)
        self._ask, self._answers = os.fdopen(ask, "w", buffering=1), os.fdopen(answered)

    def run(self, function: Callable[[], bool], seconds: float, environment: dict[str, str]) -> Any:
        """How a child ends that calls the function with the faults that are on now."""
        library = importlib.import_module(_BACKEND).library
        request = {
            "function": [function.__module__, function.__qualname__],
            "faults": library.faults_that_are_on(),
            "seconds": seconds,
            "environment": environment,
        }
        self._ask.write(json.dumps(request) + "\n")
        return json.loads(self._answers.readline())


def _serve(requests: IO[str], answers: IO[str]) -> None:
    for line in requests:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            _be_child(request)
        with contextlib.suppress(OSError):
            os.setpgid(child, child)  # both do: whoever comes first
        answers.write(json.dumps(_end_of(child, request["seconds"])) + "\n")


def _end_of(child: int, seconds: float) -> int | str:
    ended = os.pidfd_open(child)
    try:
        if not select.select([ended], [], [], seconds)[0]:
            return HANGS
    finally:
        os.close(ended)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # what it forked too
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _be_child(request: dict[str, Any]) -> None:
    os.environ.update(request["environment"])
    os.environ["SIMULATED_FAULTS"] = ",".join(request["faults"])
    module, name = request["function"]
    code = 1
    try:
        if _BACKEND in sys.modules:
            importlib.import_module(f"{_BACKEND}.fault_switches").switch_on_from_environment()
        code = TRUE if getattr(importlib.import_module(module), name)() else FALSE
    except BaseException:
        traceback.print_exc()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


_nurseries: dict[str, Nursery] = {}


def prepare(kind: str) -> None:
    """Make a nursery: "bare" before the device is imported, "loaded" after it and before it is used."""
    import torch

    torch.set_num_threads(1)  # no thread must be lost in a fork
    assert (_BACKEND in sys.modules) == (kind == "loaded"), kind
    _nurseries[kind] = Nursery()


def child(
    function: Callable[[], bool],
    *,
    kind: str = "loaded",
    seconds: float = 60.0,
    **environment: str,
) -> int | str:
    """How a child ends that calls the function: its exit status, negative for a signal, or HANGS after so many
    seconds. TRUE and FALSE are what the function answered."""
    ended: int | str = _nurseries[kind].run(function, seconds, environment)
    return ended


def child_says(function: Callable[[], bool], **options: Any) -> bool:
    """What the function answered in a child. AssertionError where it did not answer."""
    ended = child(function, **options)
    assert ended in (TRUE, FALSE), f"{function.__qualname__}: the child ended by {ended}"
    return ended == TRUE
