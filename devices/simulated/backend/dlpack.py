"""DLPack's protocol for the device's tensors.

Torch's C++ exchanges them under kDLExtDev without a copy; ``Tensor.__dlpack_device__`` compares the name of the
device with the literal "privateuse1", which a renamed backend has no longer. So both methods are wrapped.
"""

from __future__ import annotations

from typing import Any

import torch

from devices.simulated.backend import native
from devices.simulated.backend.streams import ExternalStream, current_stream, default_stream

#: What consumers pass for "the default stream" and "no order wanted".
_DEFAULT_STREAMS = (0, 1)
_NO_ORDER = (None, -1)


def teach_tensors() -> None:
    """Let tensors of the device speak DLPack. Called once, by the package."""
    tensor: Any = torch.Tensor
    device_of, capsule_of = tensor.__dlpack_device__, tensor.__dlpack__

    def __dlpack_device__(self: torch.Tensor) -> Any:
        if self.device.type != native.NAME:
            return device_of(self)
        from torch.utils.dlpack import DLDeviceType

        return (DLDeviceType.kDLExtDev, self.device.index)

    def __dlpack__(self: torch.Tensor, *, stream: Any = -1, **options: Any) -> Any:
        if self.device.type != native.NAME:
            return capsule_of(self, stream=stream, **options)
        if stream not in _NO_ORDER and not native.on("transfer.dlpack_ignores_stream"):
            _order(self.device.index, stream)
        exported = self
        if native.on("transfer.dlpack_copies"):
            exported = self.clone()
        if native.on("transfer.dlpack_ignores_offset"):
            exported = self.as_strided(self.size(), self.stride(), 0)
        return capsule_of(exported, stream=-1, **options)

    tensor.__dlpack_device__ = __dlpack_device__
    tensor.__dlpack__ = __dlpack__


def _order(index: int, handle: object) -> None:
    """Let the consumer's stream wait for the current one. Raises TypeError for what is no handle."""
    if not isinstance(handle, int):
        raise TypeError("stream must be ``int`` or ``none``")
    consumer = (
        default_stream(index) if handle in _DEFAULT_STREAMS else ExternalStream(handle, index)
    )
    producer = current_stream(index)
    if consumer != producer:
        consumer.wait_stream(producer)
