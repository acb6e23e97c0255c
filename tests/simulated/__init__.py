"""The simulated device under test: what is run on it, and how its planted faults show without a suite."""
