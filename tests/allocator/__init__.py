"""Tests of the allocator suite."""
