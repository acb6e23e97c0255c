"""The commands ``conform minimise``, which finds the smallest example of a failure, and ``conform pin``, which adds
found examples to later plans."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

import click

from conformance.commands import RUN, globs_of, known_cell, options
from devices import registry
from devices.errors import ConformError
from devices.torch_version import require_torch


class NotMinimised(ConformError):
    """The error for a cell that passes now, or whose failure cannot be minimised."""

    exit_code = 2


@click.command()
@click.argument("cell")
@options("minimise")
def minimise(
    cell: str, device: str | None, descriptor: Path | None, run: Path | None, output: Path | None
) -> int:
    """Find the smallest failing example of a cell.

    CELL is written as in reports, such as 'layout.values::add[float32]'. Prints the example and its repro script. Exits
    1 if the cell fails, 2 if it passes.
    """
    require_torch()
    from conformance.checks.child import ChildDied
    from conformance.plan.selection import find_descriptor
    from conformance.search.minimise.tasks import Bench, Task, minimised
    from conformance.search.repros import write_repro
    from conformance.suites import SEARCHED, suite_of
    from opinfo.plan import plan_spec
    from reports.folder import RECORDING_FILE
    from reports.junit import one_line
    from reports.run import load_run

    loaded = load_run(run) if run is not None else None
    key = known_cell(cell, loaded.results if loaded is not None else ())
    if suite_of(key.clause) not in SEARCHED:
        raise ConformError(
            f"{key} cannot be minimised, because it is not a cell of the suite `layout`. The cell's repro script is in "
            "the results folder of the run in which the cell failed"
        )
    task, plan, recording = Task(key), "quick", None
    if loaded is not None:
        result = loaded.results.get(key)
        if result is None:
            raise ConformError(f"{run} has no result for {key}")
        if not result.layouts:
            raise NotMinimised(
                f"{run}: {key} has the outcome '{result.outcome}': only failures can be minimised"
            )
        task, plan = Task(key, result.failure), loaded.provenance.plan
        device = device or loaded.provenance.device
        if plan_spec(plan).recorded:
            recording = str(loaded.folder.absolute() / RECORDING_FILE)
            if not Path(recording).is_file():
                raise ConformError(
                    f"{recording} does not exist: expected the copy of the recording that `conform replay` writes; "
                    "replay the recording again"
                )
    path = descriptor.absolute() if descriptor is not None else None
    name = find_descriptor(device, path).name
    bench = Bench(name, str(path) if path else None, plan_spec(plan).samples, plan, recording)
    try:
        (answer,) = minimised(bench, [task])
    except ChildDied as death:
        raise ConformError(
            f"the subprocess that searches for the smallest example {death}"
        ) from None
    if answer.example is None:
        raise NotMinimised(answer.why)
    folder = output or run or Path("conform-results") / "minimised"
    script = folder / write_repro(folder, key, answer.script)
    click.echo(str(key))
    for line in answer.example.lines():
        indent = len(line) - len(line.lstrip(" "))
        click.echo("    " + " " * indent + one_line(line))
    click.echo(f"    {answer.example.tried} calls were tried")
    click.echo(f"    python {script}")
    return 1


@click.command()
@RUN
@options("pin")
def pin(
    run: Path, descriptor: Path | None, reason: str | None, only: str | None, unconfirmed: bool
) -> None:
    """Add the findings of --explore to later plans.

    RUN is the results folder of a run with --explore. A finding is a call or a program that fails although the manifest
    does not expect the failure. If the finding's repro script fails again in a new process, the finding is added to
    pinned.jsonl in the device's folder. Every later plan of the device includes the finding.
    """
    require_torch()
    from conformance.search.explore.exploration import new_findings, not_pinnable, pinned_of
    from devices.pinned import FILE, Pinned, add_pinned
    from reports.run import load_run

    lines = new_findings(run)
    if globs := globs_of("--only", only):
        # A cell's own name matches, although it holds brackets.
        lines = [
            line
            for line in lines
            if any(
                fnmatchcase(cell := str(line.finding.cell), glob) or cell == glob for glob in globs
            )
        ]
    if reason is not None and not reason.strip():
        raise click.UsageError("--reason: expected a text that is not empty")
    origin = load_run(run).provenance
    device = registry.find(origin.device, descriptor)
    if device.name != origin.device:
        raise ConformError(
            f"{run} is a run of device {origin.device!r}, but {descriptor} describes {device.name!r}"
        )
    if device.folder is None:
        raise ConformError(
            f"device {device.name!r} has no folder for {FILE}: write its descriptor.py in a folder of its own "
            "(docs/devices.md), and name that file with --descriptor"
        )
    pins: list[Pinned] = []
    for line in lines:
        if (why := not_pinnable(run, line, confirm=not unconfirmed)) is not None:
            click.echo(f"not pinned: {line.finding.cell}: {why}")
        else:
            pins.append(pinned_of(line.finding, reason, origin.torch))
    added = add_pinned(device.folder, pins) if pins else ()
    for example in added:
        click.echo(f"pinned {example.layout}: {example.cell}: {example.kind}")
    click.echo(f"{len(added)} of {len(lines)} findings added to {device.folder / FILE}")
