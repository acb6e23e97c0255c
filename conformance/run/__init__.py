"""The code that runs a test session: it starts worker processes, runs the cells in them, survives crashes and hangs,
and collects the outcome of each cell."""
