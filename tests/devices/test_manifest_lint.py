"""Lint: blocks that match nothing, are expired, or contradict each other."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from devices.cell import CellKey
from devices.lifecycle.inspection import lint
from devices.manifest import Manifest, ManifestError

TODAY = date(2027, 3, 1)
FACTS = {"os": "linux"}
CELLS = [CellKey("layout.values", op, dtype) for op in ("add", "mul") for dtype in ("int8", "bool")]


def found(*blocks: str, cells: list[CellKey] = CELLS) -> list[str]:
    """Lint's problems with blocks that are given by what they hold besides a reason."""
    texts = [f'[[expect]]\nreason = "why"\n{block}\n' for block in blocks]
    manifest = Manifest.parse("".join(texts), Path("e.toml"))
    return [str(problem) for problem in lint(manifest, iter(cells), FACTS, TODAY)]


FAIL = 'clause = "layout.values"\noutcome = "fail"'
CRASH = 'clause = "layout.values"\noutcome = "crash"'
BLOCKED = CRASH.replace("crash", "blocked")


def test_a_sound_manifest_has_no_problems() -> None:
    assert found(FAIL, CRASH + '\nop = "add"\nexpires = 2027-03-01') == []


def test_a_block_that_matches_no_planned_cell_is_named() -> None:
    assert found(FAIL, FAIL + '\nop = "sub"') == [
        "e.toml:5: the block matches no planned cell (unknown op 'sub'): correct or remove it"
    ]


def test_an_overridden_block_does_match() -> None:
    assert found(FAIL + '\nop = "add"', CRASH + '\nop = "add"\ndtype = ["int8", "bool"]') == []


def test_a_block_that_does_not_hold_here_is_not_stale() -> None:
    assert found(FAIL + '\nop = "sub"\nwhen = { os = "darwin" }') == []


def test_an_expired_block_is_named() -> None:
    assert found(FAIL + "\nexpires = 2027-02-28") == [
        (
            "e.toml:1: the block expired on 2027-02-28: fix the cause, or check that it remains and set a new"
            " date"
        )
    ]


def test_a_block_expires_on_every_machine() -> None:
    assert len(found(FAIL + '\nexpires = 2027-02-28\nwhen = { os = "darwin" }')) == 1


def test_a_conflict_is_named_once_with_the_number_of_its_cells() -> None:
    assert found(FAIL + '\nop = "add"', BLOCKED + '\nop = ["add", "mul*"]') == [
        (
            "e.toml:6: this block expects 'blocked' of layout.values::add[int8] (and 1 more cell),"
            " but the block at e.toml:1 expects 'fail', and neither is more specific: narrow one of"
            " the blocks, or add a block for these cells only"
        )
    ]


def test_blocks_that_never_meet_on_a_planned_cell_do_not_conflict() -> None:
    cells = [CELLS[0]]
    assert found(FAIL, BLOCKED + '\nop = "a*"', BLOCKED + '\nop = "add"', cells=cells) == []


def test_a_block_for_a_crash_and_a_block_for_a_failure_do_not_conflict() -> None:
    assert found(FAIL + '\nop = "add"', CRASH + '\nop = "add"') == []


def test_problems_are_in_the_order_of_the_file() -> None:
    texts = found(
        FAIL + '\nop = "sub"',
        FAIL + '\nop = "add"\nexpires = 2027-01-01',
        FAIL + '\nop = "div"',
        BLOCKED + '\nop = "add"',
    )
    assert [text.partition(":")[2].partition(":")[0] for text in texts] == ["1", "6", "12", "17"]


def test_without_cells_every_block_is_stale() -> None:
    assert len(found(FAIL, CRASH, cells=[])) == 2


def test_a_fact_that_is_not_known_is_an_error() -> None:
    with pytest.raises(
        ManifestError, match=r"e\.toml:1: when: the condition needs the fact 'driver'"
    ):
        found(FAIL + '\nwhen = { driver = ">1" }')


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ('op = ["add", "ad", "nn.*"]', "the block has the unknown op 'ad'; did you mean 'add'?"),
        ('op = ["add", "nn.*"]', "the op 'nn.*' of the block matches no planned cell"),
        ('dtype = ["int8", "float*"]', "the dtype 'float*' of the block matches no planned cell"),
        ('clause = ["layout.values", "graphs.*"]', "the clause 'graphs.*' of the block matches no"),
    ],
)
def test_names_that_add_nothing_to_a_block_are_named(keys: str, says: str) -> None:
    block = keys + '\noutcome = "fail"'
    if "clause" not in keys:
        block = 'clause = "layout.values"\n' + block
    problems = found(block)
    assert any(problem.startswith(f"e.toml:1: {says}") for problem in problems)


def test_without_a_plan_nothing_is_held_against_it() -> None:
    manifest = Manifest.parse(f'[[expect]]\nreason = "why"\n{FAIL}\nop = "sub"\n')
    assert lint(manifest, None, FACTS, TODAY) == []


def test_the_form_is_looked_at_where_the_text_is_given() -> None:
    text = f'[[expect]]\nreason = "why"\n{FAIL}\n'
    manifest = Manifest.parse(text, Path("e.toml"))
    assert [str(each) for each in lint(manifest, None, FACTS, TODAY, text)] == [
        "e.toml:2: from this line on, the file is not in canonical form (order of blocks and keys, sorted"
        " names, one blank line between blocks): run `conform manifest lint --fix`"
    ]
