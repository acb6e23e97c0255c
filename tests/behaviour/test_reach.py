"""What drawn programs reach: all pairs of instructions and all states that there can be, from any seed. Nothing is run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from conformance import contract, suites
from conformance.checks.cases.cases import BehaviourCase
from conformance.checks.cases.exceptions import NotShown
from conformance.checks.cases.program_coverage import Reach, reached, steered, without
from conformance.checks.cases.random_programs import Trial
from conformance.suites.allocator import program_states as allocator
from conformance.suites.graphs import programs as graphs
from conformance.suites.streams import program_states as streams
from conformance.suites.streams.programs import validate as validate_streams
from devices import registry
from devices.descriptor import Descriptor

SIMULATED = registry.get("simulated")
ONE_INDEX = replace(SIMULATED, device_count=lambda: 1)
BARE = replace(
    ONE_INDEX,
    capabilities=SIMULATED.capabilities - {"streams", "stream_priority", "allocator_pools"},
)
TABLES = {
    "allocator": lambda case, descriptor: allocator.table(descriptor),
    "graphs": lambda case, _: graphs.table(case.arguments[0]),
    "streams": lambda case, _: streams.table(case.arguments[0]),
}
DRAWING = [
    case
    for case in suites.planned_cases(contract.load(), more=False)
    if case.drawn is not None and case.clause.partition(".")[0] in TABLES
]


ALLOCATOR = suites.case_of("allocator.accounting", "drawn")


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trial, "run", lambda *_: True)


def drawn(case: BehaviourCase, descriptor: Descriptor = SIMULATED) -> str:
    """What the programs reach that a case draws for this device. Raises NotShown where something is missing."""
    context = SimpleNamespace(descriptor=descriptor, search=None, reached="", must=lambda *_: None)
    case.check(context, *case.arguments)
    return str(context.reached)


@pytest.mark.parametrize("case", DRAWING, ids=lambda case: case.id)
def test_a_plan_reaches_all_that_can_be_reached(case: BehaviourCase) -> None:
    table = TABLES[case.clause.partition(".")[0]](case, SIMULATED)
    counts = [int(part.split()[0]) for part in drawn(case).split(", ")]
    assert sum(counts) == len(table) > 30


@pytest.mark.parametrize("seed", [1, 2, 20261123])
@pytest.mark.parametrize(
    "case",
    [each for each in DRAWING if each.clause != "allocator.peaks"][::3],
    ids=lambda case: case.id,
)
def test_so_do_other_seeds(case: BehaviourCase, seed: int) -> None:
    assert drawn(case.anew(seed, 3))


@pytest.mark.parametrize("descriptor", [ONE_INDEX, BARE], ids=["one index", "bare"])
def test_so_they_do_on_devices_that_declare_less(descriptor: Descriptor) -> None:
    assert drawn(ALLOCATOR, descriptor)


def test_the_same_is_drawn_every_time() -> None:
    reach = Reach(streams.table(2))
    one, other = ([*streams.steered_programs(2, reach, 0)] for _ in range(2))
    assert one == other and all(not validate_streams(*each.literal) for each in one)
    assert one != [*streams.steered_programs(2, reach, 1)]


@pytest.mark.parametrize(
    ("table", "names", "impossible"),
    [(streams.table(1), 6, 0), (streams.table(2), 7, 0), (allocator.table(SIMULATED), 13, 1), (graphs.table(False), 3, 0), (graphs.table(True), 6, 8)],
    ids=["streams of an index", "streams of two", "allocator", "graphs", "forks"],
)  # fmt: skip
def test_the_table_has_every_pair_that_is_possible(
    table: frozenset[Any], names: int, impossible: int
) -> None:
    pairs = {key[1:3] for key in table if key[0] == "pair"}
    assert len(pairs) == names**2 - impossible


def test_what_is_missing_is_told_and_is_an_error() -> None:
    reach = Reach(frozenset({("pair", "a", "b"), ("pair", "b", "a"), ("a", "first")}))
    reach.missing -= {("pair", "a", "b")}
    assert str(reach) == "1 pairs of instructions; missing: a first; pair b a"
    context: Any = SimpleNamespace(search=None, reached="")
    with pytest.raises(NotShown, match="missing: a first"):
        Trial(context, ALLOCATOR.drawn).must_have_reached(reach)  # type: ignore[arg-type]


def test_a_steered_program_that_fails_is_shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # programs run
    trial = Trial(SimpleNamespace(search=None), replace(ALLOCATOR.drawn, validate=validate))  # type: ignore[arg-type, type-var]

    def run(numbers: Sequence[int]) -> None:
        assert not {3, 8} <= set(numbers)

    with pytest.raises(AssertionError):
        trial.run((range(40),), lambda: run(range(40)))
    trial.shorten(range(40), lambda numbers: (list(numbers),), run)
    assert trial.found is not None and trial.found[0] == ([1, 3, 8],)


def validate(numbers: list[int]) -> None:
    """An 8 takes a 1 before it."""
    if 8 in numbers and 1 not in numbers:
        raise ValueError("nothing orders the 8")


def test_what_is_impossible_must_be_in_the_table() -> None:
    with pytest.raises(ValueError, match="not in the table"):
        without([("a",)], {("b",): "it is no instruction"})


class Counting:
    """A walk over numbers, of which each reaches itself after one more."""

    def __init__(self) -> None:
        self.last = 0

    def proposals(self, random: Any) -> list[int]:
        return [self.last + 1, 0]

    def reaches(self, instruction: int) -> set[tuple[str, ...]]:
        return {("number", str(instruction))}

    def take(self, instruction: int) -> None:
        self.last = instruction


def test_programs_are_steered_towards_what_is_missing_and_end_there() -> None:
    reach = Reach(frozenset({("number", "1"), ("number", "2")}))
    [(beside, program)] = steered(reach, 0, 9, lambda _: (Counting(), "beside"))
    assert beside == "beside" and program[-1] in (1, 2)
    assert reached(Counting(), program) >= reach.table
