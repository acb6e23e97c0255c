"""Small promises of the API: each case fails on a device that breaks its promise."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from conformance import suites
from conformance.checks.cases.processes import DeviceLocator
from conformance.checks.cases.run_case import run_case
from conformance.checks.cells import CellRecord
from devices import registry
from devices.cell import CellKey, Outcome
from opinfo.device import open_device
from tests.bugs.patches import patched


def outcome(clause: str, name: str) -> Outcome:
    record = CellRecord(CellKey(clause, name, ""))
    case = suites.case_of(clause, name, "")
    run_case(case, record, open_device(registry.get("cpu")), DeviceLocator(device="cpu"))
    return record.outcome()


class _Stale(torch.Generator):
    """get_state() returns the state of its last call until something was drawn."""

    _kept: torch.Tensor | None = None

    def get_state(self) -> torch.Tensor:
        if self._kept is None:
            self._kept = super().get_state()
        return self._kept.clone()


class _KeptBySetState(_Stale):
    """set_state() does not replace the state that get_state() returns next."""

    def get_state(self) -> torch.Tensor:
        kept, self._kept = self._kept, None
        return super().get_state() if kept is None else kept

    def set_state(self, state: torch.Tensor) -> torch.Generator:
        self._kept = super().get_state()
        return torch.Generator.set_state(self, state)


PROMISES = (
    ("random.reproducible", "state_read_again"),
    ("transfer.serialization", "copied_without_its_data"),
    ("transfer.view_destination", "views_keep_the_old_data"),
)


@pytest.mark.parametrize(("clause", "name"), PROMISES)
def test_a_right_device_keeps_the_promise(clause: str, name: str) -> None:
    assert outcome(clause, name) is Outcome.PASS


@pytest.mark.parametrize("generator", [_Stale, _KeptBySetState])
def test_a_state_that_is_not_the_one_that_was_set_is_noticed(
    generator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "Generator", generator)
    assert outcome(*PROMISES[0]) is Outcome.FAIL


def test_a_copy_with_memory_of_its_own_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy, "copy", torch.clone)
    assert outcome(*PROMISES[1]) is Outcome.FAIL


def test_new_data_that_reach_the_views_are_noticed() -> None:
    with patched("new_data_reach_the_views"):
        assert outcome(*PROMISES[2]) is Outcome.FAIL
