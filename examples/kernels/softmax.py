"""Two kernels for `conform kernels`: a softmax that is wrong, although `allclose` accepts it on a matrix, and its fix."""

import torch


def first_try(x, dim, dtype=None):
    x = x if dtype is None else x.to(dtype)
    e = x.exp()
    return e / e.sum(dim, keepdim=True)


def fixed(x, dim, dtype=None):
    x = (x if dtype is None else x.to(dtype)).contiguous()
    if not x.numel():
        return torch.empty_like(x)
    e = (x - x.amax(dim, keepdim=True)).exp()
    return e / e.sum(dim, keepdim=True)
