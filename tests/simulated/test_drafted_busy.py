"""Drafts of ``busy`` are executed and measured on the device, and only one that always works is taken."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest
import torch

from conformance.checks.cases import held_streams
from conformance.checks.cases.execution import in_this_process
from conformance.checks.cases.held_streams import prepare_busy
from conformance.checks.cases.processes import DeviceLocator
from conformance.onboarding import occupying, probing
from conformance.onboarding.occupying import drafted, has_streams, try_busy, try_candidate
from conformance.onboarding.primitives import CANDIDATES, BusyTry
from conformance.onboarding.probing import try_primitives
from conformance.onboarding.questions import Said
from conformance.suites import profiler
from conformance.suites.profiler import executions
from devices import registry
from devices.simulated.backend import streams
from devices.simulated.backend.fault_switches import planted
from opinfo.device import Device, open_device


@pytest.fixture(scope="module")
def device() -> Device:
    """The simulated device as one that nobody has described."""
    found = open_device(registry.get("simulated"))
    bare = replace(found.descriptor, busy=None, gate=None)
    return replace(found, descriptor=bare)


def found_at_last(tried: Callable[[], BusyTry | None], text: str) -> None:
    """Check that a draft that is tried again and again is refused with this text, or works if there is none. On a busy
    machine, a single try may be refused for another reason: calls return late, and work takes longer."""
    others = []
    for _ in range(6):
        found = tried()
        if found is not None and (text in found.found if text else found.works):
            assert found.works != bool(text)
            return
        others.append(found)
    raise AssertionError(others)


def _hundredths(units: float) -> None:
    """As torch.cuda._sleep, in hundredths of a millisecond."""
    streams.busy(units / 100)


def test_the_first_draft_that_works_is_taken_and_the_others_are_not_tried(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.simulated, "_sleep", _hundredths, raising=False)
    said: list[Said] = []

    def tried() -> BusyTry:
        said.clear()
        try_primitives(device, (), said.append)
        return msgspec.convert(said[1].answer, BusyTry)

    found_at_last(tried, "")
    assert [(each.name, each.over) for each in said] == [("sleep", False), ("sleep", True)]
    assert "a stream was busy for" in said[-1].answer["found"]


def test_a_draft_that_raises_is_told_and_the_next_one_is_tried(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tried(device: Device, candidate: str) -> BusyTry | None:
        if candidate == "sleep":
            raise KeyError("no such unit")
        return BusyTry(candidate, True, "busy")

    monkeypatch.setattr(probing, "try_candidate", tried)
    said: list[Said] = []
    try_primitives(device, (), said.append)
    ended = {each.name: each for each in said if each.over}
    assert ended["sleep"].raised == "KeyError: 'no such unit'"
    assert ended["running_product"].answer["works"]


def test_what_was_tried_before_the_process_ended_is_not_tried_again(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probing, "try_candidate", lambda *_: None)
    said: list[Said] = []
    try_primitives(device, ("sleep", "running_product"), said.append)
    assert {each.name for each in said} == {"matrix_product"}


def test_products_of_matrices_keep_a_stream_busy(device: Device) -> None:
    found_at_last(lambda: try_candidate(device, "matrix_product"), "")


def test_an_op_that_this_device_computes_while_the_host_waits_is_no_good(device: Device) -> None:
    found_at_last(
        lambda: try_candidate(device, "running_product"), "returned only when its work had ended"
    )


def test_a_module_without_sleep_has_no_such_draft(device: Device) -> None:
    assert try_candidate(device, "sleep") is None


def test_a_device_without_streams_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = open_device(registry.get("cpu"))
    assert not has_streams(cpu)
    said: list[Said] = []
    try_primitives(cpu, (), said.append)
    assert said == []


def test_work_that_is_only_sometimes_long_enough_is_no_good(device: Device) -> None:
    calls = itertools.count()

    def naps(milliseconds: float) -> None:
        streams.busy(milliseconds * (0.3 if next(calls) % 5 == 4 else 1.5))

    found_at_last(lambda: try_busy(device, naps, "sleep"), "it is not always long enough")


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("streams.serialise_streams", "work on another stream did not end meanwhile"),
        ("streams.query_always_true", "either query() is wrong, or work begins only when"),
    ],
)
def test_a_device_with_wrong_streams_gets_no_draft(device: Device, fault: str, text: str) -> None:
    with planted(fault):
        found_at_last(lambda: try_busy(device, lambda ms: streams.busy(1.5 * ms), "sleep"), text)


def test_work_that_allocates_at_each_call_is_no_good(device: Device) -> None:
    kept = []

    def greedy(milliseconds: float) -> None:
        kept.append(torch.ones(1000, device=device.torch_device))
        streams.busy(1.5 * milliseconds)

    text = "changes the statistics of the allocator"
    found_at_last(lambda: try_busy(device, greedy, "sleep"), text)


def test_work_that_is_too_short_on_another_index_is_no_good(device: Device) -> None:
    def there(milliseconds: float) -> None:
        index = torch.accelerator.current_device_index()
        streams.busy(milliseconds * (0.2 if index else 1.5))

    found_at_last(lambda: try_busy(device, there, "sleep"), "on index 1, it is not always")


def test_the_first_call_is_made_before_a_case_on_each_index(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_streams, "_PREPARED", set())
    called = []

    def busy(milliseconds: float) -> None:
        called.append((torch.accelerator.current_device_index(), milliseconds))
        raise RuntimeError("the cases that call it say so")

    described = replace(device, descriptor=replace(device.descriptor, busy=busy))
    for _ in range(2):
        prepare_busy(described)
    assert called == [(0, 0.0), (1, 0.0)]


def test_the_duration_of_work_that_consists_of_ops_is_not_compared(device: Device) -> None:
    busy = drafted("matrix_product", "simulated")
    described = replace(device, descriptor=replace(device.descriptor, busy=busy))
    (case,) = (each for each in profiler.SUITE.cases if each.check is executions.duration)
    made = in_this_process(case, described, DeviceLocator(device="simulated"))
    assert made.failure is None and "`busy` calls ops" in made.undeclared


@pytest.mark.parametrize("candidate", CANDIDATES)
def test_a_draft_is_executed_as_it_is_written(candidate: str) -> None:
    function = drafted(candidate, "simulated")
    assert function.__name__ == "_busy" and occupying.source(candidate, "simulated")
