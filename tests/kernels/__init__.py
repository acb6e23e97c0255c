"""Kernels that are right, kernels that are wrong, and what is said of them."""
