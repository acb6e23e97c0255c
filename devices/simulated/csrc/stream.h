// Queues of work: what a stream is on this device, and the marks that events leave in them.
//
// Each queue has a thread that runs its tasks one after another; queues run in parallel. Nothing here knows tensors.

#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>

namespace simulated {

using Task = std::function<void()>;
using QueueId = int64_t;

class Capture;
struct CapturePoint;

// One record of an event: done once the queue has reached it.
class Mark {
 public:
  // `of_capture`: set by the end of a capture; the thread that ends it must not wait for it.
  explicit Mark(bool of_capture = false) : of_capture(of_capture) {}
  const bool of_capture;

  void set();
  void wait();
  void wait_for(std::chrono::milliseconds limit);
  bool done();
  // Precondition: done().
  std::chrono::steady_clock::time_point when();
  // The place in a capture that it marks; nullptr if it marks a point in a queue. Such a mark is never done.
  std::shared_ptr<const CapturePoint> captured();
  void set_captured(std::shared_ptr<const CapturePoint> point);

 private:
  std::mutex mutex_;
  std::shared_ptr<const CapturePoint> captured_;
  std::condition_variable changed_;
  bool done_ = false;
  std::chrono::steady_clock::time_point when_;
};

using MarkPtr = std::shared_ptr<Mark>;

class Queue {
 public:
  Queue(int device, QueueId id, int priority) : device_(device), id_(id), priority_(priority) {}
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  int device() const { return device_; }
  QueueId id() const { return id_; }
  int priority() const { return priority_; }

  // Puts a task at the end, or records it if the queue is capturing. An exception that it throws is kept and
  // raised by raise_pending(). `what` names it in the dump of a graph and in a profile, and must live on; tasks of one graph with the
  // same `in_turn` run one after another.
  void submit(Task task, const char* what = "task", const void* in_turn = nullptr);
  // Runs a task on the calling thread once everything queued before it is done; what it throws is thrown here.
  // Refused while capturing: what was recorded before it is not run.
  // `name` is what a profile calls it; `what` names the call where it is refused.
  void run_here(
      const std::function<void()>& task, const char* name, const char* what = "a call that waits for its result");
  // Marks the point that the queue has reached with what is queued, or recorded, now.
  void mark(const MarkPtr& mark);
  // Everything queued from now on runs after the mark is set. A mark in a capture makes the queue join it.
  void wait(const MarkPtr& mark);

  // Afterwards, submitting throws: for a planted fault.
  void destroy() { destroyed_ = true; }

  bool idle();
  // Waits for what is queued at the time of the call.
  void drain();

  // Whether work is recorded by a capture instead of run (capture.h).
  bool capturing() const { return capturing_.load(std::memory_order_relaxed); }
  std::shared_ptr<Capture> capture();
  // Joins a capture: false where the queue is part of another one.
  bool join(const std::shared_ptr<Capture>& capture);
  void leave();

 private:
  void push(Task task, bool work = false);  // at the end, captured or not
  bool record(Task& task, const char* what, const void* in_turn);
  void wait_in_capture(const MarkPtr& mark, const std::shared_ptr<const CapturePoint>& point);
  void work();                 // the thread's loop
  void start_thread_locked();  // at the first task
  bool overwritten();          // by another thread that submits: of a planted fault

  const int device_;
  const QueueId id_;
  const int priority_;
  std::mutex mutex_;
  std::atomic<bool> capturing_{false};
  std::shared_ptr<Capture> capture_;
  std::condition_variable work_;
  std::condition_variable done_changed_;
  struct Queued {
    Task task;
    bool work;  // a kernel or a copy: what a planted fault may reorder without blocking queues forever
    MarkPtr mark = nullptr;  // instead of a task: set as soon as it is reached
  };
  std::deque<Queued> tasks_;
  bool running_ = false;  // a task, or a thread in run_here
  bool started_ = false;
  std::atomic<bool> destroyed_{false};
  std::atomic<int> submitting_{0};
  uint64_t submitted_ = 0;
  uint64_t done_ = 0;
};

// The default queue of every device has this id.
constexpr QueueId kDefaultQueue = 0;
// The bits of a stream's id that name its queue; the others are of a planted fault.
constexpr QueueId kIdBits = 0xffffffff;
// Queues of each priority in the pool of a device, before they repeat.
constexpr int kPoolSize = 16;
// Priorities: lower numbers are served first, as in CUDA.
constexpr int kLeastPriority = 0, kGreatestPriority = -1;

// A queue by its id. Throws std::out_of_range for ids that were never given out.
Queue& queue(int device, QueueId id);
// The next queue of the pool; priorities outside the range are clamped.
Queue& next_queue(int device, int priority);
// A queue outside the pool. The caller owns it, and it is never handed out again.
Queue& new_external_queue(int device);
// A queue for side branches of graphs, by number from 0; made at first use.
Queue& branch_queue(int device, int number);
// The queue whose address this is. Throws std::invalid_argument if no queue of the device has it.
Queue& queue_of_handle(int device, const void* handle);
// Waits for all queues of a device; drain_device() then raises what failed there, and is refused while capturing.
void drain_queues(int device);
void drain_device(int device);

// Keeps the failure of a task until raise_pending().
void keep_error(int device, std::exception_ptr error);
// Throws the oldest failure of a device that was not yet thrown.
void raise_pending(int device);

// Throws std::runtime_error in a process that was forked after the device was first used there.
void refuse_after_fork();
bool in_bad_fork();
// Called at first use: from now on a fork is noted.
void watch_forks();

}  // namespace simulated
