"""What cells report without breaking a clause, and clauses of ops that a device is not tried in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from conformance import contract
from conformance.checks.cases.cases import BehaviourCase
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.processes import DeviceLocator
from conformance.checks.cases.run_case import run_case
from conformance.checks.cells import NOTED, CellRecord, Failed, Recorder
from conformance.plan.planner import untried, untried_with
from conformance.suites.dispatch import fallback, refusals
from devices import registry
from devices.cell import CellKey, Outcome
from devices.failure import Failure, Kind
from opinfo.device import open_device
from reports.model import Run
from reports.summary import noted
from tests.reports.builders import ADD, PROVENANCE, passed, plan_document, results

KEY = CellKey("dispatch.unsupported", "abs", "float32")


def test_a_cell_that_passes_tells_what_it_noted_once() -> None:
    record = CellRecord(KEY, checks=1)
    record.note("works for uint16")
    record.note("works for uint16")
    assert (record.outcome(), record.to_outcome().message) == (
        Outcome.PASS,
        f"{NOTED}works for uint16",
    )


def test_a_note_makes_no_check() -> None:
    record = CellRecord(KEY)
    record.note("works for uint16")
    assert record.outcome() is Outcome.ERROR
    assert "no check was executed" in record.to_outcome().message


def test_a_failure_goes_before_a_note() -> None:
    record = CellRecord(KEY, checks=2)
    record.note("works for uint16")
    record.fail(Failed(Failure(kind=Kind.VALUES, detail="other values")))
    assert (record.outcome(), record.to_outcome().message) == (Outcome.FAIL, "other values")


def a_case(context: CaseContext) -> None:
    """It passes."""
    context.check(True, "it holds")
    context.note("works undeclared")


def test_a_case_notes_too() -> None:
    record = CellRecord(CellKey("device.capability", "a_case", ""))
    case = BehaviourCase("device.capability", "a_case", a_case)
    run_case(case, record, open_device(registry.get("cpu")), DeviceLocator(device="cpu"))
    assert record.to_outcome().message == f"{NOTED}works undeclared"


def test_the_summary_counts_cells_with_something_to_report() -> None:
    run = Run(Path(), plan_document(), PROVENANCE, results(passed(ADD, note=f"{NOTED}an example")))
    (line,) = noted(run)
    assert line.startswith(f"{ADD.clause}: 1 cell passed with a note")
    assert "add[float32]: noted: an example" in line


def test_an_unremarkable_run_has_nothing_to_report() -> None:
    assert noted(Run(Path(), plan_document(), PROVENANCE, results())) == []


# Clauses of ops that a device is not tried in


def test_a_device_that_permits_every_fallback_is_not_tried_for_one() -> None:
    assert "permits every op" in fallback.untried(registry.get("lazy"), "add")
    assert fallback.untried(registry.get("simulated"), "add") == ""


def test_a_list_of_fallbacks_is_no_permission_for_all() -> None:
    listed = replace(registry.get("simulated"), permitted_fallbacks=frozenset({"erf"}))
    assert fallback.untried(listed, "erf") == ""


def test_the_cpu_is_not_tried_where_it_is_the_other_device() -> None:
    assert set(untried_with(["add"], registry.get("cpu"), contract.load())["add"]) == {
        fallback.CLAUSE,
        refusals.CROSS_DEVICE,
        "precision.budget",  # its kernels differ by processor, so that it keeps no record
    }


def test_the_plan_says_why_an_op_is_not_tried() -> None:
    cell = CellKey(refusals.CROSS_DEVICE, "add", "float32")
    why = untried(registry.get("cpu"), contract.load(), ["add"])
    assert "the device is the CPU" in why[cell.clause]["add"]
    assert KEY.clause not in why


def test_what_is_not_tried_is_unsupported_by_declaration() -> None:
    recorder = Recorder(
        "add", "float32", [refusals.CROSS_DEVICE], untried={refusals.CROSS_DEVICE: "no"}
    )
    (record,) = recorder.cells.values()
    assert recorder.get(refusals.CROSS_DEVICE) is None
    assert (record.outcome(), record.declared, record.to_outcome().message) == (
        Outcome.UNSUPPORTED,
        True,
        "no",
    )


@pytest.mark.parametrize("name", ["cuda", "xpu", "mps", "npu"])
def test_accelerators_are_tried_in_every_clause_of_ops(name: str) -> None:
    untried = untried_with(["add"], registry.get(name), contract.load())["add"]
    assert set(untried) == {"precision.budget"}  # nobody has recorded its errors yet
