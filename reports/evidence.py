"""A run as evidence for a manifest: what of it the manifest's life cycle looks at."""

from __future__ import annotations

from devices.cell import Observed, Outcome
from devices.lifecycle.evidence import Evidence, Seen
from reports.model import CellResult, Run, by_declaration, problem_with


def evidence_of(run: Run, name: str) -> Evidence:
    """The outcomes of a run that are evidence; ``name`` is what the user calls it."""
    facts = run.parsed.document.facts
    return Evidence(
        name=name,
        device=run.provenance.device,
        plan=run.provenance.plan,
        plan_hash=run.provenance.plan_hash,
        torch=run.provenance.torch,
        driver=run.provenance.driver,
        start=run.provenance.start,
        facts={fact: str(value) for fact, value in facts.items() if value is not None},
        planned=run.parsed.cells,
        cells={
            key: seen_of(result)
            for key, result in run.results.items()
            if result.outcome is not Outcome.NOT_RUN and problem_with(result) is None
        },
    )


def seen_of(result: CellResult) -> Seen:
    """What a run saw of one cell."""
    observed = Observed(
        result.outcome,
        frozenset(result.layouts),
        result.raises,
        result.message,
        by_declaration(result),
    )
    return Seen(observed, frozenset(result.ran_layouts))
