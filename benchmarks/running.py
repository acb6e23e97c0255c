"""Runs commands, and takes their time and memory from the operating system."""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def seconds(command: Sequence[str], environ: Mapping[str, str] | None = None) -> float:
    """The wall seconds of a command that exits with 0 or 1. Raises RuntimeError for other exit codes."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, **(environ or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    took = time.perf_counter() - start
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{' '.join(command)} exited {done.returncode}:\n{done.stdout[-2000:]}")
    return took


#: ``prctl(PR_SET_CHILD_SUBREAPER)`` of Linux: orphans among the descendants become children of this process.
_SUBREAPER = 36


def processor_seconds(command: Sequence[str], environ: Mapping[str, str] | None = None) -> float:
    """The user and system seconds of a command and of all its descendants, run as by :func:`seconds`."""
    return wall_and_processor(command, environ)[1]


def wall_and_processor(
    command: Sequence[str], environ: Mapping[str, str] | None = None
) -> tuple[float, float]:
    """The wall seconds of a command, run as by :func:`seconds`, and the user and system seconds of the command and of all
    its descendants.

    The workers of a run are children of a server that does not wait for them. On Linux, they are waited for here; on
    other systems, they are not counted.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    wall = seconds(command, environ)
    _wait_for_orphans()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _wait_for_orphans() -> None:
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:  # there is none left
            return
