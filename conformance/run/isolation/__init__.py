"""A crash, a hang or a poisoned device costs the cell that caused it, and no other."""
