"""``conform manifest quarantine``: a flaky cell may pass or fail until a date, and the gate's summary says so."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

import msgspec
import pytest

from conformance.run.item_report import verdict_of
from devices.cell import CellOutcome, Outcome, Verdict
from devices.manifest import ExpectedOutcome, Manifest
from devices.verdicts import Matcher
from reports.gate import gate
from reports.summary import summarise
from tests.commands.test_manifest_commands import BLOCK, call, write
from tests.reports.builders import ADD, CONV, QUERY, failed, passed
from tests.reports.test_crcr import a_run

TODAY = date.today()
SOON = (TODAY + timedelta(days=9)).isoformat()
WHY = "sees the old value once in a while"


def quarantine(tmp_path: Path, cell: object, *more: object, until: str = SOON) -> tuple[int, str]:
    file = tmp_path / "expected.toml"
    command = ("quarantine", cell, "--until", until, "--reason", WHY, "--manifest", file, *more)
    made = call(*command, "--run", write(tmp_path))
    return made.exit_code, made.output


@pytest.mark.parametrize("cell", [ADD, QUERY])
def test_a_block_for_this_cell_alone_is_added(tmp_path: Path, cell: object) -> None:
    code, said = quarantine(tmp_path, cell, "--min-pass-rate", "0.8")
    assert code == 0 and "may pass or fail for 10 days" in said
    (block,) = Manifest.load(tmp_path / "expected.toml").blocks
    assert (block.outcome, block.min_pass_rate) == (ExpectedOutcome.FLAKY, 0.8)
    assert (str(block.expires), block.reason) == (SOON, WHY)
    matcher = Matcher(Manifest((block,)))
    others = {ADD, CONV, QUERY} - {cell}
    assert matcher.match(cell).expectation is not None  # type: ignore[arg-type]
    assert all(matcher.match(each).expectation is None for each in others)
    linted = call("lint", "--manifest", tmp_path / "expected.toml", "--run", tmp_path / "run")
    assert linted.exit_code == 0, linted.output


def test_the_summary_lists_the_cell_with_its_last_day_and_its_reason(tmp_path: Path) -> None:
    quarantine(tmp_path, ADD)
    matcher = Matcher(Manifest.load(tmp_path / "expected.toml"))
    for outcome, made in ((Outcome.PASS, passed(ADD)), (Outcome.FAIL, failed(ADD))):
        verdict, why = verdict_of(matcher, CellOutcome(cell=ADD, outcome=outcome))
        result = msgspec.structs.replace(made, verdict=verdict, why=why)
        judged = gate(a_run(result))
        assert verdict is Verdict.FLAKY and judged.green
        (line,) = [each for each in summarise(judged).splitlines() if "quarantine" in each]
        assert str(ADD) in line and f"until {SOON}: {WHY}" in line


def test_a_quarantined_cell_that_crashes_is_a_regression(tmp_path: Path) -> None:
    quarantine(tmp_path, ADD)
    matcher = Matcher(Manifest.load(tmp_path / "expected.toml"))
    verdict, _ = verdict_of(matcher, CellOutcome(cell=ADD, outcome=Outcome.CRASH))
    assert verdict is Verdict.REGRESSION


def test_many_flaky_cells_are_counted() -> None:
    made = [failed(cell, Verdict.FLAKY) for cell in a_run().parsed.cells]
    assert len(gate(a_run(*made)).notes) == 5


def test_a_cell_that_is_expected_to_fail_may_become_flaky(tmp_path: Path) -> None:
    """The new block is more specific than one for all dtypes."""
    wider = BLOCK.replace('dtype = "float32"\n', "")
    (tmp_path / "expected.toml").write_text(wider)
    code, _ = quarantine(tmp_path, ADD)
    assert code == 0
    match = Matcher(Manifest.load(tmp_path / "expected.toml")).match(ADD)
    assert match.conflict is None and match.expectation is not None
    assert match.expectation.outcome is ExpectedOutcome.FLAKY


def test_a_second_quarantine_of_a_cell_names_the_first(tmp_path: Path) -> None:
    quarantine(tmp_path, ADD)
    before = (tmp_path / "expected.toml").read_text()
    code, said = quarantine(tmp_path, ADD)
    assert code == 4 and f"already allows {ADD} to be flaky until {SOON}" in said
    assert (tmp_path / "expected.toml").read_text() == before


def test_a_block_that_contradicts_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "expected.toml").write_text(BLOCK + 'variant = ""\n')
    code, said = quarantine(tmp_path, ADD)
    assert code == 4 and "expected.toml" in said


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    code, said = quarantine(tmp_path, ADD, "--dry-run")
    assert code == 0 and "nothing was written" in said and "+[[expect]]" in said
    assert not (tmp_path / "expected.toml").exists()


@pytest.mark.parametrize(
    ("until", "more", "says"),
    [
        ("soon", (), "--until 'soon' is not a date"),
        ("2020-01-01", (), "--until 2020-01-01 has passed"),
        (SOON, ("--min-pass-rate", "1.5"), "--min-pass-rate"),
        (SOON, ("--issue", "12"), "is not a URL"),
        (SOON, ("--reason", " "), "--reason is empty"),
    ],
)
def test_a_wrong_option_is_one_message(
    tmp_path: Path, until: str, more: tuple[str, ...], says: str
) -> None:
    code, said = quarantine(tmp_path, ADD, *more, until=until)
    assert code == 4 and says in said
    assert not (tmp_path / "expected.toml").exists()


def test_an_unknown_cell_is_one_message(tmp_path: Path) -> None:
    code, said = quarantine(tmp_path, "layout.valeus::add[float32]")
    assert code == 4 and "did you mean 'layout.values'" in said
