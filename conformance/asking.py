"""Asking devices in processes of their own: without torch here, and whatever they do there."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import msgspec

from devices.errors import ConformError

#: Seconds until a device that does not answer is given up: importing torch on a cold disk takes some.
PATIENCE = 120.0

#: Starts the line of stdout that holds the reply: a vendor's import may print.
MARK = "conform-probed "


class Question(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which device is asked: a registered one by ``name``, a descriptor by ``path``, or one that nobody has
    described, by ``torch_type`` and perhaps ``module`` and ``init``."""

    name: str = ""
    path: str = ""
    torch_type: str = ""
    module: str = ""
    init: str = ""


class Reply(msgspec.Struct, frozen=True):
    """What it answered. ``capabilities`` are True, False, or None where nothing knows how to ask; ``facts``
    are the descriptor's; ``raised`` says, of a capability, a dtype or ``device_count`` that an exception
    answered for, what it was; ``error`` is empty where the device could be asked."""

    capabilities: dict[str, bool | None] = {}
    dtypes: list[str] = []
    facts: dict[str, str] = {}
    device_count: int = 1
    raised: dict[str, str] = {}
    error: str = ""


def ask(question: Question, patience: float = PATIENCE) -> Reply:
    """Ask one device. What goes wrong is in the reply's ``error``, in one line."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "conformance.probing"],
            input=msgspec.json.encode(question),
            capture_output=True,
            check=False,
            timeout=patience,
            env={**os.environ, "PYTHONFAULTHANDLER": "1"},
        )
    except subprocess.TimeoutExpired:
        return Reply(error=f"it did not answer within {patience:g} s")
    except OSError as error:
        raise ConformError(f"{sys.executable} cannot be started: {error}") from error
    for line in done.stdout.decode(errors="replace").splitlines():
        if line.startswith(MARK):
            return msgspec.json.decode(line.removeprefix(MARK), type=Reply)
    said = [line for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
    how = (
        f"killed by signal {-done.returncode}" if done.returncode < 0 else f"exit {done.returncode}"
    )
    return Reply(error=f"asking it ended the process ({how}): {said[-1] if said else 'no message'}")


def ask_all(questions: list[Question], patience: float = PATIENCE) -> list[Reply]:
    """Ask several, two at a time."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        return list(pool.map(lambda question: ask(question, patience), questions))
