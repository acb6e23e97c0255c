"""The commands that read results folders: ``conform gate``, ``results``, ``diff``, ``merge``, ``crcr``, ``dashboard``
and ``serve``."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from conformance.commands import PATH, RUN, options, print_first, print_json
from reports.crcr import payload, text_of
from reports.diff import as_data, as_text
from reports.diff import diff as compare
from reports.folder import check_folder
from reports.gate import ExitCode, number
from reports.gate import gate as judge
from reports.merged_folder import MISSING_FILE, join
from reports.model import write_file
from reports.run import as_json as record_as_json
from reports.run import load_run
from reports.summary import publish, summarise


@click.command()
@RUN
@options("gate")
def gate(run: Path, allow_improvements: bool, against: Path | None, verbose: bool) -> int:
    """Exit 0 only if a run is complete and free of regressions.

    RUN is the folder given to --results, or its record, run.conform. Exits 1 for regressions and for cells that pass
    although the manifest lists them as failing, 2 for an incomplete, interrupted, partial or empty run, 3 if nothing
    could be checked, 4 if the run's files cannot be read or were edited.
    """
    baseline = load_run(against) if against is not None else None
    result = judge(load_run(run), allow_improvements=allow_improvements, against=baseline)
    click.echo(summarise(result, styled=_coloured(), verbosity=int(verbose)))
    for line in publish(result, os.environ):
        click.echo(line)
    return result.exit_code


def _coloured() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


@click.command()
@RUN
@options("results")
def results(run: Path, as_json: bool, verbose: bool) -> None:
    """Show the summary of a run, or its record as JSON.

    RUN is the folder given to --results, or its record, run.conform. The JSON has the plan, the provenance and the
    result of each cell. Exits 4 if the record cannot be read.
    """
    loaded = load_run(run)
    if as_json:
        click.echo(record_as_json(loaded))
    else:
        partial = loaded.provenance.partial or loaded.provenance.is_shard
        judged = judge(loaded, partial=partial)
        click.echo(summarise(judged, styled=_coloured(), verbosity=int(verbose)))


@click.command()
@click.argument("before", type=PATH)
@click.argument("after", type=PATH)
@options("diff")
def diff(before: Path, after: Path, as_json: bool, limit: int) -> int:
    """Compare two runs.

    Lists the cells that newly fail, are fixed, newly crash, are missing, or have a different expectation. BEFORE and
    AFTER are results folders, of one device or of two. Exits 1 if a cell newly fails, newly crashes or is missing, else
    0; 4 if a run cannot be read.
    """
    found = compare(load_run(before), load_run(after))
    if as_json:
        print_json(as_data(found))
    else:
        click.echo(as_text(found, limit=limit))
    return ExitCode.REGRESSION if found.worse else ExitCode.GREEN


@click.command()
@click.argument("shards", nargs=-1, required=True, type=PATH)
@options("merge")
def merge(shards: tuple[Path, ...], output: Path, junitxml: Path | None) -> int:
    """Merge the shards of one run into one run. SHARDS are their results folders.

    Shards with a different plan, torch, driver, device or manifest are refused (exit 4), and so are shards that
    disagree on a cell that both ran. Exits 0 if every planned cell has an outcome, 2 if not: the missing cells are
    listed in missing.txt. `conform gate` then judges the merged run.
    """
    files = () if junitxml is None else (junitxml.absolute(),)
    check_folder(f"-o {output}", output, files)
    merged = join(shards, output, junitxml)
    click.echo(f"joined {len(shards):,} shards, {len(merged.results):,} cells, in {output}")
    if merged.absent:
        click.echo(f"absent shards: {', '.join(map(str, merged.absent))}")
    if merged.missing:
        listed = f"({output / MISSING_FILE} lists all)"
        click.echo(f"{len(merged.missing):,} cells have no outcome {listed}:")
        print_first(map(str, merged.missing), indent="  ")
    return ExitCode.INCOMPLETE if merged.missing or merged.absent else ExitCode.GREEN


@click.command()
@RUN
@options("crcr")
def crcr(run: Path, allow_improvements: bool, output: Path | None) -> int:
    """Print a run for PyTorch's Cross-Repository CI Relay.

    Prints the counts and the environment of the run in folder RUN as one line of JSON with less than 100 KiB. The line
    is the input `test-results` of the relay's callback action. In GitHub Actions the line is also written to
    $GITHUB_OUTPUT as `test-results`, together with `conclusion` (success or failure). Exits 0 for green and red runs,
    because only `conform gate` fails for red runs; exits 4 if the run cannot be read.
    """
    found = payload(judge(load_run(run), allow_improvements=allow_improvements))
    text = text_of(found)
    if output is None:
        click.echo(text)
    else:
        write_file(output, f"{text}\n".encode())
    if into := os.environ.get("GITHUB_OUTPUT"):
        lines = f"test-results={text}\nconclusion={found.conclusion}\n"
        with Path(into).open("a", encoding="utf-8") as stream:  # steps of a job append to it
            stream.write(lines)
    return 0


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN…", type=PATH)
@options("dashboard")
def dashboard(runs: tuple[Path, ...], output: Path, **given: Any) -> None:
    """Build a static site from results folders.

    The site has an overview, grids, cells, comparisons and trends. Each RUN is the folder given to --results, or a
    folder of such folders. If a run is partial, incomplete or empty, the command says why, exits 2 and does not change
    the site. Exits 4 if a run's files cannot be read or were edited.
    """
    from reports.dashboard.build import Options, build

    given["labels"] = labels_of(given.pop("label"))
    made = build(runs, output, Options(**given))
    for refusal in made.refused:
        click.echo(f"skipped: {refusal}", err=True)
    click.echo(
        f"{output / 'index.html'}: {number(made.devices, 'device')}, {number(made.runs, 'run')} "
        f"({made.read} read, {made.runs - made.read} already there)"
    )


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN…", type=PATH)
@options("serve")
def serve(runs: tuple[Path, ...], port: int, title: str) -> None:
    """Show a run in the browser.

    Builds the pages of the dashboard in a temporary folder and serves them on this machine until Ctrl+C. Each RUN is the
    folder given to --results. Partial and interrupted runs are shown too, with the cells that have an outcome. Exits 4
    if a run's files cannot be read or were edited, or if the port is in use.
    """
    from reports.dashboard.serve import serving

    with serving(runs, port, title) as site:
        click.echo(f"{site.url} ({number(site.runs, 'run')}; Ctrl+C ends)")
        try:
            site.server.serve_forever()
        except KeyboardInterrupt:
            click.echo("stopped")


def labels_of(texts: Iterable[str]) -> dict[str, str]:
    """Returns the labels that ``--label NAME=VALUE`` gives. Raises click.UsageError for a text of another form."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not value or not re.fullmatch(r"[a-z][a-z0-9_-]{0,31}", name):
            raise click.UsageError(
                f"--label {text}: expected NAME=VALUE, such as branch=main; a name has lower-case letters, digits, "
                "_ and -"
            )
        found[name] = value
    return found
