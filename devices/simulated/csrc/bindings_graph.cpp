#include "bindings_graph.h"

#include <pybind11/stl.h>

#include "graph.h"

namespace simulated {

void add_graphs(pybind11::module_& m) {
  m.def("graph_pool_handle", &new_pool_id);
}

}  // namespace simulated
