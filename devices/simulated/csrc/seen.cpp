#include "seen.h"

#include <deque>
#include <mutex>

namespace simulated {

namespace {
struct Flags {
  std::mutex mutex;
  std::deque<std::pair<std::string, std::atomic<bool>>> all;  // a deque: elements keep their places
};

Flags& flags() {
  static auto* made = new Flags;
  return *made;
}
}  // namespace

Seen::Seen(const std::string& name) {
  std::lock_guard<std::mutex> lock(flags().mutex);
  flag_ = &flags().all.emplace_back(name, false).second;
}

std::vector<std::string> seen_since() {
  std::vector<std::string> found;
  std::lock_guard<std::mutex> lock(flags().mutex);
  for (auto& [name, flag] : flags().all) {
    if (flag.exchange(false, std::memory_order_relaxed)) {
      found.push_back(name);
    }
  }
  return found;
}

}  // namespace simulated
