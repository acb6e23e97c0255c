// The names of the planted faults of calls: transfers, devices, dispatch, random numbers, gradients, processes.

#pragma once

#define SIMULATED_CALL_FAULTS(F)                                        \
  /* transfer: copy.cpp, ops.cpp, hooks.cpp */                          \
  F(treat_source_as_dense, "transfer.treat_source_as_dense")            \
  F(drop_strides, "transfer.drop_strides")                              \
  F(return_before_read, "transfer.return_before_read")                  \
  F(return_before_write, "transfer.return_before_write")                \
  F(write_dense_into_view, "transfer.write_dense_into_view")            \
  F(read_past_broadcast_source, "transfer.read_past_broadcast_source")  \
  F(synchronize_misses_copy, "transfer.synchronize_misses_copy")        \
  F(slice_not_pinned, "transfer.slice_not_pinned")                      \
  F(item_before_work, "transfer.item_before_work")                      \
  F(item_wrong_type, "transfer.item_wrong_type")                        \
  F(resize_loses_bytes, "transfer.resize_loses_bytes")                  \
  F(resize_zero_keeps_memory, "transfer.resize_zero_keeps_memory")      \
  F(load_unshares_storage, "transfer.load_unshares_storage")            \
  F(load_drops_offset, "transfer.load_drops_offset")                    \
  F(dlpack_copies, "transfer.dlpack_copies")                            \
  F(dlpack_ignores_stream, "transfer.dlpack_ignores_stream")            \
  F(dlpack_ignores_offset, "transfer.dlpack_ignores_offset")            \
  F(numpy_exposes_memory, "transfer.numpy_exposes_memory")              \
  /* allocator: allocator*.cpp, settings.cpp, pluggable.cpp */          \
  F(settings_ignored, "allocator.settings_ignored")                     \
  F(settings_accept_unknown, "allocator.settings_accept_unknown")       \
  F(pluggable_bypassed, "allocator.pluggable_bypassed")                 \
  F(pluggable_changed_after_use, "allocator.pluggable_changed_after_use") \
  F(unlocked_counters, "allocator.unlocked_counters")                   \
  F(unlocked_free_list, "allocator.unlocked_free_list")                 \
  /* streams, events: runtime.cpp, stream.cpp, event.cpp */             \
  F(hash_differs, "streams.hash_differs")                               \
  F(streams_index_not_restored, "streams.index_not_restored")           \
  F(priority_dropped, "streams.priority_dropped")                       \
  F(external_destroys_owner, "streams.external_destroys_owner")         \
  F(unlocked_queue, "streams.unlocked_queue")                           \
  F(backward_on_default_stream, "streams.backward_on_default_stream")   \
  F(backward_not_joined, "streams.backward_not_joined")                 \
  F(event_id_repeats, "events.event_id_repeats")                        \
  /* device: runtime.cpp, allocator_torch.cpp, ops.cpp, copy.cpp, backend/ */ \
  F(accept_index_past_count, "device.accept_index_past_count")          \
  F(device_index_not_restored, "device.index_not_restored")             \
  F(device_shared_by_threads, "device.current_shared_by_threads")       \
  F(declared_dtype_refused, "device.declared_dtype_refused")            \
  F(uuid_repeats, "device.uuid_repeats")                                \
  F(total_memory_varies, "device.total_memory_varies")                  \
  F(peer_copy_wrong, "device.peer_copy_wrong")                          \
  F(factory_ignores_index, "device.factory_ignores_index")              \
  F(storage_on_other_index, "device.storage_on_other_index")            \
  F(fork_silent, "device.fork_silent")                                  \
  F(fork_hangs, "device.fork_hangs")                                    \
  F(init_on_import, "device.init_on_import")                            \
  F(autoload_failure_hidden, "device.autoload_failure_hidden")          \
  F(abort_at_exit, "device.abort_at_exit")                              \
  /* dispatch: kernel.cpp, misbehave_calls.cpp, backend/ */             \
  F(fallback_unlisted, "dispatch.fallback_unlisted")                    \
  F(mixed_devices_accepted, "dispatch.mixed_devices_accepted")          \
  F(cpu_scalar_offset_ignored, "dispatch.cpu_scalar_offset_ignored")    \
  F(bad_shape_accepted, "dispatch.bad_shape_accepted")                  \
  F(wrong_error_type, "dispatch.wrong_error_type")                      \
  F(unsupported_wrong_error, "dispatch.unsupported_wrong_error")        \
  F(unsupported_returns_garbage, "dispatch.unsupported_returns_garbage") \
  F(index_unchecked, "dispatch.index_unchecked")                        \
  /* random: generator.cpp, misbehave_calls.cpp, backend/ */            \
  F(seed_ignored, "random.seed_ignored")                                \
  F(state_not_restored, "random.state_not_restored")                    \
  F(generators_shared, "random.generators_shared")                      \
  F(seed_first_index_only, "random.seed_first_index_only")              \
  F(seed_lost_before_init, "random.seed_lost_before_init")              \
  F(normal_std_is_variance, "random.normal_std_is_variance")            \
  F(fill_past_view, "random.fill_past_view")                            \
  /* gradients and what trains: misbehave_calls.cpp, ops.cpp, backend/ */ \
  F(grad_wrong_layout, "grad.wrong_layout")                             \
  F(grad_ignore_strides, "grad.ignore_strides")                         \
  F(large_offset_32bit, "large.offset_32bit")                           \
  F(first_wrong, "autograd.first_wrong")                                \
  F(rnn_weights_unshared, "autograd.rnn_weights_unshared")              \
  F(second_wrong, "autograd.second_wrong")                              \
  F(forward_ad_wrong, "autograd.forward_ad_wrong")                      \
  F(version_not_bumped, "autograd.version_not_bumped")                  \
  F(thread_loses_index, "autograd.thread_loses_index")                  \
  F(op_left_in_float32, "autocast.op_left_in_float32")                  \
  F(inf_not_found, "autocast.inf_not_found")                            \
  F(foreach_skips_last, "optim.foreach_skips_last")                     \
  F(foreach_ignores_strides, "optim.foreach_ignores_strides")           \
  F(meta_disagrees, "compile.meta_disagrees")                           \
  F(compiled_differs, "compile.compiled_differs")                       \
  F(interface_wrong_count, "compile.interface_wrong_count")             \
  F(export_wrong_device, "compile.export_wrong_device")                 \
  /* what ends a process: hazard.cpp */                                 \
  F(segfault, "process.segfault")                                       \
  F(abort, "process.abort")                                             \
  F(exit, "process.exit")                                               \
  F(hang, "process.hang")                                               \
  F(hang_holding_gil, "process.hang_holding_gil")                       \
  F(hang_on_stream, "process.hang_on_stream")                           \
  F(sticky_error, "process.sticky_error")                                \
  /* streams, events: event.cpp, event_ipc.cpp, backend/events.py */    \
  F(record_on_any_index, "streams.record_on_any_index")                 \
  F(unrecorded_not_ready, "events.unrecorded_not_ready")                \
  F(elapsed_untimed_accepted, "events.elapsed_untimed_accepted")        \
  F(index_set_before_record, "events.index_set_before_record")          \
  F(ipc_handle_dead, "events.ipc_handle_dead")
