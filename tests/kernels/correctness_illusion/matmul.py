"""Product of two matrices: in NumPy, and as a sum over tiles of columns of the first and rows of the second."""

import numpy
import torch

TILE = 16


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


def _tiles(a, b):
    for k in range(0, a.shape[1], TILE):
        yield a[:, k : k + TILE].float() @ b[k : k + TILE].float()


def matmul_triton(a, b):
    total = torch.zeros(a.shape[0], b.shape[1])
    for tile in _tiles(a, b):
        total += tile
    return total.to(a.dtype)


def matmul_triton_buggy(a, b):
    """Only the last tile is left: ``acc =`` in place of ``acc +=``."""
    total = torch.zeros(a.shape[0], b.shape[1])
    for tile in _tiles(a, b):
        total = tile
    return total.to(a.dtype)
