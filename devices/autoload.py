"""``torch.backends``, the entry points with which importing torch loads backends of others: put off in processes of ours.

A process that plans or reports needs no device, and one that opens a device looks at itself before it loads it. Imports
no torch.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
from typing import Final

#: Whether a backend is installed that importing torch loads.
INSTALLED: Final = bool(importlib.metadata.entry_points(group="torch.backends"))
_SWITCH: Final = "TORCH_DEVICE_BACKEND_AUTOLOAD"
#: Set where the switch is ours: a user may have switched it off too.
_PUT_OFF: Final = "TORCH_CONFORMANCE_AUTOLOAD_PUT_OFF"


def put_off() -> None:
    """Keep torch from loading them as it is imported, here and in processes that are started from here."""
    if "torch" not in sys.modules and os.environ.get(_SWITCH, "1") == "1":
        os.environ |= {_SWITCH: "0", _PUT_OFF: "1"}


def is_put_off() -> bool:
    """Whether they are still to be loaded, by whoever opens a device."""
    return os.environ.get(_PUT_OFF) == "1"


def switched_back() -> dict[str, str]:
    """What to change in the environment of a process that is to import torch as users do."""
    return {_SWITCH: "1", _PUT_OFF: "0"} if is_put_off() else {}
