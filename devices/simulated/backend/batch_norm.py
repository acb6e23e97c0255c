"""Kernels that SyncBatchNorm calls on an accelerator, written with other ops of the device because the CPU does not
have them."""

from __future__ import annotations

from typing import Any, Final

import torch

from devices.simulated.backend import native

Tensor = torch.Tensor

_library: Final[Any] = torch.library.Library("aten", "IMPL")


def register() -> None:
    """Registers the kernels of this module for the simulated device."""
    for name, function in (
        ("batch_norm_stats", _stats),
        ("batch_norm_gather_stats_with_counts", _gather_stats),
        ("batch_norm_elemt", _normalise),
        ("batch_norm_backward_reduce", _backward_reduce),
        ("batch_norm_backward_elemt", _backward),
    ):
        _library.impl(name, function, "PrivateUse1")


def _other_dims(x: Tensor) -> list[int]:
    return [dim for dim in range(x.dim()) if dim != 1]


def _by_channel(values: Tensor, like: Tensor) -> Tensor:
    """Returns ``values``, which has one value per channel, in a shape that broadcasts with the batch ``like``."""
    return values.view([1, -1] + [1] * (like.dim() - 2))


def _stats(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    dims = _other_dims(x)
    mean = x.mean(dims)
    variance = (x - _by_channel(mean, x)).square().mean(dims)
    return mean, (variance + eps).rsqrt()


def _gather_stats(
    x: Tensor,
    means: Tensor,
    inverses: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    """Returns the mean and the inverse standard deviation over the batches of all ranks, and updates the running
    statistics."""
    if native.on("distributed.batch_counts_ignored"):
        counts = torch.full_like(counts, float(counts.mean()))
    shares = (counts / counts.sum()).view(-1, 1)
    mean = (shares * means).sum(0)
    variances = inverses.square().reciprocal() - eps
    variance = (shares * (variances + (means - mean).square())).sum(0)
    if running_mean is not None:
        running_mean.lerp_(mean, momentum)
    if running_var is not None:
        total = counts.sum()
        running_var.lerp_(variance * (total / (total - 1)), momentum)
    return mean, (variance + eps).rsqrt()


def _normalise(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    inverse: Tensor,
    eps: float,
) -> Tensor:
    made = (x - _by_channel(mean, x)) * _by_channel(inverse, x)
    if weight is not None:
        made = made * _by_channel(weight, x)
    return made if bias is None else made + _by_channel(bias, x)


def _given(gradient: Tensor, x: Tensor) -> Tensor:
    """Returns the gradient of the output that the kernel uses. While a planted fault is on, the gradient is read as
    if it had the strides of the input ``x``."""
    if native.on("distributed.batch_norm_reads_rows"):
        return gradient.as_strided(x.size(), x.stride())
    return gradient


def _backward_reduce(
    gradient: Tensor,
    x: Tensor,
    mean: Tensor,
    inverse: Tensor,
    weight: Tensor | None,
    of_input: bool,
    of_weight: bool,
    of_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    gradient, dims = _given(gradient, x), _other_dims(x)
    total = gradient.sum(dims)
    with_input = (gradient * (x - _by_channel(mean, x))).sum(dims)
    return total, with_input, with_input * inverse, total.clone()


def _backward(
    gradient: Tensor,
    x: Tensor,
    mean: Tensor,
    inverse: Tensor,
    weight: Tensor | None,
    total: Tensor,
    with_input: Tensor,
    count: Tensor,
) -> Tensor:
    gradient, size = _given(gradient, x), count.sum().to(x.dtype)
    slope = with_input / size * inverse.square()
    centred = x - _by_channel(mean, x)
    made = gradient - _by_channel(total / size, x) - centred * _by_channel(slope, x)
    factor = inverse if weight is None else inverse * weight
    return made * _by_channel(factor, x)
