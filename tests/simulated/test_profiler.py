"""Profiles of the simulated device, beyond what the suite asks of every device: names, streams, launches, threads."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest
import torch
from torch.profiler import DeviceType, ProfilerActivity, profile, record_function

from opinfo.torch_private import kineto_events, quiet_kineto

BOTH = (ProfilerActivity.CPU, ProfilerActivity.PrivateUse1)


@pytest.fixture(autouse=True)
def quiet() -> None:
    quiet_kineto()
    torch.simulated.synchronize()


def ones(index: int = 0) -> torch.Tensor:
    made = torch.ones(4, device=f"simulated:{index}")
    torch.simulated.synchronize(index)
    return made


def on_device(seen: profile) -> list[Any]:
    """The kernels, copies and regions that a profile lists on the device."""
    return [e for e in kineto_events(seen) if e.device_type() == DeviceType.PrivateUse1]


def names(seen: profile) -> list[str]:
    return [event.name() for event in on_device(seen)]


def test_kernels_have_the_names_of_their_ops() -> None:
    x = ones()
    with profile(activities=BOTH) as seen:
        x.add_(1)
        x.sort()  # synchronous
        x.cpu()
    assert [*dict.fromkeys(names(seen))] == ["aten::add_.Tensor", "aten::sort.stable", "copy"]


def test_streams_have_the_ids_that_torch_gives_them() -> None:
    x, stream = ones(1), torch.Stream("simulated:1")
    with profile(activities=BOTH) as seen, stream:
        x.add_(1)
        stream.synchronize()
    [kernel] = on_device(seen)
    assert (kernel.device_index(), kernel.device_resource_id()) == (1, stream.stream_id)


def test_nothing_is_noted_outside_of_a_session(gates: None) -> None:
    x, gate = ones(), torch.simulated.Gate()
    gate.close()
    x.add_(1)
    seen = profile(activities=BOTH)
    seen.start()
    x.mul_(2)
    gate.open()
    seen.stop()
    x.neg_()
    assert names(seen) == ["aten::mul_.Tensor"]


def test_a_session_waits_for_work_of_other_indices() -> None:
    x = ones(1)
    with profile(activities=BOTH) as seen:
        with torch.simulated.device(1):
            torch.simulated.busy(50)
        x.add_(1)
    assert [(e.name(), e.device_index()) for e in on_device(seen)] == [("busy", 1), ("aten::add_.Tensor", 1)]  # fmt: skip


def test_work_that_fails_is_listed() -> None:
    x = ones()
    with profile(activities=BOTH) as seen, pytest.raises(IndexError):
        x.index_select(0, torch.tensor([7], device="simulated"))
    assert "aten::index_select" in names(seen)


def test_a_kernel_without_an_op_has_no_launch() -> None:
    """Its number would be taken for that of an op."""
    x = ones()
    with profile(activities=BOTH) as seen:
        torch.simulated.busy(0.1)
        x.add_(1)
    [busy, kernel] = on_device(seen)
    launches = [e for e in kineto_events(seen) if e.name().startswith("launch ")]
    assert [launch.name() for launch in launches] == ["launch aten::add_.Tensor"]
    assert busy.linked_correlation_id() == 0 < kernel.linked_correlation_id()


def test_a_region_on_the_device_covers_its_kernels_on_each_stream() -> None:
    x, y, stream = ones(), ones(), torch.Stream("simulated:0")
    with profile(activities=BOTH) as seen, record_function("outer"), record_function("inner"):
        x.add_(1)
        with stream:
            y.add_(1)
        stream.synchronize()
    found = on_device(seen)
    regions = Counter(e.name() for e in found if e.is_user_annotation())
    assert regions == {"outer": 2, "inner": 2}
    for kernel in (e for e in found if not e.is_user_annotation()):
        around = [
            e
            for e in found
            if e.is_user_annotation() and e.device_resource_id() == kernel.device_resource_id()
        ]
        assert [(e.start_ns(), e.end_ns()) for e in around] == 2 * [(kernel.start_ns(), kernel.end_ns())]  # fmt: skip


def test_other_threads_may_work_during_sessions() -> None:
    over, tensors = threading.Event(), [ones() for _ in range(3)]

    def work(x: torch.Tensor) -> None:
        with torch.Stream("simulated:0"):
            while not over.is_set():
                x.add_(1)

    threads = [threading.Thread(target=work, args=(x,)) for x in tensors[1:]]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            with profile(activities=BOTH) as seen:
                tensors[0].mul_(2)
            assert names(seen).count("aten::mul_.Tensor") == 1
    finally:
        over.set()
        for thread in threads:
            thread.join()


def test_memory_is_listed_with_the_rounded_sizes_of_blocks() -> None:
    with profile(activities=BOTH, profile_memory=True) as seen:
        block = torch.empty(1000, dtype=torch.uint8, device="simulated:1")
        del block
    found = [e for e in kineto_events(seen) if e.name() == "[memory]"]
    found = [e for e in found if e.device_type() == DeviceType.PrivateUse1]
    assert [(e.nbytes(), e.device_index()) for e in found] == [(1024, 1), (-1024, 1)]
