"""A device whose module is a draft: it denies that the device is there, and half of its functions raise."""

from typing import Any

import strange


class Module(strange.Module):
    def is_available(self) -> bool:
        return False

    def device_count(self) -> int:
        raise NotImplementedError("device_count: to do")

    def current_device(self) -> Any:
        return None

    def synchronize(self, device: Any = None) -> None:
        raise RuntimeError("synchronize is not wired up\nsee the tracker")

    def get_device_properties(self, device: Any = None) -> Any:
        raise KeyError("uuid")

    def get_device_name(self, device: Any = None) -> str:
        raise OSError(5, "ioctl")


strange.register("draft", Module())
