"""What the behaviour suites share: cases as data, the context that each check receives, and the functions
that run cases."""
