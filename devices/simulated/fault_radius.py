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

_ALL_REPLAYS: Final = (
    "graphs.replay_equals_eager::*",
    "graphs.addresses::*",
    "graphs.pool::*",
    "graphs.errors::*",
    "graphs.recovery::*",
    "graphs.modes::*",
    "graphs.fork_join::*",
    "graphs.random::*",
    "graphs.lifecycle::*",
    "graphs.nesting::*",
    "graphs.devices::*",
    "graphs.callables::*",
    "graphs.capture_defers::sentinel_*",  # whose replay is looked at too
)

_GRAPHS: Final[dict[str, tuple[str, ...]]] = {
    # What a graph does is wrong: most cases end with a replay.
    "graphs.capture_runs_work": _ALL_REPLAYS,
    "graphs.replay_stale_input": _ALL_REPLAYS,
    "graphs.replay_once_only": _ALL_REPLAYS,
    "graphs.drop_node": _ALL_REPLAYS,
    "graphs.is_capturing_false": ("graphs.fork_join::captured_by_*",),
    "graphs.replay_before_capture_silent": ("graphs.lifecycle::reset",),
    "graphs.side_stream_not_captured": ("graphs.callables::*",),  # autograd's streams
    "graphs.sync_allowed_in_capture": ("graphs.recovery::invalidated_capture",),
}

_DEVICE: Final[dict[str, tuple[str, ...]]] = {}

_DISPATCH: Final[dict[str, tuple[str, ...]]] = {}

_RANDOM: Final[dict[str, tuple[str, ...]]] = {}

RADIUS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {**_ALLOCATOR, **_STREAMS, **_TRANSFER, **_GRAPHS, **_DEVICE, **_DISPATCH, **_RANDOM}
)
"""By fault."""
