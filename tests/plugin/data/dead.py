"""A device whose driver is dead."""

from __future__ import annotations

from typing import Any

from devices.cpu.descriptor import DESCRIPTOR as CPU
from devices.descriptor import Descriptor


def _to_device(tensor: Any) -> Any:
    raise RuntimeError("driver not responding (code 999)")


DESCRIPTOR = Descriptor(
    name="dead",
    torch_type="cpu",
    title="A device whose driver is dead",
    capabilities=CPU.capabilities,
    dtypes=CPU.dtypes,
    to_device=_to_device,
)
