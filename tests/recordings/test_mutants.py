"""Mutants in front of recorded calls."""

from __future__ import annotations

from typing import Any

import pytest

from tests.mutation import families
from tests.recordings import mutants

pytestmark = pytest.mark.slow


def a_call(op: str) -> str:
    (found,) = (each for each in mutants.targets_in("signals.py") if each.startswith(op))
    return f"signals.py|{found}"


def test_a_seed_gives_the_same_mutants_of_all_programs() -> None:
    assert families.module_of("recordings") is mutants
    names = mutants.names(3, 10)
    assert names == mutants.names(3, 10) != mutants.names(4, 10)
    assert {each.partition("|")[0] for each in names} == {*mutants.programs()}


def test_a_mutant_is_noticed_and_charged_to_its_line() -> None:
    found = mutants.tried(1, 0, a_call("cumsum."), lambda result: None)
    assert found.result == "noticed" and found.by and found.reached
    assert found.note == "charged to examples/recordings/signals.py:17"


def test_a_mutant_that_no_cell_notices_survives(monkeypatch: pytest.MonkeyPatch) -> None:
    class Blind(mutants.Judged):
        def newly_wrong(self) -> dict[Any, Any]:
            for _ in self.parts():
                pass
            return {}

    monkeypatch.setattr(mutants, "judged", lambda program, name: Blind(program, name))
    found = mutants.tried(1, 0, a_call("cumsum."), lambda result: None)
    assert found.result == "survived"


def test_a_mutant_that_is_charged_to_another_call_is_said_to_be() -> None:
    call = mutants.targets_in("signals.py")[a_call("cumsum.").partition("|")[2]]
    found = mutants.Result("r0", "signals.py", call.id, "", "", "")
    other = mutants.JudgedCall(
        "neg",
        "aten.neg",
        "float32",
        mutants.CallOutcome.WRONG,
        1,
        "a.py:1",
        "",
        ("layout.values::neg[float32]",),
    )
    mutants._credit(found, call, [other])
    assert found.note.startswith("charged wrongly")
