// The names of the planted faults. devices/simulated/faults.py says what each breaks, and which clause it must trip.

#pragma once

#define SIMULATED_FAULT_LIST(F)                                         \
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
  F(memory_format_ignore_requested, "memory_format.ignore_requested")
