"""Runs the shell lines of a CI file as its service would: each job in a folder of its own, with the files that jobs hand on.

Of a service it knows what the examples use, and refuses anything else, so that no line is left out unseen.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.plugin.running import LIMIT, Ran

#: Actions that need nothing done here: the folder is a checkout, Python is installed, caches are empty.
_NOTHING_TO_DO = frozenset(
    (
        *("actions/checkout", "actions/setup-python"),
        *("actions/cache", "actions/cache/restore"),
        "pytorch/test-infra/.github/actions/cross-repo-ci-relay-callback",
    )
)


@dataclass(frozen=True, slots=True)
class Line:
    """A step that was executed: its text, its status, and what it printed."""

    job: str
    text: str
    status: int
    printed: str


def run_in(folder: Path, environment: Mapping[str, str], *command: str) -> Ran:
    """A command in a folder and an environment, with what it printed on both streams."""
    # By its path: the program is the environment's, whatever this process would find.
    program = shutil.which(command[0], path=environment["PATH"]) or command[0]
    done = subprocess.run(
        [program, *command[1:]],
        cwd=folder,
        env=dict(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=LIMIT,
    )
    return Ran(done.returncode, done.stdout)


@dataclass
class Service:
    """What runs the jobs. ``environment`` gives the variables of a job, ``checkout`` fills its folder."""

    folder: Path
    environment: Callable[[str], Mapping[str, str]]
    checkout: Callable[[Path], object]
    variables: Mapping[str, str]  # in the place of the file's own
    handed_on: dict[str, Path] = field(default_factory=dict)  # artifacts by name

    def shell(self, job: str, text: str, at: Path, more: Mapping[str, str]) -> Line:
        variables = {**self.environment(job), **more, **self.variables}
        ran = run_in(at, variables, "bash", "-eo", "pipefail", "-c", text)
        return Line(job, text, ran.code, ran.text)

    def place(self, name: str) -> Path:
        at = self.folder / name
        at.mkdir(parents=True)
        self.checkout(at)
        return at


def run_github(file: Path, service: Service, shards: int) -> Iterator[Line]:
    """The ``run:`` steps of a workflow. ``shards`` replaces the number of shards of a matrix."""
    workflow = yaml.safe_load(file.read_text(encoding="utf-8"))
    variables = {name: str(value) for name, value in workflow.get("env", {}).items()}
    for name, job in workflow["jobs"].items():
        sharded = "strategy" in job
        assert not sharded or list(job["strategy"]["matrix"]) == ["shard"]
        for number in range(1, shards + 1) if sharded else [1]:
            at = service.place(f"{name}-{number}")
            known = {"matrix.shard": str(number)} if sharded else {}
            for step in job["steps"]:
                if "uses" in step:
                    _use(step, service, at, known)
                else:
                    yield service.shell(name, _filled(step["run"], known), at, variables)


def _filled(text: str, known: Mapping[str, str]) -> str:
    """The text with the service's expressions filled in. Raises KeyError for one that is not known."""
    return re.sub(r"\$\{\{ *([\w.]+) *\}\}", lambda found: known[found[1]], text)


def _use(step: Mapping[str, Any], service: Service, at: Path, known: Mapping[str, str]) -> None:
    action, given = step["uses"].partition("@")[0], step.get("with", {})
    if action == "actions/upload-artifact":
        path = at / _filled(given["path"], known)
        assert path.exists(), f"{step}: there is no {path}"
        service.handed_on[_filled(given["name"], known)] = path
    elif action == "actions/download-artifact":  # of all, each in a folder of its name
        for name, path in service.handed_on.items():
            shutil.copytree(path, at / given["path"] / name)
    elif action == "actions/cache/save":
        assert (at / given["path"]).exists(), f"{step}: there is nothing to keep"
    else:
        assert action in _NOTHING_TO_DO, f"{step}: this test does not know the action"


def run_gitlab(file: Path, service: Service, parallel: int) -> Iterator[Line]:
    """The ``script:`` and ``after_script:`` lines of a pipeline. ``parallel`` replaces the numbers of its own."""
    pipeline = yaml.safe_load(file.read_text(encoding="utf-8"))
    settings = pipeline.pop("variables", {})
    pipeline.pop("stages", None)
    for name, job in pipeline.items():
        count = parallel if "parallel" in job else 1
        for number in range(1, count + 1):
            at = service.place(f"{name}-{number}")
            for path in service.handed_on.values():  # artifacts lie where they were
                shutil.copytree(path, at / path.name, dirs_exist_ok=True)
            more = {
                **{k: str(v) for k, v in {**settings, **job.get("variables", {})}.items()},
                **{"CI_NODE_INDEX": str(number), "CI_NODE_TOTAL": str(count)},
            }
            more = {k: v.replace("$CI_PROJECT_DIR", str(at)) for k, v in more.items()}
            for part in ("script", "after_script"):
                if part in job:  # lines of a part share a shell: the first may set a variable
                    yield service.shell(name, "\n".join(job[part]), at, more)
            service.handed_on[f"{name}-{number}"] = at / "conform-results"
