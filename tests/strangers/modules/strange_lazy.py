"""Torch's own lazy backend: opaque tensors, whose work is done when they are read."""

import os
from typing import Any

import torch
import torch._lazy.ts_backend

torch._lazy.ts_backend.init()

if os.environ.get("STRANGE_FAULT") == "1":
    _library = torch.library.Library("aten", "IMPL")

    def _adds(self: torch.Tensor, other: Any) -> torch.Tensor:
        return torch.add(self, other)

    _library.impl("mul.Tensor", _adds, "Lazy")
