"""A kernel that replaces no op of torch: it comes with its reference and with samples."""

import torch


def kernel(x, weight):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * weight


def reference(x, weight):
    return torch.nn.functional.rms_norm(x, weight.shape, weight, 1e-6)


def samples():
    torch.manual_seed(0)
    for shape in ((4, 8), (2, 3, 130), (1, 1), (5, 1027)):
        yield torch.randn(shape), torch.rand(shape[-1]) + 0.5
