"""Repro scripts of cases: they carry what they need, and exit 1 exactly while the failure is there."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from conformance import suites
from conformance.checks.cases.cases import BehaviourCase
from conformance.checks.cases.script import carried, script_of_case, shown
from devices import registry
from devices.cell import CellKey
from devices.failure import Failure, Kind
from tests.behaviour import examples
from tests.behaviour.server import serving
from tests.plugin.running import CHECKOUT, environment

OURS = {"conformance", "devices", "opinfo", "reports"}
MODULES = sorted({case.check.__module__ for s in suites.suites() for case in s.cases})


def imported(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """What a module imports, and whether it does when it is imported itself."""
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        yield from ((name.partition(".")[0], id(node) not in inside) for name in names)


@pytest.mark.parametrize("module", MODULES)
def test_what_a_script_carries_needs_torch_alone(module: str) -> None:
    roots = [module, "conformance.checks.cases.execution", "devices.simulated.descriptor"]
    sources = dict(carried(roots))
    assert set(roots) <= set(sources)
    # tomli is Python 3.10's tomllib, imported where a file is read: no script reads one. A script brings a
    # stand-in for msgspec.
    known = {*OURS, *sys.stdlib_module_names, "torch", "tomli", "tomllib", "msgspec"}
    foreign = {
        name
        for source in sources.values()
        for name, at_import in imported(ast.parse(source))
        if at_import and name not in known
    }
    assert foreign == set()


def exit_status(script: str, folder: Path, **more: str) -> tuple[int, str]:
    path = folder / "repro.py"
    path.write_text(script, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(path)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT), **more},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("fault", "cell"),
    [
        ("allocator.forget_free", CellKey("allocator.accounting", "a_page", "")),
        pytest.param(
            "allocator.reset_peak_to_zero",
            CellKey("allocator.peaks", "drawn", ""),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["a_case", "a_drawn_program"],
)
def test_a_script_exits_1_exactly_while_the_fault_is_on(
    fault: str, cell: CellKey, cache: Path, tmp_path: Path
) -> None:
    with serving(environment(cache)) as server:
        script = server.run(fault, [cell])[cell].script
    (tmp_path / "on").mkdir()
    (tmp_path / "off").mkdir()
    with ThreadPoolExecutor(max_workers=2) as pool:
        on = pool.submit(exit_status, script, tmp_path / "on", SIMULATED_FAULTS=fault)
        off = pool.submit(exit_status, script, tmp_path / "off", SIMULATED_FAULTS="")
    assert on.result()[0] == 1, on.result()[1]
    assert off.result()[0] == 0, off.result()[1]
    assert on.result()[1].startswith("FAIL: ")


@pytest.mark.slow
def test_a_vendors_descriptor_comes_along(tmp_path: Path) -> None:
    (tmp_path / "descriptor.py").write_text(
        "from dataclasses import replace\n"
        "from devices.cpu.descriptor import DESCRIPTOR as CPU\n"
        "DESCRIPTOR = replace(CPU, name='vendors', folder=None)\n"
    )
    case = suites.case_of("allocator.disjoint", "alignment")
    descriptor = registry.load_file(tmp_path)
    script = script_of_case(case, descriptor, Failure(kind=Kind.STATE, detail="made up"))
    (tmp_path / "run").mkdir()
    code, said = exit_status(script, tmp_path / "run")
    assert (code, said) == (0, "PASS: 1 check\n")


@pytest.mark.slow
def test_a_script_says_nothing_of_a_device_that_cannot_be_opened(tmp_path: Path) -> None:
    described = """
from dataclasses import replace

from devices.simulated.descriptor import DESCRIPTOR as SIMULATED

DESCRIPTOR = replace(SIMULATED, name="gone", module="no_such_module")
"""
    (tmp_path / "descriptor.py").write_text(described)
    device = registry.load_file(tmp_path / "descriptor.py")
    case = suites.case_of("allocator.accounting", "a_page")
    failure = Failure(kind=Kind.STATE, detail="a check failed")
    for dies in (False, True):
        script = script_of_case(case, device, failure, dies=dies)
        status, said = exit_status(script, tmp_path)
        assert status == 2 and "the device cannot be opened: " in said and "no_such_module" in said
        assert "Traceback" not in said


def dying(way: str) -> BehaviourCase:
    return BehaviourCase("device.count", way, getattr(examples, way), seconds=2.0)


@pytest.mark.parametrize(
    ("way", "status", "said"),
    [
        ("dies", 1, "FAIL: the process of the case was killed by SIGSEGV"),
        pytest.param(
            "hangs",
            1,
            "FAIL: the process of the case had not ended after 2 s",
            marks=pytest.mark.slow,
        ),
        pytest.param("passes", 0, "PASS: 2 checks", marks=pytest.mark.slow),
    ],
)
def test_the_script_of_a_check_that_dies_says_how(
    way: str, status: int, said: str, tmp_path: Path
) -> None:
    script = script_of_case(dying(way), registry.get("cpu"), dies=True)
    blocked = "import sys; sys.modules['msgspec'] = None"  # no script needs it
    (tmp_path / "sitecustomize.py").write_text(blocked)
    found = exit_status(script, tmp_path, PYTHONPATH=str(tmp_path))
    assert (found[0], found[1].strip()) == (status, said)


def test_a_script_shows_the_check_and_what_it_uses_of_its_module() -> None:
    case = suites.case_of("device.async_error", "surfaces")
    name = case.check.__name__
    imports, source, check = shown(case.check.__module__, [name, *case.arguments], name)
    assert check.startswith(f"def {name}(context: CaseContext")
    names = [node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    assert "_surfaces" in names and name not in names
    assert "_later_results" not in names and "@cases" not in source
    assert "import CaseContext" in imports and "Cases" not in imports
