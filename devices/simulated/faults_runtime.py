"""Planted faults below the kernels: memory, streams, events, copies. Their clauses' suites are not written yet.

Each row is name, clause and what is wrong; a direct probe in ``tests/simulated`` shows the device misbehaving.
"""

from __future__ import annotations

from typing import Final

ROWS: Final[tuple[tuple[str, str, str], ...]] = (
    # allocator
    (
        "allocator.count_too_little",
        "allocator.accounting",
        "Half of the bytes of a block are counted.",
    ),
    ("allocator.forget_free", "allocator.accounting", "A free lowers no count of bytes."),
    (
        "allocator.requested_counts_rounded",
        "allocator.accounting",
        "requested counts the block's bytes, not those asked for.",
    ),
    ("allocator.active_below_allocated", "allocator.ordering", "Active bytes are not counted."),
    ("allocator.freed_miscounted", "allocator.ordering", "The total freed is twice what it was."),
    ("allocator.peak_not_raised", "allocator.peaks", "No peak is ever raised."),
    ("allocator.reset_peak_to_zero", "allocator.peaks", "A reset peak is 0, not what is current."),
    (
        "allocator.hand_out_overlap",
        "allocator.disjoint",
        "What a split leaves begins inside the block before it.",
    ),
    ("allocator.misalign_pointer", "allocator.disjoint", "Addresses are 8 bytes off."),
    (
        "allocator.scribble_on_split",
        "allocator.contents",
        "A split overwrites the live block before it.",
    ),
    ("allocator.never_reuse", "allocator.reuse", "Every request gets a new segment."),
    ("allocator.leak_on_split", "allocator.reuse", "What a split leaves is lost."),
    (
        "allocator.empty_cache_keeps_segment",
        "allocator.empty_cache",
        "empty_cache keeps a segment that nobody uses.",
    ),
    (
        "allocator.empty_cache_frees_live",
        "allocator.empty_cache",
        "empty_cache overwrites live blocks of the current stream.",
    ),
    (
        "allocator.memory_info_free_constant",
        "allocator.memory_info",
        "All memory is always said to be free.",
    ),
    (
        "allocator.memory_info_total_wrong",
        "allocator.memory_info",
        "The total shrinks with what is free.",
    ),
    ("allocator.oom_wrong_type", "allocator.oom", "Running out raises a plain RuntimeError."),
    ("allocator.oom_not_counted", "allocator.oom", "num_ooms does not rise."),
    ("allocator.oom_stays_broken", "allocator.oom", "Having run out, every request is refused."),
    ("allocator.leak_on_error", "allocator.error_leak", "An op that raises leaves a block behind."),
    ("allocator.ignore_record_stream", "allocator.record_stream", "record_stream does nothing."),
    (
        "allocator.reuse_across_streams",
        "allocator.cross_stream",
        "A freed block is handed to any stream.",
    ),
    (
        "allocator.count_on_wrong_index",
        "allocator.device_isolation",
        "Every index shows the counters of index 0.",
    ),
    ("allocator.ignore_fraction", "allocator.fraction", "The memory fraction limits nothing."),
    ("allocator.accept_bad_fraction", "allocator.fraction", "A fraction above 1 is taken."),
    (
        "allocator.pool_leaks_to_default",
        "allocator.pools",
        "Blocks of a private pool are given to others.",
    ),
    (
        "allocator.pool_never_returned",
        "allocator.pools",
        "A dead pool's segments are never given back.",
    ),
    ("allocator.history_drops_free", "allocator.history", "The history lacks completed frees."),
    ("allocator.history_wrong_address", "allocator.history", "Its addresses are 512 bytes off."),
    ("allocator.snapshot_misses_segment", "allocator.history", "The snapshot lacks a segment."),
    ("allocator.host_never_reuse", "allocator.host", "Pinned memory is never reused."),
    ("allocator.host_miscount", "allocator.host", "A freed pinned block is still counted."),
    # streams
    (
        "streams.exit_not_restored",
        "streams.current",
        "Leaving a block does not bring back the default stream.",
    ),
    (
        "streams.current_shared_by_threads",
        "streams.current",
        "The current stream is one for all threads.",
    ),
    ("streams.new_stream_repeats", "streams.identity", "Every new stream is the same one."),
    ("streams.reorder_tasks", "streams.in_order", "The second task of a queue goes first."),
    (
        "streams.serialise_streams",
        "streams.concurrent",
        "All streams are the default stream's queue.",
    ),
    (
        "streams.launch_blocks_host",
        "streams.concurrent",
        "A launch waits until the stream is idle.",
    ),
    ("streams.ignore_wait", "streams.wait", "Waiting for an event does nothing."),
    (
        "streams.wait_takes_latest_record",
        "streams.wait",
        "A wait takes the record that exists when its turn comes.",
    ),
    ("streams.query_always_true", "streams.query", "query is True while work is in flight."),
    ("streams.synchronize_returns_early", "streams.synchronize", "synchronize waits for nothing."),
    (
        "streams.synchronize_wrong_index",
        "streams.synchronize",
        "Synchronising a device waits for the next index.",
    ),
    (
        "streams.copy_ignores_peer_stream",
        "streams.cross_device",
        "A copy between indices is ordered after its source's stream alone.",
    ),
    ("streams.native_handle_null", "streams.native_handle", "Every native handle is null."),
    ("streams.native_handle_changes", "streams.native_handle", "A handle changes by the call."),
    (
        "streams.external_own_queue",
        "streams.external",
        "A stream wrapped from a handle has a queue of its own.",
    ),
    # events, copies, errors
    ("events.record_late", "events.record", "A record includes work queued after it."),
    ("events.rerecord_ignored", "events.record", "Only the first record of an event counts."),
    ("events.elapsed_constant", "events.elapsed", "Every time between events is 1 ms."),
    (
        "transfer.non_blocking_off_stream",
        "transfer.non_blocking",
        "A non-blocking copy runs on a stream of its own.",
    ),
    (
        "transfer.pinned_reused_early",
        "transfer.pinned",
        "A pinned block is handed out while a copy still reads it.",
    ),
    ("device.error_swallowed", "device.async_error", "A failure of queued work is forgotten."),
)
