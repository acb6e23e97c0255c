"""The command ``conform coverage``, which lists the kernels of a device that the suite judges, and the kernels that it
does not judge."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from conformance.commands import PATH, globs_of, options, print_json
from devices.errors import ConformError
from devices.torch_version import require_torch
from reports.gate import number

if TYPE_CHECKING:
    from conformance.coverage.states import Coverage, Row

_SHOWN: Final = 20
_NAMED: Final = 4
_WHAT: Final = {
    "judged": "a verdict depends on what the kernel computes",
    "reached": "the suite calls it, and no verdict depends on what it computes",
    "never-called": "no cell calls it",
    "missing": "the CPU has a kernel, the device has none of its own",
}


@click.command()
@click.argument("run", type=PATH, required=False)
@options("coverage")
def coverage(
    run: Path | None,
    device: str | None,
    descriptor: Path | None,
    only: tuple[str, ...],
    ops: str | None,
    as_json: bool,
) -> None:
    """Show which kernels of a device are judged: every aten overload for which the device has a kernel.

    With RUN, a results folder, an overload counts as judged if a cell that judges it passed or failed in that run.
    Without RUN, all cells of plan quick count. The overloads that most models call come first.
    """
    globs = globs_of("--ops", ops)
    require_torch()
    from conformance.coverage.states import State, chosen

    states = [State(each) for each in only]
    found = _coverage(run, device, descriptor)
    rows = chosen(found.overloads, states, globs)
    if globs and not chosen(found.overloads, (), globs):
        raise ConformError(f"no overload of device {found.device} matches --ops {ops}")
    if as_json:
        print_json({**_head(found), "overloads": rows})
        return
    _show(found, rows, whole=bool(states or globs))


def _coverage(run: Path | None, device: str | None, descriptor: Path | None) -> Coverage:
    """Returns the coverage of a device: what a run judged or, without a run, what the suite can judge. Raises
    ConformError if the device cannot be opened, or the run cannot be read."""
    import torch

    from conformance.coverage.call_map import call_map
    from conformance.coverage.kernels import own_kernels
    from conformance.coverage.states import Coverage, cells_of, rows_of
    from conformance.plan.selection import find_descriptor
    from opinfo.device import open_device
    from reports.run import load_run
    from reports.weights import weights

    cells = None
    if run is not None:
        loaded = load_run(run)
        cells = cells_of(loaded)
        if not cells:
            raise ConformError(
                f"{run}: no cell of this run passed or failed, so it judged no kernel"
            )
        if device is None and descriptor is None:
            device = loaded.provenance.device
    described = find_descriptor(device, descriptor)
    if (why := described.unavailable()) is not None:
        raise ConformError(f"device {described.name!r} cannot be used here: {why}")
    open_device(described)
    table, calls = weights(), call_map()
    own, on_cpu = own_kernels(described.torch_type), own_kernels("cpu")
    rows = rows_of(own, on_cpu, calls, table, cells)
    version = str(torch.__version__).partition("+")[0]
    return Coverage(
        described.name, version, calls.torch, len(table.models), len(table.left_out), rows
    )


def _head(found: Coverage) -> dict[str, object]:
    judged, met = found.met
    return {
        "device": found.device,
        "torch": found.torch,
        "measured_with": found.measured_with,
        "models": found.weighed,
        "models_left_out": found.left_out,
        "counts": {str(state): count for state, count in found.counts.items()},
        "users": {"judged": judged, "all": met},
    }


def _show(found: Coverage, rows: Sequence[Row], *, whole: bool) -> None:
    """Prints the number of overloads in each state, and then the rows. If they are not filtered (``whole``), prints
    only the overloads that are not judged, grouped by reason."""
    from conformance.coverage.states import State

    click.echo(f"device {found.device}, torch {found.torch}: overloads of aten by kernel")
    for state, count in found.counts.items():
        click.echo(f"  {count:>6,}  {state!s:<13} {_WHAT[str(state)]}")
    judged, met = found.met
    share = judged / met if met else 0.0
    click.echo(
        f"of {number(met, 'overload')} with a kernel that programs reach with strided tensors, {judged:,} are judged ({share:.1%})"
    )
    if found.left_out:
        click.echo(
            f"weights: {number(found.weighed, 'public model')}; {found.left_out:,} more could not be recorded, and what they call is not counted"
        )
    if found.torch != found.measured_with:
        click.echo(
            f"the calls were measured with torch {found.measured_with}: another version may dispatch them to other overloads"
        )
    if whole:
        click.echo()
        _list(rows, found.weighed)
    else:
        _show_reasons([row for row in rows if row.state is not State.JUDGED], found.weighed)


def _list(rows: Sequence[Row], models: int) -> None:
    """Prints a line for each row. ``models`` is the number of public models whose calls were counted."""
    if not rows:
        click.echo("no overload is in these states")
    width = max((len(row.overload) for row in rows), default=0)
    for row in rows:
        click.echo(f"  {row.overload:<{width}}  {_details(row, models)}")


def _show_reasons(rows: Sequence[Row], models: int) -> None:
    """Prints the overloads that are not judged: one line for each that a model calls, and for the others only their
    number, for each reason."""
    used = [row for row in rows if row.models]
    if used:
        click.echo("\nnot judged, and called by a model:")
        _list(used[:_SHOWN], models)
        if len(used) > _SHOWN:
            click.echo(f"  and {len(used) - _SHOWN:,} more: --only STATE or --json")
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if not row.models:
            groups.setdefault(row.reason or f"{row.state}: no reason is known", []).append(row)
    if groups:
        click.echo("\nnot judged, and called by no model:")
    for reason, each in sorted(groups.items(), key=lambda group: -len(group[1])):
        names = ", ".join(row.overload.removeprefix("aten::") for row in each[:_NAMED])
        more = ", …" if len(each) > _NAMED else ""
        click.echo(f"  {len(each):>5,}  {reason}\n         {names}{more}")


def _details(row: Row, models: int) -> str:
    """Returns a text with the state of an overload, the number of models that call it, and the cells that judge it or
    the reason why none does."""
    parts = [str(row.state)]
    if row.models:
        parts.append(f"called by {row.models} of {models} models")
    if row.judged_by:
        first, count = row.judged_by[0], len(row.judged_by)
        parts.append(f"by {first}" + (f" and {count - 1:,} more" if count > 1 else ""))
    elif row.reason:
        parts.append(row.reason)
    elif row.reached_by:
        parts.append(f"called by {', '.join(row.reached_by)}")
    return "; ".join(parts)
