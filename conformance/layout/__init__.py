"""The layout suite: kernels keep values, strides and storage right."""
