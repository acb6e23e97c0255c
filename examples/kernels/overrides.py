"""A module that overrides ops of torch by `torch.library`, in both common ways. `conform kernels` finds them by itself."""

import torch

library = torch.library.Library("aten", "IMPL")


def relu(x):
    return torch.where(x > 0, x, torch.where(x.isnan(), x, 0.0))


library.impl("relu", relu, "CPU")


@torch.library.impl("aten::tril", "CPU")
def tril(x, diagonal=0):
    rows = torch.arange(x.shape[-2], device=x.device).unsqueeze(1)
    keep = torch.arange(x.shape[-1], device=x.device) - rows <= diagonal
    return torch.where(keep, x, torch.zeros((), dtype=x.dtype, device=x.device)).contiguous()
