"""Leaky ReLU with torch's default slope."""

import torch


def reference(x):
    return torch.nn.functional.leaky_relu(x, 0.01)


def samples():
    random = torch.Generator().manual_seed(0)
    for shape in ((1, 1, 1), (1, 7, 3), (2, 1, 256), (1, 2, 1025)):
        yield (torch.empty(shape).uniform_(-10, 10, generator=random),)


def leaky_relu_triton(x):
    return torch.where(x > 0, x, 0.01 * x)


def leaky_relu_triton_buggy(x):
    """A slope of 0.1 in place of 0.01."""
    return torch.where(x > 0, x, 0.1 * x)
