// The names of the planted faults. devices/simulated/faults.py says what each breaks, and which clause it must trip.

#pragma once

#define SIMULATED_FAULT_LIST(F)                                                     \
  F(values_ignore_strides, "values.ignore_strides")                                 \
  F(values_ignore_storage_offset, "values.ignore_storage_offset")
