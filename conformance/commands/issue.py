"""The command ``conform issue``, which drafts a bug report about a cause."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import click

from conformance.commands import options
from devices import torch_version
from devices.errors import ConformError
from reports.issue_draft import Proof, candidates, draft, find_cause
from reports.model import Run, write_file
from reports.run import load_run, redacted, repro_script

#: The cells of a cause that are tried; if none of these fails again, no other is likely to.
_TRIED = 3


class NotAgain(ConformError):
    """The error for a cause that does not fail again when its repro script runs alone."""

    exit_code = 2


@click.command()
@click.argument("cause")
@options("issue")
def issue(cause: str, run: Path, output: Path | None) -> int:
    """Draft a bug report about a cause, as Markdown.

    CAUSE is a number in failures.md of the run, or one of the cause's cells, such as 'layout.values::add[float32]'. The
    repro script of the failure is run here, alone in a new process: a report is drafted only if the script fails again.
    The report has the cause, an example to paste, the versions, the clauses with their sources, known public bugs, all
    cells, and the script. It is printed, and never filed: read it first. Exits 2 if the failure does not happen again.
    """
    from conformance.search.confirm import repeat_alone

    read = load_run(run)
    plan, results, origin = redacted(read.plan, read.results, read.provenance)
    loaded = Run(read.folder, plan, origin, dict(results))
    found = find_cause(loaded, cause)
    tried: list[str] = []
    for result in candidates(found)[:_TRIED]:
        script = repro_script(loaded.folder, result)
        if script is None:
            tried.append(f"{result.key}: there is no {loaded.folder / (result.repro or '')}")
            continue
        text = script.read_text(encoding="utf-8")
        click.echo(f"running {script} alone", err=True)
        again = repeat_alone(script)
        if again.failed_again:
            today, torch = (
                date.today().isoformat(),
                torch_version.installed() or "of unknown version",
            )
            report = draft(loaded, found, Proof(result, text, again.lines, today, torch))
            if output is None:
                click.echo(report, nl=False)
            else:
                write_file(output, report.encode())
                click.echo(f"{output}: a draft; nothing was filed")
            return 0
        tried.append(f"{result.key}: {again.why_not}")
    why = "; ".join(tried) if tried else "no cell of the cause has a repro script"
    raise NotAgain(f"no report: the failure did not happen again alone ({why})")
