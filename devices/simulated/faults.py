"""The planted faults of the simulated device: what each breaks, the clauses it must trip, and how to switch it.

    SIMULATED_FAULTS=values.ignore_strides,out.restride pytest --device simulated

or ``with planted("values.ignore_strides"): ...``. The table below is the one list of them: the library's own list is
generated from it when the library is built (``Fault::values_ignore_strides`` in C++ is "values.ignore_strides" here),
and the contract names each fault at the clauses that it trips. A fault that is off costs one load.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any, Final

from devices.errors import ConformError, listing, suggestion

ENVIRONMENT: Final = "SIMULATED_FAULTS"


class UnknownFault(ConformError):
    """The simulated device has no fault with this name. The text lists the names that it has."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One way to break the device.

    ``clauses`` must fail while the fault is on. ``ops`` (of torch's database, with ``dtypes``) are given for clauses
    about single ops: each clause fails for at least one of them. Cells of other clauses and ops do not change, except
    those in ``radius``: globs over ``clause::op``. A fault without clauses ends the process, or makes the device
    unusable: it fails any cell that makes the call it strikes.
    """

    name: str
    clauses: tuple[str, ...]
    statement: str
    ops: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ("float32",)
    radius: tuple[str, ...] = ()

    def allows(self, clause: str, op: str) -> bool:
        """Whether a cell of this clause and op may differ from the clean run."""
        if clause in self.clauses and op in self.ops:
            return True
        return any(fnmatchcase(f"{clause}::{op}", pattern) for pattern in self.radius)


@dataclass(frozen=True, slots=True)
class _With:
    """A statement, with what else the declaration of a fault says; lists are separated by blanks."""

    statement: str
    radius: str = ""
    also: str = ""  # further clauses that it must trip
    ops: str = ""
    dtypes: str = "float32"


#: Where streams are one, or the host never gets ahead, nothing can be shown about the other clauses of order.
_ORDER: Final = "streams.* events.*"

#: Most cases of graphs end with a replay; sentinels too, whose replay is looked at as well.
_REPLAYS: Final = (
    "graphs.replay_equals_eager::* graphs.addresses::* graphs.pool::* graphs.errors::* graphs.recovery::* "
    "graphs.modes::* graphs.fork_join::* graphs.random::* graphs.lifecycle::* graphs.nesting::* graphs.devices::* "
    "graphs.callables::* graphs.capture_defers::sentinel_*"
)

#: Each fault once: under the clause that it must trip, its name and what is wrong while it is on. Those without a
#: clause strike at one call of one op: the ``$SIMULATED_FAULT_CALL``-th call (1) of ``$SIMULATED_FAULT_OP``
#: (``aten::exp``).
_PLANTED: Final[Mapping[str, Mapping[str, str | _With]]] = {
    "layout.values": {
        "values.ignore_strides": _With(
            "A stepped input is read as if its elements lay in a row.",
            ops="exp",
            dtypes="float32 int64",
        ),
        "values.ignore_storage_offset": _With(
            "A view is read from the start of its storage.", also="layout.expanded_read", ops="neg"
        ),
    },
    "layout.expanded_read": {
        "expand.read_as_dense": _With(
            "An operand of stride 0 is read as if its elements lay in a row.",
            ops="mul",
            dtypes="float32 int64",
        ),
    },
    "layout.output_strides": {
        "stride.ignore_channels_last": _With(
            "The output for a channels_last input is contiguous.", ops="nn.functional.avg_pool2d"
        ),
        "stride.always_contiguous": _With(
            "The output for a transposed input is contiguous.", ops="sub"
        ),
    },
    "layout.output_fresh": {
        "storage.output_past_end": _With(
            "The output's storage is one element too short.",
            "layout.values::cat layout.expanded_read::cat layout.variants::cat "
            "layout.determinism::cat",
            ops="cat",
        ),
    },
    "layout.inputs_intact": {
        "inputs.overwritten": _With(
            "The result is also written over the first input.",
            "layout.determinism::atan2",
            ops="atan2",
        ),
    },
    "layout.bounds": {
        "bounds.write_past_end": _With(
            "Three elements after the end of out= are overwritten.", ops="maximum"
        ),
        "bounds.write_between_elements": _With(
            "The bytes between the elements of a stepped out= are overwritten.", ops="fmax"
        ),
        "bounds.vectorised_tail_overrun": _With(
            "A contiguous in-place op writes whole vectors of eight elements.",
            ops="add",
            dtypes="float32 int64",
        ),
    },
    "layout.out_kept": {
        "out.restride": _With(
            "out= becomes contiguous.", "layout.bounds::add", ops="add", dtypes="float32 int64"
        ),
        "out.reallocate": _With(
            "out= is moved to new memory.", "layout.bounds::mul", ops="mul", dtypes="float32 int64"
        ),
        "out.ignore_strides": _With(
            "The result is written in a row, whatever the strides of out= are.",
            also="layout.bounds",
            ops="exp",
            dtypes="float32 int64",
        ),
        "out.accumulate_into_old_values": _With(
            "The result is added to what out= held.",
            "layout.variants::atan2 layout.overlap_raises::atan2",
            ops="atan2",
        ),
    },
    "layout.out_resize": {
        "out.resize_silently": _With(
            "out= of a wrong shape is resized without a warning.", ops="copysign"
        ),
    },
    "layout.inplace": {
        "inplace.write_to_copy": _With(
            "An in-place op writes to a copy of self.",
            "layout.variants::neg layout.overlap_raises::neg",
            ops="neg",
        ),
        "inplace.reallocate": _With(
            "An in-place op moves self to new memory.",
            "layout.bounds::mul",
            ops="mul",
            dtypes="float32 int64",
        ),
    },
    "layout.variants": {
        "variants.out_differs": _With(
            "The result of the out= variant is too large by one.",
            also="layout.out_kept layout.out_resize",
            ops="bmm",
        ),
    },
    "layout.overlap_raises": {
        "overlap.skip_internal_check": _With(
            "An expanded out= is written to without an error.", ops="sub"
        ),
    },
    "layout.type_promotion": {
        "promotion.scalar_through_float": _With(
            "An integer scalar is rounded to float32's 24 bits.", ops="mul", dtypes="int64"
        ),
    },
    "layout.special_values": {
        "special.max_drops_nan": _With(
            "maximum gives the number where the other operand is NaN.", ops="maximum"
        ),
    },
    "layout.beta_zero": {
        "beta_zero.multiply_input": _With(
            "With beta = 0 the input is multiplied by 0, so that its NaN stays.", ops="addmm"
        ),
    },
    "layout.empty_reduce": {
        "reduce.empty_sum_one": _With("The sum over nothing is 1.", ops="sum"),
    },
    "layout.fp32_precision": {
        "precision.truncate_mantissa": _With(
            "A float32 product is computed from operands rounded to bfloat16.",
            "layout.values::mm layout.expanded_read::mm layout.out_kept::mm layout.variants::mm",
            ops="mm",
        ),
    },
    "layout.determinism": {
        "determinism.varying_reduction_order": _With(
            "Every second result differs from the others in its last bit.", ops="bmm"
        ),
    },
    "layout.views": {
        "views.copy_instead_of_alias": _With(
            "unfold returns a copy where it should return a view.",
            "layout.output_strides::unfold",
            ops="unfold",
        ),
        "views.wrong_offset": _With(
            "unfold of a view starts one element too early.",
            "layout.values::unfold layout.expanded_read::unfold",
            ops="unfold",
        ),
        "views.forget_conj_bit": _With(
            "A copy of a conjugate view holds the values of its base.",
            ops="transpose",
            dtypes="complex64",
        ),
    },
    "layout.as_strided": {
        "as_strided.set_ignores_offset": _With(
            "set_ puts a tensor at the start of its storage.", ops="as_strided"
        ),
    },
    "layout.memory_format": {
        "memory_format.ignore_requested": _With(
            "A tensor requested in channels_last is contiguous.", ops="clone contiguous empty_like"
        ),
    },
    "layout.grad": {
        "grad.wrong_layout": "A leaf's first gradient is contiguous, whatever the leaf's strides are.",
        "grad.ignore_strides": "tanh's gradient reads a stepped gradient as if its elements lay in a row.",
    },
    "layout.large": {
        "large.offset_32bit": "bitwise_not keeps 31 bits of an element's offset.",
    },
    "transfer.non_blocking": {
        # The stream that is waited for is not the one that copies.
        "transfer.non_blocking_off_stream": _With(
            "A non-blocking copy runs on a stream of its own.", "transfer.pinned::not_reused_early"
        ),
        "transfer.synchronize_misses_copy": _With(
            "No synchronize waits for a non-blocking copy to or from the host.",
            "transfer.pinned::*",
        ),
    },
    "transfer.pinned": {
        "transfer.pinned_reused_early": "A pinned block is handed out while a copy still reads it.",
        "transfer.slice_not_pinned": "is_pinned() of a slice of a pinned tensor is False.",
    },
    "transfer.strides": {
        "transfer.treat_source_as_dense": _With(
            "A stepped source on the host is read as if its elements lay in a row.",
            "transfer.view_destination::*_from_host",
        ),
        "transfer.drop_strides": "to() and empty_strided make contiguous tensors.",
    },
    "transfer.snapshot": {
        # Every copy with the host may be too late.
        "transfer.return_before_read": _With(
            "A blocking copy to the device returns before it has read its source.", "transfer.*"
        ),
        "transfer.return_before_write": _With(
            "A blocking copy to the host returns before it has written.", "transfer.*"
        ),
    },
    "transfer.view_destination": {
        "transfer.write_dense_into_view": _With(
            "A copy into a stepped view writes its elements in a row.", "transfer.strides::*"
        ),
        "transfer.read_past_broadcast_source": "A broadcast source is read as if it were not broadcast.",
    },
    "transfer.scalars": {
        "transfer.item_before_work": "item() does not wait for the work queued before it.",
        "transfer.item_wrong_type": "item() of an integer tensor gives a float.",
    },
    "transfer.storage_resize": {
        "transfer.resize_loses_bytes": "A storage loses its bytes when it is resized.",
        "transfer.resize_zero_keeps_memory": "resize_(0) frees no memory.",
    },
    "transfer.serialization": {
        "transfer.load_unshares_storage": "Tensors that shared a storage no longer share it after loading.",
        "transfer.load_drops_offset": "A loaded view starts at the start of its storage.",
    },
    "transfer.dlpack": {
        "transfer.dlpack_copies": "__dlpack__ exports a copy.",
        "transfer.dlpack_ignores_stream": "The consumer's stream does not wait for the producer's.",
        "transfer.dlpack_ignores_offset": "A view is exported from the start of its storage.",
    },
    "transfer.numpy_refused": {
        "transfer.numpy_exposes_memory": "numpy() returns an array over the device's memory.",
    },
    "allocator.accounting": {
        # A wrong counter is wrong wherever it is read.
        "allocator.count_too_little": _With(
            "Only half of the bytes of a block are counted.",
            "allocator.history::sums allocator.settings::rounding",
        ),
        "allocator.forget_free": _With(
            "Freeing a block lowers no count of bytes.",
            "allocator.ordering::at_every_moment allocator.peaks::* "
            "allocator.error_leak::* allocator.device_isolation::*_index "
            "allocator.history::sums allocator.threads::*",
        ),
        "allocator.requested_counts_rounded": "requested_bytes counts the bytes of the block, not of the request.",
    },
    "allocator.ordering": {
        "allocator.active_below_allocated": "Active bytes are not counted.",
        "allocator.freed_miscounted": _With(
            "The total of freed bytes counts every block twice.", "allocator.threads::counted"
        ),
    },
    "allocator.peaks": {
        "allocator.peak_not_raised": _With(
            "No peak is ever raised.", "allocator.ordering::at_every_moment"
        ),
        "allocator.reset_peak_to_zero": "Resetting a peak sets it to 0, not to the current value.",
    },
    "allocator.disjoint": {
        # Blocks that share bytes share what is written to them.
        "allocator.hand_out_overlap": _With(
            "The rest of a split block begins inside the block before it.",
            "allocator.contents::* allocator.empty_cache::keeps_live allocator.pools::* "
            "allocator.record_stream::* allocator.threads::*",
        ),
        # Every request is for 8 bytes more, and no block is at its tensor's address.
        "allocator.misalign_pointer": _With(
            "Addresses are 8 bytes off.",
            "allocator.accounting::* allocator.history::* allocator.settings::rounding",
        ),
    },
    "allocator.contents": {
        "allocator.scribble_on_split": _With(
            "A split overwrites the live block before it.",
            "allocator.threads::nobody_shares allocator.pools::*",
        ),
    },
    "allocator.reuse": {
        # Memory runs out.
        "allocator.never_reuse": _With(
            "Every request gets a new segment.",
            "allocator.cross_stream::* allocator.pools::* allocator.record_stream::* "
            "allocator.threads::*",
        ),
        "allocator.leak_on_split": _With("The rest of a split block is lost.", "allocator.*"),
    },
    "allocator.empty_cache": {
        "allocator.empty_cache_keeps_segment": _With(
            "empty_cache keeps an unused segment.",
            "allocator.pools::* allocator.threads::come_back",
        ),
        "allocator.empty_cache_frees_live": _With(
            "empty_cache overwrites live blocks of the current stream.",
            "allocator.pools::lives_with_its_tensors",
        ),
    },
    "allocator.memory_info": {
        "allocator.memory_info_free_constant": "All memory is always reported as free.",
        "allocator.memory_info_total_wrong": "The reported total shrinks with the free memory.",
    },
    "allocator.oom": {
        "allocator.oom_wrong_type": _With(
            "Running out of memory raises a plain RuntimeError.", "allocator.fraction::limits"
        ),
        "allocator.oom_not_counted": "num_ooms does not rise.",
        "allocator.oom_stays_broken": _With(
            "After running out of memory, every request is refused.", "allocator.*"
        ),
    },
    "allocator.error_leak": {
        "allocator.leak_on_error": "An op that raises leaks a block.",
    },
    "allocator.record_stream": {
        "allocator.ignore_record_stream": "record_stream does nothing.",
    },
    "allocator.cross_stream": {
        "allocator.reuse_across_streams": "A freed block is handed to any stream, without waiting.",
    },
    "allocator.device_isolation": {
        "allocator.count_on_wrong_index": "Every index shows the counters of index 0.",
    },
    "allocator.fraction": {
        "allocator.ignore_fraction": "The memory fraction has no effect.",
        "allocator.accept_bad_fraction": "A fraction above 1 is accepted.",
    },
    "allocator.pools": {
        "allocator.pool_leaks_to_default": "Blocks of a private pool are handed out outside it.",
        "allocator.pool_never_returned": "The segments of a deleted pool are never released.",
    },
    "allocator.history": {
        "allocator.history_drops_free": "Completed frees are missing from the history.",
        "allocator.history_wrong_address": "Addresses in the history are 512 bytes off.",
        "allocator.snapshot_misses_segment": "A segment is missing from the snapshot.",
    },
    "allocator.host": {
        "allocator.host_never_reuse": "Pinned memory is never reused.",
        "allocator.host_miscount": "A freed pinned block is still counted.",
    },
    "allocator.settings": {
        "allocator.settings_ignored": "Settings are accepted and have no effect.",
        "allocator.settings_accept_unknown": "Unknown keys of settings are accepted.",
    },
    "allocator.pluggable": {
        "allocator.pluggable_bypassed": "Every second allocation bypasses the user's allocator.",
        "allocator.pluggable_changed_after_use": "The allocator can be changed after it was used.",
    },
    "allocator.threads": {
        "allocator.unlocked_counters": "Counts made while another thread allocates are lost.",
        "allocator.unlocked_free_list": "Blocks freed while another thread allocates are lost.",
    },
    "streams.current": {
        "streams.exit_not_restored": _With(
            "Leaving a stream's block does not restore the default stream.",
            "streams.cross_device::block_switches",
        ),
        # Threads that share a current stream race for it.
        "streams.current_shared_by_threads": _With(
            "All threads share one current stream.", "streams.threads::* streams.autograd::*"
        ),
    },
    "streams.identity": {
        "streams.new_stream_repeats": _With("Every new stream is the same one.", _ORDER),
        "streams.hash_differs": _With(
            "The current stream has another id and hash at every call.",
            "streams.current::* streams.autograd::on_the_streams_of_forward",
        ),
    },
    "streams.in_order": {
        "streams.reorder_tasks": _With("The second task of a queue runs first.", _ORDER),
    },
    "streams.concurrent": {
        "streams.serialise_streams": _With("All streams share the default stream's queue.", _ORDER),
        "streams.launch_blocks_host": _With(
            "A launch blocks the host until the stream is idle.", _ORDER
        ),
    },
    "streams.wait": {
        "streams.ignore_wait": _With(
            "Waiting for an event does nothing.",
            "streams.cross_device::* streams.threads::hand_over streams.autograd::*",
        ),
        "streams.wait_takes_latest_record": "A wait waits for the record that is the latest when the wait runs, not when it was queued.",
    },
    "streams.query": {
        "streams.query_always_true": _With(
            "query is True while work is in flight.",
            "streams.concurrent::host_goes_on streams.wait::* streams.cross_device::* "
            "streams.external::orders_with_its_owner "
            "streams.autograd::caller_waits_for_backward events.ipc::works_in_its_process",
        ),
    },
    "streams.synchronize": {
        "streams.synchronize_returns_early": _With("synchronize waits for nothing.", _ORDER),
        "streams.synchronize_wrong_index": "Synchronizing a device waits for the next index instead.",
    },
    "streams.cross_device": {
        "streams.copy_ignores_peer_stream": "A copy between indices waits for the source's stream only.",
        # What should hold a stream then holds the stream of another index.
        "streams.index_not_restored": _With(
            "Leaving a stream's block does not restore a lower device index.", _ORDER
        ),
        "streams.record_on_any_index": "An event can be recorded on a stream of another index.",
    },
    "streams.native_handle": {
        "streams.native_handle_null": _With("Every native handle is null.", "streams.external::*"),
        "streams.native_handle_changes": _With(
            "A native handle is different at every call.", "streams.external::*"
        ),
    },
    "streams.external": {
        "streams.external_own_queue": "A stream made from a native handle has its own queue.",
        "streams.external_destroys_owner": "Deleting a wrapped stream destroys its owner's queue.",
    },
    "streams.priority": {
        "streams.priority_dropped": "Every stream has the lowest priority.",
    },
    "streams.threads": {
        "streams.unlocked_queue": "A task queued while another thread queues one is lost.",
    },
    "streams.autograd": {
        "streams.backward_on_default_stream": "Backward runs on the default stream.",
        "streams.backward_not_joined": _With(
            "The caller's stream does not wait for the streams of backward.",
            "streams.threads::hand_over",
        ),
    },
    "events.record": {
        # A stream that was waited for has done its work, but a late record may still be to come.
        "events.record_late": _With(
            "A record includes work queued after it.",
            "streams.wait::* streams.autograd::* streams.synchronize::waits "
            "streams.synchronize::device* events.elapsed::grows events.elapsed::incomplete",
        ),
        "events.rerecord_ignored": _With(
            "Only the first record of an event counts.",
            "streams.wait::earlier_record_is_waited_for",
        ),
        "events.unrecorded_not_ready": "The device's own event queries False before its first record.",
    },
    "events.elapsed": {
        "events.elapsed_constant": "Every time between events is 1 ms.",
        "events.elapsed_untimed_accepted": "The device's own events measure time without enable_timing.",
    },
    "events.identity": {
        "events.event_id_repeats": _With(
            "All events of a device are one.",
            "streams.current::takes_the_work streams.wait::* events.*",
        ),
        "events.index_set_before_record": "The device's own event has an index before its first record.",
    },
    "events.ipc": {
        "events.ipc_handle_dead": "Waiting for an event opened from an IPC handle does nothing.",
    },
    "graphs.capture_defers": {
        "graphs.capture_runs_work": _With("Captured work also runs at capture.", _REPLAYS),
        "graphs.is_capturing_false": _With(
            "A stream never says that it is capturing.", "graphs.fork_join::captured_by_*"
        ),
    },
    "graphs.replay_equals_eager": {
        "graphs.replay_stale_input": _With(
            "The first task of a graph reads its inputs as they were at capture.", _REPLAYS
        ),
        "graphs.replay_once_only": _With(
            "Only the first replay of a graph does anything.", _REPLAYS
        ),
        "graphs.drop_node": _With("The last of several tasks is left out.", _REPLAYS),
    },
    "graphs.every_op": {
        "graphs.op_runs_at_capture": "neg runs at capture instead of being captured.",
    },
    "graphs.addresses": {
        "graphs.output_moves": "Each replay writes its outputs to new memory.",
        "graphs.pool_block_given_away": "Free blocks in the pool of a live graph are handed out to others.",
    },
    "graphs.pool": {
        "graphs.unshared_pools_overlap": "All graphs without a given pool share one pool.",
        "graphs.pool_never_returned": "A deleted graph does not release its pool.",
    },
    "graphs.errors": {
        "graphs.sync_allowed_in_capture": _With(
            "Calls that would wait for captured work return at once instead of raising.",
            "graphs.recovery::invalidated_capture",
        ),
        "graphs.replay_before_capture_silent": _With(
            "Replaying a graph before a capture does nothing instead of raising.",
            "graphs.lifecycle::reset",
        ),
    },
    "graphs.recovery": {
        "graphs.error_lost": "Ending a capture after an exception raises another one, without the first as its context.",
        "graphs.stays_capturing": "Ending a failed capture leaves the stream capturing.",
    },
    "graphs.modes": {
        "graphs.mode_ignored": "The error mode of a capture has no effect on other threads.",
    },
    "graphs.fork_join": {
        # Autograd uses side streams.
        "graphs.side_stream_not_captured": _With(
            "A stream that waits for an event of a capture does not join the capture.",
            "graphs.callables::*",
        ),
        "graphs.unjoined_fork_accepted": "Ending a capture with unjoined work raises no error.",
    },
    "graphs.random": {
        "graphs.replay_repeats_random": "Every replay draws the same random numbers as the first.",
        "graphs.generator_not_advanced": "A replay does not advance the generator.",
    },
    "graphs.lifecycle": {
        "graphs.reset_keeps_graph": "reset does nothing.",
        "graphs.destroy_while_queued": "Destroying a graph drops its queued work.",
    },
    "graphs.nesting": {
        "graphs.nested_capture_accepted": "A capture inside another capture is silently ignored.",
    },
    "graphs.devices": {
        "graphs.empty_capture_silent": "A capture that recorded nothing does not warn.",
        "graphs.other_index_work_lost": "Work that the capturing thread queues on another index is lost.",
    },
    "graphs.callables": {
        "graphs.callable_backward_stale": "The backward pass of a graphed callable reuses old gradients.",
    },
    "device.async_error": {
        # A conversion that is refused late is not seen to be refused.
        "device.error_swallowed": _With(
            "The error of queued work that failed is never raised.", "device.capability::undeclared"
        ),
    },
    "device.count": {
        "device.accept_index_past_count": "A device index that is too large wraps around.",
        "device.index_not_restored": "Leaving a device's block does not restore a lower index.",
        "device.current_shared_by_threads": "All threads share one current device.",
    },
    "device.capability": {
        "device.declared_dtype_refused": "int16 tensors are refused.",
    },
    "device.properties": {
        "device.uuid_repeats": "All devices have the same uuid.",
        "device.total_memory_varies": "total_memory in the properties shrinks with reserved memory.",
    },
    "device.peers": {
        "device.peer_copy_wrong": "A copy between indices writes zeros.",
    },
    "device.placement": {
        # An index that is ignored is never refused.
        "device.factory_ignores_index": _With(
            "Factory functions ignore the index and use the current device.", "device.count::*"
        ),
        "device.storage_on_other_index": "A tensor's memory is on the next index.",
    },
    "device.fork": {
        "device.fork_silent": "A forked child keeps using its parent's memory.",
        "device.fork_hangs": "Use after fork hangs.",
    },
    "device.lazy_init": {
        "device.init_on_import": "Importing the device initialises it.",
    },
    "device.autoload": {
        "device.autoload_failure_hidden": "An autoloaded backend that fails is not reported.",
    },
    "device.clean_exit": {
        "device.abort_at_exit": "The process aborts when it exits.",
    },
    "dispatch.no_silent_fallback": {
        "dispatch.fallback_unlisted": _With(
            "erf runs on the host, through the boxed fallback.", ops="erf"
        ),
    },
    "dispatch.cross_device": {
        # Some error inputs are operands on two devices.
        "dispatch.mixed_devices_accepted": _With(
            "Operands on different devices are accepted.",
            "dispatch.error_inputs::dot dispatch.error_inputs::where",
            ops="add mul atan2 dot gather mm where index_select",
        ),
        "dispatch.cpu_scalar_offset_ignored": _With(
            "A CPU scalar is read from the start of its storage.", ops="add mul atan2"
        ),
    },
    "dispatch.error_inputs": {
        "dispatch.bad_shape_accepted": _With(
            "dot of vectors of different lengths uses the shorter length.", ops="dot"
        ),
        "dispatch.wrong_error_type": _With(
            "gather raises TypeError for every error.", ops="gather"
        ),
    },
    "dispatch.unsupported": {
        "dispatch.unsupported_wrong_error": _With(
            "An op without a kernel raises RuntimeError.", ops="mm"
        ),
        "dispatch.unsupported_returns_garbage": _With(
            "An op without a kernel returns its first argument.", ops="mm"
        ),
    },
    "dispatch.device_assert": {
        "dispatch.index_unchecked": "index_select clamps indices that are out of range.",
    },
    "random.reproducible": {
        # Every clause about seeds needs a seed that is obeyed and a state that is restored.
        "random.seed_ignored": _With("Seeding uses a random seed.", "random.global_seed::*"),
        "random.state_not_restored": _With("set_state does nothing.", "random.global_seed::*"),
        "random.generators_shared": _With(
            "A new generator is the default one.", "random.global_seed::*"
        ),
    },
    "random.global_seed": {
        "random.seed_first_index_only": _With(
            "manual_seed seeds index 0 only.", "random.reproducible::independent_indices"
        ),
        "random.seed_lost_before_init": "A seed given before the device is first used is lost.",
    },
    "random.distribution": {
        "random.normal_std_is_variance": "normal_ takes std for the variance.",
        "random.fill_past_view": "uniform_ writes three elements too many.",
    },
    "autograd.first": {
        "autograd.first_wrong": "The gradient of sigmoid is doubled.",
        "autograd.rnn_weights_unshared": "lstm moves each of its weights to new memory.",
    },
    "autograd.second": {
        "autograd.second_wrong": "The gradient of sinh has no gradient.",
    },
    "autograd.forward_ad": {
        "autograd.forward_ad_wrong": "The forward-mode product of glu is doubled.",
    },
    "autograd.version_counter": {
        "autograd.version_not_bumped": "zero_ does not increment the version counter.",
    },
    "autograd.threads": {
        "autograd.thread_loses_index": "Threads other than the main one stay on index 0.",
    },
    "autocast.lists": {
        "autocast.op_left_in_float32": "mm stays in float32 under autocast.",
        "autocast.inf_not_found": "GradScaler never finds inf.",
    },
    "optim.foreach": {
        "optim.foreach_skips_last": "_foreach_add_ skips the last tensor.",
        "optim.foreach_ignores_strides": "_foreach_mul_ treats tensors as contiguous.",
    },
    "compile.meta_agrees": {
        "compile.meta_disagrees": "cumsum's result has other strides than its meta kernel says.",
    },
    "compile.eager_equals_compiled": {
        "compile.compiled_differs": "hardswish, which compiled code calls for hardswish_, is too large by one.",
    },
    "compile.device_interface": {
        "compile.interface_wrong_count": "Dynamo sees one device too many.",
    },
    "compile.export": {
        "compile.export_wrong_device": "A program exported from index 1 is loaded on index 0.",
    },
    "": {
        "process.segfault": "The process dies of a segmentation fault.",
        "process.abort": "The process aborts.",
        "process.exit": "The process exits with status 3.",
        "process.hang": "The call never returns; other threads keep running.",
        "process.hang_holding_gil": "The call never returns, and blocks every other Python thread.",
        "process.hang_on_stream": "The call returns, but the stream's work never ends.",
        "process.sticky_error": "The call and every later one raise: the device is unusable in this process.",
    },
}


def _declared() -> Iterator[Fault]:
    for clause, planted_there in _PLANTED.items():
        for name, text in planted_there.items():
            more = text if isinstance(text, _With) else _With(text)
            clauses = (clause, *more.also.split()) if clause else ()
            lists = (more.ops, more.dtypes, more.radius)
            yield Fault(name, clauses, more.statement, *(tuple(each.split()) for each in lists))


#: Every fault by name.
FAULTS: Final[Mapping[str, Fault]] = MappingProxyType({fault.name: fault for fault in _declared()})

#: The names of the faults that must trip a clause, by clause.
BY_CLAUSE: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        clause: tuple(fault.name for fault in FAULTS.values() if clause in fault.clauses)
        for clause in dict.fromkeys(c for fault in FAULTS.values() for c in fault.clauses)
    }
)

#: Clauses that no fault of this device can trip, and why. A clause with neither a fault nor a reason fails the tests.
UNPLANTED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "compile.stride_tags": "Inductor generates no code for the device",
        "distributed.backend": "no process-group backend serves the device",
        "profiler.activity": "the profiler gets the times of ops from the device, but no activity of its own",
    }
)

#: Clauses a part of which torch answers itself, before it asks any device, so that no fault can be planted there.
ANSWERED_BY_TORCH: Final[Mapping[str, str]] = MappingProxyType(
    {"device.lazy_init": "whether importing torch initialises a device: torch/__init__.py"}
)


def header() -> str:
    """The C++ header that lists the faults for the library."""
    rows = "".join(f' \\\n  F({name.replace(".", "_")}, "{name}")' for name in FAULTS)
    return (
        "// Generated from devices/simulated/faults.py when the library is built.\n\n"
        f"#pragma once\n\n#define SIMULATED_FAULT_LIST(F){rows}\n"
    )


def _library() -> Any:
    return importlib.import_module("devices.simulated.backend").library


def switch(name: str, on: bool) -> None:
    """Switch one fault. Raises UnknownFault."""
    if name not in FAULTS:
        raise UnknownFault(
            f"the simulated device has no fault '{name}'{suggestion(name, FAULTS)} (known: {listing(FAULTS)})"
        )
    _library().switch_fault(name, on)
    importlib.import_module("devices.simulated.backend.installed").switch(name, on)


@contextmanager
def planted(*names: str) -> Iterator[None]:
    """Switch faults on for a block. Raises UnknownFault."""
    before = set(_library().faults_that_are_on())
    try:
        for name in names:
            switch(name, True)
        yield
    finally:
        for name in before.symmetric_difference(_library().faults_that_are_on()):
            switch(name, name in before)


def switch_on_from_environment() -> None:
    """Switch on the faults that ``SIMULATED_FAULTS`` names, for the life of the process. Raises UnknownFault."""
    for name in os.environ.get(ENVIRONMENT, "").split(","):
        if name.strip():
            switch(name.strip(), True)
