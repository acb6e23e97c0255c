"""Layer norm of rows, without weights, in NumPy."""

import numpy
import torch


def reference(x):
    return torch.nn.functional.layer_norm(x, x.shape[-1:], eps=1e-5)


def samples():
    random = torch.Generator().manual_seed(0)
    for shape in ((1, 1, 1), (1, 7, 3), (2, 1, 256), (1, 2, 1025)):
        yield (torch.empty(shape).uniform_(-10, 10, generator=random),)


def layernorm(x):
    rows = numpy.ascontiguousarray(x.numpy(), numpy.float32)
    if not rows.size:
        return torch.empty_like(x, memory_format=torch.contiguous_format)
    centred = rows - rows.mean(axis=-1, keepdims=True)
    variance = (centred * centred).mean(axis=-1, keepdims=True)
    return torch.from_numpy(centred / numpy.sqrt(variance + numpy.float32(1e-5))).to(x.dtype)
