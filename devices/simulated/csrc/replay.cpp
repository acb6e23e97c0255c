#include "replay.h"

#include <sstream>

#include "faults.h"

namespace simulated {

Executable::Executable(std::shared_ptr<const Recorded> recorded)
    : recorded_(std::move(recorded)), awaited_(recorded_->nodes.size()) {
  const auto& nodes = recorded_->nodes;
  for (const Node& node : nodes) {
    for (const size_t before : node.after) {
      awaited_[before] = awaited_[before] || nodes[before].branch != node.branch;
    }
  }
  for (const size_t before : recorded_->last) {
    awaited_[before] = awaited_[before] || nodes[before].branch != 0;
  }
}

void Executable::submit_node(Queue& queue, size_t number) {
  Task task = [self = shared_from_this(), number] {
    if (self->forgotten_) {
      return;
    }
    Task once = self->recorded_->nodes[number].task;  // a copy: running a task uses up its arguments
    once();
  };
  // Names of nodes are those of kernels, which live on.
  queue.submit(std::move(task), on(Fault::profiler_replay_not_listed) ? "task" : recorded_->nodes[number].what);
}

void Executable::launch(Queue& queue) {
  refuse_while_capturing(queue, "replaying a graph");
  std::lock_guard<std::mutex> lock(mutex_);
  if (on(Fault::graphs_replay_once_only) && last_ != nullptr) {
    return;
  }
  std::vector<Queue*> queues{&queue};
  for (size_t branch = 1; branch < recorded_->branches; ++branch) {
    queues.push_back(&branch_queue(queue.device(), static_cast<int>(branch - 1)));
  }
  if (last_ != nullptr) {
    queue.wait(last_);
  }
  std::vector<Task> at_the_end;
  for (const auto& each : recorded_->around) {
    auto [first, last] = each->at_replay();
    queue.submit(std::move(first));
    at_the_end.push_back(std::move(last));
  }
  const auto marked = [](Queue& one) {
    auto mark = std::make_shared<Mark>();
    one.mark(mark);
    return mark;
  };
  if (queues.size() > 1) {
    const MarkPtr start = marked(queue);
    for (size_t branch = 1; branch < queues.size(); ++branch) {
      queues[branch]->wait(start);
    }
  }
  const auto& nodes = recorded_->nodes;
  size_t count = on(Fault::graphs_drop_node) && nodes.size() > 1 ? nodes.size() - 1 : nodes.size();
  if (on(Fault::graphs_long_program_cut)) {
    count = std::min<size_t>(count, 2048);
  }
  std::vector<MarkPtr> marks(nodes.size());
  const auto wait_for = [&](Queue& one, size_t branch, const std::vector<size_t>& before) {
    for (const size_t each : before) {
      if (nodes[each].branch != branch && marks[each] != nullptr) {
        one.wait(marks[each]);
      }
    }
  };
  for (size_t number = 0; number < count; ++number) {
    Queue& one = *queues[nodes[number].branch];
    wait_for(one, nodes[number].branch, nodes[number].after);
    submit_node(one, number);
    if (awaited_[number]) {
      marks[number] = marked(one);
    }
  }
  wait_for(queue, 0, recorded_->last);
  for (Task& last : at_the_end) {
    queue.submit(std::move(last));
  }
  last_ = marked(queue);
}

std::string drawing_of(const Recorded& recorded) {
  std::ostringstream text;
  text << "digraph captured {\n  label=\"simulated:" << recorded.device << "\";\n  node [shape=box];\n";
  for (size_t branch = 0; branch < recorded.branches; ++branch) {
    text << "  subgraph cluster_" << branch << " {\n    label=\"" << (branch == 0 ? "capturing stream" : "side stream ");
    if (branch != 0) {
      text << branch;
    }
    text << "\";\n";
    for (size_t number = 0; number < recorded.nodes.size(); ++number) {
      if (recorded.nodes[number].branch == branch) {
        text << "    n" << number << " [label=\"" << number << ": " << recorded.nodes[number].what << "\"];\n";
      }
    }
    text << "  }\n";
  }
  for (size_t number = 0; number < recorded.nodes.size(); ++number) {
    for (const size_t before : recorded.nodes[number].after) {
      text << "  n" << before << " -> n" << number << ";\n";
    }
  }
  text << "}\n";
  return text.str();
}

}  // namespace simulated
