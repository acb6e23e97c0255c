"""Checks of ops: calls in layouts, the device's answers, and judges."""
