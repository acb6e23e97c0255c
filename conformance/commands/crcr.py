"""``conform crcr``: a run's counts for PyTorch's Cross-Repository CI Relay."""

from __future__ import annotations

import os
from pathlib import Path

import click

from devices.errors import ConformError


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--allow-improvements", is_flag=True, help="As of `conform gate`: improvements are no failure."
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Into this file instead of stdout."
)
def crcr(run: Path, allow_improvements: bool, output: Path | None) -> int:
    """Counts and environment of the run in folder RUN, as the relay's callback action takes them.

    One line of JSON, under 100 KiB: the action's input `test-results`. In GitHub Actions it is also written to
    $GITHUB_OUTPUT, as `test-results`, with `conclusion` (success or failure) beside it. Exits 0 whatever the run came
    to: that is `conform gate`'s to say. 4 if the run cannot be read.
    """
    from reports.crcr import payload, text_of
    from reports.gate import gate
    from reports.run import load_run

    loaded = load_run(run)
    found = payload(loaded, gate(loaded, allow_improvements=allow_improvements))
    text = text_of(found)
    if output is None:
        click.echo(text)
    else:
        _write(output, text + "\n", "w")
    into = os.environ.get("GITHUB_OUTPUT")
    if into:
        said = f"test-results={text}\nconclusion={found['conclusion']}\n"
        _write(Path(into), said, "a")
    return 0


def _write(path: Path, text: str, mode: str) -> None:
    try:
        with path.open(mode, encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        raise ConformError(f"{path}: cannot be written: {error.strerror or error}") from None
