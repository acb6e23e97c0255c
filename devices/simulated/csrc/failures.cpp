// Failures of queued work, kept until they are raised; and forks, after which the device cannot be used.

#include <pthread.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <stdexcept>
#include <vector>

#include "arena.h"
#include "faults.h"
#include "hazard.h"
#include "runtime.h"
#include "stream.h"

namespace simulated {

namespace {

// By device, oldest first. Their number is kept separately, so that they cost nothing while there are none.
struct Failures {
  std::mutex mutex;
  std::array<std::vector<std::exception_ptr>, 16> all;
};

Failures& failures() {
  static auto* made = new Failures;  // leaked: threads outlive static objects
  return *made;
}

std::atomic<int> pending_errors{0};
std::atomic<bool> used{false}, forked{false};

}  // namespace

void keep_error(int device, std::exception_ptr error) {
  std::lock_guard<std::mutex> lock(failures().mutex);
  failures().all.at(device).push_back(std::move(error));
  pending_errors.fetch_add(1);
}

void raise_pending(int device) {
  refuse_if_lost();
  if (pending_errors.load(std::memory_order_relaxed) == 0) {
    return;
  }
  std::exception_ptr oldest;
  {
    std::lock_guard<std::mutex> lock(failures().mutex);
    if (on(Fault::device_error_lost_by_other_index)) {
      for (size_t each = 0; each < failures().all.size(); ++each) {
        if (each != static_cast<size_t>(device)) {
          pending_errors.fetch_sub(static_cast<int>(failures().all[each].size()));
          failures().all[each].clear();
        }
      }
    }
    auto& errors = failures().all.at(device);
    if (errors.empty()) {
      return;
    }
    oldest = errors.front();
    errors.erase(errors.begin());
    pending_errors.fetch_sub(1);
  }
  if (on(Fault::autograd_error_lost) && in_backward()) {
    return;
  }
  std::rethrow_exception(oldest);
}

bool in_bad_fork() {
  return forked.load(std::memory_order_relaxed);
}

void watch_forks() {
  if (!used.exchange(true)) {
    pthread_atfork(
        [] {
          if (on(Fault::device_fork_silent)) {
            arena().keep_over_forks();
          }
        },
        nullptr, [] { forked.store(true); });
  }
}

void refuse_after_fork() {
  if (in_bad_fork() && on(Fault::device_fork_hangs)) {
    for (;;) {
      pause();
    }
  }
  if (in_bad_fork() && !on(Fault::device_fork_silent)) {
    throw std::runtime_error(
        "Cannot re-initialize the simulated device in a forked subprocess: its threads and its memory stay with the "
        "parent. To use it with multiprocessing, choose the 'spawn' start method.");
  }
}

}  // namespace simulated
