"""Judges single kernels: functions, custom ops, or modules that override ops. The kernel runs in its own process. Other
processes compute the expected values and compare the kernel's results with them."""
