"""Product of two matrices: in NumPy, and as a sum of outer products."""

import numpy
import torch


def reference(a, b):
    return torch.mm(a, b)


def samples():
    random = torch.Generator().manual_seed(0)
    for m, k, n in ((1, 1, 1), (7, 16, 15), (32, 33, 8), (2, 256, 64)):
        a, b = torch.empty(m, k), torch.empty(k, n)
        yield tuple(each.uniform_(-10, 10, generator=random) for each in (a, b))


def matmul(a, b):
    found = numpy.matmul(a.numpy().astype(numpy.float32), b.numpy().astype(numpy.float32))
    return torch.from_numpy(found).to(a.dtype)


def matmul_triton(a, b):
    total = torch.zeros(a.shape[0], b.shape[1])
    for k in range(a.shape[1]):
        total += a[:, k, None].float() * b[k].float()
    return total.to(a.dtype)


def matmul_triton_buggy(a, b):
    """Only the last outer product is left: ``acc =`` in place of ``acc +=``."""
    total = torch.zeros(a.shape[0], b.shape[1])
    for k in range(a.shape[1]):
        total = a[:, k, None].float() * b[k].float()
    return total.to(a.dtype)
