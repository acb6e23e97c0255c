"""Direct probes of faults of memory: the device's allocator, its history, pinned memory."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from conformance.suites.allocator import host_memory
from devices.simulated.backend import library
from tests.simulated.probes import ones, probe, raises

MIB = 2**20
TOO_MUCH = 2**40  # bytes


def take(count: int, device: str = "simulated:0") -> torch.Tensor:
    return torch.empty(count, dtype=torch.uint8, device=device)


def stat(name: str, device: int = 0) -> int:
    return int(torch.simulated.memory_stats(device)[name])


@contextlib.contextmanager
def fresh_stream() -> Iterator[torch.Stream]:
    """A stream whose blocks come from segments that are new."""
    torch.simulated.synchronize()
    torch.simulated.empty_cache()
    with torch.Stream("simulated:0") as stream:
        yield stream


def segments(index: int = 0) -> list[dict[str, Any]]:
    return [one for one in library.memory_snapshot()["segments"] if one["device"] == index]


# Counters


def _rise(name: str) -> int:
    before = stat(name)
    block = take(1000)
    rise = stat(name) - before
    del block
    return rise


@probe("allocator.count_too_little")
def _() -> bool:
    return _rise("allocated_bytes.all.current") < 1000


@probe("allocator.forget_free")
def _() -> bool:
    before = stat("allocated_bytes.all.current")
    _rise("allocated_bytes.all.current")
    return stat("allocated_bytes.all.current") != before


@probe("allocator.requested_counts_rounded")
def _() -> bool:
    return _rise("requested_bytes.all.current") != 1000


@probe("allocator.active_below_allocated")
def _() -> bool:
    return _rise("active_bytes.all.current") < 1000


@probe("allocator.freed_miscounted")
def _() -> bool:
    torch.simulated.reset_accumulated_memory_stats()
    start = stat("allocated_bytes.all.current")
    _rise("active.all.current")
    now, added, gone = (
        stat(f"allocated_bytes.all.{name}") for name in ("current", "allocated", "freed")
    )
    return added - gone != now - start


@probe("allocator.peak_not_raised")
def _() -> bool:
    torch.simulated.reset_peak_memory_stats()
    block = take(MIB)
    peak, now = torch.simulated.max_memory_allocated(), torch.simulated.memory_allocated()
    return peak < now and block.numel() > 0


@probe("allocator.reset_peak_to_zero")
def _() -> bool:
    block = take(1000)
    torch.simulated.reset_peak_memory_stats()
    return torch.simulated.max_memory_allocated() < block.numel()


@probe("allocator.reset_keeps_segment_peak")
def _() -> bool:
    with fresh_stream():
        take(4 * MIB)
    torch.simulated.empty_cache()
    torch.simulated.reset_peak_memory_stats()
    return stat("segment.all.peak") != stat("segment.all.current")


@probe("allocator.count_on_wrong_index")
def _() -> bool:
    before = stat("allocation.all.current", 1)
    block = take(1000)
    return stat("allocation.all.current", 1) != before and block.numel() > 0


# Blocks


@probe("allocator.hand_out_overlap")
def _() -> bool:
    with fresh_stream():
        first, second = take(4096), take(4096)
        return abs(first.data_ptr() - second.data_ptr()) < 4096


@probe("allocator.misalign_pointer")
def _() -> bool:
    return take(64).data_ptr() % 512 != 0


@probe("allocator.scribble_on_split")
def _() -> bool:
    with fresh_stream() as stream:
        first = take(4096).fill_(7)
        stream.synchronize()
        second = take(4096)
        return int(first[0]) != 7 and second.numel() > 0


@probe("allocator.never_reuse")
def _() -> bool:
    with fresh_stream():
        block = take(4096)
        address = block.data_ptr()
        del block
        return take(4096).data_ptr() != address


@probe("allocator.leak_on_split")
def _() -> bool:
    with fresh_stream():
        before = torch.simulated.memory_reserved()
        take(4096)
        torch.simulated.empty_cache()
        return torch.simulated.memory_reserved() > before


@probe("allocator.empty_cache_keeps_segment")
def _() -> bool:
    take(8 * MIB)
    torch.simulated.empty_cache()
    return any(one["active_size"] == 0 for one in segments())


@probe("allocator.empty_cache_frees_live")
def _() -> bool:
    with fresh_stream() as stream:
        kept = ones(4)
        stream.synchronize()
        torch.simulated.empty_cache()
        return kept.tolist() != [1.0] * 4


@probe("allocator.ignore_record_stream")
def _() -> bool:
    gate, other = torch.simulated.Gate(), torch.Stream("simulated:0")
    with other:
        gate.close()
    with torch.Stream("simulated:0"):
        block = take(4096)
        address = block.data_ptr()
        block.record_stream(other)
        del block
        early = take(4096).data_ptr() == address
    gate.open()
    other.synchronize()
    return early


@probe("allocator.last_record_stream_only")
def _() -> bool:
    gate, held, idle = torch.simulated.Gate(), *(torch.Stream("simulated:0") for _ in range(2))
    with held:
        gate.close()
    with torch.Stream("simulated:0"):
        block = take(4096)
        address = block.data_ptr()
        block.record_stream(held)
        block.record_stream(idle)
        del block
        idle.synchronize()
        early = take(4096).data_ptr() == address
    gate.open()
    held.synchronize()
    return early


@probe("allocator.freed_to_current_stream")
def _() -> bool:
    with fresh_stream():
        block = take(4096)
    address = block.data_ptr()
    with torch.Stream("simulated:0"):
        del block
        return take(4096).data_ptr() == address


@probe("allocator.joins_backwards_only")
def _() -> bool:
    with fresh_stream():
        take(16 * MIB)
        parts = [take(4 * MIB) for _ in range(4)]
        before = torch.simulated.memory_reserved()
        while parts:
            parts.pop()
        whole = take(16 * MIB)
        return torch.simulated.memory_reserved() > before and whole.numel() > 0


@probe("allocator.reuse_across_streams")
def _() -> bool:
    with fresh_stream():
        take(4096)
    with torch.Stream("simulated:0") as other:
        theirs = [one for one in segments() if one["stream"] != other.stream_id]
        address = take(4096).data_ptr()
    return any(one["address"] <= address < one["address"] + one["total_size"] for one in theirs)


@probe("allocator.leak_on_error")
def _() -> bool:
    one, other = ones(2), ones(3)
    before = torch.simulated.memory_allocated()
    assert raises(torch.add, one, other)
    return torch.simulated.memory_allocated() > before


# Running out, limits


@probe("allocator.memory_info_free_constant")
def _() -> bool:
    torch.simulated.empty_cache()
    before = torch.simulated.mem_get_info()[0]
    block = take(16 * MIB)
    return torch.simulated.mem_get_info()[0] >= before and block.numel() > 0


@probe("allocator.memory_info_total_wrong")
def _() -> bool:
    torch.simulated.empty_cache()
    before = torch.simulated.mem_get_info()[1]
    block = take(16 * MIB)
    return torch.simulated.mem_get_info()[1] != before and block.numel() > 0


@probe("allocator.memory_info_counts_cached")
def _() -> bool:
    torch.simulated.empty_cache()
    take(16 * MIB)
    free, total = torch.simulated.mem_get_info()
    return free + torch.simulated.memory_reserved() > total


def _runs_out(count: int) -> bool:
    try:
        take(count)
    except torch.OutOfMemoryError:
        return True
    return False


@probe("allocator.oom_wrong_type")
def _() -> bool:
    try:
        return not _runs_out(TOO_MUCH)
    except RuntimeError:
        return True


@probe("allocator.oom_not_counted")
def _() -> bool:
    before = stat("num_ooms")
    return _runs_out(TOO_MUCH) and stat("num_ooms") == before


@probe("allocator.reset_keeps_ooms")
def _() -> bool:
    ran_out = _runs_out(TOO_MUCH)
    torch.simulated.reset_accumulated_memory_stats()
    return ran_out and stat("num_ooms") != 0


@probe("allocator.oom_stays_broken")
def _() -> bool:
    return _runs_out(TOO_MUCH) and _runs_out(64)


@probe("allocator.ignore_fraction")
def _() -> bool:
    torch.simulated.empty_cache()
    torch.simulated.set_per_process_memory_fraction(
        torch.simulated.memory_reserved() / torch.simulated.mem_get_info()[1]
    )
    try:
        return not _runs_out(64 * MIB)
    finally:
        torch.simulated.set_per_process_memory_fraction(1.0)


@probe("allocator.accept_bad_fraction")
def _() -> bool:
    try:
        torch.simulated.set_per_process_memory_fraction(1.5)
    except ValueError:
        return False
    torch.simulated.set_per_process_memory_fraction(1.0)
    return True


# Private pools


@contextlib.contextmanager
def private_pool(number: int) -> Iterator[None]:
    """Blocks that the body makes come from a pool of its own."""
    library.begin_pool(0, (0, number))
    try:
        yield
    finally:
        library.end_pool(0, (0, number))


@probe("allocator.pool_leaks_to_default")
def _() -> bool:
    with private_pool(77):
        block = take(4096)
    address = block.data_ptr()
    del block
    leaked = take(4096).data_ptr() == address
    library.release_pool(0, (0, 77))
    torch.simulated.empty_cache()
    return leaked


@probe("allocator.pool_never_returned")
def _() -> bool:
    with private_pool(78):
        take(4096)
    library.release_pool(0, (0, 78))
    torch.simulated.empty_cache()
    return any(one["segment_pool_id"] == (0, 78) for one in segments())


@probe("allocator.outer_pool_serves")
def _() -> bool:
    with private_pool(79), private_pool(80):
        block = take(4096)
    served = [one["segment_pool_id"] for one in segments() if one["address"] == block.data_ptr()]
    for number in (79, 80):
        library.release_pool(0, (0, number))
    return served == [(0, 79)]


@probe("allocator.pool_of_index_0")
def _() -> bool:
    pool = torch.simulated.MemPool()
    with torch.simulated.use_mem_pool(pool, 1):
        block = take(4096, "simulated:1")
    return not pool.snapshot() and block.numel() > 0


@probe("allocator.pool_snapshot_of_all")
def _() -> bool:
    pool, block = torch.simulated.MemPool(), take(4096)
    return bool(pool.snapshot()) and block.numel() > 0


# Indices


@probe("allocator.empty_cache_of_current_index")
def _() -> bool:
    torch.simulated.synchronize()
    torch.simulated.empty_cache()
    before = torch.simulated.memory_reserved(1)
    take(5 * MIB, "simulated:1")
    torch.simulated.empty_cache()
    left = torch.simulated.memory_reserved(1) != before
    with torch.accelerator.device_index(1):
        torch.simulated.empty_cache()
    return left


@probe("allocator.fraction_of_every_index")
def _() -> bool:
    torch.simulated.set_per_process_memory_fraction(0.5, 1)
    try:
        return torch.simulated.get_per_process_memory_fraction(0) == 0.5
    finally:
        for index in (0, 1):
            torch.simulated.set_per_process_memory_fraction(1.0, index)


@probe("allocator.no_device_is_index_0")
def _() -> bool:
    block = take(MIB, "simulated:1")
    with torch.accelerator.device_index(1):
        found = torch.simulated.memory_allocated()
    return found < block.numel()


@probe("allocator.nested_statistics_of_index_0")
def _() -> bool:
    block = take(MIB, "simulated:1")
    nested = torch.simulated.memory_stats_as_nested_dict(1)
    return nested["allocated_bytes"]["all"]["current"] < block.numel()


# Blocks above max_split_size_mb


def _rises(large: int, small: int) -> bool:
    """Whether two small blocks need a new segment once a large block was freed, with a limit of 21 MiB."""
    torch.simulated.empty_cache()
    torch.simulated.memory._set_allocator_settings("max_split_size_mb:21")
    try:
        with fresh_stream():
            take(large)
            before = torch.simulated.memory_reserved()
            blocks = [take(small) for _ in range(min(2, large // small))]
            return torch.simulated.memory_reserved() > before and len(blocks) > 0
    finally:
        torch.simulated.memory._set_allocator_settings("max_split_size_mb:100000")


@probe("allocator.limit_stops_all_splits")
def _() -> bool:
    return _rises(20 * MIB, 2 * MIB)


@probe("allocator.oversize_never_reused")
def _() -> bool:
    return _rises(40 * MIB, 40 * MIB)


@probe("allocator.oversize_not_reset")
def _() -> bool:
    torch.simulated.memory._set_allocator_settings("max_split_size_mb:21")
    try:
        take(40 * MIB)
    finally:
        torch.simulated.memory._set_allocator_settings("max_split_size_mb:100000")
    torch.simulated.reset_accumulated_memory_stats()
    return stat("oversize_allocations.allocated") != 0


@probe("allocator.exact_sizes_rounded_up")
def _() -> bool:
    torch.simulated.memory._set_allocator_settings("roundup_power2_divisions:4")
    try:
        before = stat("allocated_bytes.all.current")
        block = take(80 * 2**10)
        return stat("allocated_bytes.all.current") - before != block.numel()
    finally:
        torch.simulated.memory._set_allocator_settings("roundup_power2_divisions:1")


# History and snapshot


@probe("allocator.history_keeps_the_first")
def _() -> bool:
    library.record_memory_history(2)
    take(4096)
    take(8192)
    trace = library.memory_snapshot()["device_traces"][0]
    library.record_memory_history(0)
    return [one["size"] for one in trace] != [8192, 8192]


@probe("allocator.history_of_first_index")
def _() -> bool:
    library.record_memory_history(9)
    take(4096, "simulated:1")
    trace = library.memory_snapshot()["device_traces"][1]
    library.record_memory_history(0)
    return not trace


@probe("allocator.snapshot_frees_pending")
def _() -> bool:
    block, gate, stream = take(5 * MIB), torch.simulated.Gate(), torch.Stream("simulated:0")
    address = block.data_ptr()
    with stream:
        gate.close()
    block.record_stream(stream)
    del block
    states = [b["state"] for one in segments() for b in one["blocks"] if b["address"] == address]
    gate.open()
    stream.synchronize()
    return states == ["inactive"]


def _history() -> tuple[int, list[dict[str, Any]]]:
    """The address of a block that lived while history was recorded, and the events."""
    torch.simulated.memory._record_memory_history()
    block = take(4096)
    address = block.data_ptr()
    del block
    events = torch.simulated.memory._snapshot()["device_traces"][0]
    torch.simulated.memory._record_memory_history(enabled=None)
    return address, events


@probe("allocator.history_drops_free")
def _() -> bool:
    actions = [event["action"] for event in _history()[1]]
    return actions.count("free_completed") != actions.count("free_requested")


@probe("allocator.history_wrong_address")
def _() -> bool:
    address, events = _history()
    return address not in [event["addr"] for event in events if event["action"] == "alloc"]


@probe("allocator.history_without_stream")
def _() -> bool:
    with torch.Stream("simulated:0"):
        address, events = _history()
    return 0 in [event["stream"] for event in events if event["addr"] == address]


@probe("allocator.snapshot_misses_segment")
def _() -> bool:
    block = take(4096)
    total = sum(one["total_size"] for one in segments())
    return total != torch.simulated.memory_reserved() and block.numel() > 0


# Pinned memory


def pinned() -> torch.Tensor:
    return torch.ones(4).pin_memory()


@probe("allocator.host_never_reuse")
def _() -> bool:
    pinned()
    before = torch.simulated.host_memory_stats()["num_reuses"]
    block = pinned()
    return torch.simulated.host_memory_stats()["num_reuses"] == before and block.numel() > 0


@probe("allocator.host_miscount")
def _() -> bool:
    before = torch.simulated.host_memory_stats()["active_bytes.current"]
    pinned()
    return torch.simulated.host_memory_stats()["active_bytes.current"] != before


@probe("allocator.host_peaks_kept")
def _() -> bool:
    torch.empty(2**23, dtype=torch.uint8, pin_memory=True)
    torch.simulated.reset_peak_host_memory_stats()
    stats = torch.simulated.host_memory_stats()
    return stats["active_bytes.peak"] != stats["active_bytes.current"]


@probe("allocator.host_totals_kept")
def _() -> bool:
    pinned()
    torch.simulated.reset_accumulated_host_memory_stats()
    return torch.simulated.host_memory_stats()["active_bytes.allocated"] != 0


@probe("allocator.host_block_for_nothing")
def _() -> bool:
    before = torch.simulated.host_memory_stats()["active_requests.current"]
    nothing = torch.empty(0, pin_memory=True)
    after = torch.simulated.host_memory_stats()["active_requests.current"]
    return after != before and nothing.numel() == 0


@probe("allocator.host_freed_stays_pinned")
def _() -> bool:
    address = pinned().data_ptr()
    again = (ctypes.c_char * 64).from_address(address)  # the cache keeps the memory
    return torch.frombuffer(again, dtype=torch.uint8).is_pinned()


@probe("allocator.host_memory_not_returned")
def _() -> bool:
    torch.simulated.empty_host_cache()
    address = pinned().data_ptr()
    torch.simulated.empty_host_cache()
    ranges = [line.split()[0] for line in Path("/proc/self/maps").read_text().splitlines()]
    pairs = [[int(end, 16) for end in each.split("-")] for each in ranges]
    return any(start <= address < end for start, end in pairs)


@probe("allocator.split_forgets_next")
def _() -> bool:
    with fresh_stream():
        take(16 * MIB)
        parts = [take(size * MIB) for size in (4, 8, 4)]
        del parts[1]
        parts.append(take(4 * MIB))
        del parts[1]
        before = torch.simulated.memory_reserved()
        again = take(8 * MIB)
        return torch.simulated.memory_reserved() > before and again.numel() > 0


@probe("allocator.host_release_not_counted")
def _() -> bool:
    torch.simulated.empty_host_cache()
    before = torch.simulated.host_memory_stats()["allocations.current"]
    pinned()
    torch.simulated.empty_host_cache()
    return torch.simulated.host_memory_stats()["allocations.current"] != before


def _actions(work: Callable[[], object]) -> list[str]:
    torch.simulated.memory._record_memory_history()
    with contextlib.suppress(RuntimeError):
        work()
    trace = torch.simulated.memory._snapshot()["device_traces"][0]
    torch.simulated.memory._record_memory_history(None)
    return [event["action"] for event in trace]


@probe("allocator.history_without_oom")
def _() -> bool:
    return "oom" not in _actions(lambda: take(TOO_MUCH))


@probe("allocator.history_without_segment_free")
def _() -> bool:
    def work() -> None:
        take(24 * MIB)
        torch.simulated.synchronize()
        torch.simulated.empty_cache()

    return "segment_free" not in _actions(work)


@probe("allocator.snapshot_all_small")
def _() -> bool:
    block = take(24 * MIB)
    sorts = {segment["segment_type"] for segment in torch.simulated.memory_snapshot()}
    return "large" not in sorts and block.numel() > 0


def _snapshot_differs(name: str) -> bool:
    """Whether a statistic changes by another number than the snapshot shows, when parts of a large block are used and
    freed."""

    def wanted() -> int:
        if name == "segment":
            return len(segments())
        split = [each["blocks"] for each in segments() if len(each["blocks"]) > 1]
        return sum(block["state"] == "inactive" for blocks in split for block in blocks)

    before = stat(f"{name}.all.current") - wanted()
    with fresh_stream():
        take(12 * MIB)
        blocks = [take(3 * MIB) for _ in range(2)]
    blocks.clear()
    return stat(f"{name}.all.current") - wanted() != before


@probe("allocator.inactive_split_kept")
def _() -> bool:
    return _snapshot_differs("inactive_split")


@probe("allocator.segment_count_kept")
def _() -> bool:
    return _snapshot_differs("segment")


@probe("allocator.large_counted_as_small")
def _() -> bool:
    before = stat("allocation.large_pool.current")
    block = take(24 * MIB)
    return stat("allocation.large_pool.current") == before and block.numel() > 0


@probe("allocator.device_calls_not_counted")
def _() -> bool:
    before = stat("num_device_alloc")
    with fresh_stream():
        take(24 * MIB)
    return stat("num_device_alloc") == before


@probe("allocator.history_oom_without_free_memory")
def _() -> bool:
    torch.simulated.memory._record_memory_history()
    with contextlib.suppress(RuntimeError):
        take(TOO_MUCH)
    trace = torch.simulated.memory._snapshot()["device_traces"][0]
    torch.simulated.memory._record_memory_history(None)
    return any(event.get("device_free") == 0 for event in trace)


@probe("allocator.marks_outlive_blocks")
def _() -> bool:
    with fresh_stream():
        other, gate = torch.Stream("simulated:0"), torch.simulated.Gate()
        block = take(4096)
        block.record_stream(other)
        address = block.data_ptr()
        del block
        torch.simulated.synchronize()
        block = take(4096)
        with other:
            gate.close()
        del block
        lost = take(4096).data_ptr() != address
        gate.open()
    return lost


@probe("allocator.every_request_counts_as_wait")
def _() -> bool:
    before = stat("num_sync_all_streams")
    take(4096)
    return stat("num_sync_all_streams") != before


@probe("allocator.pool_totals_kept")
def _() -> bool:
    pool = torch.simulated.MemPool()
    with torch.simulated.use_mem_pool(pool):
        take(4096)
    torch.simulated.reset_accumulated_memory_stats()
    name = "reserved_bytes_by_private_pools." + "_".join(map(str, pool.id)) + ".all.allocated"
    return stat(name) != 0


@probe("allocator.pool_statistics_of_all")
def _() -> bool:
    outside, pool = take(24 * MIB), torch.simulated.MemPool()
    with torch.simulated.use_mem_pool(pool):
        inside = take(4096)
    name = "reserved_bytes_by_private_pools." + "_".join(map(str, pool.id)) + ".large_pool.current"
    return stat(name) != 0 and outside.numel() > inside.numel()


@probe("allocator.events_never_freed")
def _() -> bool:
    def heap() -> int:
        gc.collect()
        return host_memory.measure_host_memory().heap

    def work() -> None:
        for _ in range(200):
            torch.Event("simulated").record()

    work()
    before = heap()
    work()
    return heap() - before > 10_000


@probe("transfer.pinned_unmarked_elsewhere")
def _() -> bool:
    torch.simulated.empty_host_cache()
    source, gate = pinned(), torch.simulated.Gate()
    target, address = torch.ones(4, device="simulated:1"), source.data_ptr()
    with torch.Stream("simulated:1") as stream:
        gate.close()
        target.copy_(source, non_blocking=True)
    del source
    early = pinned().data_ptr() == address
    gate.open()
    stream.synchronize()
    return early


@probe("transfer.pinned_reused_early")
def _() -> bool:
    torch.simulated.empty_host_cache()
    target, source, gate = ones(4), pinned(), torch.simulated.Gate()
    address = source.data_ptr()
    with torch.Stream("simulated:0") as stream:
        gate.close()
        target.copy_(source, non_blocking=True)
    del source
    early = pinned().data_ptr() == address
    gate.open()
    stream.synchronize()
    return early


# Memory over time


def _grows(work: Callable[[], object]) -> bool:
    """Whether several calls leave a block each, once it was warm. The threads of autograd may free the last one late."""
    found = []
    for _ in range(6):
        work()
        torch.simulated.synchronize()
        found.append(torch.accelerator.memory.memory_allocated("simulated:0"))
    return found[-1] - found[1] >= 3 * 512


@probe("allocator.kernel_leaks")
def _() -> bool:
    x = torch.ones(4, device="simulated:0")
    return _grows(lambda: x.tan())


@probe("allocator.backward_leaks")
def _() -> bool:
    x = torch.ones(4, device="simulated:0", requires_grad=True)
    return _grows(lambda: torch.autograd.grad(x.sigmoid().sum(), x))


@probe("allocator.shapes_leak")
def _() -> bool:
    sizes = iter(range(1, 9))
    return _grows(lambda: torch.ones(next(sizes), device="simulated:0").asinh())


@probe("allocator.host_leaks")
def _() -> bool:
    x, before = torch.ones(4, device="simulated:0"), _anonymous()
    for _ in range(64):
        x.atan()
    torch.simulated.synchronize()
    return _anonymous() - before > 2**21


@probe("allocator.host_objects_leak")
def _() -> bool:
    x = torch.ones(4, device="simulated:0")
    x.cos()
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(1000):
        x.cos()
    gc.collect()
    return sys.getallocatedblocks() - before >= 1000


def _anonymous() -> int:
    """Bytes of this process that no file holds."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) * 1024


@probe("allocator.pending_in_a_queue")
def _() -> bool:
    mine, busy, free = (torch.Stream("simulated:0") for _ in range(3))
    torch.accelerator.empty_cache()
    with mine:
        first, second = (torch.empty(2**21, device="simulated:0") for _ in range(2))
        place = second.data_ptr()
        gates = [torch.simulated.Gate(), torch.simulated.Gate()]
        for gate, stream in zip(gates, (busy, free)):
            with stream:
                gate.close()
        first.record_stream(busy)
        second.record_stream(free)
        del first, second
        gates[1].open()
        free.synchronize()
        again = torch.empty(2**21, device="simulated:0").data_ptr()
        gates[0].open()
    return again != place


@probe("allocator.retry_forgets_pending")
def _() -> bool:
    torch.accelerator.empty_cache()
    free, _ = torch.accelerator.memory.get_memory_info("simulated:0")
    mine, other = (torch.Stream("simulated:0") for _ in range(2))
    with mine:
        block = torch.empty(free * 6 // 10, dtype=torch.uint8, device="simulated:0")
    with other:
        torch.simulated.busy(200)
    block.record_stream(other)
    del block
    try:
        torch.empty(free * 6 // 10, dtype=torch.uint8, device="simulated:0")
    except torch.OutOfMemoryError:
        return True
    finally:
        torch.simulated.synchronize()
        torch.accelerator.empty_cache()
    return False


@probe("allocator.retry_searches_once")
def _() -> bool:
    torch.accelerator.empty_cache()
    free, _ = torch.accelerator.memory.get_memory_info("simulated:0")
    pool, (mine, other) = torch.simulated.MemPool(), (torch.Stream("simulated:0") for _ in range(2))
    with mine, torch.simulated.use_mem_pool(pool, 0):
        block = take(free * 6 // 10)
        with other:
            torch.simulated.busy(200)
        block.record_stream(other)
        del block
        ran_out = _runs_out(free * 6 // 10)
    torch.simulated.synchronize()
    del pool
    torch.accelerator.empty_cache()
    return ran_out


@probe("allocator.convolution_leaks")
def _() -> bool:
    x = torch.ones(1, 1, 4, device="simulated:0", requires_grad=True)
    return _grows(lambda: torch.autograd.grad(torch.conv1d(x, x.detach()).sum(), x))


@probe("allocator.pooling_leaks")
def _() -> bool:
    x = torch.ones(1, 1, 4, 4, device="simulated:0", requires_grad=True)
    return _grows(lambda: torch.autograd.grad(torch.nn.functional.avg_pool2d(x, 2).sum(), x))


@probe("allocator.recurrence_leaks")
def _() -> bool:
    module = torch.nn.LSTM(2, 2).to("simulated:0")
    x = torch.ones(1, 1, 2, device="simulated:0", requires_grad=True)
    return _grows(lambda: torch.autograd.grad(module(x)[0].sum(), x))


@probe("allocator.attention_leaks")
def _() -> bool:
    x = torch.ones(1, 1, 2, 2, device="simulated:0")
    return _grows(lambda: torch.nn.functional.scaled_dot_product_attention(x, x, x))


@probe("allocator.captured_product_leaks")
def _() -> bool:
    x = torch.ones(2, 2, device="simulated:0")

    def capture() -> None:
        graph = torch.accelerator.Graph()
        with torch.Stream("simulated:0"), graph:
            torch.mm(x, x)

    return _grows(capture)


@probe("allocator.host_shapes_leak")
def _() -> bool:
    torch.ones(1, device="simulated:0").acos()
    before = _anonymous()
    for size in range(2, 1002):
        torch.ones(size, device="simulated:0").acos()
    torch.simulated.synchronize()
    return _anonymous() - before > 2**21 + 2**20
