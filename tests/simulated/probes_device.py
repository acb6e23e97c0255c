"""Direct probes of faults of devices: which there are, what they say of themselves, where tensors lie."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

import torch

from devices import registry
from devices.simulated.backend import library
from tests.simulated.probes import ones, probe, raises
from tests.simulated.probes_streams import in_a_thread

PAST = "simulated:7"
PRIVATEUSE1 = int(torch._C._autograd.DeviceType.PrivateUse1.value)


def refused(call: Callable[[], object]) -> bool:
    return raises(call)


@probe("device.accept_index_past_count")
def _() -> bool:
    return not refused(lambda: torch.empty(1, device=PAST))


@probe("device.capability_past_count")
def _() -> bool:
    return not refused(lambda: torch.simulated.get_device_capability(7))


@probe("device.capability_claims_all")
def _() -> bool:
    return torch.bits16 in torch.simulated.get_device_capability(0)["supported_dtypes"]


@probe("device.index_not_restored")
def _() -> bool:
    def lost() -> bool:
        with torch.simulated.device(1):
            pass
        return bool(torch.accelerator.current_device_index() != 0)

    return in_a_thread(lost)


@probe("streams.index_not_restored")
def _() -> bool:
    stream = torch.Stream("simulated:1")

    def lost() -> bool:
        with stream:
            pass
        return bool(torch.accelerator.current_device_index() != 0)

    return in_a_thread(lost)


@probe("device.current_shared_by_threads")
def _() -> bool:
    def choose() -> bool:
        torch.simulated.set_device(1)
        return True

    in_a_thread(choose)
    shared = torch.simulated.current_device() != 0
    torch.simulated.set_device(0)
    return bool(shared)


@probe("device.declared_dtype_refused")
def _() -> bool:
    assert "int16" in registry.get("simulated").dtypes
    return refused(lambda: torch.empty(1, dtype=torch.int16, device="simulated"))


@probe("device.uuid_repeats")
def _() -> bool:
    first, second = (torch.simulated.get_device_properties(index).uuid for index in (0, 1))
    return bool(first == second)


@probe("device.total_memory_varies")
def _() -> bool:
    torch.simulated.empty_cache()
    before = torch.simulated.get_device_properties(0).total_memory
    block = torch.empty(2**24, dtype=torch.uint8, device="simulated:0")
    return torch.simulated.get_device_properties(0).total_memory != before and block.numel() > 0


@probe("device.peer_copy_wrong")
def _() -> bool:
    return ones(3).to("simulated:0").to("simulated:1").tolist() != [1.0] * 3


@probe("device.factory_ignores_index")
def _() -> bool:
    with torch.device("simulated:1"):
        return torch.ones(1).device.index != 1


@probe("device.storage_names_first_index")
def _() -> bool:
    there = torch.randint(0, 9, (3,), device="simulated:1")
    return there.device.index == 1 and there.untyped_storage().device.index == 0


@probe("device.storage_on_other_index")
def _() -> bool:
    before = torch.simulated.memory_allocated(1)
    block = torch.empty(4096, dtype=torch.uint8, device="simulated:0")
    return torch.simulated.memory_allocated(1) != before and block.device.index == 0


# Streams and events of it


@probe("streams.hash_differs")
def _() -> bool:
    first, second = (torch.accelerator.current_stream("simulated:0") for _ in range(2))
    return hash(first) != hash(second) or first != second


@probe("streams.priority_dropped")
def _() -> bool:
    return bool(torch.simulated.Stream(priority=-1).priority != -1)


@probe("streams.external_destroys_owner")
def _() -> bool:
    handle, number = library.new_external_stream(
        0
    )  # not of the pool, where others would be given it
    owner = torch.simulated.Stream(stream_id=number, device_index=0, device_type=PRIVATEUSE1)
    torch.simulated.ExternalStream(handle, 0)  # dies at once
    x = ones(2)
    torch.simulated.synchronize()
    with owner:
        return raises(lambda: x.add_(1))


@probe("events.event_id_repeats")
def _() -> bool:
    events = [torch.Event("simulated:0") for _ in range(2)]
    for event in events:
        event.record()
    return events[0].event_id == events[1].event_id


# Many threads


def _together(work: Callable[[], None]) -> None:
    """Run it in four threads at once. What they raise is raised."""
    ready, errors = threading.Barrier(4), []

    def run() -> None:
        try:
            ready.wait()
            work()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@probe("streams.unlocked_queue")
def _() -> bool:
    x, stream = torch.zeros(1, device="simulated:0"), torch.Stream("simulated:0")
    x.add_(0)  # what it returns is known from now on
    torch.simulated.synchronize()

    def add() -> None:
        with stream:
            for _ in range(25):
                x.add_(1)

    _together(add)
    stream.synchronize()
    return float(x) != 100.0


def _allocate() -> None:
    for _ in range(25):
        torch.empty(3000, dtype=torch.uint8, device="simulated:0")


@probe("allocator.unlocked_counters")
def _() -> bool:
    before = torch.simulated.memory_stats(0)["allocation.all.current"]
    _together(_allocate)
    return bool(torch.simulated.memory_stats(0)["allocation.all.current"] != before)


@probe("allocator.unlocked_free_list")
def _() -> bool:
    before = torch.simulated.memory_stats(0)["active.all.current"]
    _together(_allocate)
    return bool(torch.simulated.memory_stats(0)["active.all.current"] != before)


# Settings


@probe("allocator.settings_accept_unknown")
def _() -> bool:
    with contextlib.suppress(ValueError):
        torch.simulated.memory._set_allocator_settings("no_such_key:1")
        return True
    return False


@probe("allocator.settings_ignored")
def _() -> bool:
    torch.simulated.memory._set_allocator_settings("roundup_power2_divisions:2")
    before = torch.simulated.memory_allocated(0)
    block = torch.empty(2**16 + 512, dtype=torch.uint8, device="simulated:0")
    grown = torch.simulated.memory_allocated(0) - before
    torch.simulated.memory._set_allocator_settings("roundup_power2_divisions:1")
    return bool(grown < 2**16 + 2**15 and block.numel() > 0)
