"""Copies that may die in the place of a worker, and what a worker makes of their deaths."""

from __future__ import annotations

import mmap
import os
import signal
import socket
import sys
from collections.abc import Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import pytest

from conformance.plan.selection import Item, Machine
from conformance.run import careful
from conformance.run.careful import Copies, Ran, Runner, wrote_outside
from conformance.run.isolation.watch import Journal, Limits, Place
from conformance.run.outcomes import GroupCall, ItemReport, Lost, LostCells
from conformance.run.worker import Task, WorkerOrders
from conformance.search.minimise.tasks import Bench
from devices.cell import CallKey, CellKey, CellOutcome, Outcome
from devices.failure import Failure, Kind

linux = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="nothing is copied but on Linux"
)

CELL, OTHER = CellKey("layout.values", "mm", "int64"), CellKey("layout.bounds", "mm", "int64")
CALL = GroupCall("layout.values", CallKey(1, "transposed"))
ITEM = "layout-mm-int64"
CRASH = Lost(CELL, Outcome.CRASH, "its worker was killed by SIGSEGV", CALL)


# -- the copies


def answers(connection: Connection) -> None:
    """Say which process this is, unless it is told to die."""
    while connection.recv_bytes() != b"die":
        connection.send_bytes(str(os.getpid()).encode())
    os.kill(os.getpid(), signal.SIGKILL)


@linux
def test_a_copy_that_dies_tells_its_status_and_is_replaced() -> None:
    copies, seen = Copies(answers), set()
    for _ in range(2):
        for _ in range(2):
            copies.connection().send_bytes(b"who")
            seen.add(copies.connection().recv_bytes())
        copies.connection().send_bytes(b"die")
        with pytest.raises(EOFError):
            copies.connection().recv_bytes()
        assert copies.end() == -signal.SIGKILL
    copies.close()
    assert len(seen) == 2 and str(os.getpid()).encode() not in seen


@linux
def test_a_copy_that_is_not_needed_ends() -> None:
    copies = Copies(answers)
    assert copies.end() is None
    copies.connection()
    assert copies.end() == 1  # the connection closed before it was told anything
    copies.close()


# -- copies of a copy that has the device's module loaded

_loaded: list[int] = []


def tells(connection: Connection) -> None:
    """Say which process has loaded the module, if one has."""
    connection.recv_bytes()
    connection.send_bytes(b"".join(str(pid).encode() for pid in _loaded))


def loads(tried: Path) -> bool:
    with tried.open("a") as stream:
        stream.write("tried\n")
    _loaded.append(os.getpid())
    return True


def said(copies: Copies, times: int) -> list[bytes]:
    """What copies say, one after the other."""
    found = []
    for _ in range(times):
        copies.connection().send_bytes(b"who")
        found.append(copies.connection().recv_bytes())
        copies.end()
    return found


@linux
def test_all_copies_but_the_first_have_the_module_loaded_by_one(tmp_path: Path) -> None:
    copies = Copies(tells, partial(loads, tmp_path / "tried"))
    first, *others = said(copies, 4)
    copies.close()
    assert first == b"" and len(set(others)) == 1 and others[0]
    assert (tmp_path / "tried").read_text() == "tried\n"


@linux
@pytest.mark.parametrize("how", ["may not be copied", "raises", "dies", "ends", "hangs"])
def test_where_a_copy_with_the_module_cannot_be_copied_each_loads_it(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(careful, "_WARM_SECONDS", 0.5)

    def warm() -> bool:
        loads(tmp_path / "tried")
        if how == "raises":
            raise OSError("no such library")
        if how == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "ends":
            os._exit(0)
        if how == "hangs":
            signal.pause()
        return False

    copies = Copies(tells, warm)
    assert said(copies, 4) == [b""] * 4
    copies.close()
    assert (tmp_path / "tried").read_text() == "tried\n"


@linux
def test_the_death_of_a_copy_of_the_loaded_one_is_told_and_costs_no_other() -> None:
    copies = Copies(answers, lambda: True)
    for _ in range(3):
        copies.connection().send_bytes(b"die")
        with pytest.raises(EOFError):
            copies.connection().recv_bytes()
        assert copies.end() == -signal.SIGKILL
    copies.close()


@linux
def test_what_copies_would_share_is_seen(tmp_path: Path) -> None:
    before = careful._held()
    with (tmp_path / "plain").open("w"):
        assert careful._held() == before
    with socket.socket():
        assert careful._held() > before
    with mmap.mmap(-1, 4096), (tmp_path / "mapped").open("w+b") as file:
        file.write(bytes(4096))
        file.flush()
        with mmap.mmap(file.fileno(), 4096):
            shared = careful._held() - before
    assert len(shared) == 1  # memory that is shared and has no name; a file is no device
    assert careful._held() == before


@linux
@pytest.mark.parametrize("opens", [True, False])
def test_a_module_is_kept_loaded_if_a_copy_can_open_the_device(
    opens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As where a driver is started by the import, and leaves no trace but does not work in a copy.
    calls: list[int] = []
    imported_here = os.getpid()

    def open_device(*_: object) -> None:
        assert os.getpid() != imported_here
        if not opens:
            raise RuntimeError("the driver cannot be used in a forked process")

    monkeypatch.setattr(careful, "start_device", lambda _: calls.append(1))
    monkeypatch.setattr(careful, "open_device", open_device)
    monkeypatch.setattr(careful, "may_copy", lambda: True)
    assert careful.start_and_copy(0, orders()) is opens
    assert calls == [1]


# -- what a worker makes of them


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
        *(Bench("cpu", None, 1), None, False, "", None, items, tuple(last), Limits(5.0)),
        Machine("", "", "", ""),
    )


def passed(*cells: CellKey) -> Ran:
    told = (CellOutcome(cell=cell, outcome=Outcome.PASS, checks=1) for cell in cells)
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
    copies = Scripted(passed(OTHER), CRASH, Ran(ItemReport(), ["bad"]))
    found = outcomes(tmp_path, copies, CRASH)
    assert {cell: each.outcome for cell, each in found.items()} == {
        OTHER: Outcome.PASS,
        CELL: Outcome.CRASH,
    }
    rest, alone, told = copies.asked
    assert rest == Task(ITEM, lost=(CRASH,))
    assert alone == Task(ITEM, (CELL.clause,), only=CALL.call)
    assert told.told == (found[CELL],)


def test_a_call_that_dies_only_after_others_is_a_crash_of_the_whole_cell(tmp_path: Path) -> None:
    copies = Scripted(passed(OTHER), passed(CELL), CRASH, Ran(ItemReport(), ["bad"]))
    found = outcomes(tmp_path, copies, CRASH)[CELL]
    assert (found.outcome, found.call) == (Outcome.CRASH, None)


def test_a_cell_that_does_not_die_alone_has_the_outcome_that_was_seen_alone(tmp_path: Path) -> None:
    copies = Scripted(passed(OTHER), passed(CELL), passed(CELL), Ran(ItemReport(), []))
    found = outcomes(tmp_path, copies, CRASH)[CELL]
    assert found.outcome is Outcome.PASS
    assert found.note == ("once its worker was killed by SIGSEGV, but not when the cell ran alone")


def test_a_second_call_of_a_cell_that_died_is_left_out_too_and_confirmed_once(
    tmp_path: Path,
) -> None:
    second = msgspec.structs.replace(CRASH, call=GroupCall(CELL.clause, CallKey(2, "x")))
    copies = Scripted(second, passed(OTHER), CRASH, Ran(ItemReport(), ["bad"]))
    found = outcomes(tmp_path, copies, CRASH)
    assert copies.asked[1].lost == (CRASH, second)
    assert found[CELL].call == CALL.call and len(copies.asked) == 4


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
