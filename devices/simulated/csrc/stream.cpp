#include "stream.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <exception>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <cxxabi.h>

#include "activity.h"
#include "arena.h"
#include "capture.h"
#include "faults.h"
#include "worker.h"

namespace simulated {

void Mark::set() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    when_ = std::chrono::steady_clock::now();
    done_ = true;
  }
  changed_.notify_all();
}

void Mark::wait() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return done_; });
}

void Mark::wait_for(std::chrono::milliseconds limit) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_for(lock, limit, [this] { return done_; });
}

bool Mark::done() {
  std::lock_guard<std::mutex> lock(mutex_);
  return done_;
}

std::chrono::steady_clock::time_point Mark::when() {
  std::lock_guard<std::mutex> lock(mutex_);
  return when_;
}

// -- one queue

void Queue::start_thread_locked() {
  if (!started_) {
    started_ = true;
    // Detached and never ended: at exit a task may still run, and joining would wait for it.
    std::thread([this] { work(); }).detach();
  }
}

void Queue::submit(Task task, const char* what, const void* in_turn) {
  if (on(Fault::device_fork_loses_work) && in_bad_fork()) {
    return;
  }
  refuse_after_fork();
  if (in_bad_fork()) {
    task();  // for a planted fault: there is no thread to run it
    return;
  }
  if (destroyed_.load(std::memory_order_relaxed)) {
    throw std::runtime_error("simulated device: the stream was destroyed");
  }
  if ((capturing() && record(task, what, in_turn)) ||
      (on(Fault::graphs_other_index_work_lost) && captured_elsewhere(device_))) {
    return;
  }
  if (on(Fault::streams_launch_blocks_host)) {
    drain();
  }
  const bool work = std::strcmp(what, "task") != 0;
  if (work && noting_activity.load(std::memory_order_relaxed)) {
    task = noted(std::move(task), what, *this);
  }
  if (!on(Fault::streams_unlocked_queue) || !overwritten()) {
    push(std::move(task), work);
  }
}

void Queue::push(Task task, bool work) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    start_thread_locked();
    ++submitted_;
    tasks_.push_back({std::move(task), work});
  }
  work_.notify_one();
}

bool Queue::overwritten() {
  if (submitting_.fetch_add(1) != 0) {
    --submitting_;
    return true;
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
  --submitting_;
  return false;
}

void Queue::work() {
  prepare_worker_thread();
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    work_.wait(lock, [this] { return !tasks_.empty() && !running_; });
    if (on(Fault::streams_reorder_tasks) && tasks_.size() > 1 && tasks_[0].work && tasks_[1].work) {
      std::swap(tasks_[0], tasks_[1]);
    }
    Task task = std::move(tasks_.front().task);
    const MarkPtr mark = std::move(tasks_.front().mark);
    tasks_.pop_front();
    if (mark) {
      // A thread that sees the mark set must also find the queue idle: both change under the lock.
      ++done_;
      mark->set();
      done_changed_.notify_all();
      continue;
    }
    running_ = true;
    lock.unlock();
    try {
      task();
    } catch (abi::__forced_unwind&) {
      throw;  // the thread is being cancelled: must not be caught
    } catch (...) {
      if (!on(Fault::device_error_swallowed)) {
        keep_error(device_, std::current_exception());
      }
    }
    task = nullptr;  // releases what it held before the task counts as done
    lock.lock();
    running_ = false;
    ++done_;
    done_changed_.notify_all();
  }
}

void Queue::run_here(const std::function<void()>& given, const char* name, const char* what) {
  refuse_after_fork();
  refuse_while_capturing(*this, what);
  Task with_times;
  if (noting_activity.load(std::memory_order_relaxed)) {
    with_times = noted(given, name, *this);
  }
  const Task& task = with_times ? with_times : given;
  std::unique_lock<std::mutex> lock(mutex_);
  const uint64_t before = submitted_++;
  if (done_ != before) {
    if (kernels_stopped()) {
      --submitted_;
      throw std::runtime_error("simulated device: the process is ending, and its queued work will not be done");
    }
    // It runs when the tasks before it are done; the queue's thread stops at this one until then.
    auto turn = std::make_shared<Mark>();
    auto over = std::make_shared<Mark>();
    start_thread_locked();
    tasks_.push_back({[turn, over] {
                        turn->set();
                        over->wait();
                      },
                      false});
    lock.unlock();
    work_.notify_one();
    turn->wait();
    struct Over {
      Mark& mark;
      ~Over() { mark.set(); }
    } at_the_end{*over};
    task();
    return;
  }
  running_ = true;
  lock.unlock();
  struct Done {
    Queue& queue;
    ~Done() {
      bool more = false;
      {
        std::lock_guard<std::mutex> lock(queue.mutex_);
        queue.running_ = false;
        ++queue.done_;
        more = !queue.tasks_.empty();
        queue.done_changed_.notify_all();
      }
      if (more) {
        queue.work_.notify_one();
      }
    }
  } at_the_end{*this};
  task();
}

void Queue::mark(const MarkPtr& mark) {
  refuse_after_fork();
  if (const auto capture = this->capture()) {
    mark->set_captured(capture->point(*this));
    return;
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (done_ != submitted_) {
      ++submitted_;
      tasks_.push_back({nullptr, false, mark});
      work_.notify_one();
      return;
    }
  }
  mark->set();
}

void Queue::wait(const MarkPtr& mark) {
  const auto point = mark->captured();
  if (point != nullptr || capturing()) {
    wait_in_capture(mark, point);
    return;
  }
  if (!mark->done() && !on(Fault::streams_ignore_wait)) {
    submit([mark] { mark->wait(); });
  }
}

bool Queue::idle() {
  std::lock_guard<std::mutex> lock(mutex_);
  return done_ == submitted_ || on(Fault::streams_query_always_true);
}

void Queue::drain() {
  refuse_after_fork();
  if (on(Fault::streams_synchronize_returns_early)) {
    return;
  }
  std::unique_lock<std::mutex> lock(mutex_);
  const uint64_t until = submitted_;
  done_changed_.wait(lock, [&] { return done_ >= until; });
}

// -- all queues

namespace {

struct Queues {
  std::mutex mutex;
  std::map<std::pair<int, QueueId>, std::unique_ptr<Queue>> made;
  std::map<std::pair<int, int>, int> next;  // device, priority -> place in the pool
  QueueId next_external = 1000;
};

Queues& queues() {
  static Queues* all = new Queues;  // leaked: threads outlive static objects
  return *all;
}

Queue& made_locked(Queues& all, int device, QueueId id, int priority) {
  auto& found = all.made[{device, id}];
  if (!found) {
    found = std::make_unique<Queue>(device, id, priority);
  }
  return *found;
}

}  // namespace

Queue& queue(int device, QueueId id) {
  id &= kIdBits;
  // Most calls use the default streams, so these are remembered.
  static std::array<std::atomic<Queue*>, 16> defaults{};
  if (id == kDefaultQueue && device >= 0 && device < 16) {
    if (Queue* found = defaults[device].load(std::memory_order_acquire)) {
      return *found;
    }
  }
  Queues& all = queues();
  std::lock_guard<std::mutex> lock(all.mutex);
  if (device < 0 || device >= arena().devices()) {
    throw std::out_of_range("simulated device: there is no device " + std::to_string(device));
  }
  if (id == kDefaultQueue) {
    Queue& found = made_locked(all, device, id, kLeastPriority);
    defaults[device].store(&found, std::memory_order_release);
    return found;
  }
  auto found = all.made.find({device, id});
  if (found == all.made.end()) {
    throw std::out_of_range("simulated device: there is no stream " + std::to_string(id) + " on device " + std::to_string(device));
  }
  return *found->second;
}

Queue& next_queue(int device, int priority) {
  if (on(Fault::streams_serialise_streams)) {
    return queue(device, kDefaultQueue);
  }
  priority = on(Fault::streams_priority_dropped) ? kLeastPriority
                                                 : std::clamp(priority, kGreatestPriority, kLeastPriority);
  Queues& all = queues();
  std::lock_guard<std::mutex> lock(all.mutex);
  int& place = all.next[{device, priority}];
  const QueueId id = 1 + place + (kLeastPriority - priority) * kPoolSize;
  const bool first = place == 0;
  place = on(Fault::streams_new_stream_repeats) ? place : (place + 1) % kPoolSize;
  if (first && on(Fault::streams_pool_has_default)) {
    return made_locked(all, device, kDefaultQueue, kLeastPriority);
  }
  return made_locked(all, device, id, priority);
}

Queue& new_external_queue(int device) {
  Queues& all = queues();
  std::lock_guard<std::mutex> lock(all.mutex);
  return made_locked(all, device, all.next_external++, kLeastPriority);
}

namespace {
std::vector<Queue*> queues_of(int device) {
  Queues& all = queues();
  std::lock_guard<std::mutex> lock(all.mutex);
  std::vector<Queue*> found;
  for (auto& [key, each] : all.made) {
    if (key.first == device) {
      found.push_back(each.get());
    }
  }
  return found;
}
}  // namespace

Queue& branch_queue(int device, int number) {
  constexpr QueueId first = -1000;  // ids that no stream has
  Queues& all = queues();
  std::lock_guard<std::mutex> lock(all.mutex);
  return made_locked(all, device, first - number, kLeastPriority);
}

Queue& queue_of_handle(int device, const void* handle) {
  if (on(Fault::streams_external_own_queue)) {
    return new_external_queue(device);
  }
  for (Queue* each : queues_of(device)) {
    if (each == handle) {
      return *each;
    }
  }
  throw std::invalid_argument("simulated device: no stream of device " + std::to_string(device) + " has this handle");
}

void drain_queues(int device) {
  for (Queue* each : queues_of(device)) {
    each->drain();
  }
}

void drain_device(int device) {
  refuse_synchronize(device);
  if (on(Fault::streams_synchronize_wrong_index)) {
    device = (device + 1) % arena().devices();
  }
  for (Queue* each : queues_of(device)) {
    const bool left_out = each->id() == kDefaultQueue ? on(Fault::streams_synchronize_skips_default)
                                                      : each->priority() != kLeastPriority && on(Fault::streams_synchronize_skips_priority);
    if (!left_out) {
      each->drain();
    }
  }
  raise_pending(device);
}

}  // namespace simulated
