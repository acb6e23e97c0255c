"""Two runs compared: each kind of change, the environment first, and what the command says."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from conformance.cli import conform
from devices.cell import CellKey, Outcome
from reports.diff import WORSE, Change, as_data, as_text, change, changes, diff, environment
from reports.run import load_run
from reports.status_letters import KIND_OF, LETTERS
from tests.dashboard import fleet


@pytest.mark.parametrize(
    ("before", "after", "what"),
    [
        (".", "F", Change.NEWLY_FAILING),
        ("a", "F", Change.NEWLY_FAILING),
        (".", "E", Change.NEWLY_FAILING),
        (".", "U", Change.NEWLY_FAILING),
        (".", "f", Change.NEWLY_FAILING),
        ("F", ".", Change.FIXED),
        ("c", "P", Change.FIXED),
        ("a", ".", Change.FIXED),
        (".", "C", Change.NEWLY_CRASHING),
        ("f", "H", Change.NEWLY_CRASHING),
        ("C", "H", Change.CHANGED_OUTCOME),
        ("C", "F", Change.CHANGED_OUTCOME),
        ("F", "E", Change.CHANGED_OUTCOME),
        (".", "a", Change.CHANGED_OUTCOME),
        ("f", "F", Change.CHANGED_EXPECTATION),
        ("F", "f", Change.CHANGED_EXPECTATION),
        (".", "P", Change.CHANGED_EXPECTATION),
        (".", " ", Change.LEFT_OUT),
        ("F", "n", Change.MISSING),
        (" ", "F", Change.ADDED),
        ("n", ".", Change.ADDED),
        (" ", "n", None),
        (".", ".", None),
    ],
)
def test_each_pair_of_letters_is_the_change_that_it_is(
    before: str, after: str, what: Change | None
) -> None:
    assert change(before, after) is what


def test_every_letter_has_an_outcome_or_is_absent() -> None:
    assert KIND_OF.keys() - LETTERS.keys() == {" "}
    assert {letter.outcome for letter in LETTERS.values()} == set(Outcome)


def test_a_change_the_other_way_round_is_no_change_for_the_worse_twice() -> None:
    for before in KIND_OF:
        for after in KIND_OF:
            there, back = change(before, after), change(after, before)
            assert (there is None) == (back is None)
            assert not (there in WORSE and back in WORSE)


def test_torch_and_driver_come_first() -> None:
    before = {"os": "linux", "driver": "1", "torch": "2.12", "start": "a", "python": "3.11"}
    after = {"os": "bsd", "driver": "2", "torch": "2.13", "start": "b", "python": "3.11"}
    assert environment(before, after) == (
        ("torch", "2.12", "2.13"), ("driver", "1", "2"), ("os", "linux", "bsd"),
    )  # fmt: skip


def test_a_run_compared_with_itself_has_no_difference(tmp_path: Path) -> None:
    run = load_run(fleet.alpha(tmp_path, 1))
    found = diff(run, run)
    assert (found.environment, dict(found.cells), found.worse) == ((), {}, False)
    assert as_text(found) == "environment: the same\nno cell changed"


def test_cells_of_each_kind(runs: list[Path]) -> None:
    found = diff(load_run(runs[0]), load_run(runs[1]))
    counted = {what: len(cells) for what, cells in found.cells.items()}
    assert counted == {
        Change.NEWLY_CRASHING: 2, Change.NEWLY_FAILING: 1, Change.CHANGED_OUTCOME: 2,
        Change.CHANGED_EXPECTATION: 2, Change.FIXED: 1,
    }  # fmt: skip
    assert [str(cell) for cell, _, _ in found.cells[Change.FIXED]] == [
        "layout.values::mul[float32]"
    ]


def test_a_cell_that_was_not_to_run_is_left_out_and_not_missing(tmp_path: Path) -> None:
    """Of a run with another plan. An interrupted run misses its cells."""
    lost, kept = (
        CellKey("layout.values", "mul", "float32"),
        CellKey("layout.values", "add", "float32"),
    )
    letters = {lost: ".", kept: "."}
    assert changes(letters, {kept: "."}) == {Change.LEFT_OUT: [(lost, ".", " ")]}
    assert changes(letters, {lost: "n", kept: "."}) == {Change.MISSING: [(lost, ".", "n")]}
    assert Change.LEFT_OUT not in WORSE and Change.MISSING in WORSE


def test_the_command_exits_1_where_something_is_worse(runs: list[Path]) -> None:
    said = CliRunner().invoke(conform, ["diff", str(runs[0]), str(runs[1])], standalone_mode=False)
    assert said.return_value == 1
    lines = said.output.splitlines()
    assert lines[:3] == ["environment:", "  torch: 2.13.0 -> 2.14.0", "  driver: 26.1 -> 26.2"]
    assert "  layout.values::add[float32]: pass -> fail" in lines


def test_the_command_exits_0_where_nothing_is_worse(runs: list[Path]) -> None:
    command = ["diff", str(runs[0]), str(runs[0])]
    assert CliRunner().invoke(conform, command, standalone_mode=False).return_value == 0


def test_the_command_speaks_json(runs: list[Path]) -> None:
    command = ["diff", "--json", str(runs[0]), str(runs[1])]
    said = json.loads(CliRunner().invoke(conform, command, standalone_mode=False).output)
    assert said == msgspec.to_builtins(as_data(diff(load_run(runs[0]), load_run(runs[1]))))
    assert said["changes"]["fixed"] == [
        {"clause": "layout.values", "op": "mul", "dtype": "float32", "before": "fail", "after": "pass"}
    ]  # fmt: skip


def test_control_characters_of_a_run_forge_no_output(tmp_path: Path) -> None:
    one = fleet.beta(tmp_path / "1")
    other = fleet.write(tmp_path / "2", "beta", fleet.BETA, driver="1\x1b[2J\nno cell changed")
    said = CliRunner().invoke(conform, ["diff", str(one), str(other)], standalone_mode=False)
    assert "\x1b" not in said.output
    assert said.output.splitlines() == [
        "environment:",
        r"  driver: - -> 1\x1b[2J no cell changed",
        "fixed: 4 cells (did not pass before, and passes now)",
        "  layout.values::mul[float32]: fail -> pass",
        "  layout.values::mul[float32]@compiled: fail -> pass",
        "  layout.memory_format::add[float32]: unsupported -> pass",
        "  streams.query::false while busy@4 ranks: fail -> pass",
    ]
