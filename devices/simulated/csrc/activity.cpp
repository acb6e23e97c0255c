#include "activity.h"

#define USE_KINETO
#define FMT_HEADER_ONLY  // torch does not export the fmt that Kineto's headers use
#include <torch/csrc/profiler/standalone/privateuse1_profiler.h>

#include <c10/core/Allocator.h>
#include <c10/util/ApproximateClock.h>
#include <libkineto.h>
#include <output_base.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <tuple>

#include "allocator.h"
#include "faults.h"
#include "runtime.h"

namespace simulated {

std::atomic<bool> noting_activity{false};

namespace {

using libkineto::ActivityType;
using std::chrono::seconds;

constexpr int64_t kMillisecond = 1000000;  // ns

// How long the end of a session waits for queued work. Torch itself waits for the current index, without a limit.
constexpr seconds kLongest{60};

// A kernel or a copy. Times are in ns, on the clock of torch's profiler.
struct Launch {
  std::string name;
  int device;
  QueueId queue;
  int32_t number;                       // counted over all sessions
  uint64_t op;                          // correlation id of the op that launched it; 0: none
  std::vector<uint64_t> annotations;    // correlation ids of the record_functions around it, the outermost first
  int32_t thread;                       // that launched it
  int64_t launched, begun = 0, ended = 0;
};

struct Activity {
  std::mutex mutex;
  std::condition_variable fewer;
  std::vector<Launch> done;
  std::map<int, int> pending;  // by device: launches of this session that have not ended
  int32_t launches = 0;
  int32_t launches_before = 0;  // of earlier sessions
  std::atomic<uint64_t> session{0};
  // For planted faults.
  int32_t thread = 0;  // that began the session
  int64_t last_launched = 0;
  uint64_t op_of_last_launch = 0;
};

Activity& activity() {
  static Activity* all = new Activity;  // leaked: threads outlive static objects
  return *all;
}

// The ops and record_functions that a thread is in. Torch does not end what is open when a session ends.
struct Open {
  uint64_t session = 0;
  std::vector<uint64_t> ops, annotations;
};

Open& open() {
  thread_local Open found;
  const uint64_t session = activity().session;
  if (found.session != session) {
    found = Open{session, {}, {}};
  }
  return found;
}

void begin(Activity& all) {
  std::lock_guard<std::mutex> lock(all.mutex);
  all.done.clear();
  all.pending.clear();
  all.launches_before = all.launches;
  all.launches_before = all.launches;
  all.thread = libkineto::systemThreadId();
  ++all.session;
  noting_activity = true;
}

bool nothing_pending_locked(const Activity& all) {
  return std::all_of(all.pending.begin(), all.pending.end(), [](const auto& each) {
    return each.second == 0 || (on(Fault::profiler_stop_forgets_other_indices) && each.first != current_device());
  });
}

// Whether a launch had not ended when its session was to stop: it came to its end when the host launched nothing any more.
bool was_queued(const Launch& one, const Activity& all) {
  return one.ended > all.last_launched + 50 * kMillisecond;
}

// What the planted faults leave of a session.
bool is_lost(const Launch& one, const Activity& all) {
  return on(Fault::profiler_nothing_listed) ||
      (on(Fault::profiler_copies_not_listed) && one.name == kCopyName) ||
      (on(Fault::profiler_first_of_session_lost) && one.number == all.launches_before + 1) ||
      (on(Fault::profiler_queued_at_stop_lost) && was_queued(one, all));
}

// What the planted faults make of a launch.
void misreport(Launch& one, const Activity& all) {
  const int64_t took = one.ended - one.begun;
  if (on(Fault::profiler_short_durations)) {
    one.ended = one.begun + took / 1000;
  }
  if (on(Fault::profiler_negative_durations) && took < kMillisecond) {
    one.ended = one.begun - took;
  }
  if (on(Fault::profiler_kernels_overlap)) {
    one.ended += 10 * took + kMillisecond;
  }
  if (on(Fault::profiler_other_clock)) {
    one.begun -= 10000 * kMillisecond;
    one.ended -= 10000 * kMillisecond;
  }
  if (on(Fault::profiler_late_times_missing) && one.number > all.launches_before + 1000) {
    one.begun = one.ended = 0;
  }
  if (on(Fault::profiler_wrong_stream)) {
    one.queue = kDefaultQueue;
  }
  if (on(Fault::profiler_wrong_index)) {
    one.device = 0;
  }
}

class Session final : public libkineto::IActivityProfilerSession {
 public:
  Session() {
    if (on(Fault::profiler_warmup_listed)) {
      begin(activity());
    }
  }
  ~Session() override { noting_activity = false; }

  void start() override {
    if (!on(Fault::profiler_warmup_listed)) {
      begin(activity());
    }
    status_ = libkineto::TraceStatus::RECORDING;
  }

  // Waits for what was launched in the session, on every index.
  void stop() override {
    noting_activity = false;
    Activity& all = activity();
    std::unique_lock<std::mutex> lock(all.mutex);
    all.fewer.wait_for(lock, kLongest, [&] { return nothing_pending_locked(all); });
    if (on(Fault::profiler_stop_waits_on) &&
        std::any_of(all.done.begin(), all.done.end(), [&](const Launch& one) { return was_queued(one, all); })) {
      all.fewer.wait_for(lock, seconds(5), [] { return false; });
    }
    for (Launch& one : all.done) {
      if (!is_lost(one, all)) {
        misreport(one, all);
        launches_.push_back(std::move(one));
      }
    }
    static bool first = true;
    if (first && on(Fault::profiler_first_session_lost) && used_before_) {
      launches_.clear();
    }
    first = false;
    all.done.clear();
    ++all.session;  // what ends later belongs to no session
    status_ = libkineto::TraceStatus::PROCESSING;
  }

  std::vector<std::string> errors() override { return {}; }

  void processTrace(libkineto::ActivityLogger& logger) override {
    processTrace(logger, [](int32_t) { return nullptr; }, 0, INT64_MAX);
  }
  void processTrace(
      libkineto::ActivityLogger& logger, libkineto::getLinkedActivityCallback linked, int64_t from, int64_t to) override {
    buffer_ = std::make_unique<libkineto::CpuTraceBuffer>();
    buffer_->span = libkineto::TraceSpan(from, to, "simulated");
    for (const Launch& one : launches_) {
      const libkineto::ITraceActivity* op = one.op == 0 ? nullptr : linked(static_cast<int32_t>(one.op));
      const ActivityType type = on(Fault::profiler_listed_as_host) ? ActivityType::PRIVATEUSE1_RUNTIME
          : one.name == kCopyName                                  ? ActivityType::GPU_MEMCPY
                                                                   : ActivityType::CONCURRENT_KERNEL;
      // Without an op there is no launch: torch would take its number for that of an op.
      if (op != nullptr) {
        launch(one, *op, logger);
      }
      execution(one, type, op, logger);
    }
    annotate(linked, logger);
    for (int device = 1; device < device_count(); ++device) {
      logger.handleDeviceInfo(info(device), from);
    }
  }

  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override {
    return std::make_unique<libkineto::DeviceInfo>(info(0));
  }
  std::vector<libkineto::ResourceInfo> getResourceInfos() override {
    std::set<std::pair<int, QueueId>> queues;
    for (const Launch& one : launches_) {
      queues.emplace(one.device, one.queue);
    }
    std::vector<libkineto::ResourceInfo> found;
    for (const auto& [device, queue] : queues) {
      found.push_back({queue, queue, device, "stream " + std::to_string(queue)});
    }
    return found;
  }
  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override { return std::move(buffer_); }

  // Called by the thread that enters or leaves an op.
  void pushCorrelationId(uint64_t id) override { open().ops.push_back(id); }
  void popCorrelationId() override { pop(open().ops); }
  void pushUserCorrelationId(uint64_t id) override { open().annotations.push_back(id); }
  void popUserCorrelationId() override { pop(open().annotations); }

 private:
  static void pop(std::vector<uint64_t>& ids) {
    if (!ids.empty()) {
      ids.pop_back();
    }
  }

  static libkineto::DeviceInfo info(int device) {
    return {device, libkineto::kExceedMaxPid + device, "Simulated device", "simulated:" + std::to_string(device)};
  }

  libkineto::GenericTraceActivity& add(ActivityType type, const std::string& name, int64_t from, int64_t to) {
    buffer_->emplace_activity(buffer_->span, type, name);
    auto& made = *buffer_->activities.back();
    made.startTime = from;
    made.endTime = to;
    return made;
  }

  static void connect(libkineto::GenericTraceActivity& made, const Launch& one, bool start) {
    made.flow.id = one.number;
    made.flow.type = libkineto::kLinkAsyncCpuGpu;
    made.flow.start = start;
  }

  // The launch on the host, from which an arrow leads to the execution on the device.
  void launch(const Launch& one, const libkineto::ITraceActivity& op, libkineto::ActivityLogger& logger) {
    auto& made = add(ActivityType::PRIVATEUSE1_RUNTIME, "launch " + one.name, one.launched, one.launched + 1);
    made.id = one.number;
    made.device = libkineto::processId();
    made.resource = made.threadId = one.thread;
    made.linked = &op;
    connect(made, one, true);
    logger.handleGenericActivity(made);
  }

  void execution(
      const Launch& one, ActivityType type, const libkineto::ITraceActivity* op, libkineto::ActivityLogger& logger) {
    auto& made = add(type, one.name, one.begun, one.ended);
    made.id = one.number;
    made.device = one.device;
    made.resource = static_cast<int32_t>(one.queue);
    made.threadId = one.thread;
    made.linked = op;
    if (op != nullptr || on(Fault::profiler_arrow_from_nowhere)) {
      connect(made, one, false);
    }
    made.addMetadata("device", one.device);
    made.addMetadata("stream", one.queue);
    made.addMetadata("correlation", one.number);
    if (on(Fault::profiler_broken_trace)) {
      made.addMetadata("kernel", one.name);  // a text without quotes
    }
    logger.handleGenericActivity(made);
  }

  // Each record_function once on every stream, around what it launched there.
  void annotate(const libkineto::getLinkedActivityCallback& linked, libkineto::ActivityLogger& logger) {
    std::map<std::tuple<int, QueueId, uint64_t>, std::pair<int64_t, int64_t>> ranges;
    for (const Launch& one : launches_) {
      for (const uint64_t id : one.annotations) {
        const auto [found, first] = ranges.try_emplace({one.device, one.queue, id}, one.begun, one.ended);
        if (!first && !on(Fault::profiler_annotation_too_short)) {
          found->second.first = std::min(found->second.first, one.begun);
          found->second.second = std::max(found->second.second, one.ended);
        }
      }
    }
    for (const auto& [where, range] : ranges) {
      const auto [device, queue, id] = where;
      if (const auto* region = linked(static_cast<int32_t>(id))) {
        auto& made = add(ActivityType::GPU_USER_ANNOTATION, region->name(), range.first, range.second);
        made.id = static_cast<int32_t>(id);
        made.device = device;
        made.resource = static_cast<int32_t>(queue);
        logger.handleGenericActivity(made);
      }
    }
  }

  const bool used_before_ = was_used();
  std::vector<Launch> launches_;
  std::unique_ptr<libkineto::CpuTraceBuffer> buffer_;
};

class Profiler final : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override { return name_; }
  const std::set<ActivityType>& availableActivities() const override { return types_; }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      const std::set<ActivityType>& types, const libkineto::Config&) override {
    return types.count(ActivityType::CONCURRENT_KERNEL) != 0 ? std::make_unique<Session>() : nullptr;
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      int64_t, int64_t, const std::set<ActivityType>& types, const libkineto::Config& config) override {
    return configure(types, config);
  }

 private:
  const std::string name_ = "simulated";
  const std::set<ActivityType> types_ = {
      ActivityType::CONCURRENT_KERNEL, ActivityType::GPU_MEMCPY, ActivityType::GPU_USER_ANNOTATION,
      ActivityType::PRIVATEUSE1_RUNTIME};
};

// Notes that a launch has ended, also where its task throws.
class Ending {
 public:
  Ending(Launch& launch, uint64_t session) : launch_(launch), session_(session) {}
  ~Ending() {
    launch_.ended = c10::getTime();
    Activity& all = activity();
    {
      std::lock_guard<std::mutex> lock(all.mutex);
      if (session_ != all.session) {
        return;
      }
      --all.pending[launch_.device];
      all.done.push_back(std::move(launch_));
    }
    all.fewer.notify_all();
  }

 private:
  Launch& launch_;
  const uint64_t session_;
};

}  // namespace

Task noted(Task task, const char* name, const Queue& queue) {
  const Open& here = open();
  Launch launch{name, queue.device(), queue.id(), 0, here.ops.empty() ? 0 : here.ops.back(), here.annotations,
                libkineto::systemThreadId(), c10::getTime()};
  Activity& all = activity();
  uint64_t session = 0;
  {
    std::lock_guard<std::mutex> lock(all.mutex);
    launch.number = ++all.launches;
    session = all.session;
    all.last_launched = launch.launched;
    ++all.pending[launch.device];
    if (on(Fault::profiler_wrong_op)) {
      std::swap(launch.op, all.op_of_last_launch);
    }
    if (on(Fault::profiler_other_threads_have_no_op) && launch.thread != all.thread) {
      launch.op = 0;
    }
  }
  return [task = std::move(task), launch = std::move(launch), session]() mutable {
    launch.begun = c10::getTime();
    const Ending ending(launch, session);
    task();
  };
}

void report_memory(void* address, int64_t bytes, int device) {
  if (!c10::memoryProfilingEnabled()) {
    return;
  }
  if (bytes < 0 && on(Fault::profiler_free_not_reported)) {
    return;
  }
  if (bytes < 0 && on(Fault::profiler_freed_elsewhere)) {
    address = static_cast<char*>(address) + kMinBlock;
  }
  const Stats stats = device_memory(device).stats();
  const int64_t allocated = stats.allocated_bytes[0].current, reserved = stats.reserved_bytes[0].current;
  const int listed = on(Fault::profiler_memory_on_first_index) ? 0 : device;
  c10::reportMemoryUsageToProfiler(
      address, bytes < 0 && on(Fault::profiler_wrong_bytes) ? bytes / 2 : bytes, static_cast<size_t>(allocated),
      static_cast<size_t>(on(Fault::profiler_reserved_is_allocated) ? allocated : reserved),
      c10::Device(c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(listed)));
}

void register_activity() {
  torch::profiler::impl::PrivateUse1ProfilerRegistry::instance().registerFactory(
      [] { return std::make_unique<Profiler>(); });
}

}  // namespace simulated
