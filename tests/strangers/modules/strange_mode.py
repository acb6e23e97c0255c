"""A device that sends every call of torch through a mode of its own, for ever."""

from typing import Any

import strange
import torch
from torch.overrides import TorchFunctionMode

strange.register("modal")

_HOST = torch.device("cpu")


class Everywhere(TorchFunctionMode):
    """Rewrites tensors that nobody placed: factories without a device make float64, sampling included."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.zeros, torch.ones, torch.empty) and "device" not in kwargs:
            kwargs.setdefault("dtype", torch.float64)
        return func(*args, **kwargs)


_mode = Everywhere()
_mode.__enter__()
