"""Cells that crash, hang or end in an error get a repro script, which survives what it shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.search import repros
from conformance.search.minimise.tasks import Bench
from conformance.search.repros import Unfinished, with_repros
from devices.cell import CallKey, CellKey, Outcome
from reports.model import CellResult
from tests.plugin.running import ForkServer, cells_of
from tests.reports.builders import failed

#: Every exp of the simulated device dies, or never returns.
CRASHES = {"SIMULATED_FAULTS": "process.segfault", "SIMULATED_FAULT_OP": "aten::exp"}
HANGS = {**CRASHES, "SIMULATED_FAULTS": "process.hang"}
SOUND = {**CRASHES, "SIMULATED_FAULTS": ""}
#: The call of this clause is known; that of the other is not.
CALLS, CELL = (
    CellKey("layout.values", "exp", "float32"),
    CellKey("layout.variants", "exp", "float32"),
)
BENCH = Bench("simulated", None, 3)


@pytest.fixture(scope="module")
def crashed(fork: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("crashed") / "run"
    fork.pytest(
        *("--device", "simulated", "--ops", "exp", "--dtypes", "float32", "--expectations", "none"),
        *(
            "--clauses",
            f"{CALLS.clause},layout.expanded_read,layout.inputs_intact,{CELL.clause}",
            "-n",
            "1",
        ),
        f"--results={folder}",
        *("--minimise", "0"),
        **CRASHES,
    )
    return folder


@pytest.mark.parametrize("cell", [CALLS, CELL], ids=str)
@pytest.mark.slow
def test_the_script_of_a_crash_exits_1_exactly_while_the_device_crashes(
    crashed: Path, fork: ForkServer, cell: CellKey
) -> None:
    result = cells_of(crashed)[cell]
    if cell == CELL:
        given = {cell: failed(cell, outcome=Outcome.CRASH, layouts=())}
        result = with_repros(given, [Unfinished(cell, "it dies", 60.0)], BENCH, crashed)[cell]
    assert result.outcome is Outcome.CRASH and result.repro is not None
    on, off = (fork.script(crashed / result.repro, **faults) for faults in (CRASHES, SOUND))
    assert (on.code, off.code) == (1, 0), on.text + off.text
    assert "FAIL: the process was killed by SIGSEGV" in on.text
    if cell == CALLS:  # the script of one call, which shows it and how it ended
        head = (crashed / result.repro).read_text(encoding="utf-8").partition("Written by")[0]
        assert "torch.exp(t[0])" in head and "Found:    " in head and "SIGSEGV" in head


@pytest.mark.slow
def test_a_clause_whose_every_call_dies_is_blocked_by_that_of_the_first(crashed: Path) -> None:
    result = cells_of(crashed)[CELL]
    assert (result.outcome, result.blocked_by) == (Outcome.BLOCKED, CALLS.clause)


def unfinished(cell: CellKey, folder: Path, bench: Bench = BENCH) -> CellResult:
    """The result of a cell that is said to hang, with its script."""
    given = {cell: failed(cell, outcome=Outcome.HANG, layouts=())}
    call = CallKey(0, "contiguous") if cell == CALLS else None
    return with_repros(given, [Unfinished(cell, "it hangs", 1.0, call)], bench, folder)[cell]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cell", "says"),
    [
        (CALLS, "the call did not return within 20"),
        pytest.param(CELL, "the cell had not ended after 20 s", marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_the_script_of_a_hang_has_a_time_limit(
    tmp_path: Path, fork: ForkServer, monkeypatch: pytest.MonkeyPatch, cell: CellKey, says: str
) -> None:
    monkeypatch.setattr(repros, "_LOADING", 19.0)
    result = unfinished(cell, tmp_path)
    assert result.repro is not None
    on, off = (fork.script(tmp_path / result.repro, **faults) for faults in (HANGS, SOUND))
    assert (on.code, off.code) == (1, 0), on.text + off.text
    assert says in on.text


def test_a_script_says_that_the_device_cannot_be_used(tmp_path: Path, fork: ForkServer) -> None:
    result = unfinished(CELL, tmp_path, Bench("npu", None, 3))
    assert result.repro is not None
    ran = fork.script(tmp_path / result.repro)
    assert ran.code == 2 and "nothing could be judged" in ran.text


@pytest.mark.slow
def test_the_script_of_a_case_makes_its_check_in_a_process_of_its_own(tmp_path: Path) -> None:
    result = unfinished(CellKey("streams.wait", "drawn", ""), tmp_path)
    assert result.repro == "repro/streams.wait/drawn.py"
    assert "dies=True" in (tmp_path / result.repro).read_text()
