"""A device that wants every tensor: as the default device, in torch's factories, and in a mode that is never left."""

from typing import Any

import strange
import torch
from torch.overrides import TorchFunctionMode

strange.register("greedy")

_empty, _tensor = torch.empty, torch.tensor


def empty(*args: Any, **kwargs: Any) -> torch.Tensor:
    """The vendor's own: on the device, unless another is named."""
    return _empty(*args, **{"device": "greedy", **kwargs})


def tensor(*args: Any, **kwargs: Any) -> torch.Tensor:
    """The vendor's own: on the device, even if the host is named."""
    return _tensor(*args, **kwargs).to("greedy")


class Mine(TorchFunctionMode):
    """Moves what any factory makes to the device."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        factory = func in (torch.zeros, torch.ones, torch.arange, torch.full, torch.randn)
        return made.to("greedy") if factory and made.device.type == "cpu" else made


torch.empty, torch.tensor = empty, tensor  # type: ignore[assignment]
torch.set_default_device("greedy")
_mode = Mine()
_mode.__enter__()
