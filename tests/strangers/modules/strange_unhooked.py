"""A device without hooks and without a guard: `torch.accelerator` knows its name, and raises when it is asked more.

Copies to it go through a `Tensor.to` of its own, because torch's needs a guard. Its class has a `tolist` of its own.
"""

from typing import Any

import strange
import torch

strange.register("unhooked", hooks=False)

_to = torch.Tensor.to


def _to_device(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    place = kwargs.get("device", args[0] if args else None)
    ours = isinstance(place, (str, torch.device)) and torch.device(place).type == "unhooked"
    if not ours or isinstance(self, strange.Tensor):
        return _to(self, *args, **kwargs)
    return strange.Tensor(self.clone())


torch.Tensor.to = _to_device  # type: ignore[method-assign]
strange.Tensor.tolist = lambda self: self.held.tolist()  # type: ignore[method-assign]
