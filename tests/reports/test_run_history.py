"""The compact history of runs: what a line has, how large it is, and how the file is kept."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from conformance.cli import conform
from devices.cell import CellKey, Outcome, Verdict
from devices.failure import Kind
from reports import run_history
from reports.model import CellResult
from reports.run import load_run, write_run
from reports.run_history import (
    LIMIT,
    HistoryError,
    HistoryRow,
    Label,
    NotWhole,
    changes_since,
    line_of,
    read_history,
    row_of,
)
from tests.reports.builders import (
    ADD,
    CELLS,
    CONV,
    PROVENANCE,
    QUERY,
    failed,
    failure,
    plan_document,
    results,
)

FACTS = {"runtime": "8.1", "backend": "2.5.0", "os": "linux"}


def write(
    folder: Path, *made: CellResult, cells: tuple[CellKey, ...] = CELLS, **origin: Any
) -> Path:
    document = plan_document(cells, facts=FACTS)
    write_run(folder, document, results(*made, cells=cells), replace(PROVENANCE, **origin))
    return folder


def row(folder: Path, *made: CellResult, **more: Any) -> HistoryRow:
    return row_of(load_run(write(folder, *made, **more)))


def call(*arguments: object) -> Result:
    made = CliRunner().invoke(conform, ["history", *map(str, arguments)])
    assert "Traceback" not in made.output
    return made


def test_a_row_has_what_trends_need(tmp_path: Path) -> None:
    found = row(tmp_path, failed(CONV), failed(ADD, Verdict.EXPECTED), failed(QUERY))
    assert (found.device, found.torch, found.backend) == ("cpu", "2.13.0+cpu", "2.5.0")
    assert found.exit_code == 1 and found.verdict.startswith("red (exit 1): 1 regression")
    assert found.counts["passed"] == 2 and found.counts["regressions"] == 1
    assert found.families == {"layout": (2, 4), "streams": (0, 1)}
    assert [(each.cells, each.gates) for each in found.causes] == [(1, True), (1, False)]
    assert found.causes[0].example == str(CONV)


def test_the_cells_that_did_not_pass_are_kept_with_their_status(tmp_path: Path) -> None:
    undeclared = failed(QUERY, Verdict.OK, outcome=Outcome.UNSUPPORTED, failure=None, layouts=())
    found = row(tmp_path, failed(CONV), failed(ADD, Verdict.EXPECTED), undeclared).not_passing()
    assert found is not None and set(found) == {CONV, ADD}
    assert found[CONV] != found[ADD]


def test_neither_the_host_nor_the_device_s_uuid_is_kept(tmp_path: Path) -> None:
    text = line_of(row(tmp_path, failed(CONV))).decode()
    assert PROVENANCE.host not in text and PROVENANCE.device_uuid not in text


def many(count: int, share: float) -> tuple[tuple[CellKey, ...], list[CellResult]]:
    """Cells of which a share fails, drawn at random, each for a reason of its own."""
    drawn = random.Random(0)
    clauses = ("layout.values", "layout.bounds")
    cells = tuple(
        CellKey(clauses[n % 2], f"nn.functional.an_op_{n // 4}", ("float32", "int64")[n // 2 % 2])
        for n in range(count)
    )
    return cells, [
        failed(
            cell,
            failure=failure("", kind=Kind.RAISED, raises=f"Error{n % 40}", said="broken " * 30),
            raises=f"Error{n % 40}",
        )
        for n, cell in enumerate(cells)
        if drawn.random() < share
    ]


def test_a_line_is_small_and_complete_for_an_ordinary_device(tmp_path: Path) -> None:
    cells, made = many(1000, 0.1)
    found = row(tmp_path, *made, cells=cells)
    assert len(line_of(found)) <= LIMIT and len(found.causes) == 12
    kept = found.not_passing()
    assert kept is not None and set(kept) == {each.key for each in made}
    assert found.more_causes > 0


def test_if_too_many_cells_fail_the_counts_remain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_history, "LIMIT", 3000)
    cells, made = many(600, 0.6)
    found = row(tmp_path, *made, cells=cells)
    assert len(line_of(found)) <= 3000 and found.not_passing() is None
    assert found.counts["regressions"] == len(made) and found.causes


def test_long_texts_do_not_make_a_line_long(tmp_path: Path) -> None:
    long = "\N{SNOWMAN}\x00" * 3000
    found = row(tmp_path, failed(CONV, message=long), device_name="x" * 3000)
    assert len(line_of(found)) <= LIMIT


@pytest.mark.parametrize("why", ["partial", "shard", "missing"])
def test_only_whole_runs_are_kept(tmp_path: Path, why: str) -> None:
    selected = None if why == "missing" else (ADD,)
    document = plan_document(selected=selected, partial=why == "partial", facts=FACTS)
    origin = replace(PROVENANCE, partial=why == "partial", shard="1/2" if why == "shard" else "")
    write_run(tmp_path / "run", document, results(cells=(ADD,)), origin)
    with pytest.raises(NotWhole, match="not added to the history"):
        row_of(load_run(tmp_path / "run"))
    made = call("add", tmp_path / "run", "--file", tmp_path / "h.jsonl")
    assert made.exit_code == 2 and not (tmp_path / "h.jsonl").exists()


# -- the file


def test_runs_are_added_once_and_read_in_order(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    new = write(tmp_path / "new", start="2026-03-01T00:00:00+00:00")
    old = write(tmp_path / "old", start="2026-02-01T00:00:00+00:00")
    assert "1 run added" in call("add", new, "--file", file).stdout
    made = call("add", old, new, "--file", file)
    assert "1 run added, 1 already there" in made.stdout
    assert [each.start[:7] for each in read_history(file)] == ["2026-02", "2026-03"]


def test_lines_that_are_there_stay_byte_for_byte(tmp_path: Path) -> None:
    """Lines with fields of a later version, and without a break at the end."""
    file = tmp_path / "history.jsonl"
    known = json.loads(line_of(row(tmp_path / "a")))
    line = json.dumps({**known, "later": 1})
    file.write_text(line, encoding="utf-8")
    call("add", write(tmp_path / "b", start="2026-05-01T00:00:00+00:00"), "--file", file)
    assert file.read_text(encoding="utf-8").splitlines()[0] == line
    assert len(read_history(file)) == 2


def test_a_bundle_is_added_as_its_run_is(tmp_path: Path) -> None:
    run, file = write(tmp_path / "run"), tmp_path / "history.jsonl"
    bundle = tmp_path / "a.conform.zip"
    assert CliRunner().invoke(conform, ["bundle", str(run), "-o", str(bundle)]).exit_code == 0
    assert "1 run added" in call("add", bundle, "--file", file).stdout
    assert "0 runs added, 1 already there" in call("add", run, "--file", file).stdout


def test_labels_come_from_the_options_or_from_the_ci_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "GITHUB_SERVER_URL": "https://github.com",
        "GITHUB_REPOSITORY": "foo/torch_foo",
        "GITHUB_RUN_ID": "77",
        "GITHUB_REF_NAME": "12/merge",
        "GITHUB_HEAD_REF": "fix",
        "GITHUB_SHA": "a" * 40,
    }.items():
        monkeypatch.setenv(name, value)
    file = tmp_path / "history.jsonl"
    call("add", write(tmp_path / "a"), "--file", file)
    later = write(tmp_path / "b", start="2026-05-01T00:00:00+00:00")
    call("add", later, "--file", file, "--branch", "main", "--pr", "3")
    first, second = read_history(file)
    url = "https://github.com/foo/torch_foo/actions/runs/77"
    assert first.label == Label("fix", "a" * 40, 12, url)
    assert (second.label.branch, second.label.pr) == ("main", 3)


def test_the_list_says_what_changed_since_the_run_before(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    write(tmp_path / "a", failed(ADD), start="2026-02-01T00:00:00+00:00")
    write(tmp_path / "b", failed(CONV), start="2026-03-01T00:00:00+00:00", torch="2.14.0")
    call("add", tmp_path / "b", tmp_path / "a", "--file", file)
    first, second = call("list", "--file", file).stdout.splitlines()
    assert first.startswith("2026-02-01T00:00 cpu quick torch 2.13.0+cpu") and "(torch" not in first
    assert second.endswith(
        "(torch 2.13.0+cpu -> 2.14.0, 1 cell newly not passing, 1 cell fixed or gone)"
    )
    (only,) = json.loads(call("list", "--file", file, "--json", "--device", "cpu").stdout)[:1]
    assert only["torch"] == "2.13.0+cpu"
    assert call("list", "--file", file, "--device", "xpu").stdout == "no run\n"


def test_without_cells_the_counts_are_compared(tmp_path: Path) -> None:
    old, new = row(tmp_path / "a"), row(tmp_path / "b", failed(ADD))
    bare = [msgspec.structs.replace(each, cells=None) for each in (old, new)]
    assert changes_since(*bare) == "1 fewer cells pass"
    assert changes_since(old, old) == ""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", ":1: expected a run of a history"),
        ("\n[]", ":2: expected a run of a history"),
        ("<<<<<<< HEAD", "an unresolved conflict of git"),
        ("\xff", "expected a run of a history"),
    ],
)
def test_a_damaged_history_is_one_message(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "history.jsonl"
    file.write_text(text, encoding="latin-1")
    before = file.read_bytes()
    for command in (("list",), ("add", write(tmp_path / "run"))):
        made = call(*command, "--file", file)
        assert made.exit_code == 4 and made.stderr.startswith(f"error: {file}:") and says in made.stderr  # fmt: skip
    assert file.read_bytes() == before


def test_a_newer_history_and_damaged_cells_are_one_message(tmp_path: Path) -> None:
    known = json.loads(line_of(row(tmp_path / "a", failed(ADD))))
    file = tmp_path / "history.jsonl"
    file.write_text(json.dumps({**known, "format": 9}), encoding="utf-8")
    assert "found 9: update torch-conformance" in call("list", "--file", file).stderr
    file.write_text(json.dumps({**known, "cells": "xyz"}), encoding="utf-8")
    (read,) = read_history(file)
    with pytest.raises(HistoryError, match="are damaged"):
        read.not_passing()


def test_a_missing_history_and_wrong_options_are_one_message(tmp_path: Path) -> None:
    run = write(tmp_path / "run")
    assert "cannot be read" in call("list", "--file", tmp_path / "nosuch").stderr
    for option in (("--commit", "main"), ("--url", "example"), ("--pr", "0")):
        made = call("add", run, "--file", tmp_path / "h.jsonl", *option)
        assert made.exit_code == 4 and not (tmp_path / "h.jsonl").exists()
