"""The command ``conform record``, which records the calls of a program."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from conformance.commands import options
from devices.errors import ConformError
from devices.torch_version import require_torch


@click.command(context_settings={"ignore_unknown_options": True})
@options("record")
@click.argument("program", nargs=-1, type=click.UNPROCESSED, required=True)
def record(output: Path, values: bool, program: tuple[str, ...]) -> int:
    """Record the aten calls of a Python program.

    PROGRAM is the program's command line, which begins with `python`: conform record -- python train.py --epochs 1.
    Exits with the exit code of the program.
    """
    require_torch()
    from conformance.recordings.wire import read_recording

    command = command_of(program)
    before = output.stat().st_mtime_ns if output.exists() else None
    kind = "values" if values else "ranges"
    launcher = ["-m", "conformance.recordings.launch", str(output.absolute()), kind]
    environment = {**os.environ, "PYTHONPATH": with_this_package(os.environ.get("PYTHONPATH"))}
    try:
        done = subprocess.run(
            [command.python, *command.options, *launcher, *command.program], env=environment
        )
    except OSError as error:
        raise ConformError(f"{command.python} cannot be started: {error.strerror}") from None
    if not output.exists() or output.stat().st_mtime_ns == before:
        raise ConformError(
            f"the program ended (exit code {done.returncode}) before a recording was written"
        )
    recording = read_recording(output)
    size = output.stat().st_size / 1000
    click.echo(
        f"{output}: {recording.count:,} calls, {len(recording.calls):,} of them distinct; {size:,.0f} kB",
        err=True,
    )
    for each in recording.header.lacks:
        click.echo(f"not recorded: {each}", err=True)
    click.echo(f"to judge the calls on a device: conform replay {output} --device NAME", err=True)
    return done.returncode


class Command:
    """The command line of a Python program, split into its parts."""

    def __init__(self, python: str, options: Sequence[str], program: Sequence[str]) -> None:
        self.python, self.options, self.program = python, options, program


#: The options of ``python`` that are followed by a value of their own.
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")


def command_of(program: Sequence[str]) -> Command:
    """Returns the parts of a command line. Raises ConformError if it does not begin with ``python`` or names no
    program."""
    python, *rest = program
    if not os.path.basename(python).startswith("python"):
        raise ConformError(
            f"{python!r}: expected a command that begins with python, such as `python train.py`; "
            "write a console script as `python -m MODULE`"
        )
    given: list[str] = []
    while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c"):
        count = 2 if rest[0] in _WITH_VALUE else 1
        given += rest[:count]
        rest = rest[count:]
    if not rest or (rest[0] in ("-m", "-c") and len(rest) < 2):
        raise ConformError(
            f"{' '.join(program)}: expected a file, -m MODULE or -c CODE after python"
        )
    if rest[0] not in ("-m", "-c") and not Path(rest[0]).exists():
        raise ConformError(f"{rest[0]}: the program does not exist")
    return Command(sys.executable if python in ("python", "python3") else python, given, rest)


def with_this_package(path: str | None) -> str:
    """Returns the PYTHONPATH ``path`` with the folder of this package added at the end, because the program may run in
    another folder."""
    own = str(Path(__file__).parents[2])
    return os.pathsep.join(filter(None, (path, own)))
