"""Speed and memory, side by side with upstream's way of testing the same ops. ``python -m benchmarks``."""
