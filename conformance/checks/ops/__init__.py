"""Checks of ops: calls with inputs in many layouts, the results of the device, and the functions that judge the
results."""
