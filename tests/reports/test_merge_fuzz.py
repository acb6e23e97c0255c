"""Shards that were mixed up, cut, forged or damaged: a clear message or a right answer, never a wrong green.

``CONFORM_FUZZ_EXAMPLES=10000 pytest tests/reports/test_merge_fuzz.py`` tries that many.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from devices.cell import CellKey, Outcome, Verdict
from devices.errors import ConformError
from reports.gate import ExitCode, gate
from reports.merge import merge
from reports.model import CellResult, PlanDocument, Run
from reports.run import load_run, write_run
from tests.fuzzing import examples
from tests.reports.builders import (
    ADD,
    CELLS,
    PROVENANCE,
    failed,
    forge,
    passed,
    plan_document,
)

COUNT = 3
#: ADD is an identity cell, the others are divided.
DIVIDED = {number: [ADD, *CELLS[number::COUNT]] for number in range(1, COUNT + 1)}


def shard_plan(cells: list[CellKey]) -> PlanDocument:
    return msgspec.structs.replace(plan_document(selected=cells), partial=False)


@dataclass
class Given:
    """Shards as they are given to be merged, and what is true of them."""

    runs: list[Run]
    whole: bool  # all shards are there, and every cell that gates is good in each that has it
    perfect: bool  # and so are those that do not gate
    tampered: bool


RESULTS = (
    lambda cell: passed(cell),
    lambda cell: failed(cell),
    lambda cell: failed(cell, Verdict.EXPECTED),
    lambda cell: CellResult(cell, Outcome.NOT_RUN, Verdict.MISSING),
    lambda cell: passed(cell, checks=0),
    lambda cell: passed(cell, outcome=Outcome.CRASH, verdict=Verdict.OK),
)


@st.composite
def shards(draw: st.DrawFn) -> Given:
    runs, tampered = [], False
    numbers = draw(st.one_of(st.just([1, 2, 3]), st.lists(st.integers(1, 3), max_size=4)))
    for number in numbers:
        cells = DIVIDED[number]
        if draw(st.integers(0, 5)) == 0:
            cells = draw(st.lists(st.sampled_from(CELLS), unique=True))
        made = {}
        for cell in cells:
            kind = draw(st.sampled_from([0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, None]))
            if kind is not None:
                made[cell] = RESULTS[kind](cell)
        origin = {"shard": f"{number}/{COUNT}"}
        if draw(st.integers(0, 7)) == 0:
            name = draw(
                st.sampled_from(["torch", "driver", "device_name", "manifest_hash", "shard"])
            )
            origin[name] = draw(st.sampled_from(["", "x", "1/2", "0/3", "1/1"]))
            tampered = True
        runs.append(
            Run(Path(f"s{len(runs)}"), shard_plan(cells),
                replace(PROVENANCE, **origin), made)
        )  # fmt: skip
    found: dict[CellKey, set[bool]] = {}
    for run in runs:
        for cell in run.parsed.selected:
            if cell not in run.results:
                found.setdefault(cell, set()).add(False)
        for cell, result in run.results.items():
            good = result in (passed(cell), failed(cell, Verdict.EXPECTED))
            found.setdefault(cell, set()).add(good)
    there = {run.provenance.shard for run in runs} == {f"{n}/{COUNT}" for n in range(1, COUNT + 1)}
    there = there and len(runs) == COUNT and all(cell in found for cell in CELLS)
    good = {cell for cell in CELLS if found.get(cell) == {True}}
    gating = {cell for cell in CELLS if not cell.clause.startswith("streams")}
    whole, perfect = there and gating <= good, there and set(CELLS) <= good
    return Given(runs, whole, perfect, tampered)


@given(shards())
@examples(150)
def test_what_is_merged_is_green_only_if_all_of_it_is(case: Given) -> None:
    try:
        merged = merge(case.runs)
        run = Run(Path("out"), merged.document, merged.provenance, merged.results)
    except ConformError as error:
        assert str(error) and "\n" not in str(error)
        return
    code = gate(run).exit_code
    if code is ExitCode.GREEN:
        assert case.whole
    assert code is ExitCode.GREEN or case.tampered or not case.perfect
    assert bool(merged.missing) <= (code is ExitCode.INCOMPLETE or code is ExitCode.INFRASTRUCTURE)


@pytest.fixture(scope="module")
def sound() -> Iterator[Path]:
    """Three shards that make a green run."""
    with tempfile.TemporaryDirectory() as folder:
        for number, cells in DIVIDED.items():
            write_run(
                Path(folder) / f"s{number}",
                shard_plan(cells),
                {cell: passed(cell) for cell in cells},
                replace(PROVENANCE, shard=f"{number}/{COUNT}"),
            )
        yield Path(folder)


def outcome(folder: Path) -> ExitCode | None:
    """What the shards in a folder come to; None where they are refused with a message."""
    try:
        merged = merge([load_run(path) for path in sorted(folder.glob("s*"))])
        return gate(Run(folder, merged.document, merged.provenance, merged.results)).exit_code
    except ConformError as error:
        assert str(error)
        return None


def test_sound_shards_are_green(sound: Path) -> None:
    assert outcome(sound) is ExitCode.GREEN


@given(data=st.data())
@examples(60)
def test_damaged_files_never_make_a_green_run_of_other_results(
    sound: Path, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(shutil.copytree(sound, Path(scratch) / "all"))
        path = data.draw(st.sampled_from(sorted(p for p in folder.rglob("*") if p.is_file())))
        raw = bytearray(path.read_bytes())
        how = data.draw(st.sampled_from(["cut", "flip", "drop", "swap", "shard"]))
        if how == "drop":
            path.unlink()
        elif how == "shard":
            shutil.rmtree(path.parent if path.parent != folder else folder / "s1")
        else:
            at = data.draw(st.integers(0, len(raw) - 1))
            if how == "cut":
                del raw[at:]
            elif how == "flip":
                raw[at] ^= 1 << data.draw(st.integers(0, 7))
            else:
                raw[at:at] = data.draw(
                    st.sampled_from([b"<", b"\xa4pass", b"\xc0", b"\x00", b"\x90", b"1"])
                )
            path.write_bytes(bytes(raw))
            if data.draw(st.booleans()) and path.suffix == ".conform":
                forge(path.parent, bytes(raw).partition(b"\n")[2])
        if outcome(folder) is ExitCode.GREEN:
            found = merge([load_run(path) for path in sorted(folder.glob("s*"))])
            assert found.results.keys() == set(CELLS)
            assert all(r.outcome is Outcome.PASS and r.checks for r in found.results.values())
