// What goes wrong behind the host's back: failures of queued work, and forks of the process.

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <vector>

#include "arena.h"
#include "faults.h"
#include "hazard.h"
#include "stream.h"

namespace simulated {

namespace {

std::atomic<bool> used{false}, forked{false};
std::atomic<int> pending_errors{0};

// Failures that nobody has seen, by device.
struct Errors {
  std::mutex mutex;
  std::vector<std::vector<std::exception_ptr>> all{16};
};

Errors& errors() {
  static auto* made = new Errors;  // leaked: threads outlive static objects
  return *made;
}

}  // namespace

void keep_error(int device, std::exception_ptr error) {
  std::lock_guard<std::mutex> lock(errors().mutex);
  errors().all.at(device).push_back(std::move(error));
  pending_errors.fetch_add(1);
}

void raise_pending(int device) {
  refuse_if_lost();
  if (pending_errors.load(std::memory_order_relaxed) == 0) {
    return;
  }
  std::exception_ptr oldest;
  {
    std::lock_guard<std::mutex> lock(errors().mutex);
    auto& of_device = errors().all.at(device);
    if (of_device.empty()) {
      return;
    }
    oldest = of_device.front();
    of_device.erase(of_device.begin());
    pending_errors.fetch_sub(1);
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
          if (on(Fault::fork_silent)) {
            arena().keep_over_forks();
          }
        },
        nullptr, [] { forked.store(true); });
  }
}

void refuse_after_fork() {
  if (in_bad_fork() && on(Fault::fork_hangs)) {
    for (;;) {
      pause();
    }
  }
  if (in_bad_fork() && !on(Fault::fork_silent)) {
    throw std::runtime_error(
        "Cannot re-initialize the simulated device in a forked subprocess: its threads and its memory stay with the "
        "parent. To use it with multiprocessing, choose the 'spawn' start method.");
  }
}

}  // namespace simulated
