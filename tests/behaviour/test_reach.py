"""What drawn programs reach: all pairs of instructions and all states that there can be, from any seed. Nothing is run."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from conformance import contract, suites
from conformance.checks.cases.cases import BehaviourCase
from conformance.checks.cases.exceptions import NotShown
from conformance.checks.cases.execution import collector_paused
from conformance.checks.programs.language import (
    Aspect,
    Key,
    Language,
    Reach,
    State,
    States,
    numbered,
    steered,
)
from conformance.checks.programs.trials import Trial
from conformance.suites.allocator import allocator_programs as allocator
from conformance.suites.graphs import graph_programs as graphs
from conformance.suites.streams import stream_programs as streams
from conformance.suites.streams.drawn import steered_programs
from devices import registry
from devices.descriptor import Descriptor

SIMULATED = registry.get("simulated")
ONE_INDEX = replace(SIMULATED, device_count=lambda: 1)
BARE = replace(
    ONE_INDEX,
    capabilities=SIMULATED.capabilities - {"streams", "stream_priority", "allocator_pools"},
)
TABLES = {
    "allocator": lambda case: allocator.ALLOCATOR.table(allocator.Model(SIMULATED)),
    "graphs": lambda case: graphs.GRAPHS.table(graphs.Model(forks=case.arguments[0])),
    "streams": lambda case: streams.STREAMS.table(streams.Model(case.arguments[0])),
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
    table = TABLES[case.clause.partition(".")[0]](case)
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
    reach = Reach(streams.STREAMS.table(streams.Model(2)))
    one, other = ([*steered_programs(2, reach, 0)] for _ in range(2))
    assert one == other and all(not streams.validate(*each.literal) for each in one)
    assert one != [*steered_programs(2, reach, 1)]


@pytest.mark.parametrize(
    ("model", "names", "impossible"),
    [
        (streams.Model(1), 6, 0),
        (streams.Model(2), 7, 0),
        (allocator.Model(SIMULATED), 14, 2),
        (graphs.Model(forks=False), 3, 0),
        (graphs.Model(forks=True), 6, 8),
    ],
    ids=["streams of an index", "streams of two", "allocator", "graphs", "forks"],
)
def test_the_table_has_every_pair_that_is_possible(
    model: State, names: int, impossible: int
) -> None:
    pairs = {key[1:3] for key in model.language.table(model) if key[0] == "pair"}
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

    def run(numbers: Sequence[int], beside: str) -> None:
        assert not {3, 8} <= set(numbers)

    with pytest.raises(AssertionError):
        trial.run((range(40), "beside"), lambda: run(range(40), "beside"))
    trial.shorten(0, run)
    assert trial.found is not None and trial.found[0] == ((1, 3, 8), "beside")


def test_what_a_failing_program_allocated_is_freed_although_the_collector_is_paused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()  # programs run
    trial = Trial(SimpleNamespace(search=None), ALLOCATOR.drawn)  # type: ignore[arg-type]
    allocated: list[weakref.ref[Counter]] = []

    def fails() -> None:
        memory = Counter()
        allocated.append(weakref.ref(memory))
        error = AssertionError(
            "wrong"
        )  # a cycle: the exception, its traceback, the frame, the exception
        raise error

    with collector_paused():
        for number in range(3):
            with pytest.raises(AssertionError):
                trial.run((number,), fails)
        assert [each() for each in allocated] == [None] * 3


def validate(numbers: Sequence[int], beside: str) -> None:
    """An 8 takes a 1 before it."""
    if 8 in numbers and 1 not in numbers:
        raise ValueError("nothing orders the 8")


# A small language: a number that can be raised, by one or two, and set back once it is two


class Counter(State):
    def __init__(self, most: int = 3) -> None:
        super().__init__()
        self.most, self.number = most, 0


def counting(impossible: Key = ("pair", "back", "back")) -> Language:
    """Declares the language anew, since its instructions are declared by decorators."""
    language = Language(
        name="a counter",
        operands=(numbered("by", range(4), lambda _: 2),),
        impossible=lambda _: {impossible: "0"},
    )

    @language.instruction(needs=lambda model, by: model.number + by < model.most)
    def up(model: Counter, by: int) -> list[Any]:
        model.number += by + 1
        return []

    odd = Aspect(("even", "odd"), lambda model: model.number % 2 if model.number != 3 else None)

    @language.instruction(needs=lambda model: model.number > 1, covers=(States(odd),))
    def back(model: Counter) -> list[Any]:
        model.number = 0
        return []

    Counter.language = language
    return language


def test_the_table_of_a_language_follows_from_its_instructions() -> None:
    assert counting().table(Counter()) == {
        ("pair", "up", "up"), ("pair", "up", "back"), ("pair", "back", "up"),
        ("up", "by 0"), ("up", "by 1"), ("back", "even"), ("back", "odd"),
    }  # fmt: skip


def test_steps_are_told_by_the_language() -> None:
    language = counting()
    assert language.describe([("up", 3), ("back",)]) == "up(3); back()"
    language.instruction(name="up", text="up by {by}")(lambda model, by: [])
    assert language.describe([("up", 3)]) == "up by 3" and language.describe([]) == "nothing"


def test_what_is_impossible_must_be_in_the_table() -> None:
    with pytest.raises(ValueError, match="not in the table"):
        counting(("b",)).table(Counter())


def test_an_operand_must_be_declared() -> None:
    language = counting()
    with pytest.raises(KeyError, match="much"):
        language.instruction()(lambda model, much: [])


def test_an_impossible_step_covers_and_changes_nothing() -> None:
    counting()
    model = Counter()
    assert model.reached([("back",)]) == set() and model.last is None
    assert model.reached([("up", 3), ("back",), ("back",)]) == {
        ("up", "by 1"), ("pair", "up", "back"), ("back", "even"),
    }  # fmt: skip


def test_a_state_without_an_aspect_is_not_covered() -> None:
    counting()
    model = Counter(4)
    model.take_all([("up", 0), ("up", 1)])
    assert model.reached([("back",)]) == {("pair", "up", "back")}


@pytest.mark.parametrize(
    ("step", "wrong"),
    [
        (("down",), "not an instruction of a counter"),
        (("up",), "not an instruction"),
        (("up", True), "not an instruction"),
        (("up", 4), "by of .*: expected 0 to 3, got 4"),
        (("up", -1), "expected 0 to 3"),
    ],
)
def test_what_is_no_step_is_refused(step: tuple[Any, ...], wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        counting().validate([("up", 3), step])


def test_programs_are_steered_towards_what_is_missing_and_end_there() -> None:
    counting()
    reach = Reach(frozenset({("pair", "back", "up"), ("up", "by 1")}))
    [(_, program), *more] = steered(lambda _: Counter(), reach, 0, 9)
    assert not more and Counter().reached(program) >= reach.table
    assert program[-2:] in ([("back",), ("up", 0)], [("back",), program[-1]])


@pytest.mark.parametrize("settles", [True, False])
def test_the_work_of_a_failing_program_is_over_before_its_buffers_are_freed(
    settles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it writes to the memory of the next program, which then fails without being wrong. A device that cannot
    be waited for does not hide the failure."""
    monkeypatch.undo()  # programs run
    held: list[bool] = []

    class Buffer:
        def __del__(self) -> None:
            held.append(False)

    def settle() -> None:
        held.append(True)
        if not settles:
            raise RuntimeError("the device is lost")

    def program() -> None:
        buffer = Buffer()
        raise AssertionError("the program fails", id(buffer))

    trial = Trial(SimpleNamespace(search=None, settle=settle), ALLOCATOR.drawn)  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="the program fails"):
        trial.run((), program)
    assert held == [True, False]
    assert trial.found is not None and trial.found[0] == ()
