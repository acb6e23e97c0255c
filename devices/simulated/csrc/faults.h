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
// Two bits for each fault: bit 1 while the fault is on, bit 2 while calls of on() for it are noted.
constexpr int kFaultsPerWord = 32;
extern std::atomic<uint64_t> fault_bits[(kFaults + kFaultsPerWord - 1) / kFaultsPerWord];
bool asked(int number, uint64_t bits);
}  // namespace detail

// Whether a fault is on: one relaxed load, so that a fault that is off costs almost nothing.
inline bool on(Fault fault) {
  const int number = static_cast<int>(fault);
  const uint64_t word = detail::fault_bits[number / detail::kFaultsPerWord].load(std::memory_order_relaxed);
  const uint64_t bits = (word >> (2 * (number % detail::kFaultsPerWord))) & 3;
  return bits != 0 && detail::asked(number, bits);
}

// Both throw std::invalid_argument for an unknown name.
void switch_fault(const std::string& name, bool on);
bool fault_is_on(const std::string& name);
std::string name_of(Fault fault);
std::vector<std::string> fault_names();
std::vector<std::string> faults_that_are_on();

// From now on, note for which faults on() is called. A fault for which it is not called can change nothing.
void note_asked(bool noting);
// The faults for which on() was called since the last call of this function.
std::vector<std::string> faults_asked();

}  // namespace simulated
