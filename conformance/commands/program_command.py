"""Runs the Python program that is given on the command line of a command such as ``conform record``, in its own
process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from devices.errors import ConformError
from devices.files import why_not_writable


class Command:
    """The command line of a Python program, divided into the interpreter, its options and the program with its
    arguments."""

    def __init__(self, python: str, options: Sequence[str], program: Sequence[str]) -> None:
        self.python, self.options, self.program = python, options, program


#: The options of ``python`` that take a value: letters, and long names.
_LETTERS: Final = "WX"
_LONG: Final = ("--check-hash-based-pycs",)


def command_of(program: Sequence[str]) -> Command:
    """Returns the parts of a command line. Raises ConformError if it does not begin with ``python``, or if it does not
    name a program."""
    python, *rest = program
    if not os.path.basename(python).startswith("python"):
        raise ConformError(
            f"{python!r}: expected a command that begins with python, such as `python train.py`; "
            "write a console script as `python -m MODULE`"
        )
    given: list[str] = []
    while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c", "-"):
        taken, rest = _option(rest)
        given += taken
    if not rest or rest[0] == "-" or (rest[0] in ("-m", "-c") and len(rest) < 2):
        raise ConformError(
            f"{' '.join(program)}: expected a file, -m MODULE or -c CODE after python"
        )
    if rest[0] not in ("-m", "-c") and not Path(rest[0]).exists():
        raise ConformError(f"{rest[0]}: the program does not exist")
    return Command(sys.executable if python in ("python", "python3") else python, given, rest)


def _option(rest: Sequence[str]) -> tuple[list[str], list[str]]:
    """Divides a command line after its first option. In a group of letters such as ``-um``, the letters ``m`` and ``c``
    end the options, as they do for Python: the module or the code follows."""
    first, *others = rest
    if first.startswith("--"):
        count = first in _LONG
        return [first, *others[:count]], others[count:]
    for place, letter in enumerate(first[1:], 1):
        if letter in "mc":
            joined = [first[place + 1 :]] if first[place + 1 :] else []
            before = [first[:place]] if place > 1 else []
            return before, [f"-{letter}", *joined, *others]
        if letter in _LETTERS:
            count = not first[place + 1 :]
            return [first, *others[:count]], others[count:]
    return [first], others


def checked_output(given: Path) -> Path:
    """Returns the absolute path of a file that will be written when a program ends. Raises ConformError now if the file
    cannot be written."""
    path = Path(os.path.realpath(given))
    if why := why_not_writable(path):
        raise ConformError(f"{given} cannot be written: {why}")
    return path


def run_launcher(
    command: Command,
    launcher: Sequence[str],
    environment: Mapping[str, str] | None = None,
    *,
    silent: bool = False,
) -> int:
    """Runs a module of this package in a new process, which in turn runs the user's program. ``launcher`` is the module
    with its arguments. Returns the exit code, which is negative if a signal ended the process. With ``silent``, the
    program's output is discarded. Ctrl-C ends only the program, so that its results can still be read. Raises
    ConformError if Python cannot be started."""
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), _own_folder())))
    try:
        process = subprocess.Popen(
            [command.python, *command.options, "-m", *launcher, *command.program],
            env={**(environment or {}), **os.environ, "PYTHONPATH": path},
            stdout=subprocess.DEVNULL if silent else None,
        )
    except OSError as error:
        raise ConformError(f"{command.python} cannot be started: {error.strerror}") from None
    with _passing_on(process):
        return process.wait()


@contextmanager
def _passing_on(process: subprocess.Popen[Any]) -> Iterator[None]:
    """Within the context, SIGTERM is forwarded to a process. SIGINT is ignored, because the terminal sends it to the
    process as well."""
    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, lambda *_: None),
        signal.SIGTERM: signal.signal(signal.SIGTERM, lambda *_: process.terminate()),
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def exit_code_of(returned: int) -> int:
    """Returns the exit code that a shell shows for a process; ``returned`` is negative if a signal ended it."""
    return returned if returned >= 0 else 128 - returned


def _own_folder() -> str:
    """Returns the folder that contains this package, so that the program's process can import the package from any
    working directory."""
    return str(Path(__file__).parents[2])
