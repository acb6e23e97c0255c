"""Runs that must not be published are refused with the reason, and the site stays as it was."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from devices.cell import Outcome, Verdict
from reports.dashboard.build import Options, build
from reports.dashboard.ingest import Refused, read_publishable
from reports.model import CellResult
from reports.run import RunError, write_run
from tests.dashboard import fleet
from tests.reports.builders import CELLS, PROVENANCE, plan_document, results


def run(folder: Path, told: Any, **provenance: Any) -> Path:
    """A run of the small plan. ``told`` are its results."""
    selected = provenance.pop("selected", None)
    plan = plan_document(selected=selected)
    write_run(folder, plan, told, replace(PROVENANCE, **provenance))
    return folder


def test_an_incomplete_run_is_refused(tmp_path: Path) -> None:
    told = results()
    del told[CELLS[1]]
    with pytest.raises(
        Refused, match=r"incomplete: 1 of 5 planned cells has no outcome; .*add\[int64\]"
    ):
        read_publishable(run(tmp_path / "run", told))


def test_a_cell_that_was_not_run_makes_a_run_incomplete(tmp_path: Path) -> None:
    lost = CellResult(CELLS[0], Outcome.NOT_RUN, Verdict.MISSING, "worker gw0 died before it")
    with pytest.raises(Refused, match="1 of 5 planned cells has no outcome"):
        read_publishable(run(tmp_path / "run", results(lost)))


def test_a_partial_run_is_refused(tmp_path: Path) -> None:
    told = {CELLS[0]: results()[CELLS[0]]}
    folder = run(tmp_path / "run", told, partial=True, selected=[CELLS[0]])
    with pytest.raises(Refused, match="partial run: 1 of 5 planned"):
        read_publishable(folder)


def test_a_lone_shard_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="only shard 1/4"):
        read_publishable(run(tmp_path / "run", results(), shard="1/4"))


def test_an_empty_run_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "run", plan_document(cells=[]), {}, PROVENANCE)
    with pytest.raises(Refused, match="the plan has no cells, so nothing was checked"):
        read_publishable(tmp_path / "run")


def test_a_dead_machine_is_not_published_as_a_bad_device(tmp_path: Path) -> None:
    dead = [
        CellResult(cell, Outcome.ERROR, Verdict.REGRESSION, note="no driver\nmore")
        for cell in CELLS
    ]
    with pytest.raises(
        Refused,
        match="the machine or the installation is at fault.*the first message is: no driver$",
    ):
        read_publishable(run(tmp_path / "run", results(*dead)))


def test_a_result_that_contradicts_itself_is_refused(tmp_path: Path) -> None:
    vacuous = CellResult(CELLS[0], Outcome.PASS, Verdict.OK, checks=0)
    with pytest.raises(Refused, match="passed without a single executed check"):
        read_publishable(run(tmp_path / "run", results(vacuous)))


def test_a_start_that_is_no_date_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="not a date in ISO 8601"):
        read_publishable(run(tmp_path / "run", results(), start="yesterday"))


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_refused_run_leaves_the_site_as_it_was(tmp_path: Path) -> None:
    build([fleet.beta(tmp_path / "beta")], tmp_path / "site")
    before = tree(tmp_path / "site")
    told = results()
    del told[CELLS[0]]
    bad = run(tmp_path / "bad", told)
    with pytest.raises(Refused):
        build([fleet.alpha(tmp_path / "alpha", 1), bad], tmp_path / "site")
    assert tree(tmp_path / "site") == before


def test_refused_runs_can_be_left_out(tmp_path: Path) -> None:
    told = results()
    del told[CELLS[0]]
    bad = run(tmp_path / "bad", told)
    made = build([fleet.beta(tmp_path / "b"), bad], tmp_path / "site", Options(skip_refused=True))
    assert (made.runs, len(made.refused)) == (1, 1)
    assert "incomplete" in made.refused[0]


def test_with_every_run_refused_there_is_no_site(tmp_path: Path) -> None:
    told = results()
    del told[CELLS[0]]
    with pytest.raises(Refused, match="no run to publish"):
        build([run(tmp_path / "bad", told)], tmp_path / "site", Options(skip_refused=True))
    assert not (tmp_path / "site" / "index.html").exists()


def test_what_names_the_machine_is_not_published(tmp_path: Path) -> None:
    folder = fleet.write(
        tmp_path / "run", "beta", fleet.BETA, host="build-host-9", device_uuid="GPU-77aa"
    )
    build([folder], tmp_path / "site")
    assert [name for name, data in tree(tmp_path / "site").items() if b"build-host-9" in data] == []
    assert [name for name, data in tree(tmp_path / "site").items() if b"GPU-77aa" in data] == []


def test_a_repro_outside_the_run_is_not_read(tmp_path: Path) -> None:
    folder = fleet.alpha(tmp_path / "run", 1)
    secret = tmp_path / "secret"
    secret.write_text("the secret of the machine")
    script = folder / "repro" / "layout.values" / "x.py"
    script.unlink()
    script.symlink_to(secret)
    build([folder], tmp_path / "site")
    assert [name for name, data in tree(tmp_path / "site").items() if b"the secret" in data] == []


def test_the_published_run_names_no_path(site: Path) -> None:
    for path in (site / "v1" / "runs").glob("*.json"):
        assert "/" not in json.loads(path.read_text())["provenance"]["expectations"]
