"""Runs commands, and takes their time and memory from the operating system."""

from __future__ import annotations

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


def processor_seconds(command: Sequence[str], environ: Mapping[str, str] | None = None) -> float:
    """The user and system seconds of a command, run as by :func:`seconds`. For commands with one thread, whose wall
    time would also depend on what else the machine does."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds(command, environ)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
