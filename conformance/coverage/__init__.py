"""Determines which kernels of a device the suite judges: it maps the suite's calls to aten overloads, weighs the
overloads by how often public training runs call them, and gives the state of each overload that has a kernel."""
