#include "crowd.h"

#include <chrono>
#include <thread>

#include "faults.h"

namespace simulated {

namespace {
thread_local bool crowded = false;
}

Crowd::Crowd(std::atomic<int>& inside)
    : inside_(inside), watched_(on(Fault::allocator_unlocked_counters) || on(Fault::allocator_unlocked_free_list)) {
  if (watched_) {
    crowded = inside_.fetch_add(1) != 0;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

Crowd::~Crowd() {
  if (watched_) {
    --inside_;
    crowded = false;
  }
}

bool is_crowded() {
  return crowded;
}

}  // namespace simulated
