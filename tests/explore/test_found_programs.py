"""Faults of streams, of the allocator and of graphs: random search finds a program of each, `conform pin` keeps
it, later plans run it."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from conformance import suites
from conformance.plan.selection import Item
from conformance.search.explore.exploration import Effort, explore, explored
from conformance.search.minimise.tasks import Bench
from devices.cell import CellKey, Outcome
from devices.manifest import Manifest
from devices.pinned import FILE, Pinned, add_pinned, read_pinned
from devices.verdicts import Matcher
from reports.run import load_run
from tests.plugin.running import ForkServer, Ran, cells_of, run_conform

#: ``test_runs.py`` has a finding of an op's example, from the search to later plans, in the fast part.
pytestmark = pytest.mark.slow

#: The simulated device, with a folder of its own to pin in. Told to, it ends a process that searches, once.
DEVICE = """
import os, sys
from dataclasses import replace
from pathlib import Path

from devices.simulated.descriptor import DESCRIPTOR as SIMULATED

DEADLY = Path(os.environ.get("DEADLY") or os.devnull)


def gate():
    if DEADLY.is_file() and sys.argv[0] == "-c":
        DEADLY.unlink()
        os.abort()
    return SIMULATED.gate()


DESCRIPTOR = replace(SIMULATED, name="odd", gate=gate)
"""
#: Of each family a clause, a fault of it, and the most steps that its program may have.
FAULTS = {
    "streams.wait": ("streams.reorder_tasks", 2),
    "allocator.peaks": ("allocator.reset_peak_to_zero", 2),
    "graphs.replay_equals_eager": ("graphs.drop_node", 1),
}
ALL = ",".join(fault for fault, _ in FAULTS.values())
CELLS = {clause: CellKey(clause, "drawn", "") for clause in FAULTS}
CLAUSES = pytest.mark.parametrize("clause", FAULTS)


@dataclass(frozen=True)
class Odd:
    """A folder with the device, and ways to run it."""

    folder: Path
    fork: ForkServer
    cache: Path

    @property
    def descriptor(self) -> Path:
        return self.folder / "device"

    def run(self, name: str, *arguments: str, faults: str = ALL) -> Ran:
        return self.fork.pytest(
            *("-q", f"--descriptor={self.descriptor}", f"--clauses={','.join(FAULTS)}"),
            *("-k", "drawn and not drawn_more", f"--results={self.folder / name}", *arguments),
            SIMULATED_FAULTS=faults,
        )

    def findings(self) -> dict[CellKey, dict[str, Any]]:
        text = (self.folder / "found" / "explore.jsonl").read_text()
        lines = [json.loads(line) for line in text.splitlines()]
        return {CellKey(*line["finding"]["cell"]): line for line in lines}


def make(folder: Path, fork: ForkServer, cache: Path) -> Odd:
    (folder / "device").mkdir()
    (folder / "device" / "descriptor.py").write_text(DEVICE)
    return Odd(folder, fork, cache)


class Enough(Exception):
    """Every fault was found."""


def search(made: Odd) -> None:
    """Search the cells of all faults until each has a finding, however long that takes."""
    left = set(map(str, CELLS.values()))

    def say(text: str) -> None:
        left.difference_update(cell for cell in [*left] if text.startswith(f"found {cell}: "))
        if not left:
            raise Enough

    bench = Bench("odd", str(made.descriptor), 3)
    items = [Item("drawn", "", [clause]) for clause in FAULTS]
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Enough):
        patch.setenv("SIMULATED_FAULTS", ALL)
        explore(bench, items, Matcher(Manifest()), made.folder / "found", 4, 120.0, say)


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory, fork: ForkServer, cache: Path) -> Odd:
    """A run in folder ``found`` that explored; then a search there with all of the faults on."""
    made = make(tmp_path_factory.mktemp("odd"), fork, cache)
    ran = made.run("found", "--explore=1s", "--explore-seed=4", faults="")
    assert ran.code == 0 and " programs of 3 cases with " in ran.text, ran.text
    search(made)
    return made


def steps(program: list[Any]) -> int:
    """Steps of a program as data: its longest list of lists."""
    lists = [part for part in program if isinstance(part, list)]
    return max(len(part) for part in lists if all(isinstance(step, list) for step in part))


@CLAUSES
def test_each_fault_is_found_and_shrunk_to_a_few_steps(odd: Odd, clause: str) -> None:
    line = odd.findings()[CELLS[clause]]
    found = line["finding"]
    assert 1 <= steps(found["program"]) <= FAULTS[clause][1], found["told"]
    assert found["told"].count(": ") >= 1 and not found["unpinnable"] and not line["expected"]
    assert (odd.folder / "found" / line["repro"]).is_file()
    assert line["repro"].startswith(f"explore/{clause}/drawn-")


def test_programs_are_counted(odd: Odd) -> None:
    effort = json.loads((odd.folder / "found" / "explore.json").read_text())
    assert effort["programs"] >= 1 and effort["checks"] >= 1
    assert effort["candidates"] == effort["unshown"] == 0
    assert effort["peak_bytes"] >= effort["halfway_bytes"] and effort["restarts"] == 0
    assert effort["peak_bytes"] >= effort["start_bytes"] > 0


@CLAUSES
def test_its_script_exits_1_exactly_while_the_fault_is_on(odd: Odd, clause: str) -> None:
    script = odd.folder / "found" / odd.findings()[CELLS[clause]]["repro"]
    on = odd.fork.script(script, SIMULATED_FAULTS=FAULTS[clause][0])
    off = odd.fork.script(script, SIMULATED_FAULTS="")
    assert (on.code, off.code) == (1, 0), on.text + off.text
    assert on.text.startswith("FAIL: ")


def pin(odd: Odd, *arguments: str) -> Ran:
    """``conform pin`` of the findings, with the faults on."""
    return run_conform(
        *("pin", str(odd.folder / "found"), f"--descriptor={odd.descriptor}", *arguments),
        cache=odd.cache,
        SIMULATED_FAULTS=ALL,
    )


@pytest.fixture(scope="module")
def pins(odd: Odd) -> dict[CellKey, Pinned]:
    """All findings, pinned; one of them as its script fails in a fresh process."""
    ran = pin(odd, "--only", str(CELLS["streams.wait"]))
    assert "1 of 1 findings added" in ran.text, ran.text
    ran, found = pin(odd, "--unconfirmed"), odd.findings()
    assert f"{len(found) - 1} of {len(found)} findings added" in ran.text, ran.text
    return {pin.cell: pin for pin in read_pinned(odd.descriptor)}


@pytest.fixture(scope="module")
def red(odd: Odd, pins: dict[CellKey, Pinned]) -> Ran:
    """The next run, with the faults still on."""
    return odd.run("red")


@pytest.fixture(scope="module")
def green(odd: Odd, pins: dict[CellKey, Pinned]) -> Ran:
    """The next run, with all of them mended."""
    return odd.run("green", faults="")


@CLAUSES
def test_with_the_fault_on_the_next_plan_fails_the_cell_under_its_name(
    odd: Odd, pins: dict[CellKey, Pinned], red: Ran, clause: str
) -> None:
    cell = cells_of(odd.folder / "red")[CELLS[clause]]
    layout = pins[CELLS[clause]].layout
    assert red.code == 1 and (cell.outcome, cell.layouts) == (Outcome.FAIL, (layout,))


@CLAUSES
def test_with_it_mended_the_program_is_a_check_that_passes(
    odd: Odd, pins: dict[CellKey, Pinned], green: Ran, clause: str
) -> None:
    cell = cells_of(odd.folder / "green")[CELLS[clause]]
    assert (cell.outcome, cell.ran_layouts) == (Outcome.PASS, (pins[CELLS[clause]].layout,))
    assert green.code == 0 and "green" in green.text, green.text


def test_what_is_pinned_is_in_the_plan_s_hash(odd: Odd, green: Ran) -> None:
    first, second = (load_run(odd.folder / name).provenance for name in ("found", "green"))
    assert first.plan_hash != second.plan_hash


def test_a_program_that_cannot_be_rebuilt_is_an_error(
    odd: Odd, pins: dict[CellKey, Pinned], tmp_path: Path
) -> None:
    other = make(tmp_path, odd.fork, odd.cache)
    streams, allocator, _ = (pins[cell] for cell in CELLS.values())
    lost = {
        "a step that the suite does not know": replace(streams, program=(1, [0], [["x"]], [0])),
        "a program of another clause": replace(allocator, program=("device.count", [])),
        "a case that the suite does not have": replace(streams, op="drawn_once"),
    }
    case = next(c for c in suites.load("streams").cases if c.clause == streams.clause)
    lost["a case that draws nothing"] = replace(streams, op=case.name)
    add_pinned(other.descriptor, lost.values())
    clauses = ",".join({pin.clause for pin in lost.values()})
    ran = other.fork.pytest(
        *("-q", f"--descriptor={other.descriptor}", f"--clauses={clauses}"),
        *("-k", f"drawn or {case.name} or running_maximum", f"--results={tmp_path / 'run'}"),
    )
    cells = cells_of(tmp_path / "run")
    assert ran.code == 1
    for what, pin in lost.items():
        cell = cells[pin.cell]
        assert cell.outcome is Outcome.ERROR, what
        assert f"{pin.layout} cannot be rebuilt: " in cell.message, what
        assert "Fix or remove its line" in cell.message, what


def test_a_damaged_line_ends_the_run_before_it_starts(
    odd: Odd, pins: dict[CellKey, Pinned], tmp_path: Path
) -> None:
    other = make(tmp_path, odd.fork, odd.cache)
    add_pinned(other.descriptor, pins.values())
    path = other.descriptor / FILE
    whole = path.read_text()
    path.write_text(whole.replace('"program"', '"programme"', 1))
    ran = other.run("run")
    assert (
        ran.code == 4
        and f"{FILE}:1: not a pinned example: Object contains unknown field `programme`" in ran.text
    )
    assert "Traceback" not in ran.text
    path.write_text(whole)
    assert {pin.cell: pin for pin in read_pinned(other.descriptor)} == pins


def test_what_kills_the_process_is_a_finding_and_the_search_goes_on(
    odd: Odd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEADLY", str(tmp_path / "deadly"))
    bench = Bench("odd", str(odd.descriptor), 3)
    items = [Item("drawn", "", ["streams.wait"])]
    # On a slow machine the first two processes take longer to start.
    for seconds in (3.0, 30.0, 120.0):
        (tmp_path / "deadly").touch()
        effort = Effort()
        found = list(explored(bench, items, 3, seconds, effort))
        if effort.programs:
            break
    assert [(str(f.cell), f.kind) for f in found] == [
        ("process::streams.wait::drawn", "was killed by SIGABRT")
    ]
    assert effort.restarts == 1 and effort.programs > 0
