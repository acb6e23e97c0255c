"""Small promises of the API: each case fails on a device that breaks its promise."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from conformance import suites
from conformance.checks.cases.processes import DeviceLocator
from conformance.checks.cases.run_case import run_case
from conformance.checks.cells import CellRecord
from devices import registry
from devices.cell import CellKey, Outcome
from devices.failure import Kind
from opinfo.device import open_device
from tests.autograd.trying import tried
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


# The functions of torch.<device>, and what tensors and storages say of themselves


def _failing(clause: str, name: str, device: str = "simulated") -> str:
    """The failure of a case; an empty text if it passes."""
    found = tried(clause, name, device)
    assert found.failure is None or found.failure.kind is not Kind.RAISED, found.failure
    return "" if found.failure is None else str(found.failure)


#: A function of the device's module that is wrong, and what then fails.
OF_THE_MODULE = (
    ("device.count", "current_device", lambda: 0),
    ("device.count", "device_of", lambda tensor: nullcontext()),
    ("device.count", "device", lambda index: nullcontext()),
    ("streams.current", "set_stream", lambda stream: None),
    ("streams.current", "stream", lambda stream: nullcontext()),
    ("streams.synchronize", "synchronize", lambda device=None: None),
    ("random.global_seed", "manual_seed", lambda seed: torch.manual_seed(seed)),
    ("random.global_seed", "initial_seed", lambda: 18),
    ("random.global_seed", "set_rng_state", lambda state, device=None: None),
    ("allocator.accounting", "memory_allocated", lambda device=None: 0),
    ("allocator.accounting", "reset_peak_memory_stats", lambda device=None: None),
    ("allocator.accounting", "empty_cache", lambda: None),
)


@pytest.mark.parametrize(
    "clause",
    [
        *("device.count", "streams.current", "streams.synchronize", "random.global_seed"),
        "allocator.accounting",
    ],
)
def test_the_functions_of_a_right_module_agree(clause: str) -> None:
    assert not _failing(clause, "by_the_module")


@pytest.mark.parametrize(
    ("clause", "name", "wrong"),
    OF_THE_MODULE,
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_function_of_the_module_is_noticed(
    clause: str, name: str, wrong: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.get_device_module("simulated"), name, wrong)
    assert name in _failing(clause, "by_the_module")


@pytest.mark.parametrize("name", ["says_where", "of_a_storage"])
@pytest.mark.parametrize("device", ["cpu", "simulated"])
def test_tensors_and_storages_of_a_right_device_say_where_they_are(name: str, device: str) -> None:
    assert not _failing("device.placement", name, device)


@pytest.mark.parametrize(
    ("cls", "method", "wrong", "case"),
    [
        (torch.Tensor, "get_device", lambda self: 0, "says_where"),
        (torch.Tensor, "type_as", lambda self, other: self.to(other.dtype), "says_where"),
        (torch.Tensor, "new_tensor", lambda self, data, **_: torch.tensor(data), "says_where"),
        (torch.UntypedStorage, "clone", lambda self: self, "of_a_storage"),
        (torch.UntypedStorage, "nbytes", lambda self: 0, "of_a_storage"),
        (torch.UntypedStorage, "get_device", lambda self: 0, "of_a_storage"),
        (torch.UntypedStorage, "is_pinned", lambda self, device=None: True, "of_a_storage"),
    ],
)
def test_a_wrong_answer_of_a_tensor_or_a_storage_is_noticed(
    cls: Any, method: str, wrong: Any, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cls, method, wrong)
    assert _failing("device.placement", case)


def test_events_and_streams_of_both_classes_work_together(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not _failing("streams.wait", "of_both_classes")

    class Own:
        """An event that is recorded on the current stream if it is given a stream of the generic class."""

        def __init__(self) -> None:
            self._event = torch.Event(device="simulated")

        def record(self, stream: Any) -> None:
            current = torch.accelerator.current_stream()
            self._event.record(current if type(stream) is torch.Stream else stream)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._event, name)

    monkeypatch.setattr(torch.get_device_module("simulated"), "Event", Own)
    failure = _failing("streams.wait", "of_both_classes")
    assert "the event has completed although its stream is blocked" in failure
