"""Locates the first wrong call of a program: the program runs on a device, and each of its aten calls is computed again on
the CPU from the device's own inputs."""
