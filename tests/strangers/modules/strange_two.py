"""A device of two indices without streams: results are where the first operand is, and factories ask for an index."""

import strange


class Module(strange.Module):
    current = 0

    def device_count(self) -> int:
        return 2

    def current_device(self) -> int:
        return self.current

    def set_device(self, device: object) -> None:
        Module.current = device if isinstance(device, int) else getattr(device, "index", 0) or 0


strange.register("twin", Module())
