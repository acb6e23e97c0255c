"""The module ``torch.simulated.memory``: counters, limits, history, private pools and pinned memory, as in
``torch.cuda.memory``."""

from __future__ import annotations

import contextlib
import pickle
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from devices.simulated.backend import native
from devices.simulated.backend.graphs import graph_pool_handle
from devices.simulated.backend.native import index_of

# -- counters


def memory_stats(device: torch.types.Device = None) -> OrderedDict[str, Any]:
    """Returns every counter of the allocator, under the names of ``torch.cuda.memory_stats``."""
    counters = dict(torch.accelerator.memory.memory_stats(index_of(device)))
    # torch.accelerator leaves this one out. The device has no policy by which it would refuse before it tries.
    counters.setdefault("num_oom_rejections", 0)
    pools: dict[str, int] = native.library.reserved_bytes_by_private_pools(index_of(device))
    if native.on("allocator.pool_statistics_of_all"):
        pools = {name: counters["reserved_bytes." + name.split(".", 2)[2]] for name in pools}
    counters.update(pools)  # and these
    return OrderedDict(sorted(counters.items()))


def memory_stats_as_nested_dict(device: torch.types.Device = None) -> dict[str, Any]:
    """Returns the counters of ``memory_stats`` as dictionaries nested by the parts of their names."""
    return _nested(
        memory_stats(0 if native.on("allocator.nested_statistics_of_index_0") else device)
    )


def _nested(flat: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in flat.items():
        *outer, last = name.split(".")
        inner = made
        for part in outer:
            inner = inner.setdefault(part, {})
        inner[last] = value
    return made


def _of_index(name: str) -> Callable[..., Any]:
    """Returns a function of ``torch.accelerator.memory`` that accepts a device of the simulated backend, by default the
    current device."""
    generic: Callable[..., Any] = getattr(torch.accelerator.memory, name)

    def function(device: torch.types.Device = None) -> Any:
        return generic(index_of(device))

    function.__name__, function.__doc__ = name, generic.__doc__
    return function


memory_allocated = _of_index("memory_allocated")
max_memory_allocated = _of_index("max_memory_allocated")
memory_reserved = _of_index("memory_reserved")
max_memory_reserved = _of_index("max_memory_reserved")
reset_peak_memory_stats = _of_index("reset_peak_memory_stats")
reset_accumulated_memory_stats = _of_index("reset_accumulated_memory_stats")
mem_get_info = _of_index("get_memory_info")


empty_cache = torch.accelerator.memory.empty_cache


# -- limits and settings


def set_per_process_memory_fraction(fraction: float, device: torch.types.Device = None) -> None:
    """Limits the current process to a fraction of a device's memory. Raises ValueError for a fraction outside [0,
    1]."""
    native.library.set_memory_fraction(float(fraction), index_of(device))


def get_per_process_memory_fraction(device: torch.types.Device = None) -> float:
    """Returns the fraction of a device's memory that the current process may reserve."""
    return float(native.library.memory_fraction(index_of(device)))


#: Change settings of the allocator, as ``PYTORCH_ALLOC_CONF`` does. Raises ValueError for others.
_set_allocator_settings = torch._C._accelerator_setAllocatorSettings


# -- an allocator of the user's own


@dataclass(frozen=True, slots=True)
class PluggableAllocator:
    """A pair of functions that replace the caching allocator.

    ``alloc(size, device, stream)`` returns the address of ``size`` bytes of device memory, or 0 if no memory is left.
    ``free(address, size, device, stream)`` takes the memory back. ``stream`` is a native handle. Both functions get
    memory from ``driver_alloc`` and return it with ``driver_free``.
    """

    alloc: Callable[[int, int, int], int]
    free: Callable[[int, int, int, int], None]


def change_current_allocator(allocator: PluggableAllocator) -> None:
    """Replaces the current allocator by the given one. Raises RuntimeError if memory has been handed out already."""
    index = native.on("allocator.pluggable_told_index_0")
    stream = native.on("allocator.pluggable_told_no_stream")

    def alloc(size: int, device: int, handle: int) -> int:
        return allocator.alloc(size, 0 if index else device, 0 if stream else handle)

    native.library.plug_in(alloc if index or stream else allocator.alloc, allocator.free)


def driver_alloc(size: int, device: torch.types.Device = None) -> int:
    """Returns the address of a range of device memory, in whole pages of 2 MiB; 0 if no memory is left."""
    return int(native.library.raw_take(size, index_of(device)))


#: Gives a range (its address, its size) back once the queued work has finished.
driver_free = native.library.raw_give


# -- private pools


class MemPool:
    """A private memory pool. As long as the pool exists, memory that was allocated in it under ``use_mem_pool`` is
    reused only for allocations in the same pool."""

    def __init__(self) -> None:
        self.id: Final = graph_pool_handle()
        self._devices: set[int] = set()

    def use_count(self) -> int:
        """Returns the number of devices on which the pool has been used."""
        return len(self._devices)

    def snapshot(self) -> list[dict[str, Any]]:
        """Returns the segments of the pool, in the form of ``memory_snapshot``."""
        every = native.on("allocator.pool_snapshot_of_all")
        return [one for one in memory_snapshot() if every or one["segment_pool_id"] == self.id]

    def __del__(self) -> None:
        for index in self._devices:
            native.library.release_pool(index, self.id)


@contextlib.contextmanager
def use_mem_pool(pool: MemPool, device: torch.types.Device = None) -> Iterator[None]:
    """Serves the allocations of the current thread on a device from the pool within the ``with`` block."""
    index = 0 if native.on("allocator.pool_of_index_0") else index_of(device)
    native.library.begin_pool(index, pool.id)
    try:
        yield
    finally:
        native.library.end_pool(index, pool.id)
        if index in pool._devices:
            native.library.release_pool(index, pool.id)
        else:
            pool._devices.add(index)  # the pool's own use of it, until it dies


# -- history and snapshot


def _record_memory_history(enabled: str | None = "all", max_entries: int = 100_000) -> None:
    """Starts to record the allocator's events on each device, and keeps the latest ``max_entries`` events. If
    ``enabled`` is None, stops recording and deletes the events.

    No stacks are recorded, whatever ``enabled`` is. Raises ValueError for an unknown ``enabled``.
    """
    if enabled not in (None, "state", "all"):
        raise ValueError(f"expected enabled to be None, 'state' or 'all', got {enabled!r}")
    if max_entries < 1:
        raise ValueError(f"expected max_entries of at least 1, got {max_entries}")
    native.library.record_memory_history(0 if enabled is None else max_entries)


def _snapshot() -> dict[str, Any]:
    """Returns segments with their blocks, and the history, in the form that torch's memory visualiser reads."""
    made: dict[str, Any] = native.library.memory_snapshot()
    if native.on("allocator.snapshot_all_small"):
        made["segments"] = [{**one, "segment_type": "small"} for one in made["segments"]]
    if native.on("allocator.history_oom_without_free_memory"):
        for event in (event for trace in made["device_traces"] for event in trace):
            if event["action"] == "oom":
                event["device_free"] = 0
    for fault, action in _HIDDEN.items():
        if native.on(fault):
            traces = made["device_traces"]
            made["device_traces"] = [[e for e in t if e["action"] != action] for t in traces]
    return made


#: Planted faults, and the action whose events they leave out of the history.
_HIDDEN: Final = {
    "allocator.history_without_oom": "oom",
    "allocator.history_without_segment_free": "segment_free",
}


def memory_snapshot() -> list[dict[str, Any]]:
    """Returns the segments of all devices."""
    made: list[dict[str, Any]] = _snapshot()["segments"]
    return made


def _dump_snapshot(filename: str | Path = "dump_snapshot.pickle") -> None:
    """Writes the snapshot to a file. Raises OSError."""
    with Path(filename).open("wb") as file:
        pickle.dump(_snapshot(), file)


# -- pinned memory


def host_memory_stats() -> OrderedDict[str, int]:
    """Returns the counters of pinned memory under the names of ``torch.cuda.host_memory_stats``, and ``num_reuses``."""
    return OrderedDict(sorted(native.library.pinned_stats().items()))


def host_memory_stats_as_nested_dict() -> dict[str, Any]:
    """Returns the counters of ``host_memory_stats`` as dictionaries nested by the parts of their names."""
    return _nested(host_memory_stats())


def reset_peak_host_memory_stats() -> None:
    """Sets the peaks of the counters of pinned memory to their current values."""
    if not native.on("allocator.host_peaks_kept"):
        native.library.reset_pinned_peaks()


def reset_accumulated_host_memory_stats() -> None:
    """Sets the totals of the counters of pinned memory to zero."""
    if not native.on("allocator.host_totals_kept"):
        native.library.reset_pinned_totals()


empty_host_cache = native.library.empty_pinned_cache  #: Return cached pinned memory to the system.
