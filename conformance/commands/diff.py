"""``conform diff``: two runs compared."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command()
@click.argument("before", type=click.Path(path_type=Path))
@click.argument("after", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="As JSON, for programs.")
@click.option("--limit", default=20, show_default=True, help="Cells shown of each kind of change.")
def diff(before: Path, after: Path, as_json: bool, limit: int) -> int:
    """Compare two runs: newly failing, fixed, newly crashing, missing, changed expectation.

    BEFORE and AFTER are results folders, of one device or of two. Exits 1 where a cell newly fails,
    newly crashes or is missing, 0 where none does, 4 if a run cannot be read.
    """
    from reports.diff import as_data, as_text
    from reports.diff import diff as compare
    from reports.gate import ExitCode
    from reports.run import load_run

    found = compare(load_run(before), load_run(after))
    if as_json:
        click.echo(json.dumps(as_data(found), indent=2))
    else:
        click.echo(as_text(found, limit=limit))
    return ExitCode.REGRESSION.value if found.worse else ExitCode.GREEN.value
