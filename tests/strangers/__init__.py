"""Backends as third parties write them, and their first day with the harness."""
