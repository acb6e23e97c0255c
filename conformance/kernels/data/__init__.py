"""The wire types of other projects' formats of kernels."""
