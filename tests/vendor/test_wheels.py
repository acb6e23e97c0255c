"""Our wheel and the example vendor's, side by side in a clean environment outside the checkout."""

from __future__ import annotations

import json
import re
import subprocess
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from examples.vendor import follow_docs
from tests.plugin.running import CHECKOUT, only_one

pytestmark = pytest.mark.slow  # it builds two wheels and an environment

PAGE = CHECKOUT / "docs" / "vendors.md"
OPS = "add,mul,sum,nn.functional.conv2d,broadcast_to"


@dataclass(frozen=True, slots=True)
class Clean:
    """The environment, and the wheels that are installed there."""

    folder: Path
    python: Path
    ours: Path
    theirs: Path

    def conform(self, *arguments: str, cache: Path) -> subprocess.CompletedProcess[str]:
        """``conform ARGUMENTS``, as its users call it."""
        return subprocess.run(
            [self.python.parent / "conform", *arguments],
            cwd=self.folder,
            env=follow_docs.environment(self.python, TORCH_CONFORMANCE_CACHE=str(cache)),
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )


@pytest.fixture(scope="module")
def clean(shared: Path) -> Clean:
    folder = shared / "vendor"
    with only_one(shared, "vendor"):
        ours = follow_docs.build_wheel(CHECKOUT, folder / "wheels")
        theirs = follow_docs.build_wheel(CHECKOUT / "examples" / "vendor", folder / "wheels")
        python = follow_docs.clean_environment(folder / "venv")
        follow_docs.install(python, ours, theirs)
    return Clean(folder, python, ours, theirs)


def test_our_wheel_carries_every_data_file(clean: Clean) -> None:
    packaged = set(zipfile.ZipFile(clean.ours).namelist())
    wanted = {
        path.relative_to(CHECKOUT).as_posix()
        for package in ("conformance", "devices", "opinfo", "reports")
        for path in (CHECKOUT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert wanted - packaged == set()
    assert not any(name.startswith(("tests/", "examples/", "benchmarks/")) for name in packaged)


def test_the_vendor_s_device_is_found_by_its_entry_point(clean: Clean, cache: Path) -> None:
    done = clean.conform("devices", "--json", "--no-probe", cache=cache)
    listed = json.loads(done.stdout)
    rows = {row["name"]: row for row in listed["devices"]}
    assert listed["broken"] == [] and rows["abacus"]["unavailable"] is None
    for row in (rows["abacus"], rows["cpu"]):  # not from the checkout
        assert Path(row["folder"]).is_relative_to(clean.folder), row["folder"]


@pytest.mark.slow
def test_it_runs_and_the_gate_refuses_the_part(clean: Clean, cache: Path) -> None:
    results = clean.folder / "results of a=b"  # as an argument of its own, outside the checkout
    ran = clean.conform(
        *("run", "-q", "-n", "1", "--device=abacus", f"--ops={OPS}", "--results", str(results)),
        cache=cache,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "unsupported by declaration" in ran.stdout
    assert re.search(r"[1-9]\d* fail as expected", ran.stdout)
    gated = clean.conform("gate", str(results), cache=cache)
    assert gated.returncode == 2 and "a partial run" in gated.stdout


@pytest.mark.slow
def test_the_page_for_vendors_is_a_script(clean: Clean, cache: Path, tmp_path: Path) -> None:
    """With one op in the place of all, so that the gate calls the runs partial."""
    steps = follow_docs.steps(PAGE)
    assert [step.commands[0][0].split()[1:2] for step in steps[:2]] == [["-m"], ["init"]]
    variables = follow_docs.environment(
        clean.python,
        **{"TORCH_CONFORMANCE": str(clean.ours), "TORCH_CONFORMANCE_CACHE": str(cache)},
        **{"PIP_NO_INDEX": "1", "COLUMNS": "200"},
    )
    assert list(follow_docs.follow(steps, tmp_path, variables, "mul")) == []


def test_the_jobs_in_ci_are_the_last_step_of_the_page() -> None:
    commands = [command for command, _ in follow_docs.steps(PAGE)[-1].commands]
    for file in (".github/workflows/conformance.yml", ".gitlab-ci.yml"):
        text = (CHECKOUT / "examples" / "vendor" / file).read_text(encoding="utf-8")
        assert all(command in text for command in commands), file
