"""The parts that all checks are built from, both for calls of ops and for cases of behaviour."""
