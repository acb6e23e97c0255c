"""A device whose driver does not come back from two questions."""

import time
from typing import Any

import strange


class Module(strange.Module):
    def get_device_properties(self, device: Any = None) -> Any:
        while True:
            time.sleep(60)

    def get_device_name(self, device: Any = None) -> str:
        while True:
            time.sleep(60)


strange.register("stuck", Module())
