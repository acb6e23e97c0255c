"""What the controller makes of a worker's death: whose fault it was, and what runs again."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from conformance.plan.selection import Item, named
from conformance.run.isolation.controller import Controller, NoProgress
from conformance.run.isolation.process import (
    Start,
    Unable,
    encode,
    note_path,
    read_lost,
    read_start,
)
from conformance.run.isolation.watch import CellLimits, Journal
from conformance.run.item_report import LostCells
from devices.cell import CellKey

CELL = CellKey("layout.bounds", "mm", "int64")


class Process:
    """A worker's process that has ended."""

    pid = 4_000_000

    def __init__(self, status: int) -> None:
        self.returncode = status

    def poll(self) -> int:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        return self.returncode

    def kill(self) -> None:
        """It has ended."""


class Node:
    """A worker of this machine."""

    where, by_socket = "here", False

    def __init__(self, name: str, status: int) -> None:
        self.name, self.process = name, Process(status)
        self.sent: list[bytes] = []

    def start(self, given: bytes, heard: Callable[[bytes], None]) -> None:
        self.given: Start = read_start(given)

    def send(self, message: bytes) -> None:
        self.sent.append(message)


ITEM = "layout-mm-int64"


class Bench:
    """A controller with one item of two cells."""

    def __init__(self, folder: Path) -> None:
        self.done: set[CellKey] = set()
        self.folder = folder
        self.controller = Controller(
            folder=folder,
            results=folder,
            items=named([Item("mm", "int64", ["layout.values", "layout.bounds"])], []),
            limits=CellLimits(5.0),
            indices=range(2),
            judge=lambda lost: True,
            is_done=lambda cell: cell in self.done,
            record=lambda lost, worker: self.done.add(lost.cell),
            lost=LostCells(),
            on_host=lambda host: None,
            say=lambda text: None,
        )

    def start(self, name: str, status: int) -> Node:
        node = Node(name, status)
        self.controller.configured(node)
        return node


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_signal_of_the_cell_s_own_is_held_against_it_at_once(bench: Bench) -> None:
    node = bench.start("gw0", -signal.SIGSEGV)
    Journal(bench.folder, "gw0").begin(CELL, 5.0)
    found = bench.controller.crashed(ITEM, node)
    assert found.failed and found.again and found.text.startswith(f"crash in {CELL}: ")
    assert bench.done == {CELL}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_death_from_outside_is_held_against_a_cell_the_second_time(
    bench: Bench, number: int
) -> None:
    for turn, name in enumerate(("gw0", "gw1")):
        node = bench.start(name, -number)
        Journal(bench.folder, name).begin(CELL, 5.0)
        found = bench.controller.crashed(ITEM, node)
        assert found.failed is bool(turn) and found.again
    assert bench.done == {CELL}


def test_a_death_outside_of_any_cell_costs_the_item_a_second_try_and_then_its_cells(
    bench: Bench,
) -> None:
    for name in ("gw0", "gw1"):
        node = bench.start(name, 3)
        Journal(bench.folder, name).begin(CellKey("", "mm", "int64"), 5.0)
        found = bench.controller.crashed(ITEM, node)
        assert found.again is (name == "gw0")
    assert {cell.clause for cell in bench.done} == {"layout.values", "layout.bounds"}


def test_an_item_whose_other_cells_are_done_runs_again_for_the_other_checks_of_the_dead_cell(
    bench: Bench,
) -> None:
    node = bench.start("gw0", -signal.SIGSEGV)
    Journal(bench.folder, "gw0").begin(CELL, 5.0)
    bench.done.add(CellKey("layout.values", "mm", "int64"))
    bench.controller.record = lambda lost, worker: None  # the session waits for the other checks
    assert bench.controller.crashed(ITEM, node).again
    node = bench.start("gw1", -signal.SIGSEGV)
    Journal(bench.folder, "gw1").begin(CELL, 5.0)
    found = bench.controller.crashed(ITEM, node)
    assert not found.failed and len(bench.controller.lost.deaths_of(CELL)) == 2


def test_a_death_behind_a_finished_item_loses_nothing(bench: Bench) -> None:
    node = bench.start("gw0", -signal.SIGSEGV)
    Journal(bench.folder, "gw0").end()
    bench.done |= {CellKey(clause, "mm", "int64") for clause in ("layout.values", "layout.bounds")}
    found = bench.controller.crashed(ITEM, node)
    assert not found.failed and not found.again and "no result was lost" in found.text


def test_every_live_worker_is_told_of_a_lost_cell_and_every_new_one(bench: Bench) -> None:
    dead, live = bench.start("gw0", -signal.SIGABRT), bench.start("gw1", 0)
    Journal(bench.folder, "gw0").begin(CELL, 5.0)
    bench.controller.crashed(ITEM, dead)
    (told,) = live.sent
    assert read_lost(told).cell == CELL
    assert bench.start("gw2", 0).given.lost == (read_lost(told),)


def test_workers_take_turns_on_the_devices(bench: Bench) -> None:
    nodes = [bench.start(f"gw{i}", 0) for i in range(2)]
    assert [n.given.index for n in nodes] == [0, 1]
    bench.controller.down(nodes[0], "died")
    assert bench.start("gw2", 0).given.index == 0


def test_workers_that_die_in_vain_are_not_restarted_for_ever(bench: Bench) -> None:
    with pytest.raises(NoProgress, match="the device is gone"):
        for number in range(10):
            node = bench.start(f"gw{number}", 86)
            note_path(bench.folder, node.name).write_bytes(encode(Unable("the device is gone")))
            bench.controller.down(node, "died")
    assert number == 2


def test_workers_that_did_something_are_restarted(bench: Bench) -> None:
    for number in range(10):
        node = bench.start(f"gw{number}", 1)
        bench.controller.down(node, "died")
        bench.controller.progress()
