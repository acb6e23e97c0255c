"""The entry point of ``torch.backends``, through which torch imports backends when torch itself is imported.

The suite does not register this entry point, because importing torch would then build the device everywhere. To
register it, write

    [project.entry-points."torch.backends"]
    simulated = "devices.simulated.autoload:autoload"
"""

from __future__ import annotations

import importlib
import os

from devices.simulated.faults import ENVIRONMENT


def autoload() -> None:
    """Builds and registers the device. Raises BuildFailed, which torch reports unless a planted fault hides it."""
    try:
        importlib.import_module("devices.simulated.backend")
    except Exception:
        planted = os.environ.get(ENVIRONMENT, "").split(",")
        if "device.autoload_failure_hidden" not in map(str.strip, planted):
            raise
