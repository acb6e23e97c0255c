"""Hyperbolic tangent, by the exponential function."""

import torch


def reference(x):
    return torch.tanh(x)


def samples():
    random = torch.Generator().manual_seed(0)
    for shape in ((1, 1, 1), (1, 7, 3), (2, 1, 256), (1, 2, 1025)):
        yield (torch.empty(shape).uniform_(-10, 10, generator=random),)


def tanh_triton(x):
    size = x.float().abs()
    ratio = torch.expm1(-2 * size)
    return torch.copysign(-ratio / (2 + ratio), x.float()).to(x.dtype)
