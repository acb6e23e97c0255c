#include "worker.h"

#include <ATen/Parallel.h>

namespace simulated {

void prepare_worker_thread() {
  at::init_num_threads();
}

}  // namespace simulated
