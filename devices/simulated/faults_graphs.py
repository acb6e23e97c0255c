"""Planted faults of graphs: capture, replay, their memory pools and random numbers."""

from __future__ import annotations

from typing import Final

ROWS: Final[tuple[tuple[str, str, str], ...]] = (
    (
        "graphs.capture_runs_work",
        "graphs.capture_defers",
        "Recorded work is run at capture as well.",
    ),
    (
        "graphs.is_capturing_false",
        "graphs.capture_defers",
        "A stream never says that it is capturing.",
    ),
    (
        "graphs.replay_stale_input",
        "graphs.replay_equals_eager",
        "The first task of a graph reads its inputs as they were at capture.",
    ),
    (
        "graphs.replay_once_only",
        "graphs.replay_equals_eager",
        "Only the first replay of a graph does anything.",
    ),
    (
        "graphs.drop_node",
        "graphs.replay_equals_eager",
        "The last of several tasks is left out.",
    ),
    (
        "graphs.op_runs_at_capture",
        "graphs.every_op",
        "neg runs at capture and is not recorded.",
    ),
    (
        "graphs.output_moves",
        "graphs.addresses",
        "Each replay gives new outputs other memory.",
    ),
    (
        "graphs.pool_block_given_away",
        "graphs.addresses",
        "Free blocks of a living graph's pool are given to others.",
    ),
    (
        "graphs.unshared_pools_overlap",
        "graphs.pool",
        "Graphs that were given no pool all share one.",
    ),
    (
        "graphs.pool_never_returned",
        "graphs.pool",
        "A graph that dies keeps its hold on its pool.",
    ),
    (
        "graphs.sync_allowed_in_capture",
        "graphs.errors",
        "Calls that would wait for recorded work return at once.",
    ),
    (
        "graphs.replay_before_capture_silent",
        "graphs.errors",
        "A replay of a graph that holds nothing does nothing.",
    ),
    (
        "graphs.error_lost",
        "graphs.recovery",
        "Ending a capture after an exception raises another one, without the first as its context.",
    ),
    (
        "graphs.stays_capturing",
        "graphs.recovery",
        "A capture that failed is not ended by its end.",
    ),
    (
        "graphs.mode_ignored",
        "graphs.modes",
        "Every capture lets other threads do what they want.",
    ),
    (
        "graphs.side_stream_not_captured",
        "graphs.fork_join",
        "A stream that waits for an event of a capture does not become a part of it.",
    ),
    (
        "graphs.unjoined_fork_accepted",
        "graphs.fork_join",
        "A capture with work that was not joined ends well.",
    ),
    (
        "graphs.replay_repeats_random",
        "graphs.random",
        "Every replay draws what the first one drew.",
    ),
    (
        "graphs.generator_not_advanced",
        "graphs.random",
        "A replay leaves the generator as it was.",
    ),
    (
        "graphs.reset_keeps_graph",
        "graphs.lifecycle",
        "reset does nothing.",
    ),
    (
        "graphs.destroy_while_queued",
        "graphs.lifecycle",
        "What is queued of a graph is not done once that is destroyed.",
    ),
    (
        "graphs.nested_capture_accepted",
        "graphs.nesting",
        "A capture inside another one is silently none.",
    ),
    (
        "graphs.empty_capture_silent",
        "graphs.devices",
        "A capture that recorded nothing does not warn.",
    ),
    (
        "graphs.other_index_work_lost",
        "graphs.devices",
        "Work that the capturing thread queues on another device is lost.",
    ),
    (
        "graphs.callable_backward_stale",
        "graphs.callables",
        "The backward pass of a graphed callable is given no new gradients.",
    ),
)
