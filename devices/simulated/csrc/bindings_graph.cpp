#include "bindings_graph.h"

#include <pybind11/stl.h>

#include "faults.h"
#include "graph.h"

namespace simulated {

void add_graphs(pybind11::module_& m) {
  m.def("graph_pool_handle", &new_pool_id);
  // Of a planted fault: graphed callables give their backward graphs no new gradients.
  m.def("backward_is_stale", [] { return on(Fault::callable_backward_stale); });
}

}  // namespace simulated
