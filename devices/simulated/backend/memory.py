"""``torch.simulated.memory``: the allocator's history and snapshot, as in ``torch.cuda.memory``, and pinned memory."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import ModuleType
from typing import Any

_library: Any = None


def attach(library: ModuleType) -> None:
    """Use this library. Called once, by the module of the device."""
    global _library
    _library = library


def _record_memory_history(enabled: str | None = "all", max_entries: int = 100_000) -> None:
    """Keep the last ``max_entries`` events of each device from now on; None ends it and forgets them.

    No stacks are kept, whatever ``enabled`` says of them. Raises ValueError for other words.
    """
    if enabled not in (None, "state", "all"):
        raise ValueError(f"expected enabled to be None, 'state' or 'all', got {enabled!r}")
    if max_entries < 1:
        raise ValueError(f"expected max_entries of at least 1, got {max_entries}")
    _library.record_memory_history(0 if enabled is None else max_entries)


def _snapshot() -> dict[str, Any]:
    """Segments with their blocks, and the history, in the form that torch's memory visualiser reads."""
    made: dict[str, Any] = _library.memory_snapshot()
    return made


def _dump_snapshot(filename: str | Path = "dump_snapshot.pickle") -> None:
    """Write the snapshot to a file. Raises OSError."""
    with Path(filename).open("wb") as file:
        pickle.dump(_snapshot(), file)


def host_memory_stats() -> dict[str, int]:
    """Pinned memory: live and cached blocks and bytes, requests to the system, blocks used again.

    Beside the device's own names those of ``torch.cuda.host_memory_stats``: active is what is live,
    allocations are what is owned, live or cached.
    """
    made: dict[str, int] = _library.pinned_stats()
    owned = made["blocks"] + made["cached_blocks"]
    return {
        **made,
        "active_requests.current": made["blocks"],
        "active_bytes.current": made["bytes"],
        "allocations.current": owned,
        "allocated_bytes.current": made["bytes"] + made["cached_bytes"],
        "num_host_alloc": made["system_allocations"],
        "num_host_free": made["system_allocations"] - owned,
    }


def empty_host_cache() -> None:
    """Return cached pinned memory to the system."""
    _library.empty_pinned_cache()
