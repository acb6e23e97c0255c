"""What faults below the kernels change beside the cells of their own clauses: globs over ``clause::case``.

A fault without an entry changes nothing else in the suites that are run with it on.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_ALLOCATOR: Final[dict[str, tuple[str, ...]]] = {
    # Counters that are wrong are wrong wherever they are read.
    "allocator.count_too_little": ("allocator.history::sums", "allocator.settings::rounding"),
    "allocator.forget_free": (
        "allocator.ordering::at_every_moment",
        "allocator.peaks::*",
        "allocator.error_leak::*",
        "allocator.device_isolation::*_index",
        "allocator.history::sums",
        "allocator.threads::*",
    ),
    "allocator.freed_miscounted": ("allocator.threads::counted",),
    "allocator.peak_not_raised": ("allocator.ordering::at_every_moment",),
    # Blocks that share bytes share what is written to them.
    "allocator.hand_out_overlap": (
        "allocator.contents::*",
        "allocator.empty_cache::keeps_live",
        "allocator.pools::*",
        "allocator.record_stream::*",
        "allocator.threads::nobody_shares",
    ),
    # Every request is for 8 bytes more, and no block is at its tensor's address.
    "allocator.misalign_pointer": (
        "allocator.accounting::*",
        "allocator.history::*",
        "allocator.settings::rounding",
    ),
    "allocator.scribble_on_split": ("allocator.threads::nobody_shares", "allocator.pools::*"),
    "allocator.empty_cache_keeps_segment": ("allocator.pools::*", "allocator.threads::come_back"),
    "allocator.empty_cache_frees_live": ("allocator.pools::lives_with_its_tensors",),
    # Nothing is handed out again, and memory runs out.
    "allocator.never_reuse": (
        "allocator.cross_stream::*",
        "allocator.pools::*",
        "allocator.record_stream::*",
        "allocator.threads::*",
    ),
    "allocator.leak_on_split": ("allocator.*",),
    "allocator.oom_stays_broken": ("allocator.*",),  # whatever comes behind running out
    "allocator.oom_wrong_type": ("allocator.fraction::limits",),
}

_STREAMS: Final[dict[str, tuple[str, ...]]] = {}

_TRANSFER: Final[dict[str, tuple[str, ...]]] = {}

_GRAPHS: Final[dict[str, tuple[str, ...]]] = {}

_DEVICE: Final[dict[str, tuple[str, ...]]] = {
    # An index that is never asked for is never refused.
    "device.factory_ignores_index": ("device.count::*",),
    # A conversion that is refused late is not known to be refused.
    "device.error_swallowed": ("device.capability::undeclared",),
}

_DISPATCH: Final[dict[str, tuple[str, ...]]] = {}

_RANDOM: Final[dict[str, tuple[str, ...]]] = {
    # Every clause about seeds needs one that is obeyed, and a state that is given back.
    "random.seed_ignored": ("random.global_seed::*",),
    "random.state_not_restored": ("random.global_seed::*",),
    "random.generators_shared": ("random.global_seed::*",),
    "random.seed_first_index_only": ("random.reproducible::independent_indices",),
}

RADIUS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {**_ALLOCATOR, **_STREAMS, **_TRANSFER, **_GRAPHS, **_DEVICE, **_DISPATCH, **_RANDOM}
)
"""By fault."""
