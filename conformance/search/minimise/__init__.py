"""Finds the smallest failing example of a failure, with hypothesis, in a subprocess."""
