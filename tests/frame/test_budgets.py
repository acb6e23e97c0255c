"""A check whose calls are slow takes few samples in small plans, and the plan's hash says how many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from conformance.checks.call_hooks import Guard
from conformance.checks.cases.cases import OpCheck
from conformance.checks.cells import CellRecord, Recorder
from conformance.checks.ops.context import OpContext, run_checks
from conformance.contract import load
from conformance.plan import planner
from devices import registry
from opinfo.database import DATABASE, Database
from opinfo.device import open_device
from opinfo.exceptions import exceptions
from opinfo.plan import plan_spec
from opinfo.reference import StrideReference
from opinfo.samples import probe
from opinfo.subject import Subject

SLOW, SLOWER, USUAL = "layout.values", "layout.views", "layout.bounds"


class OneOp(Database):
    """A source with one op."""

    def subjects(self) -> Mapping[str, Subject]:
        return {"add": super().subjects()["add"]}


class Limits(Guard):
    """Notes the time limits that are asked for."""

    def __init__(self) -> None:
        self.asked: dict[str, float] = {}

    def begin(
        self, group: Sequence[str], records: Sequence[CellRecord], at_least: float = 0.0
    ) -> None:
        self.asked |= dict.fromkeys(group, at_least)


def checks(seen: dict[str, list[int]]) -> tuple[OpCheck, ...]:
    """Two clauses with budgets that share a check, and one without."""

    def note(clause: str) -> Any:
        def check(ctx: OpContext) -> None:
            with ctx.running(clause):
                seen[clause] = [sample.index for sample in ctx.samples]

        return check

    shared, usual = note(SLOW), note(USUAL)
    return (
        OpCheck(USUAL, bool, (usual,)),
        OpCheck(SLOW, bool, (shared,), samples=2, more=5, seconds=90.0),
        OpCheck(SLOWER, bool, (shared,), samples=3, more=4),
    )


@pytest.mark.parametrize(("plan", "most"), [("quick", 3), ("core", 5), ("full", None)])
def test_a_check_takes_as_many_samples_as_its_plan_allows(plan: str, most: int | None) -> None:
    subject, known, spec = DATABASE.subjects()["sum"], exceptions(), plan_spec(plan)
    samples = DATABASE.samples(subject, "float32")
    traits = probe(subject, "float32", samples, known)
    recorder = Recorder("sum", "float32", [SLOW, SLOWER, USUAL])
    device, strides, limits = (
        open_device(registry.get("cpu")),
        StrideReference("cpu", None),
        Limits(),
    )
    about = (subject, "float32", traits, samples, device, strides, recorder, known, limits)
    context, seen = OpContext(*about), dict[str, list[int]]()
    run_checks(
        context,
        checks(seen),
        lambda check: check.most_samples(more=spec.more_cases, whole=spec.whole),
    )
    assert len(seen[SLOW]) == (len(samples) if most is None else most) <= len(samples)
    assert len(seen[USUAL]) == len(samples) == len(context.samples) > 5
    assert limits.asked == {SLOW: 90.0, USUAL: 0.0}


def test_the_plan_says_the_budgets_and_its_hash_changes_with_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hashes = set()
    for budget in (None, 2, 3):
        check = OpCheck(SLOW, lambda traits: traits.op == "add", (), samples=budget)
        monkeypatch.setattr(planner, "planned_op_checks", lambda contract, check=check: [check])
        for plan in ("quick", "full"):
            made = planner.make_plan(plan_spec(plan), registry.get("cpu"), load(), source=OneOp())
            assert "add" in {cell.unit for cell in made.cells if cell.dtype}
            said = f"{SLOW}={budget}" if budget and plan == "quick" else None
            assert made.recipe.get("budgets") == said
            hashes.add(made.hash)
    assert len(hashes) == 4  # those of quick, and one of full
