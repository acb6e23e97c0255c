"""ELU with alpha = 1."""

import torch


def reference(x):
    return torch.nn.functional.elu(x)


def samples():
    random = torch.Generator().manual_seed(0)
    for shape in ((1, 1, 1), (1, 7, 3), (2, 1, 256), (1, 2, 1025)):
        yield (torch.empty(shape).uniform_(-10, 10, generator=random),)


def elu_triton(x):
    wide = x.float()
    return torch.where(wide > 0, wide, torch.expm1(wide)).to(x.dtype)
