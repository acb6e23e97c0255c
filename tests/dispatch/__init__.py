"""Tests of the dispatch suite."""
