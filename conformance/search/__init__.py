"""Searches for examples that are not in the plan: smaller examples of a failure, and random examples."""
