"""Which aten overloads are called in a block."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from opinfo.compare import tensors_of
from tests.planting.calls import KernelCall
from tests.planting.places import SIMULATED


class Names(TorchDispatchMode):
    """Notes the names of the aten overloads that are called. (Their arguments would be kept alive.)"""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.name().removeprefix("aten::"))
        return func(*args, **(kwargs or {}))


class Seen(TorchDispatchMode):
    """Notes the calls of aten overloads with tensors of the simulated device, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, list[KernelCall]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = tensors_of((args, kwargs)) or tensors_of(result)
        if func.namespace == "aten" and any(each.device.type == SIMULATED for each in given):
            name = func.name().removeprefix("aten::")
            self.calls.setdefault(name, []).append(KernelCall(func, args, kwargs or {}))
        return result
