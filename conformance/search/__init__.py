"""Other examples than the plan's: smaller ones of a failure, and random ones."""
