"""The commands of ``conform precision``, which store the errors of elementwise functions that a run measured, or print
the errors as a table."""

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
    """Store the largest errors of elementwise functions, or print them as a table."""


@precision.command()
@RUN
@options("precision")
def update(run: Path, device: str | None, descriptor: Path | None, reason: str | None) -> int:
    """Store in the device's precision.toml the largest errors that RUN measured.

    Without --reason, an error that is larger than the stored error is not stored, and the command exits 1.
    """
    loaded = load_run(run)
    named = find(device or loaded.provenance.device, descriptor)
    if named.folder is None:
        raise ConformError(f"device {named.name!r} has no folder in which {FILE} could be stored")
    measured = {
        (op, dtype): result.ulps
        for (op, dtype), result in measured_by(loaded).items()
        if result.outcome is Outcome.PASS and result.ulps is not None
    }
    if not measured:
        raise ConformError(
            f"{run}: no passing cell of {_ULP} measured an error: run the suite with --clauses {_ULP}"
        )
    record, refused = updated(record_of(named.folder), measured, reason)
    path = write(named.folder, record)
    click.echo(
        f"{path}: stored the largest errors of {number(len(measured) - len(refused), 'cell')}"
    )
    if refused:
        click.echo(
            f"not stored: {number(len(refused), 'error')} larger than the stored error. Fix the device, or say with --reason why a larger error is correct"
        )
        print_first(refused)
    return ExitCode.REGRESSION if refused else ExitCode.GREEN


@precision.command()
@RUN
def table(run: Path) -> None:
    """Print the errors of RUN as a Markdown table.

    The table has a row for each function and a column for each dtype. It shows the largest error in ulps (units in the
    last place) and the argument at which the error occurs.
    """
    loaded = load_run(run)
    found = measured_by(loaded)
    about = loaded.provenance
    click.echo(f"{about.device_name}, torch {about.torch}, plan {about.plan}\n")
    click.echo(f"| function | {' | '.join(_DTYPES)} |\n|---|{'---|' * len(_DTYPES)}")
    exact = {op for op, _ in found} - {op for (op, _), each in found.items() if each.ulps}
    for op in sorted({op for op, _ in found} - exact):
        cells = (_error_text(found.get((op, dtype))) for dtype in _DTYPES)
        click.echo(f"| `{op}` | {' | '.join(cells)} |")
    if exact:
        click.echo(f"\nExact: {', '.join(f'`{op}`' for op in sorted(exact))}.")


def measured_by(run: Run) -> dict[tuple[str, str], CellResult]:
    """Returns the results of the cells that measured an error in a run, by op and dtype."""
    return {
        (key.unit, key.dtype): result
        for key, result in run.results.items()
        if key.clause == _ULP and result.ulps is not None
    }


def _error_text(result: CellResult | None) -> str:
    """Returns a table entry: the largest error in ulps, and the argument at which it occurs. The error of a failed cell
    is bold."""
    if result is None or result.ulps is None:
        return ""
    error = "NaN" if result.ulps >= MOST_ULPS else f"{result.ulps:.3g}"
    at = ", ".join(f"{float(each):.6g}" for each in result.ulps_at.split(", ") if each)
    where = f" at {at}" if at and result.ulps > 0.505 else ""
    return f"**{error}**{where}" if result.outcome is Outcome.FAIL else f"{error}{where}"
