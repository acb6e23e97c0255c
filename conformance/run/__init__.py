"""Cells get their outcomes, whatever dies on the way: session, workers, isolation."""
