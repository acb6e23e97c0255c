"""Locates the first wrong call of a program: the program runs on a device, and each aten call that it makes is computed
a second time on the CPU, from the same inputs that the device's call had."""
