"""A mutant of compile is drawn from all kinds in turn, tried with the cells that reach it, and judged by those that it turns red."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from conformance.checks.cases.cases import BehaviourCase
from devices.cell import Outcome
from tests.mutation import families
from tests.mutation.compile import draw, reach_table
from tests.mutation.compile.reach_table import Reach, reaching
from tests.mutation.compile.trial import Counted, attempt
from tests.mutation.compiled_probe import Answer
from tests.mutation.kernels import Result


def case(name: str, more: bool) -> BehaviourCase:
    made = SimpleNamespace(id=name, name=name, clause="compile.programs", more=more)
    return cast(BehaviourCase, made)


CELLS = [case("first", False), case("second", True)]


class Mutant:
    """A mutant that turns cells red: ``red(cell, sham)`` decides. Notes the cells that run."""

    def __init__(self, red: Callable[[str, bool], bool]) -> None:
        self._red, self._state = red, Counted()
        self.ran: list[tuple[str, bool]] = []

    @contextmanager
    def plant(self, sham: bool) -> Iterator[Counted]:
        self._state = Counted(sham, ran=1, reached=1)
        yield self._state

    def outcome(self, cell: BehaviourCase) -> Outcome:
        self.ran.append((cell.name, self._state.sham))
        return Outcome.FAIL if self._red(cell.name, self._state.sham) else Outcome.PASS

    def result(self, answer: Answer) -> Result:
        found = Result("c0000", "compile", "op", "axis", "kind", "")
        return attempt(
            found, CELLS, self.plant, self.outcome, lambda plant: answer, lambda result: None
        )


def test_the_first_confirmed_red_cell_ends_the_trial() -> None:
    mutant = Mutant(lambda cell, sham: not sham)
    found = mutant.result(Answer("", 1))
    assert (found.result, found.plan, found.note) == ("noticed", "quick", "first")
    assert mutant.ran == [("first", False), ("first", True), ("first", False)]


def test_a_cell_that_is_red_without_the_mutant_does_not_count() -> None:
    mutant = Mutant(lambda cell, sham: cell == "first")
    found = mutant.result(Answer("a call tells it apart", 1))
    assert (found.result, found.unsteady) == ("survived", ["first"])


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (Answer("", 1), "equivalent"),
        (Answer("", 0), "survived"),
        (Answer("a call tells it apart", 1), "survived"),
    ],
)
def test_a_mutant_is_equivalent_only_if_the_probe_ran_it_and_nothing_differed(
    answer: Answer, result: str
) -> None:
    assert Mutant(lambda cell, sham: False).result(answer).result == result


def test_cases_that_do_not_reach_a_mutant_are_left_out_and_quick_ones_come_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    table = {
        "slow": Reach(9.0, {"a"}),
        "other": Reach(0.1, {"b"}),
        "fast": Reach(0.5, {"a"}),
        "of plan quick": Reach(20.0, {"a", "b"}),
    }
    path = tmp_path / "reach.json"
    path.write_bytes(msgspec.json.encode(table))
    monkeypatch.setenv(reach_table.TABLE, str(path))
    reach_table.table.cache_clear()
    given = [case(name, name != "of plan quick") for name in (*table, "not in the table")]
    found = [each.id for each in reaching({"a"}, given)]
    reach_table.table.cache_clear()
    assert found == ["of plan quick", "not in the table", "fast", "slow"]


def test_mutants_of_compile_are_of_all_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    def kind(name: str) -> Any:
        return SimpleNamespace(names=lambda seed, count: [f"{name} {n}" for n in range(count)])

    monkeypatch.setattr(draw, "KINDS", {name: kind(name) for name in draw.KINDS})
    names = draw.names(1, 60)
    assert len({*names}) == 60
    counts = Counter(name.partition(":")[0] for name in names)
    assert counts.keys() == draw.KINDS.keys() and min(counts.values()) >= 3
    assert names[:20] == draw.names(1, 20)
    assert families.module_of("compile") is draw
