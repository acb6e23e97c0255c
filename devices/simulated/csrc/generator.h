// Random number generators: on this device a state of the CPU's algorithm, one default a device.

#pragma once

#include <ATen/core/Generator.h>

#include "stream.h"

namespace simulated {

const at::Generator& default_generator(int device);
at::Generator new_generator(int device);
// The CPU generator that holds a generator's state, to be given to the CPU's kernels; of the device's
// default generator where none is given. Where the queue is capturing, the one that replays give the state to which
// the generator has come by then. Throws c10::Error for a generator of another device.
at::Generator cpu_generator(const std::optional<at::Generator>& generator, Queue& queue);

}  // namespace simulated
