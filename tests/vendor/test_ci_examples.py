"""The CI files in examples/: each of their shell lines is executed, in environments that have what the lines install.

The registry is a folder with our wheel and the example vendor's. The jobs that run the suite find the dependencies, torch
among them; the job that merges and judges shards finds what pip installs with the suite, and no torch.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from examples.vendor import follow_docs
from tests.plugin.running import CHECKOUT
from tests.vendor.ci_jobs import Line, Service, run_github, run_gitlab
from tests.vendor.environments import environment_for

EXAMPLES = CHECKOUT / "examples"
#: One op in the place of all: a run is then partial, and the gate says so.
PART = "--ops=mul --clauses=layout.values,layout.views"
PARTIAL = 2

_BUILD = """#!/bin/sh
python -m pip install .
"""


@dataclass(frozen=True, slots=True)
class Pythons:
    """Makes the environment of a job from the wheels that pip finds there."""

    folder: Path
    ours: Path
    cache: Path

    def service(self, name: str) -> Service:
        made: dict[str, Path] = {}
        at = self.folder / name

        def environment(job: str) -> Mapping[str, str]:
            if job not in made:
                where = at / f"python-{job}"
                made[job] = environment_for(self.ours, where, torch=job != "gate")
            return follow_docs.environment(
                made[job],
                **{"TORCH_CONFORMANCE_CACHE": str(self.cache), "PYTEST_ADDOPTS": PART},
                **{"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.ours.parent)},
                # pip reads it the wrong way round: 0 builds without an environment of its own
                **{"PIP_NO_BUILD_ISOLATION": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
                GITHUB_OUTPUT=str(at / "output"),
            )

        return Service(
            at / "jobs",
            environment,
            _checkout,
            {"DEVICE": "abacus", "SHARDS": "2", "TORCH_CONFORMANCE_CACHE": str(self.cache)},
        )


def _checkout(folder: Path) -> None:
    """The example vendor's repository, with the build script that one of the files calls."""
    shutil.copytree(EXAMPLES / "vendor", folder, dirs_exist_ok=True)
    script = folder / "build-pytorch-and-backend.sh"
    script.write_text(_BUILD, encoding="utf-8")
    script.chmod(0o755)


@pytest.fixture(scope="module")
def pythons(shared: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Pythons:
    folder = tmp_path_factory.mktemp("ci")
    return Pythons(folder, follow_docs.build_wheel(CHECKOUT, folder / "wheels"), cache)


def check(lines: Iterator[Line]) -> list[Line]:
    """All lines succeed, but the gate, which refuses the part that was run."""
    found: list[Line] = []
    for line in lines:
        found.append(line)
        gates = line.text.splitlines()[-1].startswith("conform gate")
        assert line.status == (PARTIAL if gates else 0), f"{line.text}\n{line.printed}"
        assert "Traceback" not in line.printed
        assert not gates or "a partial run" in line.printed
    return found


@pytest.mark.slow
def test_github_s_shards_are_run_merged_and_judged(pythons: Pythons) -> None:
    lines = check(run_github(EXAMPLES / "ci" / "github-shards.yml", pythons.service("github"), 2))
    assert [line.job for line in lines].count("shard") == 4
    assert any("conform gate" in line.text for line in lines if line.job == "gate")


@pytest.mark.slow
def test_gitlab_s_shards_are_run_merged_and_judged(pythons: Pythons) -> None:
    lines = check(run_gitlab(EXAMPLES / "ci" / "gitlab-shards.yml", pythons.service("gitlab"), 2))
    assert [line.job for line in lines] == ["shard", "shard", "gate"]


@pytest.mark.slow
def test_the_relay_s_workflow_runs_and_reports(pythons: Pythons) -> None:
    check(run_github(EXAMPLES / "ci" / "github-crcr.yml", pythons.service("crcr"), 1))
    assert "test-results=" in (pythons.folder / "crcr" / "output").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_vendor_s_workflow_runs_and_judges(pythons: Pythons) -> None:
    file = EXAMPLES / "vendor" / ".github" / "workflows" / "conformance.yml"
    assert len(check(run_github(file, pythons.service("vendor"), 1))) == 4


@pytest.mark.slow
def test_the_vendor_s_pipeline_runs_and_judges(pythons: Pythons) -> None:
    file = EXAMPLES / "vendor" / ".gitlab-ci.yml"
    assert len(check(run_gitlab(file, pythons.service("pipeline"), 1))) == 2


def test_every_ci_file_is_executed_here() -> None:
    here = Path(__file__).read_text(encoding="utf-8")
    assert [p.name for p in EXAMPLES.rglob("*.yml") if f'"{p.name}"' not in here] == []
