"""The commands that read results folders: ``conform gate``, ``results``, ``diff``, ``merge``, ``crcr``, ``dashboard``
and ``serve``."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from conformance.commands import PATH, RUN, options, print_first, print_json
from conformance.commands.relay import relay_report
from devices.cell import CellKey
from devices.files import explained
from devices.must_pass import promised
from reports.bundle import as_folders
from reports.crcr import Inputs, inputs, text_of
from reports.diff import as_data, as_text
from reports.diff import diff as compare
from reports.error_ratios import error_ratios, errors_as_data, errors_as_text
from reports.folder import Interrupted, check_folder
from reports.gate import ExitCode, number
from reports.gate import gate as judge
from reports.merged_folder import MISSING_FILE, join
from reports.model import Run, RunError, write_file
from reports.run import as_json as record_as_json
from reports.run import load_run
from reports.summary import publish, summarise
from reports.triage import triage, triage_interrupted


@click.command()
@RUN
@options("gate")
def gate(
    run: Path,
    allow_improvements: bool,
    against: Path | None,
    must_pass: Path | None,
    verbose: bool,
) -> int:
    """Exit 0 only if a run is complete and free of regressions.

    RUN is the folder given to --results, or its record, run.conform. Exits 1 for regressions and for cells that pass
    although the manifest lists them as failing, 2 for an incomplete, interrupted, partial or empty run, 3 if nothing
    could be checked, 4 if the run's files cannot be read or were edited.
    """
    loaded = load_run(run)
    baseline = load_run(against) if against is not None else None
    listed = _listed(must_pass, loaded)
    result = judge(
        loaded, allow_improvements=allow_improvements, against=baseline, must_pass=listed
    )
    click.echo(summarise(result, styled=_coloured(), verbosity=int(verbose)))
    for line in publish(result, os.environ):
        click.echo(line)
    return result.exit_code


def _listed(must_pass: Path | None, run: Run) -> frozenset[CellKey] | None:
    """Returns the planned cells that a must-pass list names; None if no list is given."""
    if must_pass is None:
        return None
    return promised(must_pass, run.parsed.clauses.keys(), run.parsed.cells)


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
def diff(before: Path, after: Path, as_json: bool, limit: int, errors: bool) -> int:
    """Compare two runs.

    Lists the cells that newly fail, are fixed, newly crash, are missing, or have a different expectation. BEFORE and
    AFTER are results folders, of one device or of two. Exits 1 if a cell newly fails, newly crashes or is missing, else
    0; 4 if a run cannot be read. With --errors, compares the numerical errors of ops instead, and exits 0.
    """
    if errors:
        ratios = error_ratios(load_run(before), load_run(after))
        if as_json:
            print_json(errors_as_data(ratios))
        else:
            click.echo(errors_as_text(ratios, limit=limit))
        return ExitCode.GREEN
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
def crcr(
    run: Path,
    allow_improvements: bool,
    output: Path | None,
    baseline: Path | None,
    retry: Path | None,
    must_pass: Path | None,
    as_inputs: bool,
    **job: Any,
) -> int:
    """Print a run for PyTorch's Cross-Repository CI Relay.

    Prints the counts and the environment of the run in folder RUN as one line of JSON with less than 100 KiB: the input
    `test-results` of the relay's callback action. In GitHub Actions, every input of the action that is about the run is
    written to $GITHUB_OUTPUT under its name: also the conclusion (success or failure), the failing cells, and a verdict
    on why the run is not green. A shard is judged by its own cells. Exits 0 for green and red runs, because only
    `conform gate` fails for red runs; exits 2 for a run that has no end, and 4 if the run cannot be read.
    """
    report = relay_report(job, os.environ)
    try:
        loaded = load_run(run)
    except Interrupted as error:
        verdict = triage_interrupted(str(error), report.job)
        made = Inputs("failure", triage=text_of(verdict), **report.about_the_job)
        _write_outputs(made)
        raise
    judged = judge(
        loaded,
        allow_improvements=allow_improvements,
        partial=loaded.provenance.is_shard,
        must_pass=_listed(must_pass, loaded),
    )
    try:
        earlier, second = (
            load_run(each) if each is not None else None for each in (baseline, retry)
        )
        verdict_of_run = triage(judged, report.job, earlier, second)
    except RunError:
        # The relay gets the counts even if there is nothing to compare them with.
        _write_outputs(inputs(judged, None, **report.about_the_job))
        raise
    made = inputs(judged, verdict_of_run, **report.about_the_job)
    text = json.dumps(made.by_name(), indent=2) if as_inputs else made.results
    if output is None:
        click.echo(text)
    else:
        write_file(output, f"{text}\n".encode())
    _write_outputs(made)
    return 0


def _write_outputs(made: Inputs) -> None:
    """Adds the inputs to the file that $GITHUB_OUTPUT names, if there is one, as outputs of the step."""
    if into := os.environ.get("GITHUB_OUTPUT"):
        lines = "".join(f"{name}={value}\n" for name, value in made.by_name().items() if value)
        with (
            explained(RunError, f"$GITHUB_OUTPUT ({into})", "cannot be written"),
            Path(into).open("a", encoding="utf-8") as stream,  # steps of a job append to it
        ):
            stream.write(lines)


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN…", type=PATH)
@options("dashboard")
def dashboard(runs: tuple[Path, ...], output: Path, **given: Any) -> None:
    """Build a static site from results folders.

    The site has an overview, grids, cells, comparisons and trends. Each RUN is the folder given to --results, a bundle
    (see `conform bundle`), or a folder of such folders and bundles. If a run is partial, incomplete or empty, the command says why, exits 2 and does not change
    the site. Exits 4 if a run's files cannot be read or were edited.
    """
    from reports.dashboard.build import Options, build

    given["labels"] = labels_of(given.pop("label"))
    with as_folders(runs) as folders:
        made = build(folders, output, Options(**given))
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
