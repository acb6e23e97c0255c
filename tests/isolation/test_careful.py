"""What a worker makes of the deaths of its copies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from conformance.plan.selection import Item, Machine
from conformance.run.crash_isolation import Ran, Runner, wrote_outside
from conformance.run.isolation.watch import CellLimits, Journal, Place
from conformance.run.item_report import GroupCall, ItemReport, Lost, LostCells
from conformance.run.process_copies import Copies
from conformance.run.worker import Task, WorkerOrders
from conformance.search.minimise.tasks import Bench
from devices.cell import CallKey, CellKey, CellOutcome, OtherChecks, Outcome
from devices.failure import Failure, Kind

CELL, OTHER = CellKey("layout.values", "mm", "int64"), CellKey("layout.bounds", "mm", "int64")
CALL = GroupCall("layout.values", CallKey(1, "transposed"))
ITEM = "layout-mm-int64"
CRASH = Lost(CELL, Outcome.CRASH, "the worker was killed by SIGSEGV", CALL)


class Scripted(Copies):
    """Copies that give these answers, one after the other."""

    def __init__(self, *said: object) -> None:
        self._said = list(said)
        self.asked: list[Task] = []
        self.ended = 0

    def connection(self) -> Any:
        return self

    def send_bytes(self, task: bytes) -> None:
        self.asked.append(msgspec.msgpack.decode(task, type=Task))

    def recv_bytes(self) -> bytes:
        return msgspec.msgpack.encode(self._said.pop(0))

    def end(self) -> int | None:
        self.ended += 1
        return None


def orders(last: Sequence[Item] = ()) -> WorkerOrders:
    items = (Item("mm", "int64", [CELL.clause, OTHER.clause]),)
    return WorkerOrders(
        *(Bench("cpu", None, 1), None, False, "", None, items, tuple(last), CellLimits(5.0)),
        Machine("", "", "", ""),
    )


def passed(*cells: CellKey) -> Ran:
    told = (CellOutcome(cell=cell, outcome=Outcome.PASS, checks=1) for cell in cells)
    return Ran(ItemReport(tuple(told)), [])


def rested(*cells: CellKey, outcome: Outcome = Outcome.PASS) -> Ran:
    """The report of cells that ran without the calls that end their process."""
    told = (
        CellOutcome(
            cell=cell, outcome=outcome, checks=9, rest=OtherChecks(outcome=outcome, left_out=1)
        )
        for cell in cells
    )
    return Ran(ItemReport(tuple(told)), [])


def outcomes(folder: Path, copies: Copies, *lost: Lost) -> dict[CellKey, CellOutcome]:
    """What a worker reports of the item, after these deaths elsewhere."""

    def never(*_: object) -> Any:
        pytest.fail("in the worker's own process")

    place = Place(Journal(folder, "gw0"), 0, LostCells(lost), never, never)
    runner = Runner("gw0", orders(), place, folder, never, copies, never)
    report, _ = runner.run(ITEM)
    return {found.cell: found for found in report.cells}


def test_a_call_that_dies_alone_is_a_crash_and_the_rest_of_its_item_is_judged(
    tmp_path: Path,
) -> None:
    copies = Scripted(passed(OTHER), CRASH, rested(CELL), Ran(ItemReport(), ["bad"]))
    found = outcomes(tmp_path, copies, CRASH)
    assert {cell: each.outcome for cell, each in found.items()} == {
        OTHER: Outcome.PASS,
        CELL: Outcome.CRASH,
    }
    rest, alone, again, told = copies.asked
    assert rest == Task(ITEM, lost=(CRASH,))
    assert alone == Task(ITEM, (CELL.clause,), only=CALL.call)
    assert again == Task(ITEM, (CELL.clause,), (CRASH,), again=True)
    assert (found[CELL].checks, found[CELL].rest) == (
        9,
        OtherChecks(outcome=Outcome.PASS, left_out=1),
    )
    assert told.told == (found[CELL],)


def test_a_call_that_dies_only_after_others_is_a_crash_of_the_whole_cell(tmp_path: Path) -> None:
    copies = Scripted(passed(OTHER), passed(CELL), CRASH, rested(CELL), Ran(ItemReport(), ["bad"]))
    found = outcomes(tmp_path, copies, CRASH)[CELL]
    assert (found.outcome, found.call, found.checks) == (Outcome.CRASH, None, 9)


def test_a_cell_that_does_not_die_alone_has_the_outcome_that_was_seen_alone(tmp_path: Path) -> None:
    copies = Scripted(passed(OTHER), passed(CELL), passed(CELL), Ran(ItemReport(), []))
    found = outcomes(tmp_path, copies, CRASH)[CELL]
    assert found.outcome is Outcome.PASS
    assert found.note == (
        "first run of the cell: the worker was killed by SIGSEGV; this did not happen again when the cell ran alone"
    )


def test_a_second_call_of_a_cell_that_died_is_left_out_too_and_confirmed_once(
    tmp_path: Path,
) -> None:
    second = msgspec.structs.replace(CRASH, call=GroupCall(CELL.clause, CallKey(2, "x")))
    copies = Scripted(second, passed(OTHER), CRASH, rested(CELL), Ran(ItemReport(), ["bad"]))
    found = outcomes(tmp_path, copies, CRASH)
    assert copies.asked[1].lost == copies.asked[3].lost == (CRASH, second)
    assert found[CELL].call == CALL.call and len(copies.asked) == 5


def test_a_further_deadly_call_is_left_out_when_the_cell_runs_again(tmp_path: Path) -> None:
    second = msgspec.structs.replace(CRASH, call=GroupCall(CELL.clause, CallKey(2, "x")))
    failed = rested(CELL, outcome=Outcome.FAIL)
    copies = Scripted(passed(OTHER), CRASH, second, failed, Ran(ItemReport(), ["bad"]))
    found = outcomes(tmp_path, copies, CRASH)[CELL]
    assert copies.asked[3] == Task(ITEM, (CELL.clause,), (CRASH, second), again=True)
    assert (found.outcome, found.call) == (Outcome.CRASH, CALL.call)
    assert found.rest is not None and found.rest.outcome is Outcome.FAIL


def test_a_cell_that_always_dies_in_another_call_is_given_up(tmp_path: Path) -> None:
    others = [
        msgspec.structs.replace(CRASH, call=GroupCall(CELL.clause, CallKey(n, "x")))
        for n in range(2, 13)
    ]
    copies = Scripted(passed(OTHER), CRASH, *others, Ran(ItemReport(), ["bad"]))
    found = outcomes(tmp_path, copies, CRASH)[CELL]
    assert (found.outcome, found.rest) == (Outcome.CRASH, None)


def test_a_cell_without_a_known_call_is_not_run_again(tmp_path: Path) -> None:
    unknown = msgspec.structs.replace(CRASH, call=None)
    copies = Scripted(passed(OTHER), unknown, Ran(ItemReport(), ["bad"]))
    found = outcomes(tmp_path, copies, unknown)[CELL]
    assert (found.outcome, found.rest, len(copies.asked)) == (Outcome.CRASH, None, 3)


def test_a_process_in_which_no_other_check_ran_is_not_used_again(tmp_path: Path) -> None:
    copies = Scripted(passed(OTHER), CRASH, passed(CELL), Ran(ItemReport(), ["bad"]))
    found = outcomes(tmp_path, copies, CRASH)[CELL]
    ended = copies.ended
    copies = Scripted(passed(OTHER), CRASH, rested(CELL), Ran(ItemReport(), ["bad"]))
    outcomes(tmp_path, copies, CRASH)
    assert found.rest is None and ended == copies.ended + 1


@pytest.mark.parametrize("hangs", [1, 2])
def test_a_cell_runs_again_after_one_hang_and_not_after_two(tmp_path: Path, hangs: int) -> None:
    lost = [
        Lost(CELL, Outcome.HANG, "x", GroupCall(CELL.clause, CallKey(n, "x"))) for n in range(hangs)
    ]
    said = [passed(OTHER), *([rested(CELL)] if hangs == 1 else []), Ran(ItemReport(), ["bad"])]
    found = outcomes(tmp_path, Scripted(*said), *lost)[CELL]
    assert found.outcome is Outcome.HANG and (found.rest is None) is (hangs == 2)


def test_a_process_in_which_a_kernel_wrote_outside_of_its_buffers_is_not_used_again(
    tmp_path: Path,
) -> None:
    failure = Failure(kind=Kind.BYTES, expected="no change", found="3 changed bytes")
    failed = CellOutcome(cell=OTHER, outcome=Outcome.FAIL, failure=failure)
    values = msgspec.structs.replace(failed, failure=Failure(kind=Kind.VALUES))
    assert wrote_outside(ItemReport((failed,))) and not wrote_outside(ItemReport((values,)))
    elsewhere = CellKey("layout.values", "add", "int64")
    copies = Scripted(Ran(ItemReport((failed,)), []))
    outcomes(tmp_path, copies, Lost(elsewhere, Outcome.CRASH, "x"))
    assert copies.ended == 1
