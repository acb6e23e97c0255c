"""GELU by the approximation with tanh."""

import torch


def reference(x):
    return torch.nn.functional.gelu(x, approximate="tanh")


def samples():
    random = torch.Generator().manual_seed(0)
    for shape in ((1, 1, 1), (1, 7, 3), (2, 1, 256), (1, 2, 1025)):
        yield (torch.empty(shape).uniform_(-10, 10, generator=random),)


def _doubled(x):
    inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
    return x * (1 + torch.tanh(inner))


def gelu_triton(x):
    return (0.5 * _doubled(x.float())).to(x.dtype)


def gelu_triton_buggy(x):
    """The leading factor 0.5 is missing."""
    return _doubled(x.float()).to(x.dtype)
