"""The command ``conform record``, which records the calls of a program."""

from __future__ import annotations

from pathlib import Path

import click

from conformance.commands import options
from conformance.commands.program_command import (
    checked_output,
    command_of,
    exit_code_of,
    run_launcher,
)
from devices.errors import ConformError
from devices.torch_version import require_torch
from reports.gate import number


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

    command, path = command_of(program), checked_output(output)
    before = path.stat().st_mtime_ns if path.exists() else None
    kind = "values" if values else "ranges"
    code = exit_code_of(run_launcher(command, ["conformance.recordings.launch", str(path), kind]))
    if not path.exists() or path.stat().st_mtime_ns == before:
        raise ConformError(f"the program ended (exit code {code}) before a recording was written")
    recording = read_recording(path)
    size = path.stat().st_size / 1000
    if recording.count:
        calls = f"{number(recording.count, 'call')}, {len(recording.named()):,} of them distinct"
        click.echo(f"{output}: {calls}; {size:,.0f} kB", err=True)
    else:
        click.echo(f"{output}: no calls; the program called no op of torch", err=True)
    for each in recording.header.lacks:
        click.echo(f"not recorded: {each}", err=True)
    if recording.count:
        replay = f"conform replay {output} --device NAME"
        click.echo(f"to judge the calls on a device: {replay}", err=True)
    return code
