"""Arrows run one way, modules stay small, torch stays out where it is not needed."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[1]
PACKAGES = ("conformance", "devices", "opinfo", "reports")
#: The packages of ours that each may import, beside itself.
MAY_IMPORT = {
    "conformance": {"devices", "opinfo", "reports"},
    "devices": set(),
    "opinfo": {"devices"},
    "reports": {"devices"},
}
#: What needs no torch (``devices`` and ``reports`` are held to it as wholes).
TORCH_FREE = ("conformance", "conformance.contract", "conformance.cli", "conformance.options")
MOST_LINES = 400
#: Longer than MOST_LINES, and why.
LONGER: dict[str, str] = {}


def tracked() -> list[Path]:
    """The files of the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=CHECKOUT,
        capture_output=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    paths = (CHECKOUT / name.decode() for name in listed.stdout.split(b"\0") if name)
    return [path for path in paths if path.is_file()]


def modules(package: str) -> list[Path]:
    return sorted((CHECKOUT / package).rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    """The full names of the modules that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            yield node.module or ""


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_those_below_it_alone(package: str) -> None:
    forbidden = ({*PACKAGES, "tests", "benchmarks"} - {package}) - MAY_IMPORT[package]
    wrong = [
        f"{path.relative_to(CHECKOUT)} imports {name}"
        for path in modules(package)
        for name in imports(path)
        if name.partition(".")[0] in forbidden
    ]
    assert wrong == []


#: A device that is made here, not only described: it is imported when the device is used.
BACKEND = CHECKOUT / "devices" / "simulated" / "backend"


@pytest.mark.parametrize("package", ["devices", "reports"])
def test_devices_and_reports_never_import_torch(package: str) -> None:
    wrong = [
        f"{path.relative_to(CHECKOUT)} imports {name}"
        for path in modules(package)
        if BACKEND not in path.parents
        for name in imports(path)
        if name.partition(".")[0] in ("torch", "numpy", "pytest")
    ]
    assert wrong == []


def test_pytest_is_for_the_plugins_alone() -> None:
    importers = {
        path.relative_to(CHECKOUT).as_posix()
        for package in PACKAGES
        for path in modules(package)
        if any(name.partition(".")[0] in ("pytest", "_pytest", "xdist") for name in imports(path))
    }
    plugins = {"conformance/plugin.py", "conformance/isolation/hooks.py"}
    assert importers <= {"conformance/cli.py", "conformance/options.py", *plugins}


def test_modules_stay_under_400_lines() -> None:
    long = {
        path.relative_to(CHECKOUT).as_posix(): lines
        for folder in (*PACKAGES, "tests", "benchmarks")
        for path in (*modules(folder), *(CHECKOUT / folder).rglob("csrc/*.*"))
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > MOST_LINES
    }
    assert long.keys() - LONGER.keys() == set()
    assert LONGER.keys() <= long.keys(), "an exception that is no longer needed"


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        path.relative_to(CHECKOUT).as_posix()
        for folder in (*PACKAGES, "tests")
        for path in modules(folder)
        if (text := path.read_text(encoding="utf-8")).strip()
        and ast.get_docstring(ast.parse(text)) is None
    ]
    assert silent == []


def test_no_file_names_a_place_of_the_machine_it_was_written_on() -> None:
    here = str(CHECKOUT)
    places = re.compile(rf"{re.escape(here)}(?![\w-])|/home/\w+/|/Users/\w+/|/root/")
    named = [
        f"{path.relative_to(CHECKOUT)}:{number}: {line.strip()[:80]}"
        for path in tracked()
        if path != Path(__file__)
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if places.search(line)
    ]
    assert named == []


def after(code: str) -> set[str]:
    """The names in ``sys.modules`` of a fresh interpreter that ran ``code``."""
    run = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return set(run.stdout.split())


@pytest.mark.parametrize("name", TORCH_FREE)
def test_what_needs_no_torch_leaves_it_out(name: str) -> None:
    assert not after(f"import {name}") & {"torch", "numpy"}


def test_importing_every_module_of_reports_leaves_torch_out() -> None:
    names = [
        ".".join(path.relative_to(CHECKOUT).with_suffix("").parts) for path in modules("reports")
    ]
    assert "reports.gate" in names
    code = "\n".join(f"import {name}" for name in names if not name.endswith("__init__"))
    assert not after(code) & {"torch", "numpy", "opinfo", "conformance", "pytest"}


def test_the_modules_of_opinfo_that_are_pure_leave_torch_out() -> None:
    code = "import opinfo.layouts, opinfo.plan, opinfo.exceptions"
    assert not after(code) & {"torch", "numpy"}
