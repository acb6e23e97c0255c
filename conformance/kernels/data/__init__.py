"""The data structures of the file formats in which other projects store kernels."""
