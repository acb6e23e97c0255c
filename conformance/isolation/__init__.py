"""A run that cannot be lost: a crash, a hang or a poisoned device costs the cell that caused it, and no other.

In a worker: ``journal`` names the cell that runs, ``guard`` asks the device whether it still lives, ``process``
makes the worker tell its stack and end with its parent. In the controller: ``watchdog`` ends what does not
return, ``deaths`` reads what a dead worker left, ``controller`` names the guilty cell and has the rest of its item
run again, ``progress`` keeps what is done, so that a run can be resumed.
"""

from __future__ import annotations

from conformance.isolation.deaths import death_of, ended
from conformance.isolation.journal import Journal, read_entry

__all__ = ["Journal", "death_of", "ended", "read_entry"]
