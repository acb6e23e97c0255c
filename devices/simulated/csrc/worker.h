// What a thread needs before it may run the CPU's kernels for the device.

#pragma once

#include <c10/core/AutogradState.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace simulated {

// Once per queue's thread: kernels use as many threads as torch is set to, and record no gradients.
void prepare_worker_thread();

// What is held while a queued kernel runs. Once the process ends, no other begins: it would use what is being taken down.
class KernelTurn {
 public:
  KernelTurn();
  ~KernelTurn();
  KernelTurn(const KernelTurn&) = delete;
  KernelTurn& operator=(const KernelTurn&) = delete;
};

// At the end of the process: lets no more queued kernels begin, and waits for those that run.
void stop_kernels();
bool kernels_stopped();

// While it lives, the calling thread dispatches to the CPU's kernels alone: autograd, autocast, modes and
// subclasses have had their turn above, and no gradient is recorded.
class KernelScope {
 public:
  KernelScope()
      : keys_(
            c10::DispatchKeySet(c10::DispatchKey::BackendSelect),
            c10::default_excluded_set | c10::autograd_dispatch_keyset_with_ADInplaceOrView),
        autograd_(c10::AutogradState::get_tls_state()) {
    c10::AutogradState::set_tls_state(c10::AutogradState(
        /* grad_mode */ false, /* inference_mode */ false, /* fw_grad_mode */ false, /* multithreading_enabled */ false));
  }
  ~KernelScope() { c10::AutogradState::set_tls_state(autograd_); }
  KernelScope(const KernelScope&) = delete;
  KernelScope& operator=(const KernelScope&) = delete;

 private:
  c10::impl::ForceDispatchKeyGuard keys_;
  c10::AutogradState autograd_;
};

}  // namespace simulated
