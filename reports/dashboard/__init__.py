"""Builds a static website from runs. It shows which cells pass on each device, since when they pass, and what
changed."""
