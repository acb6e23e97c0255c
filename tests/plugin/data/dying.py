"""A device that is the CPU, and takes the process down while a test of the named op runs on it."""

from __future__ import annotations

import os
import signal
from typing import Any

from devices.cpu.descriptor import DESCRIPTOR as CPU
from devices.descriptor import Descriptor


def _to_device(tensor: Any) -> Any:
    running = os.environ.get("PYTEST_CURRENT_TEST", "")
    deadly = os.environ.get("DYING_OP")
    if deadly and f"-{deadly}-" in running and "PYTEST_XDIST_WORKER" in os.environ:
        os.kill(os.getpid(), signal.SIGSEGV)
    return tensor.clone()


DESCRIPTOR = Descriptor(
    name="dying",
    torch_type="cpu",
    title="A CPU that dies",
    capabilities=CPU.capabilities,
    dtypes=CPU.dtypes,
    to_device=_to_device,
)
