"""Controls whether torch imports the installed third-party backends by itself: importing torch also imports every
backend that is registered as an entry point ``torch.backends``.

The processes of the suite postpone the import of third-party backends. A process that plans or reports needs no
device, and a process that opens a device records its own state before it imports the backend. The module does not
import torch.
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
    """Keeps torch from importing third-party backends when torch itself is imported, in the current process and in its
    child processes."""
    if "torch" not in sys.modules and os.environ.get(_SWITCH, "1") == "1":
        os.environ |= {_SWITCH: "0", _PUT_OFF: "1"}


def is_put_off() -> bool:
    """Returns True if the import of third-party backends was postponed. In this case, code that opens a device must
    import the device's backend."""
    return os.environ.get(_PUT_OFF) == "1"


def switched_back() -> dict[str, str]:
    """Returns the environment variables to set for a child process in which torch should import third-party backends
    automatically, as it does for a user. Returns an empty dictionary if the import was not postponed."""
    return {_SWITCH: "1", _PUT_OFF: "0"} if is_put_off() else {}
