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
        "allocator.threads::*",
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

# Where streams are one, or the host never gets ahead, nothing can be shown of the others.
_ORDER: Final = ("streams.*", "events.*")

_STREAMS: Final[dict[str, tuple[str, ...]]] = {
    "streams.exit_not_restored": ("streams.cross_device::block_switches",),
    # Threads that share a current stream race for it: each may find another's at any moment.
    "streams.current_shared_by_threads": ("streams.threads::*", "streams.autograd::*"),
    "streams.new_stream_repeats": _ORDER,
    "streams.serialise_streams": _ORDER,
    "streams.launch_blocks_host": _ORDER,
    "streams.reorder_tasks": _ORDER,
    "streams.index_not_restored": _ORDER,  # what is to hold a stream then holds another index's
    "streams.synchronize_returns_early": _ORDER,
    "streams.ignore_wait": (
        "streams.cross_device::*",
        "streams.threads::hand_over",
        "streams.autograd::*",
    ),
    "streams.query_always_true": (
        "streams.concurrent::host_goes_on",
        "streams.wait::*",
        "streams.cross_device::*",
        "streams.external::orders_with_its_owner",
        "streams.autograd::caller_waits_for_backward",
        "events.ipc::works_in_its_process",
    ),
    "streams.native_handle_null": ("streams.external::*",),
    "streams.native_handle_changes": ("streams.external::*",),
    "streams.backward_not_joined": ("streams.threads::hand_over",),  # nor any thread but the first
    "streams.hash_differs": (
        "streams.current::*",
        "streams.autograd::on_the_streams_of_forward",
    ),
    "events.event_id_repeats": ("streams.current::takes_the_work", "streams.wait::*", "events.*"),
    "events.record_late": (
        "streams.wait::*",
        "streams.autograd::*",
        # A stream or a device that was waited for has done its work; a late record may still be to come.
        "streams.synchronize::waits",
        "streams.synchronize::device*",
        "events.elapsed::grows",
        "events.elapsed::incomplete",
    ),
    "events.rerecord_ignored": ("streams.wait::earlier_record_is_waited_for",),
}

_TRANSFER: Final[dict[str, tuple[str, ...]]] = {
    "transfer.treat_source_as_dense": ("transfer.view_destination::*_from_host",),
    # Every copy with the host may be too late.
    "transfer.return_before_read": ("transfer.*",),
    "transfer.return_before_write": ("transfer.*",),
    "transfer.write_dense_into_view": ("transfer.strides::*",),
    # The stream that is waited for is not the one that copies.
    "transfer.non_blocking_off_stream": ("transfer.pinned::not_reused_early",),
    "transfer.synchronize_misses_copy": ("transfer.pinned::*",),
}

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
