"""Controls the entry points ``torch.backends``, through which importing torch also imports installed third-party
backends.

The suite's processes postpone this. A process that plans or reports needs no device, and a process that opens a device
records its own state before it imports the backend. Does not import torch.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
from typing import Final

#: Whether a backend is installed that ``import torch`` would import as well.
INSTALLED: Final = bool(importlib.metadata.entry_points(group="torch.backends"))
_SWITCH: Final = "TORCH_DEVICE_BACKEND_AUTOLOAD"
#: Set if this module turned the import off, and not the user.
_PUT_OFF: Final = "TORCH_CONFORMANCE_AUTOLOAD_PUT_OFF"


def put_off() -> None:
    """Keep torch from importing these backends when it is imported, in this process and in its child processes."""
    if "torch" not in sys.modules and os.environ.get(_SWITCH, "1") == "1":
        os.environ |= {_SWITCH: "0", _PUT_OFF: "1"}


def is_put_off() -> bool:
    """Whether the import of these backends was postponed, so that whoever opens a device has to do it."""
    return os.environ.get(_PUT_OFF) == "1"


def switched_back() -> dict[str, str]:
    """The environment variables to set for a process that should import torch as users do."""
    return {_SWITCH: "1", _PUT_OFF: "0"} if is_put_off() else {}
