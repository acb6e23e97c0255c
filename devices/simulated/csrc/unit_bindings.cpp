// The functions for Python.
// Compiled together, because torch's headers cost more than our code.

#include "bindings.cpp"
#include "bindings_memory.cpp"
#include "bindings_graph.cpp"
#include "compiled.cpp"
#include "hazard.cpp"
#include "sharing.cpp"
