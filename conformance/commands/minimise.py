"""``conform minimise CELL``: the smallest failing example of any failing cell."""

from __future__ import annotations

from pathlib import Path

import click

from devices.cell import CellKey
from devices.errors import ConformError


class NotMinimised(ConformError):
    """The cell does not fail now, or the search could not be made."""

    exit_code = 2


@click.command()
@click.argument("cell")
@click.option("--device", metavar="NAME", help="The device (default: that of --run, else the machine's).")  # fmt: skip
@click.option("--descriptor", type=click.Path(path_type=Path), help="A device that is not registered.")  # fmt: skip
@click.option("--run", type=click.Path(path_type=Path), help="A results folder: minimise the failure that it holds.")  # fmt: skip
@click.option("--output", type=click.Path(path_type=Path), help="Where the repro script goes (default: the folder of --run, else conform-results/minimised).")  # fmt: skip
def minimise(
    cell: str, device: str | None, descriptor: Path | None, run: Path | None, output: Path | None
) -> int:
    """Find the smallest failing example of CELL, such as 'layout.values::add[float32]'.

    Exits 1 where the cell fails (and prints the example and its repro script), 2 where it does not.
    """
    from conformance.aside import AsideDied
    from conformance.minimise.aside import Bench, Task, minimised
    from conformance.minimise.script import write_repro
    from conformance.suites import LAYOUT, suite_of
    from opinfo.plan import plan_spec
    from reports.deviation import deviation, shown_layout
    from reports.run import load_run
    from reports.text import one_line

    try:
        key = CellKey.parse(cell)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if suite_of(key.clause) != LAYOUT:
        raise ConformError(
            f"{key} is not about a sample in a layout: there is nothing to make smaller; its repro "
            "script is in the results folder of the run that saw it fail"
        )
    task, name, plan = Task(key), device, "quick"
    if run is not None:
        loaded = load_run(run)
        result = loaded.results.get(key)
        if result is None:
            raise ConformError(f"{run}: has no result for {key}")
        if not result.layouts:
            raise NotMinimised(f"{run}: {key} is {result.outcome}: only a failure can be minimised")
        task = Task(key, shown_layout(result.message), deviation(result.message, result.raises))
        name, plan = device or loaded.provenance.device, loaded.provenance.plan
    path = descriptor.absolute() if descriptor is not None else None
    bench = Bench(_name(name, path), str(path) if path else None, plan_spec(plan).samples)
    try:
        (answer,) = minimised(bench, [task])
    except AsideDied as death:
        raise ConformError(f"the process that minimises {death}") from None
    if answer.example is None:
        raise NotMinimised(f"{key}: {answer.why}")
    folder = output or run or Path("conform-results") / "minimised"
    script = folder / write_repro(folder, key, answer.script)
    click.echo(str(key))
    for line in answer.example.lines():
        indent = len(line) - len(line.lstrip(" "))
        click.echo("    " + " " * indent + one_line(line))
    click.echo(f"    {answer.example.tried} calls tried")
    click.echo(f"    python {script}")
    return 1


def _name(device: str | None, descriptor: Path | None) -> str:
    """The device to take; importing torch to ask for the machine's accelerator only where nothing is named."""
    from devices import registry

    if descriptor is not None:
        return registry.load_file(descriptor).name
    if device is not None:
        return registry.get(device).name
    from conformance.selection import machines_own

    return machines_own().name
