#include "faults.h"

#include <stdexcept>

namespace simulated {

namespace {
std::atomic<bool> fault_asked[kFaults] = {};
}

namespace detail {
std::atomic<uint64_t> fault_bits[(kFaults + kFaultsPerWord - 1) / kFaultsPerWord] = {};

bool asked(int number, uint64_t bits) {
  if (bits & 2) {
    fault_asked[number].store(true, std::memory_order_relaxed);
  }
  return bits & 1;
}
}  // namespace detail

namespace {
constexpr const char* kNames[] = {
#define SIMULATED_FAULT(identifier, name) name,
    SIMULATED_FAULT_LIST(SIMULATED_FAULT)
#undef SIMULATED_FAULT
};
}  // namespace

namespace {
int number_of(const std::string& name) {
  for (int number = 0; number < kFaults; ++number) {
    if (name == kNames[number]) {
      return number;
    }
  }
  throw std::invalid_argument("unknown fault '" + name + "'");
}
}  // namespace

namespace {
void set_bit(int number, int which, bool on) {
  const uint64_t bit = uint64_t{1} << (2 * (number % detail::kFaultsPerWord) + which);
  auto& word = detail::fault_bits[number / detail::kFaultsPerWord];
  on ? word.fetch_or(bit) : word.fetch_and(~bit);
}
}  // namespace

void switch_fault(const std::string& name, bool on) {
  set_bit(number_of(name), 0, on);
}

void note_asked(bool noting) {
  for (int number = 0; number < kFaults; ++number) {
    set_bit(number, 1, noting);
  }
}

std::vector<std::string> faults_asked() {
  std::vector<std::string> found;
  for (int number = 0; number < kFaults; ++number) {
    if (fault_asked[number].exchange(false, std::memory_order_relaxed)) {
      found.emplace_back(kNames[number]);
    }
  }
  return found;
}

bool fault_is_on(const std::string& name) {
  return on(static_cast<Fault>(number_of(name)));
}

std::string name_of(Fault fault) {
  return kNames[static_cast<int>(fault)];
}

std::vector<std::string> fault_names() {
  return std::vector<std::string>(std::begin(kNames), std::end(kNames));
}

std::vector<std::string> faults_that_are_on() {
  std::vector<std::string> found;
  for (int number = 0; number < kFaults; ++number) {
    if (on(static_cast<Fault>(number))) {
      found.emplace_back(kNames[number]);
    }
  }
  return found;
}

}  // namespace simulated
