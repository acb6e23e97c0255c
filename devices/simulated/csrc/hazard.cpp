#include <Python.h>

#include "hazard.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <stdexcept>

#include "faults.h"
#include "runtime.h"

namespace simulated {

namespace {

constexpr Fault kHazards[] = {
    Fault::process_segfault,         Fault::process_abort,          Fault::process_exit,
    Fault::process_hang,             Fault::process_hang_holding_gil, Fault::process_hang_on_stream,
    Fault::process_sticky_error};

std::atomic<bool> lost{false};

std::string from_environment(const char* name, const char* otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr || *text == '\0' ? otherwise : text;
}

[[noreturn]] void wait_for_ever() {
  for (;;) {
    pause();
  }
}

void strike() {
  if (on(Fault::process_segfault)) {
    *static_cast<volatile int*>(nullptr) = 1;
  }
  if (on(Fault::process_abort)) {
    std::abort();
  }
  if (on(Fault::process_exit)) {
    _exit(3);
  }
  if (on(Fault::process_hang)) {
    wait_for_ever();
  }
  if (on(Fault::process_hang_holding_gil)) {
    PyGILState_Ensure();
    wait_for_ever();
  }
  if (on(Fault::process_hang_on_stream)) {
    current_queue(current_device()).submit([] { wait_for_ever(); });
  }
  if (on(Fault::process_sticky_error)) {
    lost = true;
    refuse_if_lost();
  }
}

}  // namespace

void meet_hazards(const std::string& op) {
  bool any = false;
  for (const Fault each : kHazards) {
    any = any || on(each);
  }
  if (!any) {
    return;
  }
  static const std::string name = from_environment("SIMULATED_FAULT_OP", "aten::exp");
  static const long due = std::strtol(from_environment("SIMULATED_FAULT_CALL", "1").c_str(), nullptr, 10);
  static std::atomic<long> calls{0};
  if (op == name && ++calls == due) {
    strike();
  }
}

void refuse_if_lost() {
  if (lost.load(std::memory_order_relaxed)) {
    throw std::runtime_error(
        "simulated device: illegal memory access; the device is unusable in this process, and every call will fail");
  }
}

}  // namespace simulated
