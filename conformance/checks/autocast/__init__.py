"""Autocast as torch has it for all devices: its lists, a call of each op, and what a device does with it."""
