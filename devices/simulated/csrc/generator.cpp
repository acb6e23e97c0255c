#include "generator.h"

#include <ATen/CPUGeneratorImpl.h>

#include <array>

#include "arena.h"
#include "faults.h"
#include "runtime.h"

namespace simulated {

namespace {

class SimulatedGenerator final : public c10::GeneratorImpl {
 public:
  SimulatedGenerator(int device, at::Generator cpu)
      : c10::GeneratorImpl(
            c10::Device(c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(device)),
            c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        cpu_(std::move(cpu)) {}

  void set_current_seed(uint64_t seed) override {
    cpu_.set_current_seed(on(Fault::seed_ignored) ? c10::detail::getNonDeterministicRandom() : seed);
  }
  uint64_t current_seed() const override { return cpu_.current_seed(); }
  uint64_t seed() override { return cpu_.seed(); }
  // The CPU's algorithm has no offset: it raises, as it does there.
  void set_offset(uint64_t offset) override { cpu_.set_offset(offset); }
  uint64_t get_offset() const override { return cpu_.get_offset(); }
  void set_state(const c10::TensorImpl& state) override {
    if (!on(Fault::state_not_restored)) {
      cpu_.unsafeGetGeneratorImpl()->set_state(state);
    }
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return cpu_.unsafeGetGeneratorImpl()->get_state(); }
  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& other) override {
    auto* same = dynamic_cast<SimulatedGenerator*>(other.get());
    TORCH_CHECK(same != nullptr, "expected a generator of the simulated device");
    cpu_ = same->cpu_;
  }
  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override {
    return c10::make_intrusive<SimulatedGenerator>(device().index(), cpu_);
  }

  const at::Generator& cpu() const { return cpu_; }

 private:
  SimulatedGenerator* clone_impl() const override {
    return new SimulatedGenerator(device().index(), cpu_.clone());
  }

  at::Generator cpu_;
};

at::Generator made(int device, uint64_t seed) {
  return at::make_generator<SimulatedGenerator>(device, at::detail::createCPUGenerator(seed));
}

}  // namespace

const at::Generator& default_generator(int device) {
  static auto* all = [] {
    auto* generators = new std::vector<at::Generator>;
    for (int each = 0; each < arena().devices(); ++each) {
      generators->push_back(made(each, c10::default_rng_seed_val));
    }
    return generators;
  }();
  return all->at(device);
}

at::Generator new_generator(int device) {
  if (on(Fault::generators_shared)) {
    auto* of_all = dynamic_cast<SimulatedGenerator*>(default_generator(device).unsafeGetGeneratorImpl());
    return at::make_generator<SimulatedGenerator>(device, of_all->cpu());
  }
  return made(device, c10::default_rng_seed_val);
}

at::Generator cpu_generator(const std::optional<at::Generator>& generator, int device) {
  const at::Generator& chosen =
      generator.has_value() && generator->defined() ? *generator : default_generator(device);
  auto* ours = dynamic_cast<SimulatedGenerator*>(chosen.unsafeGetGeneratorImpl());
  TORCH_CHECK(
      ours != nullptr, "Expected a 'simulated' device type for generator but found '", chosen.device().type(), "'");
  TORCH_CHECK(
      ours->device().index() == device, "Expected a generator of device simulated:", device, " but found one of ",
      ours->device());
  return ours->cpu();
}

}  // namespace simulated
