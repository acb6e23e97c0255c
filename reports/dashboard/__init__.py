"""Builds a static website from runs: which cells pass on each device, since when, and what changed."""
