"""The device's library, once the package has loaded it."""

from __future__ import annotations

from typing import Any, Final

#: As torch calls the device.
NAME: Final = "simulated"

library: Any = None


def on(fault: str) -> bool:
    """Whether a planted fault is on."""
    return bool(library.fault_is_on(fault))
