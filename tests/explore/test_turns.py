"""Whose turn it is in a random search, and what becomes of a process that dies in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from conformance.checks.child import Child, ChildDied, Ended
from conformance.plan.selection import Item
from conformance.search.explore import exploration
from conformance.search.explore.exploration import (
    OPS_BEFORE_A_CASE,
    Counts,
    Effort,
    Finding,
    Found,
    Message,
    Orders,
    Turn,
    Turns,
    explored,
)
from conformance.search.minimise.tasks import Bench
from devices.cell import CellKey

OPS = [Item(f"op{number}", "float32", ["layout.values"]) for number in range(7)]
CASES = [Item("drawn", "", [f"streams.{name}"]) for name in ("wait", "cross_device")]
BENCH = Bench("simulated", None, 3)


def taken(items: list[Item], count: int, seed: int = 3) -> list[tuple[Item, int, int]]:
    turns = Turns(items, seed)
    return [turns.at(position) for position in range(count)]


@pytest.mark.parametrize("items", [OPS, CASES], ids=["ops", "cases"])
def test_where_all_are_of_one_kind_each_pass_has_all_in_an_order_of_its_own(
    items: list[Item],
) -> None:
    found = taken(items, 6 * len(items))
    for visit in range(6):
        one = found[visit * len(items) : (visit + 1) * len(items)]
        assert sorted(item for item, *_ in one) == sorted(items)
        assert [(v, place) for _, v, place in one] == [(visit, n) for n in range(len(items))]
    assert len({str([i for i, v, _ in found if v == visit]) for visit in range(6)}) > 1


def test_cases_have_their_turns_between_those_of_ops() -> None:
    found = taken(OPS + CASES, 7 * (OPS_BEFORE_A_CASE + 1))
    ops = [turn for turn in found if turn[0][1]]
    cases = [turn for turn in found if not turn[0][1]]
    assert ops == taken(OPS, len(ops)) and cases == taken(CASES, len(cases))
    assert len(ops) == OPS_BEFORE_A_CASE * len(cases)
    turn = [bool(item[1]) for item, *_ in found[: OPS_BEFORE_A_CASE + 1]]
    assert turn == [True] * OPS_BEFORE_A_CASE + [False]


def test_passes_are_counted_over_ops_or_else_over_cases() -> None:
    assert Turns(OPS, 0).passes(14) == 2.0 and Turns(CASES, 0).passes(3) == 1.5
    assert (
        Turns(OPS + CASES, 0).passes(2 * OPS_BEFORE_A_CASE + 5) == (2 * OPS_BEFORE_A_CASE + 3) / 7
    )


def test_the_seed_decides_the_order() -> None:
    assert taken(OPS, 20, 1) == taken(OPS, 20, 1) != taken(OPS, 20, 2)


# A process that dies


def turn(position: int, programs: int = 0) -> Turn:
    return Turn(position, Counts(programs=programs), 1)


FAILING = Found(
    Finding(
        CellKey("streams.wait", "drawn", ""), "lost", "", "0:0", text="a program: lost", program=[1]
    ),
    shrunk=False,
)


def searching(
    monkeypatch: pytest.MonkeyPatch, *lives: list[Message]
) -> tuple[list[Finding], Effort, list[Orders]]:
    """What is found by processes that send this and die (except the last), and their orders."""
    asked: list[Orders] = []

    def messages(child: Child) -> Iterator[Any]:
        asked.append(msgspec.convert(child.orders, Orders))
        yield from map(msgspec.to_builtins, lives[len(asked) - 1])
        if len(asked) < len(lives):
            raise ChildDied(Ended(-11))

    monkeypatch.setattr(exploration, "messages", messages)
    effort = Effort()
    found = list(explored(BENCH, CASES, 3, 100.0, effort))
    return found, effort, asked


def test_a_death_is_a_finding_and_the_search_goes_on_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lives: tuple[list[Message], ...] = ([turn(0), turn(1, 20)], [turn(2), turn(3, 20)])
    found, effort, asked = searching(monkeypatch, *lives)
    guilty = Turns(CASES, 3).at(1)[0]
    assert [(str(f.cell), f.kind) for f in found] == [
        (f"process::{guilty[2][0]}::drawn", "was killed by SIGSEGV")
    ]
    assert [orders.position for orders in asked] == [0, 2]
    assert (effort.restarts, effort.programs, effort.passes) == (1, 40, 1.5)


def test_a_program_that_was_being_shrunk_when_the_process_died_is_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, _, asked = searching(monkeypatch, [turn(0), FAILING], [turn(1)])
    first, death = found
    assert first.cell == CellKey("streams.wait", "drawn", "") and first.program == [1]
    assert first.text == "a program: lost (not shrunk: the subprocess was killed by SIGSEGV)"
    assert death.cell.clause == "process"
    assert asked[1].seen == [first.sign]


def test_what_has_killed_three_processes_is_left_out_and_told_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lives: list[list[Message]] = [[turn(position)] for position in (0, 2, 4, 6, 8)]
    guilty = Counter(Turns(CASES, 3).at(position)[0][2][0] for position in (0, 2, 4, 6))
    found, _, asked = searching(monkeypatch, *lives)
    assert len(found) == len(guilty)
    assert {item.clauses[0] for item in asked[-1].left_out} == {
        clause for clause, count in guilty.items() if count >= 3
    }
    assert asked[0].left_out == []
