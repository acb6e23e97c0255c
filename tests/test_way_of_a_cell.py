"""A cell takes the way that docs/architecture.md describes: through each file that the page names, in its order."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.architecture import CHECKOUT
from tests.plugin.running import ForkServer

#: For each step of the page a function that runs there.
STEPS = (
    "conformance/plugin.py:pytest_addoption",
    "conformance/plan/options.py:Request.from_options",
    "devices/registry.py:get",
    "conformance/plan/planner.py:make_plan",
    "conformance/plan/selection.py:select",
    "conformance/run/session.py:Session.orders",
    "conformance/run/worker.py:Worker.run",
    "opinfo/samples.py:choose",
    "opinfo/layouts.py:covering",
    "conformance/run/isolation/watch.py:Watch.call",
    "opinfo/guarded.py:Guarded.__init__",
    "conformance/checks/ops/context.py:OpContext.call",
    "conformance/checks/ops/evidence.py:collect_evidence",
    "conformance/suites/layout/reads.py:judge_values",
    "opinfo/reference.py:value_answer",
    "conformance/checks/cells.py:CellRecord.check",
    "devices/verdicts.py:judge_cell",
    "reports/run.py:write_run",
    "reports/junit.py:junit_file",
    "reports/gate.py:gate",
    "reports/summary.py:summarise",
)
#: What the page names and no passing cell of an op runs: the page of the dashboard, data, and what only reads data.
NOT_RUN = {"devices/manifest.py", "devices/failure.py", "devices/cell.py", "reports/model.py"}


def _named_on_the_page() -> set[str]:
    """The modules in the table "The way of a cell"."""
    page = (CHECKOUT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page.partition("## The way of a cell")[2].partition("\n## ")[0]
    names = set(re.findall(r"`([\w/]+\.py)`", table))
    return {_found(name) for name in names if not name.startswith("tests/")}


def _found(name: str) -> str:
    """A module as the page names it: in the checkout, in ``conformance`` or beside others of its row."""
    for folder in ("", "conformance/", "opinfo/"):
        if (CHECKOUT / folder / name).is_file():
            return f"{folder}{name}"
    raise AssertionError(f"docs/architecture.md names {name}, which does not exist")


def test_the_page_names_the_modules_of_the_steps() -> None:
    assert _named_on_the_page() - NOT_RUN == {step.partition(":")[0] for step in STEPS}


@pytest.mark.skipif(
    sys.version_info < (3, 11), reason="code objects have no qualified name before 3.11"
)
def test_a_cell_passes_the_steps_in_the_order_of_the_page(fork: ForkServer, tmp_path: Path) -> None:
    found = tmp_path / "called.txt"
    ran = fork.pytest(
        *("-p", "tests.plugin.data.traced", "-q", "--device", "cpu", "--ops", "add"),
        *("--clauses", "layout.values", f"--results={tmp_path / 'results'}"),
        TRACED=",".join(STEPS),
        TRACED_TO=str(found),
    )
    assert ran.code == 0, ran.text
    calls = iter(found.read_text(encoding="utf-8").splitlines())
    for step in STEPS:
        assert step in calls, f"{step} is not called after the steps before it"
