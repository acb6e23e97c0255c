"""The CPU, a device that every build of torch has."""
