// Planted faults: switches that break the device, each in one named way. All are off unless asked for.

#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "fault_list.h"  // generated from devices/simulated/faults.toml (backend/build.py)

namespace simulated {

enum class Fault : int {
#define SIMULATED_FAULT(identifier, name) identifier,
  SIMULATED_FAULT_LIST(SIMULATED_FAULT)
#undef SIMULATED_FAULT
      count
};

constexpr int kFaults = static_cast<int>(Fault::count);

namespace detail {
extern std::atomic<uint64_t> fault_bits[(kFaults + 63) / 64];
}

// Whether a fault is on: one relaxed load, so that a fault that is off costs almost nothing.
inline bool on(Fault fault) {
  const int number = static_cast<int>(fault);
  return (detail::fault_bits[number / 64].load(std::memory_order_relaxed) >> (number % 64)) & 1;
}

// Both throw std::invalid_argument for an unknown name.
void switch_fault(const std::string& name, bool on);
bool fault_is_on(const std::string& name);
std::string name_of(Fault fault);
std::vector<std::string> fault_names();
std::vector<std::string> faults_that_are_on();

}  // namespace simulated
