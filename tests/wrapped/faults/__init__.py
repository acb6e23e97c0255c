"""The planted faults of the wrapped device. Importing this package registers all of them."""

from __future__ import annotations

from tests.wrapped.faults import (
    addressing,
    formats,
    inplace,
    linear,
    memory,
    outs,
    reading,
    reductions,
    special,
    views,
)
from tests.wrapped.registry import (
    REGISTRY,
    Fault,
    FaultConflict,
    UnknownFault,
    plant_from_environment,
    planted,
    watched,
)

__all__ = [
    "REGISTRY",
    "Fault",
    "FaultConflict",
    "UnknownFault",
    "addressing",
    "formats",
    "inplace",
    "linear",
    "memory",
    "outs",
    "plant_from_environment",
    "planted",
    "reading",
    "reductions",
    "special",
    "views",
    "watched",
]
