"""Whose turn it is in a random search, and what becomes of a process that dies in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from conformance.aside import AsideDied
from conformance.explore import aside
from conformance.explore.aside import Effort, Finding, explored
from conformance.explore.turns import OPS_BEFORE_A_CASE, Item, Turns
from conformance.minimise.aside import Bench
from devices.cell import CellKey

OPS: list[Item] = [(f"op{number}", "float32", ["layout.values"]) for number in range(7)]
CASES: list[Item] = [("drawn", "", [f"streams.{name}"]) for name in ("wait", "cross_device")]
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


def progress(position: int, programs: int = 0) -> dict[str, Any]:
    counts = {**dict.fromkeys(aside.COUNTED, 0), "programs": programs, "peak_bytes": 1}
    return {"what": "item", "position": position, "number": f"0:{position}", "effort": counts}


FAILING = {
    "what": "failing",
    "finding": {"cell": ["streams.wait", "drawn", ""], "kind": "lost", "where": "", "number": "0:0"}
    | {"told": "a program: lost", "program": [1]},
}


def searching(
    monkeypatch: pytest.MonkeyPatch, *lives: list[dict[str, Any]]
) -> tuple[list[Finding], Effort, list[dict[str, Any]]]:
    """What is found by processes that tell this and die, the last one apart, and their orders."""
    asked: list[dict[str, Any]] = []

    def reports(module: str, orders: dict[str, Any], silence: float) -> Iterator[dict[str, Any]]:
        asked.append(orders)
        yield from lives[len(asked) - 1]
        if len(asked) < len(lives):
            raise AsideDied("killed by SIGSEGV", "")

    monkeypatch.setattr(aside, "reports_of", reports)
    effort = Effort()
    found = list(explored(BENCH, CASES, 3, 100.0, effort))
    return found, effort, asked


def test_a_death_is_a_finding_and_the_search_goes_on_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lives = [progress(0), progress(1, 20), {"what": "alive"}], [progress(2), progress(3, 20)]
    found, effort, asked = searching(monkeypatch, *lives)
    guilty = Turns(CASES, 3).at(1)[0]
    assert [(str(f.cell), f.kind) for f in found] == [
        (f"process::{guilty[2][0]}::drawn", "killed by SIGSEGV")
    ]
    assert [orders["position"] for orders in asked] == [0, 2]
    assert (effort.restarts, effort.programs, effort.passes) == (1, 40, 1.5)


def test_a_program_that_was_being_shrunk_when_the_process_died_is_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, _, asked = searching(monkeypatch, [progress(0), FAILING], [progress(1)])
    first, death = found
    assert first.cell == CellKey("streams.wait", "drawn", "") and first.program == [1]
    assert first.told == "a program: lost (not shrunk, the process died: killed by SIGSEGV)"
    assert death.cell.clause == "process"
    assert asked[1]["seen"] == [["streams.wait", "drawn", "", "lost", ""]]


def test_what_has_killed_three_processes_is_left_out_and_told_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lives = [[progress(position)] for position in (0, 2, 4, 6, 8)]
    guilty = Counter(Turns(CASES, 3).at(position)[0][2][0] for position in (0, 2, 4, 6))
    found, _, asked = searching(monkeypatch, *lives)
    assert len(found) == len(guilty)
    assert {clause for _, _, (clause,) in asked[-1]["left_out"]} == {
        clause for clause, count in guilty.items() if count >= 3
    }
    assert asked[0]["left_out"] == []
