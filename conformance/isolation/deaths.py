"""How a process ended, in words: its signal or status, and the stack that it left."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path
from typing import Final

#: Frames that a message shows.
_FRAMES: Final = 6
_FRAME: Final = re.compile(r'^\s+File "([^"]*)", line (\d+) in (.*)$')
_THREAD: Final = re.compile(r"^(Current thread|Thread) ")
#: Frames of what drives a cell, which say nothing about it.
_OURS: Final = ("/_pytest/", "/pluggy/", "/xdist/", "/execnet/", "<string>")


def ended(process: subprocess.Popen[bytes], seconds: float = 10) -> int | None:
    """The status of a process whose pipe has closed: the kernel may still be writing its core."""
    try:
        return process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return None


def death_of(returncode: int | None) -> str:
    """How a process ended, in words."""
    if returncode is None:
        return "its end was not seen"
    if returncode < 0:
        try:
            return f"killed by {signal.Signals(-returncode).name}"
        except ValueError:
            return f"killed by signal {-returncode}"
    return f"exited with status {returncode}"


def stack_path(folder: Path, worker: str) -> Path:
    """The file into which faulthandler writes a worker's stack."""
    return folder / f"{worker}.stack"


def stack_of(folder: Path, worker: str) -> str:
    """The stack of the thread that was running, the innermost frame first; empty where none was left."""
    try:
        text = stack_path(folder, worker).read_text(errors="replace")
    except OSError:
        return ""
    return shortened(text)


def shortened(text: str) -> str:
    """A stack as faulthandler writes it in one line: ``f (a/b.py:3) < g (a/c.py:5)``.

    Of several threads it is the current one's, else the last one's (the main thread comes last).
    """
    threads: list[tuple[bool, list[str]]] = []
    for line in text.splitlines():
        if _THREAD.match(line):
            threads.append((line.startswith("Current"), []))
        elif threads and (match := _FRAME.match(line)):
            file, number, name = match.groups()
            if not any(part in file for part in _OURS):
                threads[-1][1].append(f"{name} ({_short(file)}:{number})")
    current = [frames for is_current, frames in threads if is_current and frames]
    found = current[-1] if current else next((f for _, f in reversed(threads) if f), [])
    more = " < …" if len(found) > _FRAMES else ""
    return " < ".join(found[:_FRAMES]) + more


def _short(file: str) -> str:
    return "/".join(Path(file).parts[-2:])
