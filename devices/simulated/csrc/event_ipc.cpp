#include "event_ipc.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <thread>

#include "faults.h"

namespace simulated {

namespace {

// Zero in a new file. Records of two streams may be done in any order: the latest one counts.
struct Shared {
  std::atomic<uint64_t> recorded, done;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free, "other locks would not be shared by processes");

Shared& shared(uintptr_t event) {
  return *reinterpret_cast<Shared*>(event);
}

void raise_done(Shared& event, uint64_t record) {
  uint64_t before = event.done;
  while (before < record && !event.done.compare_exchange_weak(before, record)) {
  }
}

// For a planted fault: the last event that was opened before its first record.
std::atomic<uintptr_t>& early() {
  static std::atomic<uintptr_t> event{0};
  return event;
}

// No other process can notify this thread, so it polls.
void wait_until_done(Shared& event, uint64_t record) {
  while (event.done < record) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

}  // namespace

uintptr_t open_shared_event(const std::string& path, bool create) {
  auto failed = [&](const char* what) {
    return std::system_error(errno, std::generic_category(), std::string("simulated device: ") + what + " " + path);
  };
  const int file = open(path.c_str(), O_RDWR | (create ? O_CREAT | O_EXCL : 0), 0600);
  if (file < 0) {
    throw failed("cannot open the event");
  }
  void* made = MAP_FAILED;
  if (!create || ftruncate(file, sizeof(Shared)) == 0) {
    made = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  }
  close(file);
  if (!create && made != MAP_FAILED && static_cast<Shared*>(made)->recorded == 0 && on(Fault::events_ipc_early_handle_dead)) {
    early() = reinterpret_cast<uintptr_t>(made);
  }
  if (made == MAP_FAILED) {
    throw failed("cannot map the event");
  }
  return reinterpret_cast<uintptr_t>(made);
}

void record_shared_event(uintptr_t event, Queue& queue) {
  Shared& all = shared(event);
  const uint64_t record = ++all.recorded;
  queue.submit([&all, record] { raise_done(all, record); });
}

void wait_shared_event(uintptr_t event, Queue& queue) {
  Shared& all = shared(event);
  const uint64_t record = all.recorded;
  if (!on(Fault::events_ipc_handle_dead) && event != early()) {
    queue.submit([&all, record] { wait_until_done(all, record); });
  }
}

bool shared_event_done(uintptr_t event) {
  return shared(event).done >= shared(event).recorded;
}

void synchronize_shared_event(uintptr_t event) {
  wait_until_done(shared(event), shared(event).recorded);
}

}  // namespace simulated
