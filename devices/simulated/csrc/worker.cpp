#include "worker.h"

#include <ATen/Parallel.h>

#include <atomic>
#include <cstdlib>
#include <thread>

#include <unistd.h>

#include "faults.h"

namespace simulated {

void prepare_worker_thread() {
  at::init_num_threads();
}

namespace {
std::atomic<int> running{0};
std::atomic<bool> stopped{false};
}  // namespace

KernelTurn::KernelTurn() {
  ++running;
  if (stopped) {
    --running;
    for (;;) {
      pause();  // until the process is gone
    }
  }
}

KernelTurn::~KernelTurn() {
  --running;
}

void stop_kernels() {
  if (on(Fault::device_abort_at_exit)) {
    std::abort();
  }
  stopped = true;
  while (running != 0) {
    std::this_thread::yield();
  }
}

bool kernels_stopped() {
  return stopped;
}

}  // namespace simulated
