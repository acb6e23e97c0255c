"""The parts of the isolation, without a run: journal, deaths, watchdog, limits, locks, progress, workers."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from queue import Queue
from typing import Any

import msgspec
import pytest
import torch

from conformance import contract
from conformance.checks.cells import CellRecord
from conformance.plan.selection import Item, Machine
from conformance.run.isolation import watch
from conformance.run.isolation.controller import Watchdog, least_used, useful_workers
from conformance.run.isolation.process import device_frame, encode, place_of, read_lost, shortened
from conformance.run.isolation.watch import (
    CellLimits,
    DeviceLock,
    Journal,
    Watch,
    limits_for,
    path_of,
    read_entry,
)
from conformance.run.item_report import (
    GroupCall,
    Guilty,
    ItemReport,
    Lost,
    LostCells,
    read_report,
    write_report,
)
from conformance.run.progress import (
    FILE,
    Begun,
    Done,
    Doubt,
    Finished,
    Identity,
    Progress,
    claim,
    look_back,
    read_progress,
)
from conformance.run.session import Session
from conformance.run.xdist_adapter import prepare_options, wants_a_worker
from devices.cell import CallKey, CellKey, CellOutcome, Observed, OtherChecks, Outcome
from devices.cpu.descriptor import DESCRIPTOR as CPU
from devices.descriptor import Descriptor
from devices.errors import ConformError
from devices.failure import Failure, Kind
from devices.manifest import Manifest
from devices.verdicts import Matcher
from reports.folder import EARLIER_FILE, RECORD_FILE, interrupted_run
from tests.plugin.running import CHECKOUT

CELL = CellKey("layout.bounds", "mm", "int64")
OTHER = CellKey("layout.values", "add", "int64")
CALL = GroupCall("layout.values", CallKey(1, "a"))


# -- the journal


def test_the_journal_names_the_cell_that_was_begun(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal", "gw0")
    journal.begin(OTHER, 30.0)
    journal.begin(CELL, 60.0)
    entry = read_entry(tmp_path / "journal", "gw0")
    assert entry is not None
    assert (entry.cell, entry.limit, entry.pid, entry.call) == (CELL, 60.0, os.getpid(), None)


def test_the_journal_names_the_call_within_the_cell(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "gw0")
    journal.begin(CELL, 60.0)
    journal.call(GroupCall("layout.values", CallKey(3, "channels_last")))
    journal.call(GroupCall("layout.values", CallKey(3, "x")))
    found = read_entry(tmp_path, "gw0")
    assert found is not None and found.call == GroupCall("layout.values", CallKey(3, "x"))
    journal.begin(OTHER, 60.0)
    found = read_entry(tmp_path, "gw0")
    assert found is not None and found.call is None


def test_the_journal_says_which_clause_is_charged_for_a_call_and_whether_it_was_judged(
    tmp_path: Path,
) -> None:
    journal = Journal(tmp_path, "gw0")
    journal.begin(CELL, 60.0, ("layout.values", "layout.bounds", "layout.views"))
    journal.call(CALL, 2)
    found = read_entry(tmp_path, "gw0")
    assert found is not None
    assert (found.cell, found.judged) == (CELL._replace(clause="layout.views"), False)
    journal.charge(0, judged=True)
    found = read_entry(tmp_path, "gw0")
    assert found is not None
    assert (found.cell, found.judged) == (CELL._replace(clause="layout.values"), True)


# -- what a process does around calls

GROUP = ("layout.values", "layout.inputs_intact", "layout.views")


class Watched:
    """A watch over a group of clauses of one item, some of whose calls ended a process before."""

    def __init__(
        self,
        folder: Path,
        wanted: Sequence[str],
        lost: Sequence[Lost] = (),
        elsewhere: Sequence[str] = (),
        again: bool = False,
    ) -> None:
        self._folder, cell = folder, CellKey(GROUP[0], "add", "int64")
        self.records = [CellRecord(cell._replace(clause=clause)) for clause in wanted]
        lock = DeviceLock("d", 0, folder)
        self.watch = Watch(
            Journal(folder, "gw0"), CellLimits(3.0), lock, lambda: None, lambda _: None
        )  # type: ignore[arg-type]
        self._guilty = LostCells(lost).of(Item.of(cell))
        with self.watch.item(cell, self._guilty, alone=False, elsewhere=elsewhere, again=again):
            """The item begins."""
        self.watch.begin(GROUP, self.records)

    def charged(self) -> str:
        entry = read_entry(self._folder, "gw0")
        assert entry is not None and entry.cell is not None
        return entry.cell.clause


def died(clause: str, sample: int, **more: Any) -> Lost:
    call = GroupCall(GROUP[0], CallKey(sample, "a"))
    return Lost(CellKey(clause, "add", "int64"), Outcome.CRASH, "x", call, **more)


def test_a_call_is_charged_to_the_first_clause_that_it_is_judged_for(tmp_path: Path) -> None:
    watched = Watched(tmp_path, GROUP)
    assert watched.watch.call(CallKey(0, "a"), GROUP) and watched.charged() == "layout.values"
    assert watched.watch.call(CallKey(0, "conj"), ["layout.views"])
    assert watched.charged() == "layout.views"
    watched.watch.judging("layout.inputs_intact")
    assert watched.charged() == "layout.inputs_intact"


def test_a_clause_that_is_expected_to_die_is_charged_where_it_does_not_run(tmp_path: Path) -> None:
    watched = Watched(tmp_path, GROUP[1:], elsewhere=GROUP[:1])
    assert watched.watch.call(CallKey(0, "a"), GROUP) and watched.charged() == "layout.values"


def test_a_call_that_ended_a_process_is_not_made_again_and_the_next_is_charged_alike(
    tmp_path: Path,
) -> None:
    watched = Watched(tmp_path, GROUP[1:], [died(GROUP[0], 0)])
    assert not watched.watch.call(CallKey(0, "a"), GROUP)
    assert watched.watch.call(CallKey(1, "a"), GROUP) and watched.charged() == "layout.values"


def test_a_call_whose_judgement_ended_a_process_is_made_for_the_other_clauses(
    tmp_path: Path,
) -> None:
    watched = Watched(tmp_path, GROUP[:2], [died("layout.views", 0, judged=True)])
    assert watched.watch.call(CallKey(0, "a"), GROUP)


def test_after_three_deaths_no_other_call_of_the_group_is_made(tmp_path: Path) -> None:
    lost = [died(GROUP[0], sample) for sample in (1, 2, 3)]
    watched = Watched(tmp_path, GROUP[1:], lost)
    made = [sample for sample in range(6) if watched.watch.call(CallKey(sample, "a"), GROUP)]
    assert made == [0]


def test_after_two_deaths_in_a_layout_or_with_a_sample_calls_like_them_are_not_made(
    tmp_path: Path,
) -> None:
    def dead(sample: int, layout: str) -> Lost:
        call = GroupCall(GROUP[0], CallKey(sample, layout))
        return Lost(CellKey(GROUP[0], "add", "int64"), Outcome.CRASH, "x", call)

    def made(*lost: Lost) -> list[str]:
        watched = Watched(tmp_path, GROUP[1:], lost)
        calls = [CallKey(sample, layout) for sample in range(3) for layout in "abc"]
        return [str(call) for call in calls if watched.watch.call(call, GROUP)]

    assert made(dead(0, "b"), dead(1, "b")) == ["0/a", "0/c", "1/a", "1/c", "2/a", "2/c"]
    assert made(dead(1, "a"), dead(1, "b")) == ["0/a", "0/b", "0/c", "2/a", "2/b", "2/c"]
    assert made(dead(0, "a"), dead(1, "b")) == ["0/b", "0/c", "1/a", "1/c", "2/a", "2/b", "2/c"]


def test_a_cell_that_runs_again_is_charged_itself_and_leaves_out_what_was_judged(
    tmp_path: Path,
) -> None:
    lost = [died(GROUP[0], 0), died("layout.views", 1, judged=True)]
    watched = Watched(tmp_path, ["layout.views"], lost, again=True)
    calls = CallKey(0, "a"), CallKey(1, "a"), CallKey(2, "b")
    assert [watched.watch.call(call, GROUP) for call in calls] == [False, False, True]
    assert watched.charged() == "layout.views"
    record = watched.records[0]
    record.check(2, "b")
    found = watched.watch.noted(record.to_outcome())
    assert found.rest is not None and (found.rest.outcome, found.rest.left_out) == (Outcome.PASS, 2)


def test_an_op_of_which_no_call_returns_is_left_alone_and_blocks_what_is_not_judged(
    tmp_path: Path,
) -> None:
    watched = Watched(tmp_path, GROUP[1:], [died(GROUP[0], sample) for sample in range(3)])
    for sample in range(6):
        assert not watched.watch.call(CallKey(sample, "a"), GROUP)
    watched.watch.end()
    other = CellRecord(CellKey("layout.out_kept", "add", "int64"))
    watched.watch.begin(("layout.out_kept",), [other])
    assert not watched.watch.call(CallKey(0, "out=a"), ["layout.out_kept"])
    told = watched.watch.noted(other.to_outcome())
    assert (told.outcome, told.blocked_by) == (Outcome.BLOCKED, "layout.values")


def test_the_journal_names_no_call_that_was_being_written(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "gw0")
    journal.begin(CELL, 60.0)
    journal.call(GroupCall("layout.values", CallKey(3, "channels_last")))
    raw = path_of(tmp_path, "gw0").read_bytes()
    half = raw.replace(b"channels_last", b"channels\xff\xff\xff\xff\xff")
    path_of(tmp_path, "gw0").write_bytes(half)
    found = read_entry(tmp_path, "gw0")
    assert half != raw and found is not None and (found.cell, found.call) == (CELL, None)


def test_the_journal_names_no_call_that_it_has_no_room_for(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "gw0")
    journal.begin(CELL, 60.0)
    journal.call(GroupCall("layout.values", CallKey(3, "x")))
    journal.call(GroupCall("layout.values", CallKey(4, "x" * 5000)))
    found = read_entry(tmp_path, "gw0")
    assert found is not None and (found.cell, found.call) == (CELL, None)


def test_the_journal_names_nothing_after_the_end(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "gw0")
    journal.begin(CELL, 60.0)
    journal.end()
    entry = read_entry(tmp_path, "gw0")
    assert entry is not None and entry.cell is None


def test_a_journal_that_was_being_written_names_nothing(tmp_path: Path) -> None:
    Journal(tmp_path, "gw0").begin(CELL, 60.0)
    path = tmp_path / "gw0.cur"
    raw = bytearray(path.read_bytes())
    raw[0] |= 1  # an odd number
    path.write_bytes(raw)
    entry = read_entry(tmp_path, "gw0")
    assert entry is not None and entry.cell is None
    path.write_bytes(raw[:100])
    assert read_entry(tmp_path, "gw0") is None
    assert read_entry(tmp_path, "gw1") is None


def test_the_journal_survives_sigkill(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from conformance.run.isolation.watch import Journal; "
        "from devices.cell import CellKey; j = Journal(Path(sys.argv[1]), 'gw0'); "
        "j.begin(CellKey('layout.bounds', 'mm', 'int64'), 1.0); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False, timeout=60)
    entry = read_entry(tmp_path, "gw0")
    assert entry is not None and entry.cell == CELL


# -- the stack of a process that ended


STACKS = """Fatal Python error: Segmentation fault

Thread 0x00007f0 (most recent call first):
  File "/x/execnet/gateway_base.py", line 411 in read

Current thread 0x00007f1 (most recent call first):
  File "/site/torch/_ops.py", line 12 in kernel
  File "/repo/conformance/suites/layout/calls.py", line 40 in check
  File "/site/_pytest/python.py", line 166 in pytest_pyfunc_call
"""


def test_a_stack_is_told_in_one_line_without_what_drives_it() -> None:
    assert shortened(STACKS) == "kernel (torch/_ops.py:12) < check (layout/calls.py:40)"


def test_frames_of_the_suite_itself_are_left_out_but_for_the_reference() -> None:
    ours = STACKS.replace("/repo/", f"{CHECKOUT}/")
    assert shortened(ours) == "kernel (torch/_ops.py:12)"
    reference = ours.replace("conformance/suites/layout/calls.py", "opinfo/reference.py")
    told = shortened(reference.replace("in check", "in value_answer"))
    assert told == "kernel (torch/_ops.py:12) < value_answer (opinfo/reference.py:40)"
    assert shortened(ours.replace('"/site/torch/', f'"{CHECKOUT}/conformance/')) == ""


def test_the_frame_of_a_crash_is_the_innermost_one_of_the_device_s_own_code() -> None:
    ours = STACKS.replace("/repo/", f"{CHECKOUT}/").replace(
        "/site/torch/", f"{Path(torch.__file__).parent}{os.sep}"
    )
    assert device_frame(ours) == ""  # torch and the suite alone
    vendor = f"{sysconfig.get_path('purelib')}/vendor/ops.py"
    called = f'  File "{os.__file__}", line 3 in fspath\n  File "{vendor}", line 7 in mul\n'
    current = "Current thread 0x00007f1 (most recent call first):\n"
    assert device_frame(ours.replace(current, current + called)) == "mul (vendor/ops.py:7)"


def test_a_text_without_a_stack_is_none() -> None:
    assert shortened("") == "" and shortened("Fatal Python error: Aborted\n") == ""


def test_an_end_in_the_reference_is_not_laid_at_the_devices_door() -> None:
    stack = "kernel (torch/_ops.py:12) < value_answer (opinfo/reference.py:249) < _asked (axes/axis_context.py:284)"
    assert place_of(stack).startswith(
        "in the call on the CPU that computes the reference: in kernel"
    )
    assert place_of("kernel (torch/_ops.py:12)") == "in kernel (torch/_ops.py:12)"


# -- the watchdog


class Kills(list[tuple[int, int]]):
    """Notes signals instead of sending them."""

    def __call__(self, pid: int, number: int) -> None:
        self.append((pid, number))


def unhindered(process: int) -> dict[int, float]:
    """No thread of it ever waited for a processor."""
    return {}


def test_a_cell_that_has_had_its_time_is_asked_for_its_stack_and_then_killed(
    tmp_path: Path,
) -> None:
    journal, kills = Journal(tmp_path, "gw0"), Kills()
    dog = Watchdog(tmp_path, 100.0, kills, unhindered)
    dog.watch("gw0", os.getpid())
    journal.begin(CELL, 3.0)
    for _ in range(4):
        dog.step(1.0)
    assert kills == [(os.getpid(), signal.SIGUSR1)] and dog.hung("gw0") is None
    dog.step(1.0)
    assert kills[1:] == [(os.getpid(), signal.SIGKILL)]
    hung = dog.hung("gw0")
    assert hung is not None and (hung.cell, hung.limit) == (CELL, 3.0)


def test_a_cell_that_returns_is_left_alone(tmp_path: Path) -> None:
    journal, kills = Journal(tmp_path, "gw0"), Kills()
    dog = Watchdog(tmp_path, 100.0, kills, unhindered)
    dog.watch("gw0", 1)
    for _ in range(10):
        journal.begin(CELL, 3.0)
        dog.step(1.0)
        dog.step(1.0)
        journal.end()
        for _ in range(9):
            dog.step(1.0)
    assert kills == []


def test_time_in_which_a_worker_waited_for_a_processor_does_not_count(tmp_path: Path) -> None:
    journal, kills, wait = Journal(tmp_path, "gw0"), Kills(), {1: 0.0}
    dog = Watchdog(tmp_path, 100.0, kills, lambda process: dict(wait))
    dog.watch("gw0", os.getpid())
    journal.begin(CELL, 3.0)
    for _ in range(20):
        dog.step(1.0)
        wait[1] += 0.9  # of the second that follows
    assert kills == []
    for _ in range(3):
        dog.step(1.0)
    assert [number for _, number in kills] == [signal.SIGUSR1, signal.SIGKILL]


def test_a_cell_has_its_time_for_each_call_and_ten_times_that_in_all(tmp_path: Path) -> None:
    journal, kills = Journal(tmp_path, "gw0"), Kills()
    dog = Watchdog(tmp_path, 100.0, kills, unhindered)
    dog.watch("gw0", os.getpid())
    journal.begin(CELL, 3.0)
    for number in range(14):
        journal.call(GroupCall("layout.values", CallKey(number, "a")))
        dog.step(1.0)
        dog.step(1.0)
    assert kills == []
    journal.call(CALL)
    for _ in range(4):
        dog.step(1.0)
    assert [number for _, number in kills] == [signal.SIGUSR1, signal.SIGKILL]


def test_a_machine_that_slept_has_lost_no_time(tmp_path: Path) -> None:
    journal, kills = Journal(tmp_path, "gw0"), Kills()
    dog = Watchdog(tmp_path, 100.0, kills, unhindered)
    dog.watch("gw0", 1)
    journal.begin(CELL, 3.0)
    dog.step(1.0)
    dog.step(3600.0)  # of the same second, as far as the cell is concerned
    assert kills == []


def test_a_worker_that_never_comes_up_is_killed(tmp_path: Path) -> None:
    kills = Kills()
    dog = Watchdog(tmp_path, 5.0, kills, unhindered)
    dog.watch("gw0", 77)
    for _ in range(7):
        dog.step(1.0)
    assert kills == [(77, signal.SIGKILL)]


def test_a_worker_that_replaces_one_that_never_came_up_is_watched_too(tmp_path: Path) -> None:
    kills = Kills()
    dog = Watchdog(tmp_path, 5.0, kills, unhindered)
    for pid in (77, 78):
        dog.watch("gw0", pid)
        for _ in range(7):
            dog.step(1.0)
        dog.forget("gw0")
    assert kills == [(77, signal.SIGKILL), (78, signal.SIGKILL)]


def test_a_worker_that_ended_is_not_looked_at_any_more(tmp_path: Path) -> None:
    journal, kills = Journal(tmp_path, "gw0"), Kills()
    dog = Watchdog(tmp_path, 5.0, kills, unhindered)
    dog.watch("gw0", 77)
    journal.begin(CELL, 1.0)
    dog.forget("gw0")
    for _ in range(9):
        dog.step(1.0)
    assert kills == []


# -- limits, workers, locks


def test_limits_are_by_plan_and_clause_and_scaled() -> None:
    quick, full = limits_for("quick", 1.0), limits_for("full", 2.0)
    assert quick.of("layout.bounds") < quick.of("layout.values")
    assert full.of("layout.bounds") > 2 * quick.of("layout.bounds")
    assert limits_for("quick", 9.0, 30.0, override=2.5) == CellLimits(2.5)


def test_the_first_cell_of_an_op_in_a_process_may_take_longer(tmp_path: Path) -> None:
    limits, lock = CellLimits(5.0, first_use=30.0), DeviceLock("first", 0, tmp_path)
    watching = Watch(Journal(tmp_path, "gw0"), limits, lock, lambda: None, sys.exit)
    given = []
    for op in ("add", "mul", "add"):
        with watching.item(CellKey("", op, "int64"), Guilty(), alone=False):
            for clause in ("layout.values", "layout.bounds"):
                watching.begin([clause], [CellRecord(CellKey(clause, op, "int64"))])
                entry = read_entry(tmp_path, "gw0")
                assert entry is not None
                given.append(entry.limit)
                watching.end()
    lock.close()
    assert given == [35.0, 5.0, 35.0, 5.0, 5.0, 5.0]


def test_the_longest_pattern_of_a_clause_counts() -> None:
    limits = CellLimits(10.0, {"layout.*": 2.0, "layout.large": 5.0, "*": 3.0})
    assert [limits.of(c) for c in ("layout.x", "layout.large", "graphs.x")] == [20.0, 50.0, 30.0]


def test_an_item_outside_of_its_cells_has_a_minute() -> None:
    assert CellLimits(2.0).of("") == 60.0


def options(**given: Any) -> Namespace:
    usual = {"numprocesses": None, "tx": [], "dist": "no", "capture": "fd", "usepdb": False}
    return Namespace(**{**usual, **given})


def test_a_run_without_a_number_of_processes_gets_a_worker() -> None:
    assert wants_a_worker(options())


@pytest.mark.parametrize(
    "given",
    [
        {"numprocesses": 0},
        {"numprocesses": 4},
        {"tx": ["popen"]},
        {"dist": "load"},
        {"usepdb": True},
        {"capture": "no"},
        {"collectonly": True},
        {"setupplan": True},
    ],
)
def test_what_asks_for_one_process_or_for_others_is_left_alone(given: dict[str, Any]) -> None:
    assert not wants_a_worker(options(**given))


def test_without_xdist_there_is_no_worker() -> None:
    assert not wants_a_worker(Namespace(capture="fd"))


@pytest.mark.parametrize("mode", ["loadscope", "each"])
def test_modes_that_lose_items_are_refused(mode: str) -> None:
    with pytest.raises(ConformError, match=f"--dist {mode}: expected load or worksteal"):
        prepare_options(options(dist=mode))
    prepare_options(options(dist="worksteal"))


@pytest.mark.parametrize(("given", "sent"), [(None, 4), (100, 100)])
def test_items_are_sent_to_workers_a_few_at_a_time_unless_the_user_says_otherwise(
    given: int | None, sent: int
) -> None:
    option = options(maxschedchunk=given)
    prepare_options(option)
    assert option.maxschedchunk == sent


def test_workers_are_bounded_by_the_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    many = Descriptor(
        name="many", torch_type="cpu", title="x", capabilities=frozenset(), dtypes=CPU.dtypes,
        workers_per_device=4, device_count=lambda: 8,
    )  # fmt: skip
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)), raising=False)
    monkeypatch.setattr(os, "sysconf", lambda name: 2**12 if "SIZE" in name else 2**30)
    assert useful_workers(many) == 6
    monkeypatch.setattr(os, "sysconf", lambda name: 2**12 if "SIZE" in name else 600 * 2**10)
    assert useful_workers(many) == 2  # 2.3 GiB: half of it holds two


def test_a_count_that_raises_before_the_device_is_open_is_taken_for_one() -> None:
    def count() -> int:
        raise RuntimeError("no module torch.mine")

    one = Descriptor(
        name="mine",
        torch_type="mine",
        title="x",
        capabilities=frozenset(),
        dtypes=frozenset({"float32"}),
        device_count=count,
    )
    assert useful_workers(one) == 1


def test_a_device_index_is_that_which_fewest_workers_have() -> None:
    assert least_used(range(2), {}) == 0
    assert least_used(range(2), {"gw0": 0}) == 1
    assert least_used(range(2), {"gw1": 1, "gw2": 1, "gw3": 0}) == 0


def test_one_that_takes_the_device_waits_for_those_that_share_it(tmp_path: Path) -> None:
    order: list[str] = []
    sharing, taking, late = (DeviceLock("d", 0, tmp_path) for _ in range(3))
    sharing.share()

    def take() -> None:
        taking.take()
        order.append("took")
        taking.release()

    def share() -> None:
        late.share()
        order.append("shared")

    first = threading.Thread(target=take)
    first.start()
    assert wait_for_the_gate(tmp_path)
    second = threading.Thread(target=share)
    second.start()
    order.append("released")
    sharing.release()
    first.join(30)
    second.join(30)
    assert order == ["released", "took", "shared"]


def wait_for_the_gate(folder: Path) -> bool:
    """Until somebody waits to be alone, and so holds the gate."""
    (path,) = folder.glob("*.gate")
    with path.open("w") as gate:
        for _ in range(3000):
            try:
                fcntl.flock(gate, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return True
            fcntl.flock(gate, fcntl.LOCK_UN)
            time.sleep(0.01)
    return False


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_does_not_hold_the_lock_of_a_process_that_has_ended(tmp_path: Path) -> None:
    lock = DeviceLock("d", 0, tmp_path)
    lock.share()
    alive, child_waits = os.pipe()
    forked, child_says = os.pipe()
    child = os.fork()
    if not child:
        os.write(child_says, b"1")
        os.close(child_waits)
        os.read(alive, 1)  # until the test is over
        os._exit(0)
    os.read(forked, 1)
    try:
        lock.close()  # as the kernel does it when the process ends
        (path,) = tmp_path.glob("*.lock")
        with path.open("w") as alone:
            fcntl.flock(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises if the child holds it
    finally:
        for each in (child_waits, alive, forked, child_says):
            os.close(each)
        os.waitpid(child, 0)


def test_one_that_waits_long_for_a_device_says_for_whom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_LONG", 0.01)
    said: Queue[str] = Queue()
    taking, waiting = DeviceLock("d", 0, tmp_path), DeviceLock("d", 0, tmp_path, said.put)
    taking.take()
    thread = threading.Thread(target=waiting.share)
    thread.start()
    text = said.get(timeout=30)
    taking.release()
    thread.join(30)
    assert text.startswith("d:0 has been in use for 0.01 s by ") and not thread.is_alive()
    if Path("/proc/locks").exists():
        assert f"by process {os.getpid()}: waiting until it is free" in text


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="the system does not list locks")
def test_one_that_waits_for_another_worker_of_its_run_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_LONG", 0.01)
    holding = os.open(tmp_path / "held", os.O_RDWR | os.O_CREAT)
    fcntl.flock(holding, fcntl.LOCK_EX)
    said: list[str] = []
    waiting = DeviceLock("d", 0, tmp_path, said.append)
    for sibling in (True, False):
        monkeypatch.setattr(watch, "_is_sibling", lambda pid, answer=sibling: answer)
        waiting._print_holder(holding)
    assert len(said) == 1 and f"process {os.getpid()}" in said[0]
    monkeypatch.undo()
    assert not watch._is_sibling(os.getpid()) and not watch._is_sibling(1)
    brother = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    if (child := os.fork()) == 0:
        os._exit(not watch._is_sibling(brother.pid))
    _, status = os.waitpid(child, 0)
    brother.communicate(b"\n", timeout=60)
    assert status == 0
    os.close(holding)


def test_devices_have_locks_of_their_own(tmp_path: Path) -> None:
    DeviceLock("d", 0, tmp_path).take()
    DeviceLock("d", 1, tmp_path).take()  # would wait for ever


# -- what is kept


MACHINE = Machine("2.13", "1", "a device", "0")


def identity(**given: Any) -> Identity:
    usual = {"device": "cpu", "plan": "abc", "machine": MACHINE, "selection": {}, "shard": ""}
    return Identity(**{**usual, **given})


def writing(folder: Path, claimed: int | None = None, *, keep: bool = False) -> Progress:
    """The progress of a run that starts now."""
    head = Begun(identity(), "2026-01-01T00:00:00+00:00", planned=3)
    return Progress(folder, head, Done(), claimed, keep)


def passed(cell: CellKey) -> ItemReport:
    return ItemReport((CellOutcome(cell=cell, outcome=Outcome.PASS, checks=1),))


@pytest.mark.parametrize("resume", [False, True])
def test_the_start_of_a_run_deletes_old_journals_and_keeps_its_own(
    tmp_path: Path, resume: bool
) -> None:
    writing(tmp_path).begin()
    for worker in ("main", "gw0", "gw1"):
        Journal(tmp_path / "journal", worker).begin(CELL, 60.0)
    before = look_back(tmp_path, identity(), resume=resume)
    assert before.doubts == ([CELL] if resume else [])
    assert list((tmp_path / "journal").iterdir()) == []
    own = Journal(
        tmp_path / "journal", "main"
    )  # as with -n 0, where pytest collects before it begins
    writing(tmp_path).begin()
    own.begin(OTHER, 60.0)
    entry = read_entry(tmp_path / "journal", "main")
    assert entry is not None and entry.cell == OTHER


def test_a_cell_that_is_reported_again_is_counted_once() -> None:
    session = Session.__new__(Session)
    session.contract, session.matcher = contract.load(), Matcher(Manifest())
    session.failing, session.ended, session.outcomes = set(), set(), {}
    session.asked = session.missed = session.shipped = 0
    crash = Lost(CELL, Outcome.CRASH, "the worker was killed by SIGSEGV")
    session._take(ItemReport((crash.as_outcome,)), "gw0")
    session._take(ItemReport((crash.as_outcome,)), "gw1")
    assert session.failing == {CELL}
    session._take(passed(CELL), "gw1")
    assert session.failing == set()


def test_a_cell_that_died_is_done_when_its_other_checks_have_run() -> None:
    session = Session.__new__(Session)
    session.contract, session.matcher = contract.load(), Matcher(Manifest())
    session.failing, session.ended, session.outcomes = set(), set(), {}
    session.asked = session.missed = session.shipped = 0
    crash = Lost(CELL, Outcome.CRASH, "the worker was killed by SIGSEGV", CALL)
    unknown = msgspec.structs.replace(crash, cell=OTHER, call=None)
    session.lost = LostCells([crash, unknown])
    rest = OtherChecks(outcome=Outcome.PASS, left_out=1)
    whole = msgspec.structs.replace(crash.as_outcome, checks=9, rest=rest)
    session.resume(Done("", [], [crash, unknown]))
    # Without a known call the cell cannot run again.
    assert (session.is_done(CELL), session.is_done(OTHER)) == (False, True)
    session._take(ItemReport((whole,)), "gw1")
    assert session.is_done(CELL)
    session.ended, session.outcomes = set(), {}
    session.resume(Done("", [Finished("gw1", ItemReport((whole,)))], [crash]))
    assert session.is_done(CELL) and session.outcomes[CELL].rest == rest


def test_a_report_is_read_as_it_was_written() -> None:
    told = CellOutcome(
        cell=CELL,
        outcome=Outcome.FAIL,
        failure=Failure(kind=Kind.VALUES, expected="1", found="nan"),
        others=(Observed(Outcome.PASS), Observed(Outcome.FAIL, frozenset({"x"}), "E", "m")),
    )
    report = ItemReport((told,), 3, 1)
    assert read_report(write_report(report)) == report


def test_a_folder_that_a_run_writes_to_is_refused_to_another(tmp_path: Path) -> None:
    claimed = claim(tmp_path / "results")
    with pytest.raises(ConformError, match=f"process {os.getpid()} writes the results of another"):
        claim(tmp_path / "results")
    writing(tmp_path / "results", claimed).close(complete=True)
    assert claim(tmp_path / "results") is not None


def test_progress_is_read_as_it_was_written(tmp_path: Path) -> None:
    progress = writing(tmp_path)
    report = ItemReport(passed(CELL).cells, 3, 1)
    lost = Lost(OTHER, Outcome.HANG, "did not return", CALL)
    progress.add(Finished("gw0", report))
    progress.add(lost)
    progress.add(Doubt(CELL))
    progress.close(complete=False)
    done = read_progress(tmp_path, identity())
    assert (done.items, done.lost, done.doubts) == ([Finished("gw0", report)], [lost], [CELL])


def test_what_is_complete_needs_no_progress(tmp_path: Path) -> None:
    progress = writing(tmp_path)
    progress.begin()
    assert (tmp_path / FILE).exists()
    progress.close(complete=True)
    assert not (tmp_path / FILE).exists()


def test_another_run_is_not_resumed_and_what_differs_is_named(tmp_path: Path) -> None:
    progress = writing(tmp_path)
    progress.begin()
    other = identity(plan="def", machine=Machine("2.12", "1", "a device", "0"))
    with pytest.raises(
        ConformError, match=r"plan was 'abc', now it is 'def'; torch was '2.13', now it is"
    ):
        read_progress(tmp_path, other)


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_last_line_that_was_cut_off_is_left_out(tmp_path: Path, cut: int) -> None:
    progress = writing(tmp_path)
    progress.begin()
    progress.add(Finished("gw0", passed(CELL)))
    progress.add(Finished("gw1", passed(OTHER)))
    path = tmp_path / FILE
    os.truncate(path, path.stat().st_size - cut)
    assert read_progress(tmp_path, identity()).items[0] == Finished("gw0", passed(CELL))


@pytest.mark.parametrize(
    "line", [b"{", b"[]", b"{}", b'{"type": "finished", "worker": 2, "report": 1}', b"\xff"]
)
def test_a_damaged_line_is_reported(tmp_path: Path, line: bytes) -> None:
    progress = writing(tmp_path)
    progress.begin()
    with (tmp_path / FILE).open("ab") as stream:
        stream.write(line + b"\n")
    progress.add(Finished("gw0", passed(CELL)))
    with pytest.raises(ConformError, match="jsonl:2 is damaged"):
        read_progress(tmp_path, identity())


@pytest.mark.parametrize("complete", [True, False])
def test_a_complete_record_stays_until_the_next_run_is_complete(
    tmp_path: Path, complete: bool
) -> None:
    (tmp_path / RECORD_FILE).write_text("the record")
    progress = writing(tmp_path, keep=True)
    assert (tmp_path / RECORD_FILE).exists()  # nothing has run
    progress.begin()
    assert not (tmp_path / RECORD_FILE).exists() and progress.keeps_earlier
    progress.close(complete=complete)
    assert (tmp_path / EARLIER_FILE).exists() is not complete


def test_how_far_an_interrupted_run_came_is_known(tmp_path: Path) -> None:
    assert interrupted_run(tmp_path) is None
    progress = writing(tmp_path)
    progress.add(Finished("gw0", passed(CELL)))
    progress.add(Finished("gw0", passed(CELL)))
    progress.add(Lost(OTHER, Outcome.HANG, "did not return", CALL))
    with (tmp_path / FILE).open("ab") as stream:
        stream.write(b'{"type": "finis')
    found = interrupted_run(tmp_path)
    assert found is not None and found.whole and str(found) == "2 of 3 cells"
    # Before cells had variants, a cell was a list of three names.
    text = (tmp_path / FILE).read_text()
    assert '"float32",""]' in text or '"int64",""]' in text
    (tmp_path / FILE).write_text(text.replace('",""]', '"]'))
    assert str(interrupted_run(tmp_path)) == "2 of 3 cells"


def test_lost_cells_are_left_out_of_their_item_alone() -> None:
    lost = LostCells([Lost(CELL, Outcome.CRASH, "x", CALL)])
    guilty = lost.of(Item.of(CELL))
    assert guilty.clauses == {"layout.bounds"} and guilty.calls == {CALL: CELL}
    assert lost.of(Item("add", "int64", [])).clauses == set()
    compiled = CELL._replace(variant="compiled")
    assert lost.of(Item.of(compiled)).clauses == set()
    lost_compiled = LostCells([Lost(compiled, Outcome.CRASH, "x", CALL)])
    assert lost_compiled.of(Item.of(compiled)).clauses == {"layout.bounds"}
    assert lost_compiled.of(Item.of(CELL)).clauses == set()
    assert read_lost(encode(lost.all[0])) == lost.all[0]
    outcome = lost.all[0].as_outcome
    assert outcome.call == CALL.call and outcome.message == "[a] x"


def test_crashes_that_ended_alike_differ_in_their_stacks_alone() -> None:
    lost = Lost(CELL, Outcome.CRASH, "the worker was killed by SIGSEGV", CALL, "in f (a.py:1)")
    found = lost.as_outcome
    assert found.observed.said == "the worker was killed by SIGSEGV; in f (a.py:1)"
    assert found.failure is not None and found.failure.detail == lost.message
