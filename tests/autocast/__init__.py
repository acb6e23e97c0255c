"""Tests of the autocast suite."""
