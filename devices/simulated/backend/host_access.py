"""What of torch would follow an address of the device on the host."""

from __future__ import annotations

from typing import Any

import torch

from devices.simulated.backend import native


def refuse() -> None:
    """Make the one method of torch's that follows a storage's address on the host raise instead of crashing."""
    storage: Any = torch.storage._StorageBase
    original = storage.byteswap

    def byteswap(self: Any, dtype: torch.dtype) -> Any:
        if self.device.type == native.NAME:
            raise NotImplementedError(
                "byteswap runs on the host, which cannot reach the simulated device's memory: call .cpu() first"
            )
        return original(self, dtype)

    storage.byteswap = byteswap
