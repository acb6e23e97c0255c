"""Checks of ops: calls with inputs in many layouts, the device's answers, and the functions that judge the answers."""
