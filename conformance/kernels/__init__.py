"""Judges single kernels: a function, a custom op, or a module that overrides ops. The kernel runs in a process of its own,
and the expected values are computed, and compared with its results, in other processes."""
