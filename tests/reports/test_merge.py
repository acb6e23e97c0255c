"""Shards joined into one run, or refused with what differs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from devices.cell import CellKey, Outcome, Verdict
from reports.gate import gate
from reports.merge import CannotMerge, merge
from reports.model import CellResult, Run
from reports.run import load_run, write_run
from tests.plugin.running import Ran, run_conform
from tests.reports.builders import (
    ADD,
    ADD_INT,
    BOUNDS,
    CELLS,
    CONV,
    PROVENANCE,
    QUERY,
    failed,
    passed,
    plan_document,
    results,
)

#: ADD is in every shard, as an identity cell is.
DIVIDED = {1: (ADD, ADD_INT), 2: (ADD, CONV, QUERY), 3: (ADD, BOUNDS)}


def shard(
    number: int,
    made: Mapping[CellKey, CellResult] | None = None,
    *,
    count: int = 3,
    cells: Iterable[CellKey] | None = None,
    planned: Mapping[str, Any] | None = None,
    **origin: Any,
) -> Run:
    """One shard of the run that ``results()`` makes."""
    mine = list(DIVIDED[number] if cells is None else cells)
    made = results() if made is None else made
    partial = origin.get("partial", False)
    return Run(
        Path(f"shard-{number}"),
        plan_document(selected=mine, partial=partial, **(planned or {})),
        replace(PROVENANCE, shard=f"{number}/{count}", host=f"host{number}", **origin),
        {cell: made[cell] for cell in mine if cell in made},
    )


def shards(made: Mapping[CellKey, CellResult] | None = None) -> list[Run]:
    return [shard(number, made) for number in DIVIDED]


def test_all_shards_are_the_whole_run() -> None:
    made = results(failed(CONV), passed(ADD))
    merged = merge(shards(made))
    assert merged.results == made
    assert merged.missing == () and merged.absent == ()
    assert merged.document.selected is None and merged.document.cells == plan_document().cells
    assert merged.provenance == replace(PROVENANCE, host="host1, host2, host3")


def test_the_order_of_the_shards_does_not_matter() -> None:
    one, two, three = shards()
    assert merge([three, one, two]) == merge([one, two, three])


def test_an_absent_shard_is_told_and_its_cells_are_missing(tmp_path: Path) -> None:
    merged = merge([shard(1), shard(3)])
    assert merged.absent == (2,) and merged.missing == (CONV, QUERY)
    run = write_run(tmp_path, merged.document, merged.results, merged.provenance)
    assert gate(run).exit_code == 2


def test_an_absent_shard_of_identity_cells_alone_is_never_green(tmp_path: Path) -> None:
    """All cells have an outcome, and yet a shard is not there."""
    whole = shard(1, cells=CELLS)
    merged = merge([whole, shard(2)])
    assert merged.missing == ()
    run = write_run(tmp_path, merged.document, merged.results, merged.provenance)
    assert gate(run).exit_code == 2 and "1,2/3" in gate(run).problems[0]


def test_a_cell_without_an_outcome_is_missing() -> None:
    made = results(CellResult(CONV, Outcome.NOT_RUN, Verdict.MISSING))
    assert merge(shards(made)).missing == (CONV,)
    made.pop(CONV)
    assert merge(shards(made)).missing == (CONV,)


DIFFERENT = {
    "plan_hash": "ffff112233aabbcc",
    "torch": "2.12.1",
    "driver": "26.18",
    "device_name": "another",
    "suite_version": "0.2.0",
    "manifest_hash": "1234",
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_shards_of_different_runs_are_refused(name: str) -> None:
    planned = {"hash": DIFFERENT[name]} if name == "plan_hash" else {}
    other = shard(2, planned=planned, **{name: DIFFERENT[name]})
    with pytest.raises(CannotMerge, match=f"shard-1 and shard-2 are not shards of one run: {name}"):
        merge([shard(1), other, shard(3)])


def test_plans_that_differ_in_anything_are_refused() -> None:
    capabilities = {"strides": {"declared": True, "probed": False}}
    with pytest.raises(CannotMerge, match="their plans differ in 'capabilities'"):
        merge([shard(1), shard(2, planned={"capabilities": capabilities})])


def test_shards_that_disagree_on_a_cell_are_refused() -> None:
    with pytest.raises(
        CannotMerge, match=r"shard-1 and shard-2 disagree on .*add\[float32\]: pass"
    ):
        merge([shard(1), shard(2, results(failed(ADD)))])


@pytest.mark.parametrize(
    ("runs", "says"),
    [
        ([], "there is nothing to merge"),
        (
            [Run(Path("whole"), plan_document(), PROVENANCE, results())],
            "whole is a whole run, not a shard",
        ),
        ([shard(1), replace(shard(1), folder=Path("again"))], "are both shard 1/3"),
        ([shard(1), shard(2, count=4)], "which have the same N in --shard I/N"),
        ([shard(2, count=1)], "states the shard number '2/1'"),
    ],
)
def test_what_is_no_set_of_shards_is_refused(runs: list[Run], says: str) -> None:
    with pytest.raises(CannotMerge, match=says):
        merge(runs)


def test_shards_of_a_partial_run_make_a_partial_run() -> None:
    selection = {"--ops": "add"}
    runs = [
        shard(1, cells=[ADD], count=2, partial=True, planned={"selection": selection}),
        shard(2, cells=[ADD, BOUNDS], count=2, partial=True, planned={"selection": selection}),
    ]
    merged = merge(runs)
    assert merged.provenance.partial and merged.missing == ()
    assert merged.document.selected == plan_document(selected=[ADD, BOUNDS]).selected


# -- the command


def write(tmp_path: Path, made: Mapping[CellKey, CellResult], *numbers: int) -> list[str]:
    found = []
    for number in numbers:
        run = shard(number, made)
        folder = tmp_path / f"s{number}"
        write_run(folder, run.plan, run.results, run.provenance)
        for result in run.results.values():
            if result.repro:
                (folder / result.repro).parent.mkdir(exist_ok=True)
                (folder / result.repro).write_text("raise SystemExit(1)")
        found.append(str(folder))
    return found


def conform(*arguments: object, cache: Path) -> Ran:
    return run_conform(*map(str, arguments), cache=cache)


def test_the_command_writes_a_run_that_the_gate_takes(tmp_path: Path, cache: Path) -> None:
    ran = conform(
        "merge", *write(tmp_path, results(), 1, 2, 3), "-o", tmp_path / "out", cache=cache
    )
    assert ran.code == 0 and "3 shards, 5 cells" in ran.text
    assert conform("gate", tmp_path / "out", cache=cache).code == 0
    assert load_run(tmp_path / "out").results.keys() == set(CELLS)


def test_the_command_brings_the_repros_along(tmp_path: Path, cache: Path) -> None:
    given = write(tmp_path, results(failed(CONV, repro="repro/conv.py")), 1, 2, 3)
    assert conform("merge", *given, "-o", tmp_path / "out", cache=cache).code == 0
    assert (tmp_path / "out" / "repro" / "conv.py").read_text() == "raise SystemExit(1)"


def test_the_command_lists_what_is_missing(tmp_path: Path, cache: Path) -> None:
    ran = conform("merge", *write(tmp_path, results(), 1, 3), "-o", tmp_path / "out", cache=cache)
    assert ran.code == 2 and "absent shards: 2" in ran.text and f"  {CONV}" in ran.text
    assert (tmp_path / "out" / "missing.txt").read_text() == f"{CONV}\n{QUERY}\n"


def test_the_command_refuses_with_one_message(tmp_path: Path, cache: Path) -> None:
    given = write(tmp_path, results(), 1)
    ran = conform("merge", *given, *given, "-o", tmp_path / "out", cache=cache)
    assert ran.code == 4 and ran.text.startswith("error: ") and "both shard 1/3" in ran.text
    assert not (tmp_path / "out").exists()
    ran = conform("merge", *given, "-o", given[0], cache=cache)
    assert ran.code == 4 and "is the folder of a shard" in ran.text


def test_plans_that_are_alike_are_unfolded_once(tmp_path: Path) -> None:
    one, two = [load_run(Path(p)) for p in write(tmp_path, results(), 1, 2)]
    assert one.parsed.cells is two.parsed.cells and one.parsed.selected != two.parsed.selected


def test_an_identity_cell_that_a_shard_did_not_run_is_missing_though_others_passed_it() -> None:
    made = {**results(), ADD: CellResult(ADD, Outcome.NOT_RUN, Verdict.MISSING)}
    assert merge([shard(1, made), shard(2), shard(3)]).missing == (ADD,)
