// Marks and times for torch's profiler.

#pragma once

namespace simulated {

void register_profiler();

}  // namespace simulated
