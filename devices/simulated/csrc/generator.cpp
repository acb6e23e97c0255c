#include "generator.h"

#include <Python.h>

#include <ATen/CPUGeneratorImpl.h>

#include <array>
#include <atomic>
#include <optional>

#include "capture.h"
#include "faults.h"
#include "runtime.h"
#include "worker.h"

namespace simulated {

namespace {

// The state of a generator, shared by those that were given it (graphsafe_set_state).
//
// A replay that draws random numbers takes the state at the call and leaves a promise in its place, which is fulfilled
// when its work is done. Replacing the state does not wait for the promise; reading it does.
class State {
 public:
  explicit State(at::Generator cpu) : cpu_(std::move(cpu)) {}

  // The generator, after waiting for replays that still have to give it its state.
  at::Generator settled() {
    for (;;) {
      MarkPtr kept;
      {
        std::lock_guard<std::mutex> lock(mutex_);
        if (promise_ != nullptr && promise_->done()) {
          promise_ = nullptr;
        }
        if (promise_ == nullptr) {
          return cpu_;
        }
        kept = promise_;
      }
      PyThreadState* thread = PyGILState_Check() ? PyEval_SaveThread() : nullptr;
      kept->wait();
      if (thread != nullptr) {
        PyEval_RestoreThread(thread);
      }
    }
  }

  // The generator for setting another state: its present state does not matter.
  at::Generator replaced() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (promise_ != nullptr) {
      cpu_ = at::detail::createCPUGenerator();  // the one before is what a replay writes to
      promise_ = nullptr;
    }
    return cpu_;
  }

  struct Taken {
    at::Generator before, after;
    MarkPtr before_ready, after_ready;
  };
  Taken take() {
    std::lock_guard<std::mutex> lock(mutex_);
    Taken taken{cpu_, at::detail::createCPUGenerator(), promise_, std::make_shared<Mark>()};
    if (!on(Fault::graphs_generator_not_advanced)) {
      cpu_ = taken.after;
      promise_ = taken.after_ready;
    }
    return taken;
  }

 private:
  std::mutex mutex_;
  at::Generator cpu_;
  MarkPtr promise_;  // set once cpu_ has its state; nullptr if it has the state already
};

// What the kernels of one graph draw from.
class GraphGenerator final : public AroundReplay {
 public:
  explicit GraphGenerator(std::shared_ptr<State> state) : slot(at::detail::createCPUGenerator()), state_(std::move(state)) {
    if (on(Fault::graphs_seed_of_capture)) {
      seed_ = state_->settled().current_seed();
    }
  }

  std::pair<Task, Task> at_replay() override {
    State::Taken taken = state_->take();
    if (on(Fault::graphs_replay_repeats_random)) {
      taken.before = first_.defined() ? first_ : taken.before;
      first_ = taken.before;
    }
    auto begin = [taken, slot = slot, seed = seed_] {
      if (taken.before_ready != nullptr) {
        taken.before_ready->wait();
      }
      const bool stale = seed.has_value() && taken.before.current_seed() != *seed;
      give(stale ? at::detail::createCPUGenerator(*seed) : taken.before, slot);
    };
    auto end = [taken, slot = slot] {
      give(slot, taken.after);
      taken.after_ready->set();
    };
    return {begin, end};
  }

  const at::Generator slot;

 private:
  static void give(at::Generator from, at::Generator to) {
    KernelTurn turn;
    c10::intrusive_ptr<c10::TensorImpl> state;
    {
      std::lock_guard<std::mutex> lock(from.mutex());
      state = from.unsafeGetGeneratorImpl()->get_state();
    }
    std::lock_guard<std::mutex> lock(to.mutex());
    to.unsafeGetGeneratorImpl()->set_state(*state);
  }

  const std::shared_ptr<State> state_;
  at::Generator first_;  // for a planted fault: the state that the first replay began with
  std::optional<uint64_t> seed_;  // for another one: the seed at the capture
};

class SimulatedGenerator final : public c10::GeneratorImpl {
 public:
  SimulatedGenerator(int device, std::shared_ptr<State> state)
      : c10::GeneratorImpl(
            c10::Device(c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(device)),
            c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        state_(std::move(state)) {}

  void set_current_seed(uint64_t seed) override {
    state_->replaced().set_current_seed(
        on(Fault::random_seed_ignored) ? c10::detail::getNonDeterministicRandom()
        : on(Fault::random_seed_cut)   ? seed & 0xff
                                       : seed);
  }
  uint64_t current_seed() const override { return state_->settled().current_seed(); }
  uint64_t seed() override { return state_->replaced().seed(); }
  // The CPU's algorithm has no offset: it raises, as it does there.
  void set_offset(uint64_t offset) override { state_->settled().set_offset(offset); }
  uint64_t get_offset() const override { return state_->settled().get_offset(); }
  void set_state(const c10::TensorImpl& state) override {
    if (!on(Fault::random_state_not_restored)) {
      state_->replaced().unsafeGetGeneratorImpl()->set_state(state);
    }
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return state_->settled().unsafeGetGeneratorImpl()->get_state();
  }
  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& other) override {
    auto* same = dynamic_cast<SimulatedGenerator*>(other.get());
    TORCH_CHECK(same != nullptr, "expected a generator of the simulated device");
    state_ = same->state_;
  }
  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override {
    return c10::make_intrusive<SimulatedGenerator>(device().index(), state_);
  }

  const std::shared_ptr<State>& state() const { return state_; }

 private:
  SimulatedGenerator* clone_impl() const override {
    return new SimulatedGenerator(device().index(), std::make_shared<State>(state_->settled().clone()));
  }

  std::shared_ptr<State> state_;
};

at::Generator made(int device, uint64_t seed) {
  return at::make_generator<SimulatedGenerator>(device, std::make_shared<State>(at::detail::createCPUGenerator(seed)));
}

std::atomic<bool> refuses_to_draw{false};

}  // namespace

void refuse_to_draw(bool refused) {
  refuses_to_draw = refused;
}

const at::Generator& default_generator(int device) {
  static auto* all = [] {
    auto* generators = new std::vector<at::Generator>;
    for (int each = 0; each < device_count(); ++each) {
      generators->push_back(made(each, c10::default_rng_seed_val));
    }
    return generators;
  }();
  return all->at(device);
}

at::Generator new_generator(int device) {
  if (on(Fault::random_generators_shared)) {
    auto* of_all = dynamic_cast<SimulatedGenerator*>(default_generator(device).unsafeGetGeneratorImpl());
    return at::make_generator<SimulatedGenerator>(device, of_all->state());
  }
  return made(device, c10::default_rng_seed_val);
}

at::Generator cpu_generator(const std::optional<at::Generator>& generator, Queue& queue) {
  const int device = queue.device();
  const bool named = generator.has_value() && generator->defined();
  if (on(Fault::autograd_thread_draws_apart) && in_backward() && !named) {
    thread_local const at::Generator own = made(0, c10::default_rng_seed_val);
    return dynamic_cast<SimulatedGenerator&>(*own.unsafeGetGeneratorImpl()).state()->settled();
  }
  const at::Generator& chosen = named ? *generator : default_generator(device);
  auto* ours = dynamic_cast<SimulatedGenerator*>(chosen.unsafeGetGeneratorImpl());
  TORCH_CHECK(
      ours != nullptr, "Expected a 'simulated' device type for generator but found '", chosen.device().type(), "'");
  TORCH_CHECK(
      ours->device().index() == device, "Expected a generator of device simulated:", device, " but found one of ",
      ours->device());
  const auto capture = queue.capture();
  if (capture == nullptr) {
    TORCH_CHECK(!refuses_to_draw, "Offset increment outside graph capture encountered unexpectedly.");
    return ours->state()->settled();
  }
  const auto around = capture->around(
      ours->state().get(), [&] { return std::make_shared<GraphGenerator>(ours->state()); });
  return static_cast<const GraphGenerator&>(*around).slot;
}

}  // namespace simulated
