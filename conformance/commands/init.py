"""``conform init``: from a device that nobody has described to a folder with a descriptor and a manifest."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("name")
@click.option(
    "--device-string",
    required=True,
    metavar="S",
    help="What torch calls the device: 'npu', 'lazy:0'.",
)
@click.option(
    "--module",
    metavar="M[:FUNCTION]",
    help="The module to import first, and a function of it to call then.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="The folder to write (default: ./NAME).",
)
@click.option(
    "--fast", is_flag=True, help="One run instead of two: what is flaky is not told apart."
)
@click.option("--ops", metavar="GLOB,…", help="Run these ops alone: the manifest knows no others.")
@click.option(
    "--workers",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    help="Processes on the device.",
)
def init(
    name: str,
    device_string: str,
    module: str | None,
    output: Path | None,
    fast: bool,
    ops: str | None,
    workers: int,
) -> int:
    """Describe a device that nobody has described.

    Asks the device called S for its capabilities, dtypes and facts, writes them to a folder as
    descriptor.py, runs plan quick (twice, to tell what is flaky), and writes the failing cells to
    expected.toml, in blocks by clause and failing layouts, each marked `triage:` for a person to
    replace by its cause.
    """
    from conformance.starting import Start, begin

    return begin(
        Start(name, device_string, module, output, 1 if fast else 2, ops, workers), click.echo
    )
