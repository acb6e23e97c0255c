// Which of the device's ops were called: those that a planted fault can have affected.

#pragma once

#include <atomic>
#include <string>
#include <vector>

namespace simulated {

// A mark under a name. Made once and kept: calls of an op only set a flag.
class Seen {
 public:
  explicit Seen(const std::string& name);
  void note() { flag_->store(true, std::memory_order_relaxed); }

 private:
  std::atomic<bool>* flag_;  // never freed
};

// The names noted since the last call.
std::vector<std::string> seen_since();

}  // namespace simulated
