"""Where the results of a run go, and which earlier results a run replaces."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conformance.plan.options import OPTIONS, Request
from conformance.plan.usage import results_folder
from conformance.run.progress import check_folder
from devices.errors import ConformError
from reports.folder import PROGRESS_FILE, foreign_files
from reports.run import write_run
from tests.plugin.running import ForkServer, cells_of
from tests.reports.builders import ADD, CELLS, PROVENANCE, plan_document, results


def request(**given: object) -> Request:
    values = {option.dest: option.default for option in OPTIONS}
    flags = {o.dest: False for o in OPTIONS if o.kind == "flag"}
    changed = {f"conform_{name}": value for name, value in given.items()}
    return Request.from_options({**values, **flags, **changed}, collect_only=False, deselects=())


def whole_run(folder: Path) -> Path:
    write_run(folder, plan_document(), results(), PROVENANCE)
    return folder


def killed_run(folder: Path, selection: str = "{}") -> Path:
    folder.mkdir()
    cell = {"cell": ["layout.values", "add", "float32"]}
    begun = {"type": "begun", "run": {"selection": json.loads(selection)}, "planned": 15_340}
    lines = (begun, {"type": "finished", "report": {"cells": [cell]}})
    (folder / PROGRESS_FILE).write_text("\n".join(map(json.dumps, lines)))
    return folder


@pytest.mark.parametrize(
    ("given", "folder"),
    [
        ({}, "cpu-quick"),
        ({"plan": "full"}, "cpu-full"),
        ({"ops": "add"}, "cpu-quick-partial"),
        ({"max_time": "1m"}, "cpu-quick-partial"),
        ({"shard": "1/2"}, "cpu-quick-shard-1-of-2"),
        ({"shard": "1/2", "ops": "add"}, "cpu-quick-shard-1-of-2-partial"),
    ],
)
def test_a_partial_run_has_a_folder_of_its_own(given: dict[str, str], folder: str) -> None:
    assert results_folder(request(**given), "cpu") == Path("conform-results", folder)


def test_a_folder_that_is_given_is_taken() -> None:
    assert results_folder(request(results="x", ops="add"), "cpu") == Path("x")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"ops": "add"}, r"a partial run \(--ops\)"),
        ({"max_time": "1m"}, r"a partial run \(--max-time\)"),
        ({"shard": "1/2"}, "a shard"),
    ],
)
def test_a_complete_run_is_not_replaced_by_a_lesser_one(
    tmp_path: Path, given: dict[str, str], why: str
) -> None:
    folder = whole_run(tmp_path / "run")
    with pytest.raises(ConformError, match=f"a complete run, which {why} must not replace"):
        check_folder(folder, request(**given))


def test_a_complete_run_of_a_larger_plan_is_not_replaced(tmp_path: Path) -> None:
    origin = {**vars_of(PROVENANCE), "plan": "core"}
    provenance = type(PROVENANCE)(**origin)
    write_run(tmp_path, plan_document(plan="core"), results(), provenance)
    with pytest.raises(ConformError, match="a run of the smaller plan quick"):
        check_folder(tmp_path, request())
    check_folder(tmp_path, request(plan="core"))
    check_folder(tmp_path, request(plan="full"))


def vars_of(provenance: object) -> dict[str, object]:
    names = type(provenance).__dataclass_fields__  # type: ignore[attr-defined]
    return {name: getattr(provenance, name) for name in names}


def test_a_whole_run_takes_the_place_of_a_complete_or_incomplete_one(tmp_path: Path) -> None:
    check_folder(whole_run(tmp_path / "run"), request())
    incomplete = tmp_path / "incomplete"
    found = {cell: result for cell, result in results().items() if cell != ADD}
    write_run(incomplete, plan_document(), found, PROVENANCE)
    assert ADD in CELLS
    check_folder(incomplete, request(ops="add"))


def test_an_interrupted_run_is_not_thrown_away_unasked(tmp_path: Path) -> None:
    folder = killed_run(tmp_path / "run")
    with pytest.raises(ConformError, match="an interrupted run with 1 of 15,340 cells: continue"):
        check_folder(folder, request())
    check_folder(folder, request(no_resume=True))
    check_folder(folder, request(resume=True))


def test_an_interrupted_partial_run_is_replaced(tmp_path: Path) -> None:
    check_folder(killed_run(tmp_path / "run", '{"--ops": "add"}'), request(ops="mul"))


@pytest.mark.parametrize("name", ["expected.toml", "descriptor.py", "notes.md", "repro.py"])
def test_a_file_that_no_run_wrote_is_foreign(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("")
    assert foreign_files(tmp_path) == [name]
    with pytest.raises(ConformError, match=f"files that no run wrote \\({name}\\)"):
        check_folder(tmp_path, request())


def test_scratch_files_of_a_killed_run_are_not_foreign(tmp_path: Path) -> None:
    folder = killed_run(tmp_path / "run")
    (folder / "scratch" / "conform-1").mkdir(parents=True)
    check_folder(folder, request(resume=True))


def test_what_a_run_and_a_ci_job_leave_is_not_foreign(tmp_path: Path) -> None:
    folder = whole_run(tmp_path / "run")
    for name in ("expected.toml", "job.log", ".gitignore", "junit.xml"):
        (folder / name).write_text("")
    mine = folder / "cells.xml"
    mine.write_text("")
    assert foreign_files(folder) == ["cells.xml"]
    assert foreign_files(folder, [mine]) == []


def test_a_run_that_is_refused_by_pytest_itself_keeps_the_folder(
    fork: ForkServer, tmp_path: Path
) -> None:
    """What is wrong with a test beside the suite is only found when tests are collected."""
    folder, other = tmp_path / "run", tmp_path / "test_broken.py"
    options = ("--device", "cpu", "--ops", "neg", "--clauses", "layout.values")
    assert fork.pytest(*options, f"--results={folder}").code == 0
    before = cells_of(folder)
    other.write_text("import no_such_module\n")
    ran = fork.pytest(*options, f"--results={folder}", "conformance", str(other))
    assert ran.code != 0 and cells_of(folder) == before


#: A plugin that runs an item again when it fails, as pytest-rerunfailures does.
_REPEATING = """\
import pytest
from _pytest.runner import runtestprotocol

def pytest_runtest_protocol(item, nextitem):
    for _ in range(2):
        for report in runtestprotocol(item, nextitem=nextitem, log=False):
            item.ihook.pytest_runtest_logreport(report=report)
    return True

def pytest_runtest_logreport(report):
    pass
"""
#: One that only has the options.
_OPTIONS = """\
def pytest_addoption(parser):
    parser.addoption("--reruns", dest="reruns", type=int, default=None)
    parser.addini("reruns", "times to run a failing test again")
"""


def test_an_item_that_runs_twice_ends_the_run(fork: ForkServer, tmp_path: Path) -> None:
    (tmp_path / "repeating.py").write_text(_REPEATING)
    options = ("-p", "repeating", "--device", "cpu", "--ops", "neg", "--clauses", "layout.values")
    ran = fork.pytest(*options, f"--results={tmp_path / 'run'}", PYTHONPATH=str(tmp_path))
    assert ran.code == 3 and "ran twice: a pytest plugin repeats tests" in ran.text, ran.text


@pytest.mark.parametrize("way", ["option", "environment", "setting"])
def test_reruns_are_refused(fork: ForkServer, tmp_path: Path, way: str) -> None:
    (tmp_path / "reruns.py").write_text(_OPTIONS)
    given = {"option": ("--reruns", "2"), "setting": ("-o", "reruns=2"), "environment": ()}[way]
    more = {"PYTEST_ADDOPTS": "--reruns=2"} if way == "environment" else {}
    options = ("-p", "reruns", "--device", "cpu", *given, f"--results={tmp_path / 'run'}")
    ran = fork.pytest(*options, PYTHONPATH=str(tmp_path), **more)
    assert ran.code == 4 and "(pytest-rerunfailures) cannot be used here" in ran.text, ran.text
    assert len([line for line in ran.text.splitlines() if line]) == 1
    assert not (tmp_path / "run").exists()
