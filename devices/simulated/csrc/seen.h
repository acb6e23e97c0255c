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

// Note from now on every op that torch calls, on any device and in any thread, composite ones too.
void note_ops(bool noting);
// The ops that were called since the last call: "aten::exp".
std::vector<std::string> ops_called();

}  // namespace simulated
