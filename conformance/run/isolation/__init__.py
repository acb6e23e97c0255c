"""A crash, a hang or a poisoned device costs the cell that caused it, and no other.

``watch`` is what a process does around each cell, ``process`` what a worker does besides. ``controller`` watches the
workers: it ends those that hang, names the guilty cell of those that die, and has the rest of their item run again.
"""
