"""The installed suite: without torch, with a torch that is not supported, and beside folders of the user's that have the names
of its packages."""

from __future__ import annotations

import ast
import dataclasses
import re
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from devices import torch_version
from devices.errors import ConformError
from devices.files import tomllib
from examples.vendor import follow_docs
from reports.run import write_run
from tests.plugin.running import CHECKOUT, Ran, only_one
from tests.reports.builders import ADD, PROVENANCE, failed, plan_document, results
from tests.sampling import first_of_each
from tests.vendor.ci_jobs import run_in
from tests.vendor.environments import environment_for

PACKAGES = ("conformance", "devices", "opinfo", "reports")
#: The user's folders and modules that have the names of our packages.
TAKEN = PACKAGES[1:]


@dataclass(frozen=True, slots=True)
class Installed:
    """An environment with the wheel and its dependencies, and a folder with a run to work on."""

    python: Path
    folder: Path

    def conform(self, *arguments: str, **variables: str) -> Ran:
        return self.run("conform", *arguments, **variables)

    def run(self, *command: str, **variables: str) -> Ran:
        environment = follow_docs.environment(self.python, COLUMNS="200", **variables)
        return run_in(self.folder, environment, *command)


def _install(folder: Path, wheel: Path, *, torch: bool) -> Installed:
    python = environment_for(wheel, folder, torch=torch)
    follow_docs.install(python, wheel)
    work = folder / "work"
    for second, name in enumerate(("before", "after", "again"), 10):
        found = results() if name == "before" else results(failed(ADD))
        origin = dataclasses.replace(PROVENANCE, start=f"2026-01-31T12:00:{second}+00:00")
        write_run(work / name, plan_document(), found, origin)
    (work / "new.toml").write_text("", encoding="utf-8")
    return Installed(python, work)


@pytest.fixture(scope="module")
def wheel(shared: Path) -> Path:
    with only_one(shared, "wheel"):
        found = list((shared / "wheel").glob("*.whl"))
        return found[0] if found else follow_docs.build_wheel(CHECKOUT, shared / "wheel")


@pytest.fixture(scope="module")
def torchless(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return _install(tmp_path_factory.mktemp("torchless"), wheel, torch=False)


@pytest.fixture(scope="module")
def complete(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return _install(tmp_path_factory.mktemp("complete"), wheel, torch=True)


# -- without torch


@pytest.mark.parametrize(
    ("command", "code"),
    first_of_each(
        [
            ("gate before", 0),
            ("gate after", 1),
            ("results after", 0),
            ("results after --json", 0),
            ("diff before after", 1),
            ("dashboard before after -o site", 0),
            ("crcr after", 0),
            ("contract", 0),
            ("contract --json", 0),
            ("contract --bugs *", 0),
            ("devices --no-probe", 0),
            ("devices", 0),
            ("manifest lint --device cpu --manifest new.toml --run after", 0),
            ("manifest stats --device cpu", 0),
            ("manifest explain layout.values::add[float32] --device cpu", 0),
            ("manifest update after again --triage --manifest updated.toml", 0),
            ("run --help", 0),
            ("--version", 0),
        ],
        lambda command: command[0].split()[0],
    ),
)
def test_what_reads_results_needs_no_torch(torchless: Installed, command: str, code: int) -> None:
    ran = torchless.conform(*command.split())
    assert ran.code == code, ran.text
    assert not re.search("^(error: |Traceback)", ran.text, re.MULTILINE | re.IGNORECASE), ran.text


@pytest.mark.slow
def test_shards_are_merged_without_torch(torchless: Installed) -> None:
    """Two whole runs are no shards: the command says so, and needed no torch to see it."""
    ran = torchless.conform("merge", "before", "after", "-o", "merged")
    assert ran.code == 4 and "error: " in ran.text and "shard" in ran.text


NEED_TORCH = [
    "run --device cpu",
    "run -n auto",
    "run --device cpu --collect-only -q",
    "init mine --module mine --device-string mine",
    "minimise layout.values::add[float32]",
    "pin after",
    "manifest lint",
    "manifest lint --device cpu --manifest new.toml",
]


def one_sentence(ran: Ran) -> str:
    """What a command printed that ends with an error of the infrastructure."""
    assert ran.code == 3, ran.text
    (line,) = ran.text.strip().splitlines()
    assert line.lower().startswith("error: "), line
    return line


@pytest.mark.parametrize("command", first_of_each(NEED_TORCH, lambda command: command.split()[0]))
def test_what_runs_the_suite_says_that_torch_is_missing(torchless: Installed, command: str) -> None:
    said = one_sentence(torchless.conform(*command.split()))
    assert "torch is not installed" in said and "torch-conformance[torch]" in said
    assert not (torchless.folder / "mine").exists()


# -- another torch


@pytest.fixture
def another_torch(tmp_path: Path) -> Path:
    """A folder with a torch that ends every process that imports it."""
    package = tmp_path / "another" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("import os\nos._exit(77)\n", encoding="utf-8")
    (package / "version.py").write_text(
        "from typing import Optional\n__version__: str = '2.4.1+vendor'\n", encoding="utf-8"
    )
    return package.parent


@pytest.mark.parametrize("command", first_of_each(NEED_TORCH, lambda command: command.split()[0]))
def test_the_version_of_torch_is_checked_before_torch_is_imported(
    torchless: Installed, another_torch: Path, command: str
) -> None:
    said = one_sentence(torchless.conform(*command.split(), PYTHONPATH=str(another_torch)))
    assert "torch 2.4.1+vendor is installed" in said and torch_version.supported() in said
    assert not (torchless.folder / "mine").exists()


def test_pytest_checks_the_version_of_torch_too(torchless: Installed, another_torch: Path) -> None:
    command = ("python", "-m", "pytest", "-p", "conformance.plugin", "--device=cpu", "-n", "auto")
    ran = torchless.run(*command, "--pyargs", "conformance", PYTHONPATH=str(another_torch))
    assert "torch 2.4.1+vendor is installed" in one_sentence(ran)


@pytest.mark.slow
def test_any_torch_is_tried_where_somebody_asks_for_it(
    torchless: Installed, another_torch: Path
) -> None:
    variables = {"PYTHONPATH": str(another_torch), torch_version.ANY: "1"}
    ran = torchless.conform(
        "init", "mine", "--module", "mine", "--device-string", "mine", **variables
    )
    assert ran.code == 3 and "importing torch ended the process" in ran.text


@pytest.mark.parametrize(
    ("version", "fits"),
    [
        ("{first}.0", True),
        ("{last}.1+cpu", True),
        ("{last}.0a0+git12ab", True),
        ("{last}.0.dev20260801", True),
        ("2.4.1", False),
        ("99.0.0", False),
        ("ours", True),  # no version that can be compared: what it lacks shows later
        ("", True),
    ],
)
def test_versions_of_torch_are_compared_by_their_minor_version(
    version: str, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, last = ("{}.{}".format(*each) for each in (torch_version.FIRST, torch_version.LAST))
    given = version.format(first=first, last=last)
    monkeypatch.setattr(torch_version, "installed", lambda: given)
    assert torch_version.has_torch() is fits


def test_a_folder_that_is_named_torch_is_no_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert torch_version.installed() is None
    with pytest.raises(ConformError, match="torch is not installed"):
        torch_version.require_torch()


# -- names that the user has too


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A folder with packages and modules of our packages' names, none of which can be imported."""
    for name in TAKEN:
        package = tmp_path / "theirs" / name
        package.mkdir(parents=True)
        for file in (package / "__init__.py", package.with_suffix(".py")):
            file.write_text(f"raise RuntimeError('the user has a {name} too')\n", encoding="utf-8")
    return tmp_path / "theirs"


def test_the_gate_reads_its_own_packages(torchless: Installed, theirs: Path) -> None:
    run = str(torchless.folder / "before")
    there = Installed(torchless.python, theirs)
    assert there.conform("gate", run, PYTHONPATH=".").code == 0
    assert there.run("python", "-m", "conformance.cli", "gate", run).code == 0


@pytest.mark.parametrize("workers", ["0", "2"])
@pytest.mark.slow
def test_a_run_and_its_repros_read_their_own_packages(
    complete: Installed, theirs: Path, cache: Path, workers: str
) -> None:
    there = Installed(complete.python, theirs)
    variables = {"PYTHONPATH": ".", "TORCH_CONFORMANCE_CACHE": str(cache)}
    selection = ("--ops=add,median", "--clauses=layout.values,layout.expanded_read")
    ran = there.conform(
        *("run", "--device=cpu", "-n", workers, "--expectations=none", "--results=found"),
        *selection,
        **variables,
    )
    assert ran.code == 1 and "median" in ran.text, ran.text
    assert "add" in there.conform("results", "found", "--json", **variables).text
    (script,) = (theirs / "found" / "repro").rglob("median-float32.py")
    assert there.run("python", str(script), **variables).code == 1


@pytest.mark.slow
def test_a_package_that_was_imported_before_ours_is_named(
    complete: Installed, theirs: Path
) -> None:
    (theirs / "devices" / "__init__.py").write_text("", encoding="utf-8")
    ran = Installed(complete.python, theirs).run("python", "-c", "import devices, conformance")
    assert "another module of that name was imported before it, from" in ran.text
    assert str(theirs / "devices") in ran.text


# -- what the distributions hold


def imported() -> Iterator[tuple[str, Path]]:
    """The top-level modules that the packages import, each with a file that does."""
    for package in PACKAGES:
        for path in (CHECKOUT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                names: list[str] = []
                if isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom) and node.level == 0:
                    names = [node.module or ""]
                yield from ((name.partition(".")[0], path) for name in names)


def project() -> dict[str, object]:
    found: dict[str, object] = tomllib.loads((CHECKOUT / "pyproject.toml").read_text("utf-8"))[
        "project"
    ]
    return found


def names_of(requirements: object) -> set[str]:
    assert isinstance(requirements, list)
    return {canonicalize_name(Requirement(each).name) for each in requirements}


def test_every_package_that_is_imported_is_a_dependency() -> None:
    declared = names_of(project()["dependencies"])
    providers = packages_distributions()
    # Without PyYAML, a recording of torch-spyre is refused with a message that names it.
    known = {*sys.stdlib_module_names, *PACKAGES, "torch", "tomli", "yaml"}
    foreign = {name: path for name, path in imported() if name not in known}
    assert foreign
    missing = {
        name: path
        for name, path in foreign.items()
        if not declared & set(map(canonicalize_name, providers.get(name, ())))
    }
    assert missing == {}


def test_the_extra_has_the_versions_of_torch_that_are_checked() -> None:
    extras = project()["optional-dependencies"]
    assert isinstance(extras, dict)
    (requirement,) = map(Requirement, extras["torch"])
    (major, first), (_, last) = torch_version.FIRST, torch_version.LAST
    for minor in range(first, last + 1):
        assert requirement.specifier.contains(f"{major}.{minor}.0")
    for minor in (first - 1, last + 1):
        assert not requirement.specifier.contains(f"{major}.{minor}.0")
    assert "torch" not in names_of(project()["dependencies"])


@pytest.mark.slow
def test_the_sdist_builds_the_same_wheel_and_ships_no_tests(wheel: Path, tmp_path: Path) -> None:
    sdist = follow_docs.build_sdist(CHECKOUT, tmp_path)
    with tarfile.open(sdist) as archive:
        files = {name.partition("/")[2] for name in archive.getnames()}
        assert {"pyproject.toml", "LICENSE", "README.md", "CHANGELOG.md"} <= files
        unwanted = ("tests", "benchmarks", "examples", "conftest.py", "tox.ini", ".ci", "docs")
        assert [file for file in files if file.startswith(unwanted)] == []
        archive.extractall(tmp_path / "unpacked", filter="data")
    (source,) = (tmp_path / "unpacked").iterdir()
    again = follow_docs.build_wheel(source, tmp_path / "again")
    assert follow_docs.contents(again) == follow_docs.contents(wheel)
