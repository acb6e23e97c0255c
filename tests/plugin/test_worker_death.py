"""A worker that dies costs the cell that killed it, is named, and leaves a folder that can be read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from conformance.isolation import Journal, death_of, last_entry
from devices.cell import CellKey, Outcome, Verdict
from reports.model import CellResult
from tests.plugin.running import CHECKOUT, ForkServer, Ran, cells_of, run_conform

DYING = Path(__file__).with_name("data").relative_to(CHECKOUT) / "dying.py"
OPS = ("neg", "mm", "abs", "add", "sin")


@dataclass(frozen=True)
class Died:
    """A run in which the worker that had ``mm`` was killed by SIGSEGV."""

    folder: Path
    ran: Ran
    cells: dict[CellKey, CellResult]

    def outcomes(self, op: str) -> dict[str, Outcome]:
        return {key.clause: cell.outcome for key, cell in self.cells.items() if key.op == op}


@pytest.fixture(scope="module")
def died(fork: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Died:
    folder = tmp_path_factory.mktemp("died") / "run"
    ran = fork.pytest(
        *("-n", "2", f"--descriptor={DYING}", "--ops", ",".join(OPS), "--expectations", "none"),
        f"--results={folder}",
        DYING_OP="mm",
    )
    return Died(folder, ran, cells_of(folder))


def test_the_run_is_incomplete_and_never_green(died: Died) -> None:
    assert died.ran.code == 2 and "incomplete (exit 2)" in died.ran.text


def test_the_guilty_cell_is_named_with_its_signal(died: Died) -> None:
    crashed = {key: cell for key, cell in died.cells.items() if cell.outcome is Outcome.CRASH}
    ((key, cell),) = crashed.items()
    assert key == CellKey("layout.values", "mm", "float32")
    assert cell.verdict is Verdict.REGRESSION and "killed by SIGSEGV" in cell.message
    assert f"crash in {key}: worker {cell.worker} killed by SIGSEGV" in died.ran.text


def test_the_other_cells_of_the_item_were_not_run(died: Died) -> None:
    outcomes = died.outcomes("mm")
    assert outcomes.pop("layout.values") is Outcome.CRASH
    assert set(outcomes.values()) == {Outcome.NOT_RUN} and len(outcomes) > 5


def test_every_other_item_completes(died: Died) -> None:
    for op in OPS:
        if op != "mm":
            outcomes = died.outcomes(op)
            assert len(outcomes) > 5
            assert set(outcomes.values()) <= {Outcome.PASS, Outcome.FAIL}, op


def test_the_results_folder_is_read_and_refused_by_the_gate(died: Died, cache: Path) -> None:
    ran = run_conform("gate", str(died.folder), cache=cache)
    assert ran.code == 2 and "layout.values::mm[float32]: crash" in ran.text
    assert "Traceback" not in ran.text


def test_nothing_that_the_run_needed_stays_behind(died: Died) -> None:
    assert {p.name for p in died.folder.iterdir()} <= {
        "plan.json",
        "junit-layout.xml",
        "repro",
        "journal",
        "failures.json",
        "failures.md",
    }
    assert list((died.folder / "journal").iterdir()) == []


def test_the_device_that_does_not_die_passes_everything(fork: ForkServer, tmp_path: Path) -> None:
    ran = fork.pytest(
        *(f"--descriptor={DYING}", "--ops", ",".join(OPS), "--expectations", "none"),
        f"--results={tmp_path / 'run'}",
        DYING_OP="mm",  # not under xdist: nothing dies
    )
    assert ran.code == 0
    assert {c.outcome for c in cells_of(tmp_path / "run").values()} == {Outcome.PASS}


# -- the journal


def test_the_journal_names_the_cell_that_was_begun(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal", "gw0")
    assert last_entry(tmp_path / "journal", "gw0") is None
    journal.begin("nn.functional.conv2d", "float32", "layout.values")
    journal.begin("mm", "int64", "layout.bounds")
    assert last_entry(tmp_path / "journal", "gw0") == ("mm", "int64", "layout.bounds")


def test_the_journal_names_nothing_after_the_end(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "gw0")
    journal.begin("mm", "int64", "layout.bounds")
    journal.end()
    assert last_entry(tmp_path, "gw0") is None


def test_workers_have_journals_of_their_own(tmp_path: Path) -> None:
    Journal(tmp_path, "gw0").begin("mm", "int64", "layout.bounds")
    Journal(tmp_path, "gw1").begin("add", "int64", "layout.values")
    assert last_entry(tmp_path, "gw0") == ("mm", "int64", "layout.bounds")
    assert last_entry(tmp_path, "gw1") == ("add", "int64", "layout.values")
    assert last_entry(tmp_path, "gw2") is None


def test_a_torn_entry_names_nothing(tmp_path: Path) -> None:
    Journal(tmp_path, "gw0").begin("mm", "int64", "layout.bounds")
    path = tmp_path / "gw0.cur"
    path.write_bytes(path.read_bytes()[:-3])
    assert last_entry(tmp_path, "gw0") is None


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (None, "its end was not seen"),
        (-11, "killed by SIGSEGV"),
        (-9, "killed by SIGKILL"),
        (-250, "killed by signal 250"),
        (1, "exited with status 1"),
        (0, "exited with status 0"),
    ],
)
def test_an_end_is_told_in_words(status: int | None, words: str) -> None:
    assert death_of(status) == words
