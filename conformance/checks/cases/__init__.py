"""The framework for the suites that test device behaviour: cases as data, the context that each check receives, and the
functions that run cases."""
