"""Examples that are not in the plan: smaller examples of a failure, and random ones."""
