"""What the suites of behaviour share: cases as data, the context that a check is given, and how they run."""
