"""The commands of ``conform history``: a compact history of runs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import click

from conformance.commands import PATH, options, print_json
from reports.bundle import as_folders
from reports.gate import ExitCode, number
from reports.run import load_run
from reports.run_history import Label, add_to_history, history_lines, read_history, row_of


@click.group()
def history() -> None:
    """Keep a compact history of runs: one line of at most 10 kB for each run."""


@history.command()
@click.argument("runs", nargs=-1, required=True, type=PATH, metavar="RUN…")
@options("history-add")
def add(
    runs: tuple[Path, ...],
    file: Path,
    branch: str | None,
    commit: str | None,
    pr: int | None,
    url: str | None,
) -> int:
    """Add runs to a history.

    Each RUN is a results folder or a bundle. A run that the history has already is not added again. The labels are by
    default those of the GitHub or GitLab job in which the command runs. Exits 2 for a partial or incomplete run; then
    nothing is added.
    """
    label = _label(os.environ, branch, commit, pr, url)
    with as_folders(runs) as folders:
        rows = [row_of(load_run(folder), label) for folder in folders]
    new = add_to_history(file, rows)
    there = len(rows) - len(new)
    click.echo(
        f"{file}: {number(len(new), 'run')} added{f', {there:,} already there' if there else ''}"
    )
    for row in new:
        if row.cells is None:
            click.echo(
                f"note: {row.device}, {row.start}: too many cells do not pass to be listed in 10 kB; only counts are kept"
            )
    return ExitCode.GREEN


@history.command("list")
@options("history-list")
def show(file: Path, device: str | None, as_json: bool) -> int:
    """List the runs of a history, the oldest first, with what changed since the run before."""
    rows = [row for row in read_history(file) if device in (None, row.device)]
    if as_json:
        print_json(rows)
    else:
        for line in history_lines(rows) or ["no run"]:
            click.echo(line)
    return ExitCode.GREEN


def _label(
    environment: Mapping[str, str],
    branch: str | None,
    commit: str | None,
    pr: int | None,
    url: str | None,
) -> Label:
    """Returns the labels from the options or, for options that are not given, from the variables of GitHub Actions and
    GitLab CI."""
    if commit and not re.fullmatch(r"[0-9a-fA-F]{7,40}", commit):
        raise click.UsageError(f"--commit {commit!r}: expected 7 to 40 hexadecimal digits")
    if url and not re.fullmatch(r"https?://[^\s/]+\S*", url):
        raise click.UsageError(f"--url {url!r} is not a URL: write the full address")

    def known(*names: str) -> str:
        return next((environment[name] for name in names if environment.get(name)), "")

    server, repository = known("GITHUB_SERVER_URL"), known("GITHUB_REPOSITORY")
    number_of = known("GITHUB_RUN_ID")
    job = f"{server}/{repository}/actions/runs/{number_of}" if number_of else known("CI_JOB_URL")
    request = re.fullmatch(r"(\d+)/merge", known("GITHUB_REF_NAME"))
    merge = known("CI_MERGE_REQUEST_IID")
    found = int(request[1]) if request else int(merge) if merge.isdecimal() else 0
    return Label(
        branch=branch or known("GITHUB_HEAD_REF", "GITHUB_REF_NAME", "CI_COMMIT_REF_NAME"),
        commit=commit or known("GITHUB_SHA", "CI_COMMIT_SHA"),
        pr=pr if pr is not None else found,
        url=url or job,
    )
