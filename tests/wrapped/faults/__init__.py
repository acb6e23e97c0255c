"""The planted faults of the wrapped device. Importing this package registers all of them."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from tests.wrapped.registry import (
    REGISTRY,
    Fault,
    FaultConflict,
    UnknownFault,
    plant_from_environment,
    planted,
    watched,
)

__all__ = ["REGISTRY", "Fault", "FaultConflict", "UnknownFault"]
__all__ += ["plant_from_environment", "planted", "watched"]

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
