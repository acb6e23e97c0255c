"""Tests of the suites of behaviour: cases, their context, and the faults that they catch."""
