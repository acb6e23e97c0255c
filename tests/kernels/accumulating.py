"""A kernel that is right in float32 and wrong in bfloat16."""

from __future__ import annotations

import torch


def in_own_dtype(x: torch.Tensor) -> torch.Tensor:
    """Rounds every partial sum to the dtype of its operand."""
    found = torch.zeros(x.shape[:-1], dtype=x.dtype)
    for each in x.unbind(-1):
        found = found + each
    return found
