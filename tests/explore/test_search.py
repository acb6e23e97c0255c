"""A random search through programs: what it looks for, passes over, counts and tells."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import strategies as st

from conformance import contract, suites
from conformance.checks.cases import execution
from conformance.checks.cases.cases import BehaviourCase, Drawn
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.exceptions import CheckFailed, NotInFlight, NotShown
from conformance.checks.cases.execution import PATIENCE, Attempt
from conformance.checks.cases.processes import DeviceLocator
from conformance.checks.programs import trials
from conformance.checks.programs.trials import Search, Trial, search
from conformance.plan.selection import Item
from conformance.search.explore import search_worker
from conformance.search.explore.encoding import (
    NotRebuilt,
    decode_program,
    encode_program,
)
from conformance.search.explore.exploration import drawing_cells, worth_exploring
from devices import registry
from devices.cell import CellKey
from devices.failure import Failure, Kind
from devices.manifest import Manifest
from devices.verdicts import Matcher
from opinfo.device import Device, open_device
from opinfo.encoding import NotEncodable

DRAWING = [case for case in suites.planned_cases(contract.load()) if case.drawn is not None]
Judge = Callable[[list[int]], None]


def replayed(context: CaseContext, numbers: list[int]) -> None:
    """What a script would run."""


DRAWN = Drawn(replayed, lambda numbers: f"numbers {numbers}", lambda numbers: None, lambda *_: "")


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device(registry.get("cpu"))


def made(device: Device, judge: Judge, looked_for: Search | None, programs: int = 60) -> Attempt:
    """A check that draws lists of numbers and judges each."""

    def check(context: CaseContext) -> None:
        trial = Trial(context, DRAWN)

        def holds(numbers: list[int]) -> None:
            if trial.begin():
                trial.run((numbers,), lambda: judge(numbers))

        with trial.shrunk():
            search(st.lists(st.integers(0, 9), max_size=9), holds, 5, programs)
        trial.must_have_run(programs)

    return execution.here(check, (), device, "a test", DeviceLocator(), looked_for)


def looking(*known: str, seconds: float = 100.0, **more: Any) -> Search:
    return Search(search_worker.kind_of, frozenset(known), time.monotonic() + seconds, **more)


SHORT, SMALL = "count: lists are short", "values: numbers are small"


def long_or_large(numbers: list[int]) -> None:
    """Two faults: the longer lists, and those with a large number."""
    if len(numbers) > 2:
        raise CheckFailed.of(Kind.COUNT, "lists are short", found=str(len(numbers)))
    if 7 in numbers:
        raise CheckFailed.of(Kind.VALUES, "numbers are small", found=str(max(numbers)))


@pytest.mark.parametrize(
    ("known", "kind", "program"),
    [(SMALL, SHORT, [0, 0, 0]), (SHORT, SMALL, [7])],
)  # fmt: skip
def test_what_is_known_is_passed_over_and_another_failure_is_shrunk_as_itself(
    device: Device, known: str, kind: str, program: list[int]
) -> None:
    first: list[Any] = []
    looked = looking(known, failing=lambda *failed: first.append(failed))
    attempt = made(device, long_or_large, looked)
    assert looked.wanted == kind and attempt.program == (program,)
    assert attempt.failure is not None and attempt.failure.program == f"numbers {program}"
    assert search_worker.kind_of_failure(attempt.failure) == kind
    assert len(first) == 1 and search_worker.kind_of(first[0][1]) == kind


def test_where_all_is_known_the_search_finds_nothing(device: Device) -> None:
    looked = looking(SMALL, SHORT)
    attempt = made(device, long_or_large, looked)
    assert (attempt.failure, looked.programs, looked.wanted) == (None, 60, "")


def test_programs_of_shrinking_are_not_counted(device: Device) -> None:
    ran: list[list[int]] = []

    def judge(numbers: list[int]) -> None:
        ran.append(numbers)
        long_or_large(numbers)

    looked = looking()
    made(device, judge, looked)
    assert 1 <= looked.programs < len(ran)
    assert looked.programs == next(n for n, each in enumerate(ran, 1) if len(each) > 2 or 7 in each)


def test_the_seed_alone_decides_the_programs(device: Device) -> None:
    tried: list[list[list[int]]] = [[], []]
    for ran in tried:
        made(device, ran.append, looking())
    assert tried[0] == tried[1] and len(tried[0]) == 60


def test_what_shows_nothing_is_counted_and_is_neither_a_failure_nor_the_end(device: Device) -> None:
    def judge(numbers: list[int]) -> None:
        if len(numbers) == 1:
            raise NotShown("nothing was shown")

    looked = looking()
    attempt = made(device, judge, looked)
    assert not attempt.failure and not attempt.not_shown
    assert 0 < looked.unshown < looked.programs == 60


def test_in_a_plan_it_is_an_error(device: Device) -> None:
    def judge(numbers: list[int]) -> None:
        raise NotShown("nothing was shown")

    assert made(device, judge, None).not_shown == "nothing was shown"


def test_work_that_was_over_too_soon_gets_longer_for_those_behind(device: Device) -> None:
    seen: list[float] = []

    def check(context: CaseContext) -> None:
        trial = Trial(context, DRAWN)

        def over() -> None:
            seen.append(context.patience)
            raise NotInFlight("over")

        for _ in range(6):
            assert trial.begin() and not trial.run(([],), over)

    looked = looking()
    execution.here(check, (), device, "a test", DeviceLocator(), looked)
    assert seen == [*PATIENCE, PATIENCE[-1], PATIENCE[-1]] and looked.unshown == 6


def test_a_program_that_fails_only_sometimes_is_told_so(device: Device) -> None:
    left = [1]

    def judge(numbers: list[int]) -> None:
        if len(numbers) > 2 and left:
            left.pop()
            raise CheckFailed.of(Kind.COUNT, "lists are short", found="more")

    attempt = made(device, judge, looking())
    assert attempt.failure is not None and attempt.program is not None
    assert attempt.failure.program.endswith(" (fails only sometimes)")


def test_shrinking_that_takes_too_long_is_cut_and_told_so(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "SHRINKING", -1.0)
    looked = looking()
    attempt = made(device, long_or_large, looked)
    assert attempt.failure is not None
    assert looked.cut and attempt.failure.program.endswith(" (not fully shrunk)")


def test_no_program_is_begun_behind_the_end(device: Device) -> None:
    looked = looking(seconds=-1.0)
    attempt = made(device, long_or_large, looked)
    assert (looked.programs, attempt.failure, looked.cut) == (0, None, False)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (KeyError("x"), "raised KeyError"),
        (
            CheckFailed.of(Kind.MEMORY, "`peak` is it", expected="5", found="0"),
            "memory: `peak` is it",
        ),
        (CheckFailed(Failure(kind=Kind.ORDER, detail="late")), "order"),
    ],
)
def test_a_kind_is_what_must_have_held_without_what_was_found(error: Exception, kind: str) -> None:
    assert search_worker.kind_of(error) == kind


# Programs as data


@pytest.mark.parametrize("case", DRAWING, ids=lambda case: f"{case.clause}-{case.name}")
def test_every_case_that_draws_can_draw_anew(case: BehaviourCase) -> None:
    anew = case.anew(77, 3)
    assert anew.arguments == (*case.arguments[:-2], 77, 3) and anew.check is case.check
    assert search_worker.batch_seed(1, 0, CellKey(case.clause, case.name, "")) < 2**63


def test_the_seed_of_a_batch_is_its_own() -> None:
    cells = [CellKey(case.clause, case.name, "") for case in DRAWING]
    seeds = [search_worker.batch_seed(1, visit, cell) for visit in range(9) for cell in cells]
    assert len(set(seeds)) == len(seeds)
    assert search_worker.batch_seed(1, 0, cells[0]) != search_worker.batch_seed(2, 0, cells[0])


STREAMS = suites.case_of("streams.wait", "drawn")
ALLOCATOR = suites.case_of("allocator.peaks", "drawn")
GRAPHS = suites.case_of("graphs.fork_join", "drawn")
PROGRAMS: list[tuple[BehaviourCase, tuple[Any, ...]]] = [
    (STREAMS, (1, (0, 0), (("step", 0, 0, 1), ("record", 1, 0), ("wait", 1, 1), ("add", 1, 0, 2)), (1, 0))),
    (ALLOCATOR, ("allocator.peaks", (("take", 0, 0, 0), ("empty_cache",), ("threads", 1, 1)))),
    (GRAPHS, ((("fork", 1), ("make", 1, 0, 0, 0), ("join", 1), ("write", 0, 0, 1), ("free", 0)),)),
]  # fmt: skip


@pytest.mark.parametrize(("case", "program"), PROGRAMS, ids=["streams", "allocator", "graphs"])
def test_a_program_reads_back(case: BehaviourCase, program: tuple[Any, ...]) -> None:
    assert decode_program(case, encode_program(program)) == program
    assert case.drawn is not None and case.drawn.describe(*program)


def test_what_data_cannot_hold_says_so() -> None:
    with pytest.raises(NotEncodable, match="a float in a program"):
        encode_program((1, [2.5]))


@pytest.mark.parametrize(
    ("case", "program"),
    [
        (STREAMS, [1, [0, 0], [["sleep", 0]], [0, 1]]),
        (STREAMS, [1, [0, 0], [["step", 2, 0, 1]], [0, 1]]),
        (STREAMS, [1, [0, 0], [["step", 0, 99, 1]], [0, 1]]),
        (STREAMS, [1, [0, 0], [["step", 0, 0, 1], ["step", 1, 0, 1]], [0, 1]]),  # a race
        (STREAMS, [1, [0, 0], [], [0]]),
        (STREAMS, [1, [0, 3], [], [0, 1]]),
        (STREAMS, [1, [1, 1], [], [0, 1]]),  # an index has one default stream
        (STREAMS, [1, [0, 0], []]),
        (STREAMS, [1, 2, 3, 4]),
        (ALLOCATOR, ["streams.wait", []]),
        (ALLOCATOR, ["allocator.peaks", [["take", 0, 0]]]),
        (ALLOCATOR, ["allocator.peaks", [["hold_to_model", 0]]]),
        (ALLOCATOR, ["allocator.peaks", [["free", -1]]]),
        (ALLOCATOR, ["allocator.peaks", [[]]]),
        (GRAPHS, [[["make", 0, 0, 0]]]),
        (GRAPHS, [[["fork", 9]]]),
        (GRAPHS, [[["free", "x"]]]),
        (GRAPHS, []),
    ],
)
def test_what_is_no_program_is_not_rebuilt(case: BehaviourCase, program: list[Any]) -> None:
    with pytest.raises(NotRebuilt):
        decode_program(case, program)


def test_a_case_that_draws_nothing_takes_no_program() -> None:
    with pytest.raises(NotRebuilt, match="no longer runs random programs"):
        decode_program(suites.case_of("allocator.disjoint", "alignment"), [1])


# Which cells


def cells() -> list[CellKey]:
    every = [c.cell for c in suites.planned_cases(contract.load())]
    return [CellKey("layout.values", "exp", "float32"), *every]


def test_the_cases_that_draw_are_searched_and_not_those_that_draw_more_of_it() -> None:
    found = list(drawing_cells(cells(), registry.get("simulated"), contract.load()))
    assert {cell.unit for cell in found} == {"drawn"}
    assert {cell.clause for cell in found} == {case.clause for case in DRAWING}


def test_without_a_capability_or_a_second_index_nothing_is_searched_for_the_clause() -> None:
    whole = registry.get("simulated")
    less = replace(whole, capabilities=whole.capabilities - {"graphs"}, device_count=lambda: 1)
    before, after = (
        {cell.clause for cell in drawing_cells(cells(), each, contract.load())}
        for each in (whole, less)
    )
    assert {"graphs.fork_join", "graphs.replay_equals_eager"} <= before - after
    assert before - after <= {"graphs.fork_join", "graphs.replay_equals_eager"} | {
        "streams.cross_device",
        "allocator.device_isolation",
    }
    assert "streams.cross_device" in before - after


def test_a_cell_that_the_manifest_expects_to_fail_is_left_out() -> None:
    text = '[[expect]]\nclause = "streams.wait"\nop = "drawn"\noutcome = "fail"\nreason = "wrong"\n'
    items = [Item("drawn", "", [clause]) for clause in ("streams.wait", "graphs.fork_join")]
    assert worth_exploring(items, Matcher(Manifest.parse(text))) == items[1:]
