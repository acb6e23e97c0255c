// Kernels, and what planted faults do to them.
// Compiled together, because torch's headers cost more than our code.

#include "alias.cpp"
#include "geometry.cpp"
#include "capturable.cpp"
#include "wider.cpp"
#include "kernel.cpp"
#include "convolution.cpp"
#include "defects.cpp"
#include "misbehave.cpp"
#include "misbehave_calls.cpp"
#include "misbehave_graph.cpp"
#include "misbehave_size.cpp"
#include "spoil.cpp"
#include "ops.cpp"
#include "copy.cpp"
#include "recurrent.cpp"
