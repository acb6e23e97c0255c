// The names of the planted faults. devices/simulated/faults.py says what each breaks, and which clause it must trip.

#pragma once

#include "fault_list_calls.h"
#include "fault_list_graphs.h"

#define SIMULATED_FAULT_LIST(F)                                         \
  SIMULATED_CALL_FAULTS(F)                                              \
  SIMULATED_GRAPH_FAULTS(F)                                             \
  /* layout: kernels, misbehave.cpp */                                  \
  F(ignore_strides, "values.ignore_strides")                            \
  F(ignore_storage_offset, "values.ignore_storage_offset")              \
  F(read_expanded_as_dense, "expand.read_as_dense")                     \
  F(ignore_channels_last, "stride.ignore_channels_last")                \
  F(always_contiguous, "stride.always_contiguous")                      \
  F(output_past_end, "storage.output_past_end")                         \
  F(inputs_overwritten, "inputs.overwritten")                           \
  F(write_past_end, "bounds.write_past_end")                            \
  F(write_between_elements, "bounds.write_between_elements")            \
  F(vectorised_tail_overrun, "bounds.vectorised_tail_overrun")          \
  F(out_restride, "out.restride")                                       \
  F(out_reallocate, "out.reallocate")                                   \
  F(out_ignore_strides, "out.ignore_strides")                           \
  F(out_accumulate, "out.accumulate_into_old_values")                   \
  F(out_resize_silently, "out.resize_silently")                         \
  F(inplace_write_to_copy, "inplace.write_to_copy")                     \
  F(inplace_reallocate, "inplace.reallocate")                           \
  F(variants_out_differs, "variants.out_differs")                       \
  F(overlap_skip_internal_check, "overlap.skip_internal_check")         \
  F(promotion_scalar_through_float, "promotion.scalar_through_float")   \
  F(special_max_drops_nan, "special.max_drops_nan")                     \
  F(beta_zero_multiply_input, "beta_zero.multiply_input")               \
  F(reduce_empty_sum_one, "reduce.empty_sum_one")                       \
  F(precision_truncate_mantissa, "precision.truncate_mantissa")         \
  F(determinism_varying, "determinism.varying_reduction_order")         \
  /* layout: tensors and views, ops.cpp and copy.cpp */                 \
  F(views_copy_instead_of_alias, "views.copy_instead_of_alias")         \
  F(views_wrong_offset, "views.wrong_offset")                           \
  F(views_forget_conj_bit, "views.forget_conj_bit")                     \
  F(set_ignores_offset, "as_strided.set_ignores_offset")                \
  F(memory_format_ignore_requested, "memory_format.ignore_requested")   \
  /* allocator*.cpp */                                                  \
  F(count_too_little, "allocator.count_too_little")                     \
  F(forget_free, "allocator.forget_free")                               \
  F(requested_counts_rounded, "allocator.requested_counts_rounded")     \
  F(active_below_allocated, "allocator.active_below_allocated")         \
  F(freed_miscounted, "allocator.freed_miscounted")                     \
  F(peak_not_raised, "allocator.peak_not_raised")                       \
  F(reset_peak_to_zero, "allocator.reset_peak_to_zero")                 \
  F(hand_out_overlap, "allocator.hand_out_overlap")                     \
  F(misalign_pointer, "allocator.misalign_pointer")                     \
  F(scribble_on_split, "allocator.scribble_on_split")                   \
  F(never_reuse, "allocator.never_reuse")                               \
  F(leak_on_split, "allocator.leak_on_split")                           \
  F(empty_cache_keeps_segment, "allocator.empty_cache_keeps_segment")   \
  F(empty_cache_frees_live, "allocator.empty_cache_frees_live")         \
  F(memory_info_free_constant, "allocator.memory_info_free_constant")   \
  F(memory_info_total_wrong, "allocator.memory_info_total_wrong")       \
  F(oom_wrong_type, "allocator.oom_wrong_type")                         \
  F(oom_not_counted, "allocator.oom_not_counted")                       \
  F(oom_stays_broken, "allocator.oom_stays_broken")                     \
  F(leak_on_error, "allocator.leak_on_error")                           \
  F(ignore_record_stream, "allocator.ignore_record_stream")             \
  F(reuse_across_streams, "allocator.reuse_across_streams")             \
  F(count_on_wrong_index, "allocator.count_on_wrong_index")             \
  F(ignore_fraction, "allocator.ignore_fraction")                       \
  F(accept_bad_fraction, "allocator.accept_bad_fraction")               \
  F(pool_leaks_to_default, "allocator.pool_leaks_to_default")           \
  F(pool_never_returned, "allocator.pool_never_returned")               \
  F(history_drops_free, "allocator.history_drops_free")                 \
  F(history_wrong_address, "allocator.history_wrong_address")           \
  F(snapshot_misses_segment, "allocator.snapshot_misses_segment")       \
  F(host_never_reuse, "allocator.host_never_reuse")                     \
  F(host_miscount, "allocator.host_miscount")                           \
  /* stream.cpp, event.cpp, runtime.cpp, copy.cpp */                    \
  F(exit_not_restored, "streams.exit_not_restored")                     \
  F(current_shared_by_threads, "streams.current_shared_by_threads")     \
  F(new_stream_repeats, "streams.new_stream_repeats")                   \
  F(reorder_tasks, "streams.reorder_tasks")                             \
  F(serialise_streams, "streams.serialise_streams")                     \
  F(launch_blocks_host, "streams.launch_blocks_host")                   \
  F(ignore_wait, "streams.ignore_wait")                                 \
  F(wait_takes_latest_record, "streams.wait_takes_latest_record")       \
  F(query_always_true, "streams.query_always_true")                     \
  F(synchronize_returns_early, "streams.synchronize_returns_early")     \
  F(synchronize_wrong_index, "streams.synchronize_wrong_index")         \
  F(copy_ignores_peer_stream, "streams.copy_ignores_peer_stream")       \
  F(native_handle_null, "streams.native_handle_null")                   \
  F(native_handle_changes, "streams.native_handle_changes")             \
  F(external_own_queue, "streams.external_own_queue")                   \
  F(record_late, "events.record_late")                                  \
  F(rerecord_ignored, "events.rerecord_ignored")                        \
  F(elapsed_constant, "events.elapsed_constant")                        \
  F(error_swallowed, "device.error_swallowed")                          \
  F(non_blocking_off_stream, "transfer.non_blocking_off_stream")        \
  F(pinned_reused_early, "transfer.pinned_reused_early")
