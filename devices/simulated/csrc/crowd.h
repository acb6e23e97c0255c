// For planted faults of the allocator: whether a call found another thread inside, after giving one time to enter.

#pragma once

#include <atomic>

namespace simulated {

class Crowd {
 public:
  // Counts the calling thread among those inside, while it lives and such a fault is on.
  explicit Crowd(std::atomic<int>& inside);
  ~Crowd();
  Crowd(const Crowd&) = delete;
  Crowd& operator=(const Crowd&) = delete;

 private:
  std::atomic<int>& inside_;
  const bool watched_;
};

// Whether this thread's call found another thread inside.
bool is_crowded();

}  // namespace simulated
