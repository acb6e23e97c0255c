"""Levels: the frozen lists, what a run states of them, and how its cells count."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from conformance.commands.contract import _listed
from conformance.contract import load
from conformance.contract.levels import Level, blocks, levels, ranges, read_level, stated
from devices.cell import CellKey
from devices.errors import ConformError
from devices.files import tomllib
from reports.gate import levels_of
from reports.model import PlanDocument, Run, RunError, checked_plan
from tests.reports.builders import ADD, CELLS, PROVENANCE, failed, plan_document, results

ELSEWHERE = CellKey("layout.values", "elsewhere", "float32")


def level(*cells: CellKey, number: int = 1) -> Level:
    return Level(number, "tensors", "0.1", frozenset(cells))


def stating(*known: Level) -> PlanDocument:
    return plan_document(levels=stated(CELLS, known))


def test_the_frozen_lists_name_checked_clauses_of_their_level_or_below() -> None:
    contract = load().clauses
    for each in levels():
        assert each.version
        for cell in each.cells:
            clause = contract[cell.clause]
            assert clause.status.value == "checked", f"level {each.number}: {cell}"
            assert clause.level <= each.number, f"level {each.number}: {cell}"
            assert bool(cell.dtype) or clause.unit == "case", f"level {each.number}: {cell}"


def test_no_cell_is_in_two_levels() -> None:
    every = [cell for each in levels() for cell in each.cells]
    assert len(every) == len(set(every)) > 20_000


def test_blocks_read_back_as_the_cells_they_were_made_of(tmp_path: Path) -> None:
    cells = {
        *(CellKey("a.b", op, dtype) for op in ("add", "mul") for dtype in ("bool", "int64")),
        CellKey("a.c", "add", "bool"),
        CellKey("d.e", "a_case", ""),
    }
    text = 'version = "1"\n'
    for block in blocks(cells):
        text += "[[cells]]\n" + "".join(f"{name} = {value!r}\n" for name, value in block.items())
    (tmp_path / "1.toml").write_text(text)
    assert read_level(tmp_path / "1.toml", 1).cells == cells


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("version = ", "expected a file of valid TOML"),
        ("cells = []", "required field `version`"),
        (
            'version = "1"\n[[cells]]\nclauses = ["a.b"]',
            "expected a block with either clauses, ops and dtypes",
        ),
        ('version = "1"\n[[cells]]\nclauses = ["a.b"]\ncases = "x"', "Expected `array`, got `str`"),
        ('version = "1"\n' + '[[cells]]\nclauses = ["a.b"]\ncases = ["x"]\n' * 2, "already"),
    ],
)
def test_a_malformed_list_is_told(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "1.toml").write_text(text)
    with pytest.raises(ConformError, match="1.toml") as caught:
        read_level(tmp_path / "1.toml", 1)
    assert said in str(caught.value)


def test_a_listed_cell_that_is_not_planned_or_does_not_pass_counts_against_the_device() -> None:
    known = level(*CELLS, ELSEWHERE)
    run = Run(Path(), stating(known), PROVENANCE, results(failed(ADD)))
    (count,) = levels_of(run)
    assert (count.passed, count.listed, count.unplanned) == (len(CELLS) - 1, len(CELLS) + 1, 1)
    assert not count.reached
    assert f"{len(CELLS) - 1} of {len(CELLS) + 1} cells pass; 1 cell is not in this plan" in str(
        count
    )


def test_a_level_is_reached_when_all_of_it_passes_and_nothing_of_it_is_left_to_check() -> None:
    plan = stating(level(*CELLS))
    clauses = [
        msgspec.structs.replace(clause, level=1 if clause.status == "checked" else 2)
        for clause in plan.clauses
    ]
    plan = msgspec.structs.replace(plan, clauses=clauses)
    (count,) = levels_of(Run(Path(), plan, PROVENANCE, results()))
    assert count.reached and count.passed == count.listed == len(CELLS)


def test_a_level_holds_those_below_it() -> None:
    first, *rest = CELLS
    one, two = stated(CELLS, [level(first), level(*rest, number=2)])
    assert (one["listed"], two["listed"]) == (1, len(CELLS))


def test_an_empty_list_is_never_reached() -> None:
    (count,) = levels_of(Run(Path(), stating(level()), PROVENANCE, results()))
    assert count.listed == 0 and not count.reached


@pytest.mark.parametrize("planned", [[(0, 10_000)], [(3, 1), (0, 1)], [(0, 0)], [(-1, 2)]])
def test_claims_beyond_the_plan_are_refused(planned: list[tuple[int, int]]) -> None:
    (one,) = stated(CELLS, [level(*CELLS)])
    with pytest.raises(RunError, match="level 1"):
        checked_plan(plan_document(levels=[{**one, "planned": planned}]))


def test_places_become_ranges() -> None:
    assert ranges([0, 1, 2, 5, 7, 8]) == [(0, 3), (5, 1), (7, 2)]
    assert ranges([]) == []


def test_a_name_with_blanks_stays_on_one_line() -> None:
    names = [f"@2^{bits} bytes, into columns" for bits in range(9)]
    assert tomllib.loads(f"x = {_listed(names)}")["x"] == names
