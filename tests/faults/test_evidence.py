"""Evidence is all that judges need: it holds nothing of the device, can be written down, and is judged again to the same
verdicts."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
import torch

from conformance.checks.ops.context import OpContext
from tests import trials
from tests.sampling import trials_of
from tests.trials import Bench, planted_items
from tests.wrapped.faults import REGISTRY, Fault, planted
from tests.wrapped.trial import RIG

#: What was judged: the judges by clause, the evidence and the reference.
Judged = tuple[Mapping[str, Any], Any, Any]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(RIG, tmp_path_factory.mktemp("references"))


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[Judged]:
    """Everything that is judged in the test."""
    found: list[Judged] = []

    class Witness(OpContext):
        def judge(
            self, judges: Any, procedure: Any, given: Any, reference: Any, **more: Any
        ) -> Any:
            evidence = super().judge(judges, procedure, given, reference, **more)
            if evidence is not None:
                found.append((judges, evidence, reference))
            return evidence

    monkeypatch.setattr(trials, "OpContext", Witness)
    return found


def tensors_within(evidence: Any) -> Iterator[torch.Tensor]:
    if isinstance(evidence, torch.Tensor):
        yield evidence
    elif isinstance(evidence, list | tuple):
        for each in evidence:
            yield from tensors_within(each)
    elif isinstance(evidence, dict):
        yield from tensors_within([*evidence.values()])
    elif is_dataclass(evidence):
        yield from tensors_within([getattr(evidence, each.name) for each in fields(evidence)])


def copied(evidence: Any) -> Any:
    """The evidence, written and read back."""
    stream = io.BytesIO()
    torch.save(evidence, stream)
    stream.seek(0)
    return torch.load(stream, weights_only=False)


def verdicts(judges: Mapping[str, Any], evidence: Any, reference: Any) -> dict[str, list[str]]:
    return {
        clause: [repr(each) for each in judge(evidence, reference)]
        for clause, judge in judges.items()
    }


@pytest.mark.parametrize("fault", trials_of(REGISTRY))
def test_evidence_that_was_written_down_is_judged_alike(
    fault: Fault, bench: Bench, judged: list[Judged]
) -> None:
    with planted(fault.name):
        for item in planted_items(RIG, fault):
            bench.subjects[item].run()
    assert judged or all(clause == "layout.as_strided" for clause in fault.clauses)
    for judges, evidence, reference in judged:
        assert {type(each) for each in tensors_within(evidence)} <= {torch.Tensor}
        at_once = verdicts(judges, evidence, reference)
        assert verdicts(judges, copied(evidence), reference) == at_once
        assert verdicts(judges, evidence, reference) == at_once  # judging changed nothing
