"""Which kernels of a device the suite judges: the map from the suite's calls to aten overloads, the weights of the overloads
in public training runs, and the state of each overload with a kernel."""
