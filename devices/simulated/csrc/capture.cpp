#include "capture.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>

#include "faults.h"

namespace simulated {

namespace {

// The captures underway. Their number is kept separately, so that they cost nothing while there are none.
struct Underway {
  std::mutex mutex;
  std::vector<Capture*> all;
};

Underway& underway() {
  static auto* made = new Underway;  // leaked: threads outlive static objects
  return *made;
}

std::atomic<int> number_underway{0};

// The first capture underway that `wanted` is true for; nullptr if there is none.
template <typename Wanted>
std::shared_ptr<Capture> find_capture(Wanted wanted) {
  if (number_underway.load(std::memory_order_relaxed) == 0) {
    return nullptr;
  }
  std::lock_guard<std::mutex> lock(underway().mutex);
  auto& all = underway().all;
  auto found = std::find_if(all.begin(), all.end(), [&](const Capture* each) { return wanted(*each); });
  return found == all.end() ? nullptr : (*found)->shared_from_this();
}

std::string stream_name(const Queue& queue) {
  return "stream " + std::to_string(queue.id()) + " of device " + std::to_string(queue.device());
}

}  // namespace

// -- recording

Capture::Capture(Queue& origin, CaptureMode mode)
    : mode_(mode),
      thread_(std::this_thread::get_id()),
      over_(std::make_shared<Mark>(/*of_capture=*/true)),
      queues_{&origin},
      frontier_(1) {}

size_t Capture::branch_locked(Queue& queue) {
  const auto found = std::find(queues_.begin(), queues_.end(), &queue);
  if (found == queues_.end()) {
    queues_.push_back(&queue);
    frontier_.emplace_back();
    return queues_.size() - 1;
  }
  return found - queues_.begin();
}

void Capture::record(Queue& queue, Task task, const char* what, const void* in_turn) {
  std::lock_guard<std::mutex> lock(mutex_);
  const size_t branch = branch_locked(queue), number = nodes_.size();
  Node node{std::move(task), what, branch, frontier_[branch]};
  if (in_turn != nullptr) {
    const auto [before, first] = last_in_turn_.emplace(in_turn, number);
    if (!first && std::find(node.after.begin(), node.after.end(), before->second) == node.after.end()) {
      node.after.push_back(before->second);
    }
    before->second = number;
  }
  nodes_.push_back(std::move(node));
  frontier_[branch] = {number};
}

std::shared_ptr<const CapturePoint> Capture::point(Queue& queue) {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::make_shared<CapturePoint>(CapturePoint{shared_from_this(), frontier_[branch_locked(queue)]});
}

void Capture::follow(Queue& queue, const std::vector<size_t>& nodes) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto& frontier = frontier_[branch_locked(queue)];
  for (const size_t each : nodes) {
    if (std::find(frontier.begin(), frontier.end(), each) == frontier.end()) {
      frontier.push_back(each);
    }
  }
}

bool Capture::empty() {
  std::lock_guard<std::mutex> lock(mutex_);
  return nodes_.empty();
}

std::shared_ptr<AroundReplay> Capture::around(
    const void* key, const std::function<std::shared_ptr<AroundReplay>()>& make) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto& found = around_[key];
  if (found == nullptr) {
    found = make();
  }
  return found;
}

void Capture::invalidate(const std::string& why) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (invalid_.empty()) {
    invalid_ = why;
  }
}

std::string Capture::why_invalid() {
  std::lock_guard<std::mutex> lock(mutex_);
  return invalid_;
}

// -- begin and end

std::shared_ptr<Capture> begin_capture(Queue& queue, CaptureMode mode) {
  TORCH_CHECK(
      queue.id() != kDefaultQueue,
      "simulated device: graphs are captured on a stream other than the default one; use `with stream, graph:`");
  auto made = std::make_shared<Capture>(queue, mode);
  TORCH_CHECK(
      queue.join(made), "simulated device: ", stream_name(queue),
      " is already capturing: end that capture before beginning another");
  std::lock_guard<std::mutex> lock(underway().mutex);
  underway().all.push_back(made.get());
  number_underway.fetch_add(1);
  return made;
}

void Capture::abandon() noexcept {
  {
    std::lock_guard<std::mutex> lock(underway().mutex);
    number_underway.fetch_sub(static_cast<int>(std::erase(underway().all, this)));
  }
  std::vector<Queue*> queues;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    queues = queues_;
  }
  for (Queue* each : queues) {
    if (each->capture().get() == this) {
      each->leave();
    }
  }
  over_->set();
}

Recorded Capture::end() {
  abandon();
  std::lock_guard<std::mutex> lock(mutex_);
  TORCH_CHECK(invalid_.empty(), "simulated device: the capture failed and made no graph: ", invalid_);
  const std::string unjoined = unjoined_locked();
  TORCH_CHECK(
      unjoined.empty() || on(Fault::graphs_unjoined_fork_accepted),
      "simulated device: the capture holds work of ", unjoined,
      " that was not joined: record an event there and let the capturing stream wait for it before the capture ends");
  Recorded made{device(), queues_.size(), std::move(nodes_), std::move(frontier_[0]), {}};
  for (auto& [key, each] : around_) {
    made.around.push_back(std::move(each));
  }
  return made;
}

// The first queue with work that the origin does not wait for; empty if there is none.
std::string Capture::unjoined_locked() const {
  std::vector<bool> joined(nodes_.size());
  std::vector<size_t> next = frontier_[0];
  while (!next.empty()) {
    const size_t number = next.back();
    next.pop_back();
    if (!joined[number]) {
      joined[number] = true;
      next.insert(next.end(), nodes_[number].after.begin(), nodes_[number].after.end());
    }
  }
  for (size_t number = 0; number < nodes_.size(); ++number) {
    if (!joined[number]) {
      return stream_name(*queues_[nodes_[number].branch]);
    }
  }
  return "";
}

// -- queues

std::shared_ptr<const CapturePoint> Mark::captured() {
  std::lock_guard<std::mutex> lock(mutex_);
  return captured_;
}

void Mark::set_captured(std::shared_ptr<const CapturePoint> point) {
  std::lock_guard<std::mutex> lock(mutex_);
  captured_ = std::move(point);
}

std::shared_ptr<Capture> Queue::capture() {
  if (!capturing()) {
    return nullptr;
  }
  std::lock_guard<std::mutex> lock(mutex_);
  return capture_;
}

bool Queue::join(const std::shared_ptr<Capture>& capture) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (capture_ != nullptr) {
    return capture_ == capture;
  }
  capture_ = capture;
  capturing_ = true;
  return true;
}

void Queue::leave() {
  std::shared_ptr<Capture> last;  // released outside the lock
  std::lock_guard<std::mutex> lock(mutex_);
  last = std::move(capture_);
  capture_ = nullptr;
  capturing_ = false;
}

bool Queue::record(Task& task, const char* what, const void* in_turn) {
  const auto capture = this->capture();
  if (capture == nullptr) {
    return false;  // it has just ended
  }
  if (on(Fault::graphs_capture_runs_work)) {
    push(task, std::strcmp(what, "task") != 0);
  }
  capture->record(*this, std::move(task), what, in_turn);
  return true;
}

void Queue::wait_in_capture(const MarkPtr&, const std::shared_ptr<const CapturePoint>& point) {
  const auto mine = capture();
  const auto refuse = [&](const std::string& why) {
    const std::string text = stream_name(*this) + " waits for an event " + why;
    if (mine != nullptr) {
      mine->invalidate(text);
    }
    TORCH_CHECK(false, "simulated device: ", text);
  };
  if (on(Fault::graphs_side_stream_not_captured) && (point == nullptr || mine == nullptr)) {
    return;
  }
  if (on(Fault::graphs_foreign_event_ignored) && mine != nullptr && (point == nullptr || point->capture != mine)) {
    return;
  }
  if (point == nullptr) {
    refuse("that was recorded outside of the capture it is part of: a graph cannot wait for work that is not its own");
  }
  if (point->capture->over()->done() && !on(Fault::graphs_ended_capture_joined)) {
    refuse("whose last record is part of a capture that has ended");
  }
  if (point->capture->device() != device()) {
    refuse("of a capture on device " + std::to_string(point->capture->device()) + ": a graph holds work of one device");
  }
  if (!join(point->capture)) {
    point->capture->invalidate(stream_name(*this) + " of another capture waits for one of its events");
    refuse("of another capture than the one it is part of");
  }
  point->capture->follow(*this, point->nodes);
}

// -- what is refused

void refuse_while_capturing(Queue& queue, const std::string& what) {
  const auto capture = queue.capture();
  if (capture == nullptr || on(Fault::graphs_sync_allowed_in_capture)) {
    return;
  }
  const std::string text = what + " is not permitted while " + stream_name(queue) +
      " is capturing: recorded work does not run before the graph is replayed";
  capture->invalidate(text);
  TORCH_CHECK(false, "simulated device: ", text, ". The capture is invalid from here on.");
}

void refuse_captured(const MarkPtr& mark, const char* what) {
  const auto point = mark == nullptr ? nullptr : mark->captured();
  if (point == nullptr || on(Fault::graphs_sync_allowed_in_capture)) {
    return;
  }
  const std::string text = std::string(what) + " an event is not permitted where its last record is part of a capture";
  point->capture->invalidate(text);
  TORCH_CHECK(false, "simulated device: ", text, ": recorded work does not run before the graph is replayed");
}

void refuse_synchronize(int device) {
  if (on(Fault::graphs_sync_allowed_in_capture)) {
    return;
  }
  const auto found = find_capture([device](const Capture& each) {
    return each.device() == device && (each.of_this_thread() || each.mode() == CaptureMode::global);
  });
  if (found == nullptr) {
    return;
  }
  if (found->of_this_thread()) {
    found->invalidate("the device was synchronised while capturing");
  }
  TORCH_CHECK(
      false, "simulated device: synchronising device ", device, " is not permitted while ", stream_name(found->origin()),
      " is capturing", found->of_this_thread() ? ". The capture is invalid from here on." : " in mode 'global'");
}

void refuse_driver_request(int device) {
  const auto found = find_capture([device](const Capture& each) {
    return each.device() == device && !each.of_this_thread() && each.mode() == CaptureMode::global;
  });
  TORCH_CHECK(
      found == nullptr || on(Fault::graphs_mode_ignored), "simulated device: another thread captures on ",
      found == nullptr ? "" : stream_name(found->origin()),
      " in mode 'global', which does not allow other threads to request memory from the driver. Capture with "
      "capture_error_mode "
      "'thread_local' or 'relaxed' to allow it.");
}

bool captured_elsewhere(int device) {
  return find_capture([device](const Capture& each) { return each.of_this_thread() && each.device() != device; }) != nullptr;
}

}  // namespace simulated
