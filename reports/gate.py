"""The gate: does this run let a change through? And what people and CI are told of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from reports.against import hold_against
from reports.judgement import ExitCode, Judgement, Tally, judge
from reports.model import Run
from reports.plan import RunError
from reports.summary import markdown, text_summary, workflow_commands

__all__ = ["ExitCode", "GateResult", "Tally", "gate", "publish", "summarise"]


@dataclass(frozen=True, slots=True)
class GateResult:
    """The gate's answer. ``annotations`` are GitHub workflow commands, one line each."""

    exit_code: ExitCode
    counts: Tally
    problems: tuple[str, ...]
    markdown: str
    annotations: tuple[str, ...]
    judgement: Judgement


def gate(
    run: Run,
    *,
    allow_improvements: bool = False,
    partial: bool = False,
    against: Run | None = None,
) -> GateResult:
    """Judge a run: green only if complete and free of regressions; of new ones, where a baseline is given to
    hold it ``against``. Raises NoBaseline where that cannot be one.

    Unrecorded improvements stop it unless ``allow_improvements``; provisional clauses never do.
    A partial run, a lone shard and an empty run are incomplete. ``partial`` judges the selected
    cells alone: that is what pytest exits by, and never what `conform gate` does.
    """
    compared = hold_against(run, against) if against is not None else None
    judgement = judge(
        run,
        allow_improvements=allow_improvements,
        partial=partial,
        inherited=compared.inherited if compared else (),
        gone=compared.gone if compared else (),
    )
    if compared is not None:
        judgement = replace(judgement, notes=(compared.note,))
    return GateResult(
        judgement.exit_code,
        judgement.counts,
        judgement.problems,
        markdown(run, judgement),
        workflow_commands(judgement),
        judgement,
    )


def summarise(
    run: Run, result: GateResult | None = None, *, limit: int = 20, styled: bool = False
) -> str:
    """The end of a run as text: the verdict by clause, new failures with their repro commands.

    At most ``limit`` failures are shown. ``styled`` adds ANSI colours. Without ``result`` the run
    is judged as the gate does.
    """
    judgement = judge(run) if result is None else result.judgement
    return text_summary(run, judgement, limit=limit, styled=styled)


def publish(result: GateResult, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Tell GitHub: append to ``$GITHUB_STEP_SUMMARY`` where set, return the lines to print.

    The lines are annotations, and none outside GitHub Actions. Raises RunError where the summary
    cannot be written.
    """
    path = environ.get("GITHUB_STEP_SUMMARY")
    if path:
        try:
            with Path(path).open("a", encoding="utf-8") as stream:
                stream.write(result.markdown + "\n")
        except OSError as error:
            raise RunError(
                f"$GITHUB_STEP_SUMMARY: {path} cannot be written: {error.strerror or error}"
            ) from None
    return result.annotations if environ.get("GITHUB_ACTIONS") == "true" else ()
