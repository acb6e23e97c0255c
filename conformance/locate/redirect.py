"""Runs a program that names one device type on another device."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from conformance.locate.steps import substitute


class Redirected(TorchFunctionMode):
    """Within this mode, a device of one type, such as ``cuda``, in the arguments of torch's functions is replaced by
    another device, and ``tensor.cuda()`` and ``module.cuda()`` move to that device. What the program asks of
    ``torch.cuda`` itself, such as ``torch.cuda.is_available()``, is answered unchanged."""

    def __init__(self, kind: str, device: torch.device) -> None:
        super().__init__()
        self.kind, self.device = kind, device

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if (
            getattr(func, "__name__", "") == self.kind
            and args
            and isinstance(args[0], torch.Tensor)
        ):
            return args[0].to(self.device, non_blocking=(kwargs or {}).get("non_blocking", False))
        if func is torch.device:
            return self._there(func(*args, **(kwargs or {})))
        args, kwargs = substitute((args, kwargs or {}), torch.device, self._there)
        return func(*substitute(args, str, self._named), **substitute(kwargs, str, self._named))

    def _there(self, device: torch.device) -> torch.device:
        return self.device if device.type == self.kind else device

    def _named(self, text: str) -> Any:
        """Returns the new device if the text names a device of the replaced type, such as ``cuda:0``; otherwise the
        text unchanged."""
        return self.device if text.partition(":")[0] == self.kind else text
