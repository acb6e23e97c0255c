"""The words that descriptors and manifests may use: capabilities, dtypes and facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from devices._text import listing, suggestion
from devices.errors import ConformError


class DescriptorError(ConformError):
    """A descriptor says something that cannot be, or cannot be read. The text says what to do."""


@dataclass(frozen=True, slots=True)
class Capability:
    """A feature that a device declares, and whose clauses then apply to it."""

    name: str
    statement: str


_STATEMENTS: Final = {
    "strides": "Tensors keep the strides that they are asked for.",
    "storage": "Tensors are views of a storage with an address, an offset and a size in bytes.",
    "streams": "Streams queue work that runs asynchronously to the host.",
    "events": "Events mark a point in a stream's work, to be waited for and queried.",
    "timed_events": "Events measure the time between two points.",
    "event_ipc": "Event handles work in other processes.",
    "stream_priority": "Streams can be given a priority.",
    "native_handle": "A stream gives the driver's own handle.",
    "external_streams": "A stream can be made from a native handle that others own.",
    "allocator_statistics": "The caching allocator counts bytes and blocks, and their peaks.",
    "allocator_memory_info": "The device's free and total memory can be read.",
    "allocator_fraction": "A process can be held to a fraction of the device's memory.",
    "allocator_settings": "The allocator's settings can be changed by a string.",
    "allocator_pools": "Allocations can be kept in private pools.",
    "allocator_history": "Allocations and frees are recorded, and snapshots can be taken.",
    "allocator_pluggable": "The allocator can be replaced by the user's own.",
    "pinned_memory": "Host memory can be pinned, for copies that do not block.",
    "host_statistics": "The cache of pinned host memory has public statistics.",
    "graphs": "Work can be captured into a graph and replayed.",
    "graph_pools": "Graphs can share a memory pool.",
    "graph_modes": "Captures have error modes: global, thread_local and relaxed.",
    "graph_callables": "Callables can be made into graphed ones, forward and backward.",
    "generator": "The device has its own random number generators.",
    "multi_device": "The backend drives more than one device, told apart by index.",
    "peer_access": "A device can read another's memory, and says whether it can.",
    "properties": "The device's name, total memory and uuid can be read.",
    "device_assert": "Kernels assert their preconditions on the device.",
    "dlpack": "Tensors are exchanged through DLPack without a copy.",
    "serialization": "Tensors on the device can be saved and loaded.",
    "autocast": "Autocast has lists of ops for the device.",
    "compile": "torch.compile traces programs on the device.",
    "inductor": "Inductor generates code for the device.",
    "profiler": "The profiler records the device's activity.",
    "distributed": "A process-group backend serves the device.",
    "fork_detection": "Use after fork raises a clear error.",
    "deterministic_algorithms": "torch.use_deterministic_algorithms holds on the device.",
}

CAPABILITIES: Final[Mapping[str, Capability]] = MappingProxyType(
    {name: Capability(name, statement) for name, statement in _STATEMENTS.items()}
)

FUNCTIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "record_history": "record(enabled='all' or None): begin or end the history of allocations",
        "snapshot": "snapshot(): segments, blocks and history, as the memory visualiser reads them",
        "set_fraction": "set(fraction, index): hold the process to a fraction of the memory",
        "get_fraction": "get(index): that fraction",
        "allocator_settings": "set(text): change settings as PYTORCH_ALLOC_CONF does",
        "pool": "pool(): a private memory pool, that lives as long as the object",
        "use_pool": "with use(pool, index): allocations of this thread come from the pool",
        "pluggable": "pluggable(alloc, free): an allocator of the user's own, from its functions",
        "change_allocator": "change(pluggable): use it instead of the device's own",
        "driver_alloc": "alloc(size, index): the address of so many bytes, from the driver itself",
        "driver_free": "free(address, size): give them back to the driver",
        "host_statistics": "stats(): the counters of pinned host memory",
        "empty_host_cache": "empty(): give cached pinned memory back",
        "stream": "stream(device=device, priority=number): a stream that says its `priority`",
        "event": "event(enable_timing=..., interprocess=...): the device's own class of events",
        "external_stream": "stream(handle, index): a stream around a native handle",
        "properties": "properties(index): an object with name, total_memory and uuid",
        "can_access_peer": "can(index, other index): whether one reads the other's memory",
        "manual_seed_all": "seed(number): seed the generator of every index",
        "get_rng_state": "get(index): the state of an index's default generator, on the CPU",
        "set_rng_state": "set(state, index): give it a state",
        "graph": "graph(): a graph, where torch.accelerator.Graph serves the device not",
        "graph_callables": "make(callables, sample arguments): graphed callables",
    }
)
"""Functions of a device's own module by what they serve for: those that torch.accelerator has not.

Each is called as torch.cuda's is; the text says how."""

STATISTICS: Final[frozenset[str]] = frozenset(
    {
        "allocation",
        "segment",
        "active",
        "inactive_split",
        "allocated_bytes",
        "reserved_bytes",
        "active_bytes",
        "inactive_split_bytes",
        "requested_bytes",
        "oversize_allocations",
        "oversize_segments",
        "num_alloc_retries",
        "num_ooms",
        "num_sync_all_streams",
        "num_device_alloc",
        "num_device_free",
        "max_split_size",
    }
)
"""The counters of torch.accelerator.memory.memory_stats: what stands before ``.all.current`` and the like."""

SETTINGS: Final[frozenset[str]] = frozenset(
    {
        "max_split_size_mb",
        "max_non_split_rounding_mb",
        "garbage_collection_threshold",
        "roundup_power2_divisions",
        "expandable_segments",
        "large_segment_size_mb",
        "pinned_use_background_threads",
        "pinned_max_round_threshold_mb",
        "pinned_max_cached_size_mb",
    }
)
"""Keys of allocator settings that torch itself knows (c10/core/AllocatorConfig.h)."""

DTYPES: Final[frozenset[str]] = frozenset(
    {
        "bool",
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8)),
        "float16",
        "bfloat16",
        "float32",
        "float64",
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
        "float4_e2m1fn_x2",
        "complex32",
        "complex64",
        "complex128",
        "bits8",
        "bits16",
        "bits1x8",
        "bits2x4",
        "bits4x2",
        "qint8",
        "qint32",
        "quint8",
        "quint4x2",
        "quint2x4",
    }
)
"""Every dtype of torch 2.13 under its canonical name (float32, not float)."""

FACTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "torch": "the version of torch",
        "driver": "the version of the device's kernel or user-mode driver",
        "runtime": "the version of the device's runtime library, such as CUDA, ROCm or CANN",
        "os": "the operating system, in lower case: linux, darwin, windows",
        "arch": "the host's architecture, in lower case: x86_64, aarch64, arm64",
        "device_name": "the device's name as its driver gives it",
        "python": "the version of Python",
    }
)

VERSION_FACTS: Final[frozenset[str]] = frozenset({"torch", "driver", "runtime", "python"})
"""Facts that are versions, compared by PEP 440 specifiers. The others are compared by globs."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A named value of the machine at run time. Raises DescriptorError for a name not in FACTS."""

    name: str
    value: str

    def __post_init__(self) -> None:
        check_names("fact", (self.name,), FACTS)
        if not isinstance(self.value, str) or not self.value.strip():
            raise DescriptorError(
                f"the fact '{self.name}' is {self.value!r}: give a text that is not blank,"
                " or leave the fact out where the machine does not know it"
            )


def check_names(what: str, names: object, known: Mapping[str, object] | frozenset[str]) -> None:
    """Raise DescriptorError where ``names`` is no collection of known names."""
    if isinstance(names, str) or not isinstance(names, (frozenset, set, tuple, list, Mapping)):
        raise DescriptorError(f"expected a set of {what} names, got {names!r}")
    for name in names:
        if not isinstance(name, str) or name not in known:
            raise DescriptorError(
                f"unknown {what} {name!r}{suggestion(str(name), known)} (known: {listing(known)})"
            )
