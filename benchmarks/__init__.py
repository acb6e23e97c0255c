"""Measures speed and memory, and compares with upstream's way of testing the same ops: ``python -m benchmarks``."""
