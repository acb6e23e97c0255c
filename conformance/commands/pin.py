"""``conform pin RUN``: what a run's random search found becomes part of every later plan."""

from __future__ import annotations

import subprocess
import sys
from datetime import date
from pathlib import Path

import click

from devices.descriptor import Descriptor
from devices.errors import ConformError

#: Seconds that one repro script may take.
_CONFIRM_SECONDS = 120


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--descriptor", type=click.Path(path_type=Path), help="The device's descriptor.py, where it is not registered.")  # fmt: skip
@click.option("--reason", help="Why these are pinned (default: how each failed).")
@click.option("--only", metavar="GLOB,…", help="Findings whose cell matches, such as 'layout.values::sum*'.")  # fmt: skip
@click.option("--unconfirmed", is_flag=True, help="Do not run each finding's script first.")
def pin(
    run: Path, descriptor: Path | None, reason: str | None, only: str | None, unconfirmed: bool
) -> None:
    """Pin what `--explore` found in the results folder RUN.

    Each finding that the manifest does not expect, a call or a program, is confirmed by its repro script in a
    fresh process and added to pinned.jsonl in the device's folder, which every later plan of that device includes.
    """
    from conformance.explore.findings import new_among, read_findings
    from devices import registry
    from devices.pinned import FILE, Pinned, add_pinned
    from reports.run import load_run

    lines = [
        line for line in new_among(read_findings(run)) if _chosen(str(line.finding.cell), only)
    ]
    if reason is not None and not reason.strip():
        raise click.UsageError("--reason: expected a text that is not blank")
    origin = load_run(run).provenance
    device: Descriptor = (
        registry.load_file(descriptor) if descriptor else registry.get(origin.device)
    )
    if device.name != origin.device:
        raise ConformError(
            f"{run} is a run of device {origin.device!r}, and {descriptor} describes {device.name!r}"
        )
    if device.folder is None:
        raise ConformError(
            f"device {device.name!r} has no folder of its own to keep {FILE} in: give it one "
            "(docs/devices.md) and name it with --descriptor"
        )
    pins: list[Pinned] = []
    for line in lines:
        finding = line.finding
        if finding.unpinnable:
            click.echo(f"not pinned: {finding.cell}: {finding.unpinnable}")
            continue
        if not unconfirmed and (why := _unconfirmed(run, line.repro)) is not None:
            click.echo(f"not pinned: {finding.cell}: {why}")
            continue
        message = finding.told or finding.kind
        if finding.example is not None:
            message = finding.example.message
        clause, op, dtype = finding.cell
        pins.append(
            Pinned(
                clause=clause,
                op=op,
                dtype=dtype,
                call=finding.call,
                layouts=finding.layouts,
                program=tuple(finding.program),
                kind=finding.kind,
                reason=reason or f"found by random search on torch {origin.torch}: {message}",
                date=date.today().isoformat(),
            )
        )
    fresh = add_pinned(device.folder, pins) if pins else ()
    for example in fresh:
        click.echo(f"pinned {example.layout}: {example.cell}: {example.kind}")
    click.echo(f"{len(fresh)} of {len(lines)} findings added to {device.folder / FILE}")


def _chosen(cell: str, only: str | None) -> bool:
    from fnmatch import fnmatchcase

    if only is None:
        return True
    return any(cell == glob or fnmatchcase(cell, glob.strip()) for glob in only.split(","))


def _unconfirmed(run: Path, repro: str | None) -> str | None:
    """Why a finding is not confirmed: its script must exit 1 in a fresh process. None where it does."""
    if repro is None or not (run / repro).is_file():
        return "it has no repro script"
    try:
        done = subprocess.run(
            [sys.executable, str((run / repro).absolute())],
            capture_output=True,
            text=True,
            check=False,
            timeout=_CONFIRM_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"its script took more than {_CONFIRM_SECONDS} s"
    if done.returncode == 1 and any(word in done.stdout for word in ("FAULT: ", "FAILS: ")):
        return None
    said = (done.stdout or done.stderr).strip().splitlines()
    return (
        f"its script exits {done.returncode} in a fresh process ({said[-1] if said else 'silent'})"
    )
