"""The fast reading of JUnit files: the same as the full one, and never more lenient."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest

import reports.scan
from devices.cell import Outcome, Verdict
from devices.errors import ConformError
from reports.dashboard.reading import read
from reports.run import RunError, load_run
from tests.conftest import WholeRun
from tests.dashboard import fleet
from tests.reports.builders import edit, sign


@pytest.fixture
def alpha(tmp_path: Path) -> Path:
    return fleet.alpha(tmp_path / "run", 2)


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    return fleet.hostile(tmp_path / "run")


@pytest.fixture
def fast_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where the full reader is asked."""

    def asked(*_: Any) -> None:
        raise AssertionError("the full reader was asked for a file that is canonical")

    monkeypatch.setattr(reports.scan, "read_suite", asked)


def agree(folder: Path) -> None:
    """Both readings of a run hold the same."""
    run, full = read(folder), load_run(folder)
    from reports.dashboard.axes import keys
    from reports.statuses import code_of

    listed = list(keys(run.axis))
    assert sorted(listed) == sorted(full.parsed.cells)
    for position, cell in enumerate(listed):
        result = full.results[cell]
        assert run.codes[position] == code_of(result)
        assert (run.checks[position], run.samples[position]) == (result.checks, result.samples)
        plain = (result.outcome, result.verdict) == (Outcome.PASS, Verdict.OK)
        assert run.told.get(position) == (None if plain else result)
    assert run.provenance == full.provenance


@pytest.mark.usefixtures("fast_only")
def test_a_run_reads_as_in_full(alpha: Path) -> None:
    agree(alpha)


@pytest.mark.usefixtures("fast_only")
def test_hostile_names_and_messages_read_as_in_full(hostile: Path) -> None:
    agree(hostile)


@pytest.mark.usefixtures("fast_only")
def test_a_real_run_reads_as_in_full(whole_run: WholeRun) -> None:
    agree(whole_run.folder)


@pytest.mark.usefixtures("fast_only")
@pytest.mark.parametrize("block", [64, 1000, 4097])
def test_blocks_may_end_anywhere(alpha: Path, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports.scan, "_BLOCK", block)
    agree(alpha)


REWRITTEN = [
    ("<testcase ", "<testcase\t"),  # other blanks
    ("</testcase>\n", "</testcase>\n\n"),
    ('"checks":12', '"checks" : 12'),  # another spelling of the JSON
    ("3 of 12", "3&#32;of 12"),
]


@pytest.mark.parametrize(("old", "new"), REWRITTEN)
def test_another_spelling_of_the_same_file_is_read_in_full(alpha: Path, old: str, new: str) -> None:
    edit(alpha / "junit-layout.xml", old, new)
    sign(alpha)
    agree(alpha)


DAMAGED = [
    ("<testsuites", "<!DOCTYPE x [<!ENTITY a 'b'>]><testsuites"),
    ("3 of 12", "&amp;&lol; of 12"),
    ('conform {"checks":12', 'conform {"checks":0'),
    ('name="add[float32]"', 'name="add[float33]"'),
    ('failures="', 'failures="9'),
    ('<failure type="regression"', '<skipped type="regression"'),
    ("</testsuites>", ""),
    ("</testsuites>", "</testsuites><x/>"),
    ("conform {", "conform [{"),
    ('"ran":0', '"ran":99'),
    ("3 of 12", "3 \x0b of 12"),
    ("x.py</failure>", "x.py ]]></failure>"),
    ("3 of 12", "3 \ufffe of 12"),
]


@pytest.mark.parametrize(("old", "new"), DAMAGED)
def test_a_damaged_file_is_refused(alpha: Path, old: str, new: str) -> None:
    edit(alpha / "junit-layout.xml", old, new)
    sign(alpha)
    with pytest.raises(ConformError):
        read(alpha)


def test_an_edited_file_is_refused(alpha: Path) -> None:
    edit(alpha / "junit-layout.xml", '"checks":12', '"checks":13')
    with pytest.raises(RunError, match="changed since the run wrote it"):
        read(alpha)


def test_a_swapped_file_of_another_plan_is_refused(alpha: Path, tmp_path: Path) -> None:
    other = fleet.write(tmp_path / "other", "alpha", fleet.ALPHA, plan={"selection": {"x": "y"}})
    (alpha / "junit-layout.xml").write_bytes((other / "junit-layout.xml").read_bytes())
    sign(alpha)
    with pytest.raises(RunError, match="belongs to another plan"):
        read(alpha)


@pytest.mark.parametrize(
    "bomb",
    [
        "<a>" * 200_000,
        "<!DOCTYPE l [" + "".join(f"<!ENTITY l{n} '{'&l' + str(n - 1) + ';' * 1}'>" for n in range(1, 40)) + "]>",
    ],
    ids=["nesting", "entities"],
)  # fmt: skip
def test_a_bomb_does_no_harm(alpha: Path, bomb: str) -> None:
    edit(alpha / "junit-layout.xml", "<testsuites", bomb + "<testsuites")
    sign(alpha)
    began = time.process_time()
    with pytest.raises(RunError):
        read(alpha)
    assert time.process_time() - began < 5


def test_fuzzed_files_are_refused_or_read_as_in_full(tmp_path: Path) -> None:
    """Bytes changed at random: both readers answer alike, and nothing escapes as a traceback."""
    chance = random.Random(7)
    folder = fleet.beta(tmp_path / "run")
    junit = folder / "junit-layout.xml"
    whole = junit.read_bytes()
    refused = 0
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 3)):
            place = chance.randrange(len(data))
            if chance.random() < 0.5:
                data[place] = chance.randrange(256)
            else:
                del data[place : place + chance.randrange(1, 40)]
        junit.write_bytes(data)
        sign(folder)
        try:
            load_run(folder)
        except RunError:
            with pytest.raises(ConformError):
                read(folder)
            refused += 1
        else:
            agree(folder)
    assert refused > 75
