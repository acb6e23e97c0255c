"""Softmax of rows: in NumPy padded to whole blocks, and in one block whose length is a power of two."""

import numpy
import torch

BLOCK = 128


def reference(x):
    return torch.softmax(x, -1)


def samples():
    random = torch.Generator().manual_seed(0)
    for shape in ((1, 1, 1), (1, 7, 3), (2, 1, 256), (1, 2, 1025)):
        yield (torch.empty(shape).uniform_(-10, 10, generator=random),)


def softmax(x):
    rows = numpy.ascontiguousarray(x.numpy(), numpy.float32)
    if not rows.size:
        return torch.empty_like(x, memory_format=torch.contiguous_format)
    exponentials = numpy.exp(rows - rows.max(axis=-1, keepdims=True))
    found = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return torch.from_numpy(found).to(x.dtype)


def softmax_llm_buggy(x):
    """Tail-mask leak: the zeros that fill the last block are counted in the sum."""
    rows = numpy.ascontiguousarray(x.numpy(), numpy.float32)
    columns = rows.shape[-1]
    beyond = [(0, 0)] * (rows.ndim - 1) + [(0, -columns % BLOCK)]
    padded = numpy.pad(rows, beyond)
    exponentials = numpy.exp(padded - padded.max(axis=-1, keepdims=True, initial=-numpy.inf))
    found = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return torch.from_numpy(found[..., :columns].copy()).to(x.dtype)


def _one_block(x, other):
    """A row in one block, whose length is the next power of two."""
    columns = x.shape[-1]
    length = 1 << max(columns - 1, 0).bit_length()
    block = torch.full((*x.shape[:-1], length), other)
    block[..., :columns] = x
    exponentials = (block - block.amax(-1, keepdim=True)).exp()
    found = exponentials / exponentials.sum(-1, keepdim=True)
    return found[..., :columns].to(x.dtype).contiguous()


def softmax_triton(x):
    return _one_block(x, float("-inf"))


def softmax_triton_buggy(x):
    """The elements beyond the row are loaded as 0 (``other=0.0``), and not as minus infinity."""
    return _one_block(x, 0.0)
