// Replay: queueing again what a capture recorded; and drawing it for people.

#pragma once

#include <string>

#include "capture.h"

namespace simulated {

class Executable : public std::enable_shared_from_this<Executable> {
 public:
  explicit Executable(std::shared_ptr<const Recorded> recorded);

  // Queues the work: the origin's on this queue, that of each other branch on one of the device's branch queues, in
  // the order that was recorded, with the same dependencies. Replays of one graph run one after another.
  // What is queued keeps the recorded work alive.
  void launch(Queue& queue);
  // For a planted fault: queued work is dropped.
  void forget() { forgotten_ = true; }
  // Whether it takes random numbers.
  bool draws() const { return !recorded_->around.empty(); }

 private:
  void submit_node(Queue& queue, size_t number);

  const std::shared_ptr<const Recorded> recorded_;
  std::vector<bool> awaited_;  // by node: another branch comes after it
  std::atomic<bool> forgotten_{false};
  std::mutex mutex_;
  MarkPtr last_;  // of the replay before
};

// The graph in the language of graphviz: a cluster a branch, a node a task.
std::string drawing_of(const Recorded& recorded);

}  // namespace simulated
