"""A static site of runs: what each device honours, since when, and what changed."""
