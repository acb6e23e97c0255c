"""Clauses that no fault of the simulated device can trip, and why."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

UNPLANTED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "compile.stride_tags": "Inductor generates no code for the device",
        "distributed.backend": "no process-group backend serves the device",
        "profiler.activity": "the profiler gets the times of ops from it, and no activity of its own",
    }
)
"""By clause: the reason. A clause that has neither a fault nor a reason fails the tests."""

ANSWERED_BY_TORCH: Final[Mapping[str, str]] = MappingProxyType(
    {
        "device.lazy_init": "whether importing torch initialises a device: torch/__init__.py",
    }
)
"""By clause: the part of it that torch answers itself before it asks any device, so that no fault can lie there."""
