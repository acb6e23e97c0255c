"""Everyday tasks on a terminal, from the command to the answer: what a user sees, checked and printed."""
