"""A device that offers autocast in one lower precision is judged in that one."""

from __future__ import annotations

from collections.abc import Collection

import pytest
import torch

from conformance import contract, suites
from conformance.checks.cases.processes import DeviceLocator
from conformance.checks.cases.run_case import run_case
from conformance.checks.cells import NOTED, CellRecord
from conformance.onboarding.probing import autocast_lists
from devices.cell import CellKey, Outcome
from devices.registry import get
from devices.simulated.backend.fault_switches import planted
from opinfo.device import open_device

CASES = (
    *("mm", "exp", "add.Tensor", "cat", "region_ends", "region_of_another_dtype", "gradients"),
    *("weight_is_cast_once", "mlp"),
)


def offer(monkeypatch: pytest.MonkeyPatch, *dtypes: torch.dtype) -> None:
    module = torch.get_device_module("simulated")
    monkeypatch.setattr(module, "get_amp_supported_dtype", lambda: list(dtypes))


def run(names: Collection[str]) -> dict[str, CellRecord]:
    found = {}
    device = open_device(get("simulated"))
    for name in names:
        record = found[name] = CellRecord(CellKey("autocast.lists", name, ""))
        case = suites.case_of("autocast.lists", name, "")
        run_case(case, record, device, DeviceLocator(device="simulated"))
    return found


def test_a_dtype_in_which_autocast_is_not_offered_is_not_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    offer(monkeypatch, torch.float16)
    found = run(CASES)
    assert {name: each.outcome() for name, each in found.items()} == dict.fromkeys(
        CASES, Outcome.PASS
    )
    said = {each.to_outcome().note for each in found.values()}
    assert said == {f"{NOTED}autocast is not offered in bfloat16, by get_amp_supported_dtype()"}
    assert autocast_lists(open_device(get("simulated"))) == {}


def test_the_dtype_in_which_it_is_offered_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, torch.float16)
    with planted("autocast.op_left_in_float32"):
        assert run(["mm"])["mm"].outcome() is Outcome.FAIL
        assert autocast_lists(open_device(get("simulated"))) == {"unlisted": ["mm"]}


def test_autocast_in_no_dtype_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        "autocast" in get("simulated").capabilities and "autocast.lists" in contract.load().clauses
    )
    offer(monkeypatch)
    found = run(["mm", "region_ends"])
    assert {each.outcome() for each in found.values()} == {Outcome.FAIL}
    assert "regions of bfloat16 and float16 are disabled" in found["mm"].to_outcome().message


@pytest.mark.parametrize(
    ("message", "outcome"),
    [
        ("This device does not support bfloat16. Please switch dtype to float16.", Outcome.PASS),
        ("the driver was lost", Outcome.FAIL),
    ],
)
def test_only_an_error_that_says_so_means_that_autocast_is_not_offered(
    monkeypatch: pytest.MonkeyPatch, message: str, outcome: Outcome
) -> None:
    honest = torch.autocast.__enter__

    def refuse(self: torch.autocast) -> None:
        if self.fast_dtype == torch.bfloat16:
            raise RuntimeError(message)
        honest(self)

    monkeypatch.setattr(torch.autocast, "__enter__", refuse)
    assert run(["mm"])["mm"].outcome() is outcome
