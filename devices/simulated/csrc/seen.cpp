#include "seen.h"

#include <ATen/record_function.h>

#include <deque>
#include <mutex>
#include <unordered_set>

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

namespace {
struct Called {
  std::mutex mutex;
  std::unordered_set<std::string> names;
  std::atomic<uint64_t> turn{0};  // how often they were asked for
};

Called& called() {
  static auto* made = new Called;
  return *made;
}

std::unique_ptr<at::ObserverContext> note_op(const at::RecordFunction& function) {
  // An op's name is always the same string, so that a thread looks at each op once a turn.
  thread_local std::unordered_set<const char*> known;
  thread_local uint64_t turn = 0;
  if (const uint64_t now = called().turn.load(std::memory_order_acquire); now != turn) {
    turn = now;
    known.clear();
  }
  if (known.insert(function.name()).second) {
    std::lock_guard<std::mutex> lock(called().mutex);
    called().names.insert(function.name());
  }
  return nullptr;
}
}  // namespace

void note_ops(bool noting) {
  static at::CallbackHandle handle = at::INVALID_CALLBACK_HANDLE;
  if (noting && handle == at::INVALID_CALLBACK_HANDLE) {
    handle = at::addGlobalCallback(at::RecordFunctionCallback(&note_op).scopes({at::RecordScope::FUNCTION}));
  } else if (!noting && handle != at::INVALID_CALLBACK_HANDLE) {
    at::removeCallback(handle);
    handle = at::INVALID_CALLBACK_HANDLE;
  }
}

std::vector<std::string> ops_called() {
  std::lock_guard<std::mutex> lock(called().mutex);
  std::vector<std::string> found(called().names.begin(), called().names.end());
  called().names.clear();
  called().turn.fetch_add(1, std::memory_order_release);
  return found;
}

}  // namespace simulated
