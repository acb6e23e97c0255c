// What a thread needs before it may run the CPU's kernels for the device.

#pragma once

#include <c10/core/AutogradState.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace simulated {

// Called once in each queue's thread: kernels use torch's number of threads and record no gradients.
void prepare_worker_thread();

// Held while a queued kernel runs. Once the process ends, no kernel begins: it would use objects being destroyed.
class KernelTurn {
 public:
  KernelTurn();
  ~KernelTurn();
  KernelTurn(const KernelTurn&) = delete;
  KernelTurn& operator=(const KernelTurn&) = delete;
};

// At the end of the process: keeps queued kernels from beginning, and waits for those that run.
void stop_kernels();
bool kernels_stopped();

// While it lives, the calling thread dispatches to the CPU's kernels only: autograd, autocast, modes and
// subclasses have already been dispatched, and no gradient is recorded.
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
