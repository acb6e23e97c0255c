"""Runs a repro script alone, in a new process, to see whether a failure happens again."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from conformance.checks.clock import ends_within

#: The seconds of a script, in which torch is loaded and the check is made.
SECONDS: Final = 120


@dataclass(frozen=True, slots=True)
class Repetition:
    """The end of a repro script that ran alone: the lines that it printed, and the reason why the failure did not happen
    again, which is empty if it did."""

    lines: tuple[str, ...]
    why_not: str = ""

    @property
    def failed_again(self) -> bool:
        return not self.why_not


def repeat_alone(script: Path, seconds: float = SECONDS) -> Repetition:
    """Runs a repro script in a new process and returns what happened. The failure happened again if the script exits
    with status 1 and says so; a script that fails in another way does not count."""
    if not script.is_file():
        return Repetition((), "there is no repro script")
    command = [sys.executable, str(script.absolute())]
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as printed:
        child = subprocess.Popen(command, stdout=printed, stderr=subprocess.STDOUT)
        in_time = ends_within(child, seconds)
        if not in_time:
            child.kill()
        status = child.wait()
        printed.seek(0)
        lines = tuple(printed.read().strip().splitlines())
    if not in_time:
        return Repetition(lines, f"the repro script took more than {seconds:g} s")
    if status == 1 and any("FAIL: " in each for each in lines):
        return Repetition(lines)
    said = lines[-1] if lines else "no message"
    return Repetition(
        lines, f"the repro script exits with status {status} in a new process ({said})"
    )
