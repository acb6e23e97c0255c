"""Planted faults of calls: transfers, devices, dispatch, random numbers, gradients, and what ends a process.

Each row is name, clause and what is wrong; a direct probe in ``tests/simulated`` shows the device misbehaving.
Those of ``process`` have no clause: they strike at one call of one op, which ``$SIMULATED_FAULT_OP`` (an op with its
overload, ``aten::exp`` by default) and ``$SIMULATED_FAULT_CALL`` (its n-th call, 1 by default) name, and fail whatever
cell makes it.
"""

from __future__ import annotations

from typing import Final

ROWS: Final[tuple[tuple[str, str, str], ...]] = (
    (
        "transfer.treat_source_as_dense",
        "transfer.strides",
        "A stepped source on the host is read as if its elements lay in a row.",
    ),
    (
        "transfer.drop_strides",
        "transfer.strides",
        "to() and empty_strided make contiguous tensors.",
    ),
    (
        "transfer.return_before_read",
        "transfer.snapshot",
        "A blocking copy to the device returns before it has read its source.",
    ),
    (
        "transfer.return_before_write",
        "transfer.snapshot",
        "A blocking copy to the host returns before it has written.",
    ),
    (
        "transfer.write_dense_into_view",
        "transfer.view_destination",
        "A copy into a stepped view writes its elements in a row.",
    ),
    (
        "transfer.read_past_broadcast_source",
        "transfer.view_destination",
        "A broadcast source is read as if it had all the elements.",
    ),
    (
        "transfer.synchronize_misses_copy",
        "transfer.non_blocking",
        "No synchronise waits for a non-blocking copy with the host.",
    ),
    (
        "transfer.slice_not_pinned",
        "transfer.pinned",
        "A slice of a pinned tensor says that it is not pinned.",
    ),
    (
        "transfer.item_before_work",
        "transfer.scalars",
        "item() does not wait for the work queued before it.",
    ),
    ("transfer.item_wrong_type", "transfer.scalars", "item() of an integer tensor gives a float."),
    (
        "transfer.resize_loses_bytes",
        "transfer.storage_resize",
        "A storage that is resized holds other bytes.",
    ),
    ("transfer.resize_zero_keeps_memory", "transfer.storage_resize", "resize_(0) frees no memory."),
    (
        "transfer.load_unshares_storage",
        "transfer.serialization",
        "Tensors that shared a storage have one each when they are loaded.",
    ),
    (
        "transfer.load_drops_offset",
        "transfer.serialization",
        "A loaded view starts where its storage does.",
    ),
    ("transfer.dlpack_copies", "transfer.dlpack", "__dlpack__ exports a copy."),
    (
        "transfer.dlpack_ignores_stream",
        "transfer.dlpack",
        "The stream of the consumer is not made to wait.",
    ),
    (
        "transfer.dlpack_ignores_offset",
        "transfer.dlpack",
        "A view is exported from the start of its storage.",
    ),
    (
        "transfer.numpy_exposes_memory",
        "transfer.numpy_refused",
        "numpy() gives an array over the device's memory.",
    ),
    (
        "allocator.settings_ignored",
        "allocator.settings",
        "Settings are accepted and have no effect.",
    ),
    (
        "allocator.settings_accept_unknown",
        "allocator.settings",
        "Unknown keys of settings are accepted.",
    ),
    (
        "allocator.pluggable_bypassed",
        "allocator.pluggable",
        "Every second allocation goes round the plugged allocator.",
    ),
    (
        "allocator.pluggable_changed_after_use",
        "allocator.pluggable",
        "The allocator can be changed after it was used.",
    ),
    (
        "allocator.unlocked_counters",
        "allocator.threads",
        "What one thread counts while another allocates is lost.",
    ),
    (
        "allocator.unlocked_free_list",
        "allocator.threads",
        "A block that is freed while another thread allocates is lost.",
    ),
    (
        "streams.hash_differs",
        "streams.identity",
        "The current stream has another id, and so hash, at every call.",
    ),
    (
        "streams.index_not_restored",
        "streams.cross_device",
        "Leaving a stream's block does not bring back a lower index.",
    ),
    ("streams.priority_dropped", "streams.priority", "Every stream has the least priority."),
    (
        "streams.external_destroys_owner",
        "streams.external",
        "A wrapped stream that dies takes its owner's queue along.",
    ),
    (
        "streams.unlocked_queue",
        "streams.threads",
        "A task queued while another thread queues one is lost.",
    ),
    (
        "streams.backward_on_default_stream",
        "streams.autograd",
        "Backward runs on the default stream.",
    ),
    (
        "streams.backward_not_joined",
        "streams.autograd",
        "The caller's stream does not wait for backward's.",
    ),
    ("events.event_id_repeats", "events.identity", "All events of a device are one."),
    ("device.accept_index_past_count", "device.count", "An index past the last is wrapped."),
    (
        "device.index_not_restored",
        "device.count",
        "Leaving a device's block does not bring back a lower index.",
    ),
    (
        "device.current_shared_by_threads",
        "device.count",
        "The current device is one for all threads.",
    ),
    ("device.declared_dtype_refused", "device.capability", "int16 tensors are refused."),
    ("device.uuid_repeats", "device.properties", "All devices have one uuid."),
    (
        "device.total_memory_varies",
        "device.properties",
        "The total memory in the properties shrinks with what is reserved.",
    ),
    ("device.peer_copy_wrong", "device.peers", "A copy between indices gives zeros."),
    (
        "device.factory_ignores_index",
        "device.placement",
        "Factories put tensors on the current device.",
    ),
    (
        "device.storage_on_other_index",
        "device.placement",
        "A tensor's memory lies on the next index.",
    ),
    ("device.fork_silent", "device.fork", "A forked child goes on with its parent's memory."),
    ("device.fork_hangs", "device.fork", "Use after fork hangs."),
    ("device.init_on_import", "device.lazy_init", "Importing the device initialises it."),
    (
        "device.autoload_failure_hidden",
        "device.autoload",
        "An autoloaded backend that fails is not reported.",
    ),
    ("device.abort_at_exit", "device.clean_exit", "The process aborts at its end."),
    (
        "dispatch.fallback_unlisted",
        "dispatch.no_silent_fallback",
        "erf runs on the host, through the boxed fallback.",
    ),
    (
        "dispatch.mixed_devices_accepted",
        "dispatch.cross_device",
        "Operands of any device are accepted.",
    ),
    (
        "dispatch.cpu_scalar_offset_ignored",
        "dispatch.cross_device",
        "A CPU scalar is read from the start of its storage.",
    ),
    (
        "dispatch.bad_shape_accepted",
        "dispatch.error_inputs",
        "dot of two lengths takes the shorter one.",
    ),
    (
        "dispatch.wrong_error_type",
        "dispatch.error_inputs",
        "gather raises TypeError for whatever is wrong.",
    ),
    (
        "dispatch.unsupported_wrong_error",
        "dispatch.unsupported",
        "An op without a kernel raises RuntimeError.",
    ),
    (
        "dispatch.unsupported_returns_garbage",
        "dispatch.unsupported",
        "An op without a kernel returns its first argument.",
    ),
    (
        "dispatch.index_unchecked",
        "dispatch.device_assert",
        "index_select clamps indices that are out of range.",
    ),
    ("random.seed_ignored", "random.reproducible", "Seeding chooses a seed at random."),
    ("random.state_not_restored", "random.reproducible", "set_state does nothing."),
    ("random.generators_shared", "random.reproducible", "A new generator is the default one."),
    ("random.seed_first_index_only", "random.global_seed", "manual_seed seeds index 0 alone."),
    (
        "random.seed_lost_before_init",
        "random.global_seed",
        "A seed given before the device is used is forgotten.",
    ),
    (
        "random.normal_std_is_variance",
        "random.distribution",
        "normal_ takes std for the square root of it.",
    ),
    ("random.fill_past_view", "random.distribution", "uniform_ fills three elements too many."),
    (
        "grad.wrong_layout",
        "layout.grad",
        "A leaf's first gradient is contiguous, whatever the leaf's strides are.",
    ),
    (
        "grad.ignore_strides",
        "layout.grad",
        "tanh's gradient reads a stepped gradient as if its elements lay in a row.",
    ),
    ("large.offset_32bit", "layout.large", "bitwise_not keeps 31 bits of an element's place."),
    ("autograd.first_wrong", "autograd.first", "The gradient of sigmoid is twice what it is."),
    (
        "autograd.rnn_weights_unshared",
        "autograd.first",
        "lstm gives each of its weights memory of its own.",
    ),
    ("autograd.second_wrong", "autograd.second", "The gradient of sinh has no gradient."),
    (
        "autograd.forward_ad_wrong",
        "autograd.forward_ad",
        "The forward-mode product of glu is twice what it is.",
    ),
    (
        "autograd.version_not_bumped",
        "autograd.version_counter",
        "zero_ leaves the version as it was.",
    ),
    (
        "autograd.thread_loses_index",
        "autograd.threads",
        "Threads other than the main one stay on index 0.",
    ),
    ("autocast.op_left_in_float32", "autocast.lists", "mm stays in float32 under autocast."),
    ("autocast.inf_not_found", "autocast.lists", "GradScaler is told that there is no inf."),
    ("optim.foreach_skips_last", "optim.foreach", "_foreach_add_ leaves out the last tensor."),
    (
        "optim.foreach_ignores_strides",
        "optim.foreach",
        "_foreach_mul_ takes tensors for contiguous.",
    ),
    (
        "compile.meta_disagrees",
        "compile.meta_agrees",
        "cumsum's result has other strides than its meta kernel says.",
    ),
    (
        "compile.compiled_differs",
        "compile.eager_equals_compiled",
        "hardswish, which compiled code calls for hardswish_, is one too large.",
    ),
    (
        "compile.interface_wrong_count",
        "compile.device_interface",
        "Dynamo is told of one device too many.",
    ),
    (
        "compile.export_wrong_device",
        "compile.export",
        "What was saved from index 1 is loaded on index 0.",
    ),
    (
        "streams.record_on_any_index",
        "streams.cross_device",
        "An event is recorded on a stream of whichever index.",
    ),
    (
        "events.unrecorded_not_ready",
        "events.record",
        "The device's own event queries False before its first record.",
    ),
    (
        "events.elapsed_untimed_accepted",
        "events.elapsed",
        "The device's own events have times without having been asked for.",
    ),
    (
        "events.index_set_before_record",
        "events.identity",
        "The device's own event has an index before its first record.",
    ),
    (
        "events.ipc_handle_dead",
        "events.ipc",
        "An event opened from a handle holds nothing up.",
    ),
    ("process.segfault", "", "The process ends by a segmentation fault."),
    ("process.abort", "", "The process aborts."),
    ("process.exit", "", "The process exits with status 3."),
    ("process.hang", "", "The call never returns; other threads go on."),
    (
        "process.hang_holding_gil",
        "",
        "The call never returns, and no other thread of Python goes on.",
    ),
    ("process.hang_on_stream", "", "The call returns, and the stream's work never ends."),
    (
        "process.sticky_error",
        "",
        "The call and every later one raise: the device is lost to the process.",
    ),
)
