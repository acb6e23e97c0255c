// Capture: queues that record their work instead of running it, what is refused meanwhile, and the result.
//
// A capture begins on one queue, its origin. Another queue joins by waiting for an event that was recorded in the
// capture, and must be joined to the origin again, by events, before the end.

#pragma once

#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "stream.h"

namespace simulated {

// One recorded task.
struct Node {
  Task task;
  const char* what;           // for people
  size_t branch;              // place of its queue among those of the capture; 0 is the origin
  std::vector<size_t> after;  // nodes that must be done before it, by number; all are smaller than its own
};

// What each replay begins and ends with: the state of a random number generator.
class AroundReplay {
 public:
  virtual ~AroundReplay() = default;
  // Called by the host at each replay. The two tasks are queued before and after the nodes.
  virtual std::pair<Task, Task> at_replay() = 0;
};

// What a capture recorded.
struct Recorded {
  int device = 0;
  size_t branches = 1;
  std::vector<Node> nodes;     // in the order in which they were recorded
  std::vector<size_t> last;    // nodes after which the graph is done
  std::vector<std::shared_ptr<AroundReplay>> around;
};

// Which calls of others a capture refuses: at::GraphCaptureMode, without its default.
enum class CaptureMode { global, of_thread, relaxed };

class Capture : public std::enable_shared_from_this<Capture> {
 public:
  Capture(Queue& origin, CaptureMode mode);

  Queue& origin() const { return *queues_.front(); }
  int device() const { return origin().device(); }
  CaptureMode mode() const { return mode_; }
  bool of_this_thread() const { return thread_ == std::this_thread::get_id(); }
  // Set by the end: what was recorded may be replayed from then on.
  const MarkPtr& over() const { return over_; }

  void record(Queue& queue, Task task, const char* what, const void* in_turn);
  // What a queue of the capture has recorded by now.
  std::shared_ptr<const CapturePoint> point(Queue& queue);
  // The next work of the queue, which has joined, comes after these nodes.
  void follow(Queue& queue, const std::vector<size_t>& nodes);
  bool empty();

  // The object under this key, made at its first use in the capture.
  std::shared_ptr<AroundReplay> around(
      const void* key, const std::function<std::shared_ptr<AroundReplay>()>& make);

  // From now on the capture cannot end well; the first reason counts.
  void invalidate(const std::string& why);
  std::string why_invalid();

  // Ends it in any case: its queues run their work again. Throws c10::Error if it is invalid, or if
  // recorded work is not joined to the origin.
  Recorded end();
  // The same, discarding what was recorded.
  void abandon() noexcept;

 private:
  size_t branch_locked(Queue& queue);
  std::string unjoined_locked() const;

  const CaptureMode mode_;
  const std::thread::id thread_;
  const MarkPtr over_;
  std::mutex mutex_;
  std::vector<Queue*> queues_;                 // by branch
  std::vector<std::vector<size_t>> frontier_;  // by branch: what its next node comes after
  std::vector<Node> nodes_;
  std::map<const void*, size_t> last_in_turn_;
  std::map<const void*, std::shared_ptr<AroundReplay>> around_;
  std::string invalid_;
};

// A place in a capture, which an event marks.
struct CapturePoint {
  std::shared_ptr<Capture> capture;
  std::vector<size_t> nodes;
};

// Throws c10::Error for a default stream and for a queue that is part of a capture.
std::shared_ptr<Capture> begin_capture(Queue& queue, CaptureMode mode);

// Throws c10::Error if the queue is capturing, and invalidates the capture: part of the program would be missing.
void refuse_while_capturing(Queue& queue, const std::string& what);
// The same for a mark: work in a capture is not run, so it can be neither waited for nor queried.
void refuse_captured(const MarkPtr& mark, const char* what);
// Synchronising a device: refused to the thread that captures there, and while a capture of mode `global` is underway.
void refuse_synchronize(int device);
// A request for memory from the driver, outside of captures: refused to other threads by a capture of mode `global`.
void refuse_driver_request(int device);

// Whether the calling thread has a capture underway on another device.
bool captured_elsewhere(int device);

}  // namespace simulated
