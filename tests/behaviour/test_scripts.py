"""Repro scripts of cases: they carry what they need, and exit 1 exactly while the failure is there."""

from __future__ import annotations

import ast
import builtins
import os
import subprocess
import symtable
import sys
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from conformance import suites
from conformance.checks.cases.cases import BehaviourCase
from conformance.checks.cases.script import script_of_case
from devices import registry
from devices.cell import CellKey
from devices.failure import Failure, Kind
from tests.behaviour import examples
from tests.behaviour.server import serving
from tests.plugin.running import CHECKOUT, environment

SIMULATED = registry.get("simulated")
CASES = [case for suite in suites.suites() for case in suite.cases]


def undefined(script: str) -> set[str]:
    """The names that a script uses and does not define."""
    top = symtable.symtable(script, "repro.py", "exec")
    defined = {"__file__", "__name__", *dir(builtins)}
    defined |= {s.get_name() for s in top.get_symbols() if s.is_local()}
    tables, used = [top], set()
    while tables:
        table = tables.pop()
        tables += table.get_children()
        symbols = table.get_symbols()
        used |= {s.get_name() for s in symbols if s.is_global() or (s.is_local() and table is top)}
    return used - defined


def imported(script: str) -> set[str]:
    """The packages that a script imports at its top. A check may import one that it is about."""
    nodes = ast.parse(script).body
    names = [each.name for node in nodes if isinstance(node, ast.Import) for each in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names}


FIRST = {case.clause.partition(".")[0]: case for case in CASES[::-1]}
OF_MODULES = {case.check.__module__: case for case in CASES[::-1]}
EVERY = {case.check: case for case in CASES[::-1]}


@pytest.mark.parametrize(
    "cases",
    [
        pytest.param(FIRST.values(), id="one of each family"),
        pytest.param(OF_MODULES.values(), id="one of each module", marks=pytest.mark.slow),
        pytest.param(EVERY.values(), id="every check", marks=pytest.mark.slow),
    ],
)
def test_a_script_needs_torch_alone_and_defines_what_it_uses(
    cases: Collection[BehaviourCase],
) -> None:
    known = {
        *sys.stdlib_module_names,
        "torch",
        "tomli",
        "tomllib",
    }  # tomli is Python 3.10's tomllib
    for case in cases:
        text = script_of_case(case, SIMULATED)
        assert imported(text) <= known, case.id
        assert undefined(text) == set(), case.id


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
        pytest.param(
            "allocator.forget_free",
            CellKey("allocator.accounting", "a_page", ""),
            marks=pytest.mark.slow,  # tests of the faults run such scripts in a fork
        ),
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


def test_a_script_shows_the_check_before_everything_else() -> None:
    case = suites.case_of("device.async_error", "surfaces")
    text = script_of_case(case, SIMULATED)
    check, _, rest = text.partition("\ndef main():\n")
    assert f"\ndef {case.check.__name__}(context: CaseContext" in check
    assert "\ndef _surfaces(" in rest and "def _later_results(" not in rest
    assert "import" not in check.partition('"""\n')[2].replace("from __future__ import", "")
    assert "@cases" not in text
