"""``conform precision``: keep the errors of elementwise functions that a run measured, or print them as a table."""

from __future__ import annotations

from pathlib import Path

import click

from conformance.commands import RUN, options, print_first
from devices.cell import MOST_ULPS, Outcome
from devices.errors import ConformError
from devices.precision import FILE, record_of, updated, write
from devices.registry import find
from reports.gate import ExitCode, number
from reports.model import CellResult, Run
from reports.run import load_run

_ULP = "precision.ulp"
_DTYPES = ("float32", "bfloat16", "float16")


@click.group()
def precision() -> None:
    """The largest errors of elementwise functions: keep them, or print a table of them."""


@precision.command()
@RUN
@options("precision")
def update(run: Path, device: str | None, descriptor: Path | None, reason: str | None) -> int:
    """Keep the largest errors of RUN in the device's precision.toml.

    An error that is larger than the one on record is not kept without --reason, and the command exits 1.
    """
    loaded = load_run(run)
    named = find(device or loaded.provenance.device, descriptor)
    if named.folder is None:
        raise ConformError(f"device {named.name!r} has no folder to keep {FILE} in")
    measured = {
        (op, dtype): result.ulps
        for (op, dtype), result in measured_by(loaded).items()
        if result.outcome is Outcome.PASS and result.ulps is not None
    }
    if not measured:
        raise ConformError(f"{run}: no passing cell of {_ULP} measured an error: run the clause")
    record, refused = updated(record_of(named.folder), measured, reason)
    path = write(named.folder, record)
    click.echo(
        f"{path}: {number(len(measured) - len(refused), 'largest error')} kept as the run measured"
    )
    if refused:
        click.echo(
            f"{number(len(refused), 'error')} larger than on record, not kept: give --reason to keep, or fix the device"
        )
        print_first(refused)
    return ExitCode.REGRESSION if refused else ExitCode.GREEN


@precision.command()
@RUN
def table(run: Path) -> None:
    """Print a table of RUN in Markdown: function by dtype, the largest error in ulps and where it is."""
    loaded = load_run(run)
    found = measured_by(loaded)
    about = loaded.provenance
    click.echo(f"{about.device_name}, torch {about.torch}, plan {about.plan}\n")
    click.echo(f"| function | {' | '.join(_DTYPES)} |\n|---|{'---|' * len(_DTYPES)}")
    exact = {op for op, _ in found} - {op for (op, _), each in found.items() if each.ulps}
    for op in sorted({op for op, _ in found} - exact):
        cells = (_shown(found.get((op, dtype))) for dtype in _DTYPES)
        click.echo(f"| `{op}` | {' | '.join(cells)} |")
    if exact:
        click.echo(f"\nExact: {', '.join(f'`{op}`' for op in sorted(exact))}.")


def measured_by(run: Run) -> dict[tuple[str, str], CellResult]:
    """The cells of a run that measured an error, by op and dtype."""
    return {
        (key.op, key.dtype): result
        for key, result in run.results.items()
        if key.clause == _ULP and result.ulps is not None
    }


def _shown(result: CellResult | None) -> str:
    """An error, and where it is: bold in a cell that failed."""
    if result is None or result.ulps is None:
        return ""
    error = "NaN" if result.ulps >= MOST_ULPS else f"{result.ulps:.3g}"
    at = ", ".join(f"{float(each):.6g}" for each in result.ulps_at.split(", ") if each)
    where = f" at {at}" if at and result.ulps > 0.505 else ""
    return f"**{error}**{where}" if result.outcome is Outcome.FAIL else f"{error}{where}"
