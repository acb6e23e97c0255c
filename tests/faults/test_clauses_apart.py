"""A verdict does not depend on which other clauses are judged: each planted fault is tried with each of its clauses alone,
in pairs, and with all clauses that apply."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from devices.cell import CellKey
from tests.sampling import trials_of
from tests.trials import Bench, Item, Run, planted_items
from tests.wrapped.faults import REGISTRY, Fault, planted
from tests.wrapped.trial import RIG


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(RIG, tmp_path_factory.mktemp("references"))


def verdicts(run: Run, clauses: tuple[str, ...]) -> dict[CellKey, tuple[Any, ...]]:
    """Of each cell of these clauses: its outcome, the numbers of its checks, its message and its repro script."""
    found = {}
    for key, record in run.cells.items():
        if key.clause in clauses:
            smallest = record.smallest
            script = smallest.script() if smallest is not None and smallest.repro else None
            told = record.to_outcome()
            found[key] = (record.outcome(), record.checks, record.failed, told.message, script)
    return found


def disagreements(bench: Bench, fault: Fault, item: Item) -> list[str]:
    """The selections of the fault's clauses whose cells differ from those of a run with all clauses."""
    subject = bench.subjects[item]
    with planted(fault.name):
        everything = subject.run()
        clauses = [key.clause for key in everything.cells if key.clause in fault.clauses]
        selections = [(each,) for each in clauses] + list(combinations(clauses, 2))
        return [
            f"{', '.join(selection)} of {item}"
            for selection in selections
            if verdicts(subject.run(*selection), selection) != verdicts(everything, selection)
        ]


@pytest.mark.parametrize("fault", trials_of(REGISTRY))
def test_a_verdict_does_not_depend_on_the_other_clauses(fault: Fault, bench: Bench) -> None:
    assert [
        each for item in planted_items(RIG, fault) for each in disagreements(bench, fault, item)
    ] == []
