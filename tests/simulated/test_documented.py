"""What torch documents of accelerators, streams, events and memory, held by this device.

Each test names the page or the header that says so.
"""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from devices.simulated.backend import library
from tests.simulated.probes_streams import held

ACCELERATOR = torch.accelerator
KIND = "simulated"


@pytest.fixture(autouse=True)
def _first_device() -> Iterator[None]:
    """Every test begins and ends on the first device's default stream."""
    yield
    for index in (1, 0):
        ACCELERATOR.set_stream(torch.simulated.default_stream(index))
    assert ACCELERATOR.current_device_index() == 0


# torch.accelerator


def test_the_current_accelerator_has_no_index() -> None:
    """torch.accelerator.current_accelerator: "The index of the returned torch.device will be None"."""
    current = ACCELERATOR.current_accelerator(check_available=True)
    assert current is not None and (current.type, current.index) == (KIND, None)
    assert ACCELERATOR.is_available() and ACCELERATOR.device_count() == 2


def test_a_device_must_match_the_accelerator() -> None:
    """torch.accelerator.set_device_index, current_stream: "must match the current accelerator"."""
    for call in (ACCELERATOR.set_device_index, ACCELERATOR.current_stream, ACCELERATOR.synchronize):
        with pytest.raises(ValueError, match="doesn't match the current accelerator"):
            call("cpu")


def test_a_negative_index_changes_nothing() -> None:
    """torch.accelerator.set_device_index: "This function is a no-op if this device index is negative"."""
    ACCELERATOR.set_device_index(1)
    torch.simulated.set_device(-1)
    assert ACCELERATOR.current_device_index() == 1
    assert library.exchange_device(-1) == 1 == ACCELERATOR.current_device_index()
    ACCELERATOR.set_device_index(0)


def test_device_index_restores_and_none_switches_nothing() -> None:
    """torch.accelerator.device_index."""
    with ACCELERATOR.device_index(1):
        assert ACCELERATOR.current_device_index() == 1
        with ACCELERATOR.device_index(None):
            assert ACCELERATOR.current_device_index() == 1
        with ACCELERATOR.device_index(0):
            assert ACCELERATOR.current_device_index() == 0
        assert ACCELERATOR.current_device_index() == 1
    assert ACCELERATOR.current_device_index() == 0


def test_set_stream_switches_the_index() -> None:
    """torch.accelerator.set_stream: "will set the current device index to the device index of the given stream"."""
    stream = torch.Stream("simulated:1")
    ACCELERATOR.set_stream(stream)
    assert ACCELERATOR.current_device_index() == 1 and ACCELERATOR.current_stream() == stream
    ACCELERATOR.synchronize(0)
    assert ACCELERATOR.current_device_index() == 1


def test_the_current_stream_is_found_by_device_index_and_name() -> None:
    """torch.accelerator.current_stream: "device (torch.device, str, int, optional)"."""
    stream = ACCELERATOR.current_stream()
    for name in (stream.device, stream.device.index, str(stream.device), None):
        assert ACCELERATOR.current_stream(name) == stream


def test_synchronize_waits_for_all_streams_of_the_device() -> None:
    """torch.accelerator.synchronize: "Wait for all kernels in all streams on the given device to complete"."""
    streams = [torch.Stream(KIND) for _ in range(3)]
    x = torch.zeros(3, device=KIND)
    ACCELERATOR.synchronize()
    for place, stream in enumerate(streams):
        with stream:
            torch.simulated.busy(5)
            x[place] += 1
    ACCELERATOR.synchronize()
    assert all(stream.query() for stream in streams) and x.tolist() == [1.0] * 3


def test_supported_dtypes_allocate_and_convert_and_others_do_not() -> None:
    """torch.accelerator.get_device_capability: "Set of PyTorch data types for which tensors can be allocated on the
    accelerator and type conversion across supported dtypes are supported"."""
    supported = ACCELERATOR.get_device_capability()["supported_dtypes"]
    every = {each for each in vars(torch).values() if isinstance(each, torch.dtype)}
    assert torch.float32 in supported and supported < every
    works = {dtype for dtype in every if _converts(dtype)}
    assert works == supported


def _converts(dtype: torch.dtype) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of complex values that lose a part
            torch.zeros(16, dtype=torch.uint8, device=KIND).to(dtype).to(torch.float32)
    except (RuntimeError, TypeError):
        return False
    return True


# Streams: docs/source/accelerator/stream.md, torch.Stream


def test_a_block_restores_the_stream_nested_and_entered_again() -> None:
    """torch.Stream: "with stream" sets and restores the current stream."""
    first, second, before = torch.Stream(), torch.Stream(), ACCELERATOR.current_stream()
    with first, first:
        assert ACCELERATOR.current_stream() == first
    assert ACCELERATOR.current_stream() == before
    with first, second, first:
        assert ACCELERATOR.current_stream() == first
    assert ACCELERATOR.current_stream() == before


def test_a_block_of_another_index_restores_both() -> None:
    """torch.Stream: as a context manager, across devices."""
    here, there = ACCELERATOR.current_stream(0), ACCELERATOR.current_stream(1)
    with torch.Stream("simulated:1") as stream:
        assert ACCELERATOR.current_device_index() == 1 and ACCELERATOR.current_stream() == stream
        assert ACCELERATOR.current_stream(0) == here
    assert ACCELERATOR.current_device_index() == 0
    assert (ACCELERATOR.current_stream(0), ACCELERATOR.current_stream(1)) == (here, there)


def test_an_exception_leaves_the_stream_as_it_was() -> None:
    """torch.Stream: the block ends by an exception."""
    before = ACCELERATOR.current_stream()
    with pytest.raises(KeyError), torch.Stream("simulated:1"):
        raise KeyError
    assert ACCELERATOR.current_stream() == before and ACCELERATOR.current_device_index() == 0


def test_streams_are_equal_by_their_three_numbers() -> None:
    """torch.Stream(stream_id, device_index, device_type)."""
    stream = torch.Stream()
    numbers = {name: getattr(stream, name) for name in ("stream_id", "device_index", "device_type")}
    same = torch.Stream(**numbers)
    assert stream == same and hash(stream) == hash(same) and stream != torch.Stream()


def test_the_current_stream_is_the_thread_s_own() -> None:
    """c10/core/impl/DeviceGuardImplInterface.h, exchangeStream: "thread local current stream"."""
    with torch.Stream() as stream:
        seen: list[Any] = []
        thread = threading.Thread(target=lambda: seen.append(ACCELERATOR.current_stream()))
        thread.start()
        thread.join()
        assert seen[0] != stream and seen[0] == torch.simulated.default_stream(0)


# Events: torch.Event, c10/core/impl/DeviceGuardImplInterface.h


def test_times_need_two_timed_and_recorded_events() -> None:
    """torch.Event.elapsed_time; c10/core/impl/InlineEvent.h, elapsedTime."""
    untimed, timed = torch.Event(), torch.Event(enable_timing=True)
    with pytest.raises(ValueError, match="must be created with argument 'enable_timing=True'"):
        untimed.elapsed_time(torch.Event())
    with pytest.raises(ValueError, match="must be recorded before calculating elapsed time"):
        timed.elapsed_time(torch.Event(enable_timing=True))


def test_a_time_between_events_that_are_not_over_raises() -> None:
    """c10/core/impl/InlineEvent.h, elapsedTime: "Both events must be completed"."""
    start, end, stream = (
        torch.Event(enable_timing=True),
        torch.Event(enable_timing=True),
        torch.Stream(),
    )
    with held(stream):
        start.record(stream)
        end.record(stream)
        with pytest.raises(RuntimeError, match="must be completed"):
            start.elapsed_time(end)
    stream.synchronize()
    assert start.elapsed_time(end) >= 0


def test_an_event_that_was_never_recorded_is_over_and_waiting_for_it_does_nothing() -> None:
    """c10/core/impl/DeviceGuardImplInterface.h, queryEvent: true if "never been scheduled to be recorded"; block: "Does
    nothing if the event has not been scheduled to be recorded"."""
    event, stream = torch.Event(), torch.Stream()
    assert event.query()
    event.synchronize()
    event.wait(stream)
    stream.wait_event(event)
    assert stream.query()


def test_a_wait_is_for_the_version_of_the_call() -> None:
    """c10/core/impl/DeviceGuardImplInterface.h, block: "wait for the version of the event that exists at the time of
    this call"."""
    first, second, event = torch.Stream(), torch.Stream(), torch.Event()
    event.record(first)
    second.wait_event(event)
    with held(first):
        event.record(first)
        second.synchronize()
        assert second.query() and not event.query()


def test_query_and_synchronize_are_about_the_latest_record() -> None:
    """torch.Event.record, query, synchronize."""
    stream, event = torch.Stream(), torch.Event()
    event.record(stream)
    event.synchronize()
    assert event.query()
    with held(stream):
        event.record(stream)
        assert not event.query()
    event.synchronize()
    assert event.query()


def test_an_event_is_recorded_on_streams_of_its_device_alone() -> None:
    """torch.Event.record: the stream's device must match."""
    event = torch.Event("simulated:0")
    event.record(torch.Stream("simulated:0"))
    with pytest.raises(
        RuntimeError, match="an event of device 0 cannot be recorded on a stream of device 1"
    ):
        event.record(torch.Stream("simulated:1"))


def test_two_streams_are_ordered_by_wait_stream() -> None:
    """torch.Stream.wait_stream."""
    first, second = torch.Stream(), torch.Stream()
    x = torch.zeros(4, device=KIND)
    ACCELERATOR.synchronize()
    with held(first):
        with first:
            x.add_(1)
        second.wait_stream(first)
        with second:
            x.mul_(10)
        assert not second.query()
    second.synchronize()
    assert x.tolist() == [10.0] * 4


def test_work_that_is_ordered_by_an_event_sees_what_came_before() -> None:
    """docs/source/accelerator/event.md: synchronization between streams; pageable copies with non_blocking."""
    first, second, event = torch.Stream(), torch.Stream(), torch.Event()
    given = torch.randn(1000)
    with second:
        moved = given.to(KIND, non_blocking=True)
        event.record(second)
    event.synchronize()
    with first:
        result = moved + moved
    first.synchronize()
    assert event.query() and torch.equal(result.cpu(), given + given)


# Memory: torch.accelerator.memory


def test_counters_rise_and_fall_with_a_tensor_and_peaks_and_totals_are_reset() -> None:
    """torch.accelerator.memory.memory_stats, reset_accumulated_memory_stats, reset_peak_memory_stats."""
    memory = ACCELERATOR.memory
    gc.collect()
    torch.empty(1, device=KIND)
    memory.empty_cache()
    memory.reset_accumulated_memory_stats()
    before = memory.memory_stats()
    made = torch.empty(256, device=KIND)
    during = memory.memory_stats()
    assert during["active_bytes.all.current"] == before["active_bytes.all.current"] + 1024
    assert during["active_bytes.all.freed"] == 0
    assert memory.max_memory_allocated() >= memory.memory_allocated() > 0
    del made
    after = memory.memory_stats()
    assert after["active_bytes.all.current"] == before["active_bytes.all.current"]
    assert after["active_bytes.all.freed"] == after["active_bytes.all.allocated"] == 1024
    memory.reset_peak_memory_stats()
    assert memory.max_memory_allocated() == memory.memory_allocated()
    assert memory.max_memory_reserved() == memory.memory_reserved()


def test_memory_info_is_free_and_total_bytes() -> None:
    """torch.accelerator.memory.get_memory_info."""
    free, total = ACCELERATOR.memory.get_memory_info(1)
    assert 0 <= free <= total == 256 * 2**20


def test_emptying_the_host_cache_is_safe_and_gives_back_what_is_cached() -> None:
    """torch.accelerator.memory.empty_host_cache."""
    torch.ones(2**16).pin_memory()
    ACCELERATOR.memory.empty_host_cache()
    stats = torch.simulated.host_memory_stats()
    assert stats["allocations.current"] == stats["active_requests.current"]


def test_a_non_blocking_copy_to_the_host_is_pinned_and_complete_after_synchronize() -> None:
    """torch.Tensor.to, non_blocking; docs/source/notes/cuda, "Use pinned memory buffers"."""
    given = torch.randn(100).to(KIND)
    host = given.to("cpu", non_blocking=True)
    ACCELERATOR.synchronize()
    assert host.is_pinned() and torch.equal(host, given.cpu())


# Random numbers: docs/source/accelerator/generator.md, torch.random


def test_forked_random_states_come_back() -> None:
    """torch.random.fork_rng: "when you return, the RNG is reset to the state that it was previously in"."""
    before = torch.simulated.get_rng_state_all()
    with torch.random.fork_rng(devices=[0, 1], device_type=KIND):
        torch.rand(5, device="simulated:0"), torch.rand(5, device="simulated:1")
    after = torch.simulated.get_rng_state_all()
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_checkpointing_draws_the_same_numbers_again() -> None:
    """torch.utils.checkpoint.checkpoint: preserve_rng_state."""
    from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

    x = torch.ones(64, device=KIND, requires_grad=True)
    masks: list[torch.Tensor] = []

    def drop(x: torch.Tensor) -> torch.Tensor:
        kept = torch.nn.functional.dropout(x, 0.5)
        masks.append(kept.detach().cpu())
        return kept

    with set_checkpoint_early_stop(False):
        checkpoint(drop, x, use_reentrant=False).sum().backward()
    assert len(masks) == 2 and torch.equal(masks[0], masks[1])


# Modules: torch.nn, torch.utils


def test_methods_of_the_backend_s_name_are_made() -> None:
    """torch.utils.generate_methods_for_privateuse1_backend."""
    x: Any = torch.ones(2).simulated(1)
    assert x.is_simulated and x.device.index == 1
    assert torch.nn.Linear(2, 2).simulated().weight.is_simulated


def test_torch_device_puts_factories_on_the_device() -> None:
    """torch.device as a context manager, torch.set_default_device."""
    with torch.device("simulated:1"):
        assert torch.ones(2).device.index == 1
    torch.set_default_device("simulated")
    try:
        assert torch.zeros(2).device == torch.device(KIND, 0)
    finally:
        torch.set_default_device(None)
