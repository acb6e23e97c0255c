// Random number generators: on this device a state of the CPU's algorithm, one default a device.

#pragma once

#include <ATen/core/Generator.h>

#include "stream.h"

namespace simulated {

const at::Generator& default_generator(int device);
at::Generator new_generator(int device);
// The CPU generator that holds a generator's state, to be given to the CPU's kernels; of the device's
// default generator if none is given. While the queue is capturing, the generator that each replay sets to the state
// that the given one has at that time. Throws c10::Error for a generator of another device.
at::Generator cpu_generator(const std::optional<at::Generator>& generator, Queue& queue);
// For a fault: from now on, drawing outside of a capture raises, or works again.
void refuse_to_draw(bool refused);

}  // namespace simulated
