"""Each planted fault of ops fails its clause of dispatch, and changes no cell outside its radius."""

from __future__ import annotations

import contextlib
import io
import warnings
from pathlib import Path

import pytest
import torch

from conformance import contract, suites
from conformance.suites.dispatch import fallback
from devices.cell import Outcome
from devices.simulated.backend.fault_switches import planted
from devices.simulated.faults import FAULTS, Fault
from opinfo.compare import Wrong
from opinfo.guarded import identity
from tests.dispatch.rig import OF_OPS, RIG
from tests.trials import Bench, Trials, not_passing, one_thread

each_fault = pytest.mark.parametrize("fault", OF_OPS.values(), ids=OF_OPS, scope="module")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(RIG, tmp_path_factory.mktemp("references"))


@pytest.fixture(scope="module")
def trials(bench: Bench) -> Trials:
    return Trials(bench, OF_OPS)


def test_every_cell_passes_without_a_fault(bench: Bench) -> None:
    assert not_passing(bench) == []


def test_every_fault_of_a_clause_of_ops_is_tried() -> None:
    clauses = {check.clause for check in suites.load("dispatch").op_checks}
    of_ops = {name for name, fault in FAULTS.items() if clauses & set(fault.clauses)}
    named = {name for clause in clauses for name in contract.load().clauses[clause].faults}
    assert of_ops == named == set(OF_OPS)


@each_fault
def test_fault_fails_its_clause_wherever_it_is_planted(fault: Fault, trials: Trials) -> None:
    assert (trials[fault.name].missed, trials[fault.name].untouched) == ([], [])


@each_fault
def test_cells_outside_the_radius_stay_as_they_were(fault: Fault, trials: Trials) -> None:
    assert [str(change) for change in trials[fault.name].strays] == []


@each_fault
def test_script_of_a_failure_fails_with_the_fault_and_passes_without(
    fault: Fault, trials: Trials
) -> None:
    (clause,) = fault.clauses
    (record, *_) = trials[fault.name].caught(clause)
    assert record.outcome() is Outcome.FAIL
    assert record.smallest is not None and record.smallest.repro is not None
    script = record.smallest.repro()
    with planted(fault.name):
        assert exit_status(script) == 1
    assert exit_status(script) == 0


def exit_status(script: str) -> int:
    """Of a script, run here: in a process of its own it would load torch first."""
    code = compile(script, "<repro>", "exec")
    quiet = contextlib.redirect_stdout(io.StringIO())
    with one_thread(), warnings.catch_warnings(), quiet, torch.enable_grad():
        try:
            exec(code, {"__name__": "__main__"})
        except SystemExit as ended:
            return int(ended.code or 0)
    raise AssertionError("a repro script ends with sys.exit, this one did not")


# What the simulated device cannot be told to do


def test_a_fallback_of_the_device_s_own_is_seen_in_the_tables() -> None:
    """One that copies by itself leaves no event of the boxed CPU fallback."""
    op = torch.ops.aten._masked_scale.default  # the device has no kernel for it

    def arguments(tensors: list[torch.Tensor]) -> tuple[tuple[object, ...], dict[str, object]]:
        return (*tensors, 2.0), {}

    def told(permitted: list[str]) -> Wrong | None:
        fallback.only_fallback.cache_clear()
        return fallback.stays(
            op,
            lambda tensor: tensor.to("simulated"),
            identity,
            [torch.ones(2), torch.ones(2)],
            arguments,
            key="PrivateUse1",
            permitted=permitted,
        )

    with planted("dispatch.unsupported_returns_garbage"):
        said = told([])
        assert said is not None and "aten::_masked_scale" in str(said)
        assert told(["_masked_scale"]) is None
    fallback.only_fallback.cache_clear()


def test_a_call_that_returns_without_a_fallback_passes() -> None:
    x = torch.ones(2)
    assert fallback.stays(torch.exp, lambda t: t.to("simulated"), identity, [x], lambda t: (t, {}),
                          key="PrivateUse1", permitted=[]) is None  # fmt: skip


@pytest.fixture(autouse=True)
def _room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
