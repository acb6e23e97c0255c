#include "faults.h"

#include <stdexcept>

namespace simulated {

namespace detail {
std::atomic<uint64_t> fault_bits[(kFaults + 63) / 64] = {};
}

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

void switch_fault(const std::string& name, bool on) {
  const int number = number_of(name);
  const uint64_t bit = uint64_t{1} << (number % 64);
  auto& word = detail::fault_bits[number / 64];
  on ? word.fetch_or(bit) : word.fetch_and(~bit);
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
