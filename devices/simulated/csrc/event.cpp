#include "event.h"

#include <c10/util/Exception.h>

#include <array>
#include <chrono>
#include <mutex>
#include <thread>

#include "capture.h"
#include "faults.h"

namespace simulated {

namespace {

struct Event {
  int device;
  bool timed;
  std::mutex mutex;
  MarkPtr latest;  // nullptr until the first record
  bool of_all = false;
  const Queue* recorded_on = nullptr;  // of the latest record

  MarkPtr mark() {
    std::lock_guard<std::mutex> lock(mutex);
    return latest;
  }
};

// For a planted fault: the one event that all events of a device share.
Event* event_of_all(int device) {
  static std::array<Event*, 16> all{};
  if (all.at(device) == nullptr) {
    all[device] = new Event{device, false, {}, nullptr, /*of_all=*/true};
  }
  return all[device];
}

MarkPtr mark_of(void* event) {
  return event == nullptr ? nullptr : static_cast<Event*>(event)->mark();
}

}  // namespace

void record_event(void** event, Queue& queue, int device, bool timed) {
  if (on(Fault::events_made_anew_by_each_record) && *event != nullptr) {
    *event = nullptr;  // not freed, as the new one must not get its address
  }
  if (*event == nullptr) {
    const int index = device == -1 ? queue.device() : device;
    *event = on(Fault::events_event_id_repeats) ? event_of_all(index) : new Event{index, timed, {}, nullptr};
  }
  auto* made = static_cast<Event*>(*event);
  TORCH_CHECK(
      made->device == queue.device() || on(Fault::streams_record_on_any_index),
      "simulated device: an event of device ", made->device,
      " cannot be recorded on a stream of device ", queue.device());
  auto mark = std::make_shared<Mark>();
  {
    std::lock_guard<std::mutex> lock(made->mutex);
    if (on(Fault::events_rerecord_ignored) && made->latest != nullptr) {
      return;
    }
    made->latest = mark;
    made->recorded_on = &queue;
  }
  if (on(Fault::events_record_late)) {
    queue.submit([&queue, mark] { queue.mark(mark); });  // after everything that is queued by then
    return;
  }
  if (on(Fault::streams_default_record_is_done) && queue.id() == kDefaultQueue && !queue.capturing()) {
    mark->set();
    return;
  }
  queue.mark(mark);
}

void wait_event(void* event, Queue& queue) {
  if (on(Fault::streams_wait_takes_latest_record) && event != nullptr) {
    queue.submit([event, asked = mark_of(event), &queue] {
      MarkPtr found = mark_of(event);
      if (found == asked) {
        found->wait();
      } else if (static_cast<Event*>(event)->recorded_on != &queue) {  // else the mark comes after this very task
        // The mark may still come after this task: that must not block the queue forever.
        found->wait_for(std::chrono::milliseconds(1500));
      }
    });
    return;
  }
  if (on(Fault::events_wait_for_itself_stalls) && event != nullptr &&
      static_cast<Event*>(event)->recorded_on == &queue) {
    queue.submit([] { std::this_thread::sleep_for(std::chrono::seconds(3)); });
  }
  if (MarkPtr mark = mark_of(event)) {
    queue.wait(mark);
  }
}

bool query_event(void* event) {
  MarkPtr mark = mark_of(event);
  refuse_captured(mark, "asking about");
  return mark == nullptr || mark->done();
}

void synchronize_event(void* event) {
  if (MarkPtr mark = mark_of(event)) {
    refuse_captured(mark, "waiting on the host for");
    if (mark->captured() == nullptr) {
      mark->wait();
    }
  }
}

void destroy_event(void* event) noexcept {
  auto* made = static_cast<Event*>(event);
  // With the fault, a task looks at the event when its turn comes.
  if (made != nullptr && !made->of_all && !on(Fault::streams_wait_takes_latest_record) &&
      !on(Fault::allocator_events_never_freed)) {
    delete made;  // what waits for a mark shares it
  }
}

double elapsed(void* start, void* end) {
  TORCH_CHECK_VALUE(
      start != nullptr && end != nullptr, "Both events must be recorded before calculating elapsed time.");
  auto* first = static_cast<Event*>(start);
  auto* last = static_cast<Event*>(end);
  TORCH_CHECK_VALUE(
      (first->timed && last->timed) || on(Fault::events_elapsed_untimed_accepted),
      "Both events must be created with argument 'enable_timing=True'.");
  TORCH_CHECK(
      first->device == last->device || on(Fault::events_elapsed_across_indices),
      "simulated device: events of devices ", first->device, " and ", last->device, " have no time between them");
  MarkPtr from = first->mark(), to = last->mark();
  TORCH_CHECK(
      from != nullptr && to != nullptr && from->done() && to->done(),
      "Both events must be completed before calculating elapsed time.");
  if (on(Fault::events_elapsed_constant)) {
    return 1;
  }
  const bool in_ticks = first->device != 0 && on(Fault::events_elapsed_in_ticks_elsewhere);
  if (on(Fault::events_elapsed_has_offset)) {
    return 0.5 + std::chrono::duration<double, std::milli>(to->when() - from->when()).count();
  }
  const double unit = on(Fault::events_elapsed_in_seconds) ? 1e-3 : in_ticks ? 1e3 : 1;
  return unit * std::chrono::duration<double, std::milli>(to->when() - from->when()).count();
}

}  // namespace simulated
