"""Planted faults of calls: transfers, devices, dispatch, random numbers, gradients, and what ends a process.

Each row is name, clause and what is wrong; a direct probe in ``tests/simulated`` shows the device misbehaving.
"""

from __future__ import annotations

from typing import Final

ROWS: Final[tuple[tuple[str, str, str], ...]] = ()
