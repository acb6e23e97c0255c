"""Calls of overloads of aten that modules of ``torch.nn`` and training with simulated quantization reach, but that no sample
of torch's database calls. Each function yields the arguments of some calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch

from opinfo.overload_calls import Call, Calls, numbers


def weight_norm(dtype: torch.dtype) -> Iterator[Call]:
    """Yields calls of weight norm along the first or the last dimension, with one norm for each slice."""
    for shape in ((4, 3), (5, 2, 3), (2, 3, 2, 2)):
        v = numbers(*shape, dtype=dtype)
        for dim in (0, len(shape) - 1):
            size = [1] * len(shape)
            size[dim] = shape[dim]
            yield (v, numbers(*size, dtype=dtype), dim), {}


def weight_norm_backward(dtype: torch.dtype) -> Iterator[Call]:
    for (v, g, dim), _ in weight_norm(dtype):
        _, norms = torch._weight_norm_interface(v, g, dim)
        yield (numbers(*v.shape, dtype=dtype), v, g, norms, dim), {}


def dropout_without_chance(dtype: torch.dtype) -> Iterator[Call]:
    """Yields calls of dropout whose results do not depend on random numbers, because all elements are kept or none
    is."""
    for shape in ((), (5,), (3, 4), (2, 3, 4), (0,)):
        for p, train in ((0.0, True), (1.0, True), (0.3, False)):
            yield (numbers(*shape, dtype=dtype), p, train), {}


def in_groups(dtype: torch.dtype) -> Iterator[Call]:
    for shape, groups in (((2, 4, 3, 3), 2), ((1, 6, 2, 2), 3), ((2, 6, 5), 2), ((1, 3, 2, 2), 1)):
        yield (numbers(*shape, dtype=dtype), groups), {}


def resized_with_antialias(dtype: torch.dtype) -> Iterator[Call]:
    for size, into in (((4, 4), (2, 2)), ((5, 7), (3, 9)), ((3, 3), (3, 3))):
        for aligned in (False, True):
            yield (numbers(2, 3, *size, dtype=dtype), list(into), aligned, None, None), {}


def resized_with_antialias_backward(dtype: torch.dtype) -> Iterator[Call]:
    for size, into in (((4, 4), (2, 2)), ((5, 7), (3, 9))):
        for aligned in (False, True):
            grad = numbers(2, 3, *into, dtype=dtype)
            yield (grad, list(into), [2, 3, *size], aligned, None, None), {}


def quantized_and_back(dtype: torch.dtype) -> Iterator[Call]:
    """Yields calls of fake quantisation. Values halfway between two quantisation steps are left out, because a
    rounding error would move them by a whole step."""
    for shape in ((), (5,), (3, 4), (0,)):
        yield (_between_steps(shape, 0.25, dtype), 0.25, 3, -128, 127), {}
        yield (_between_steps(shape, 0.5, dtype), 0.5, 0, 0, 15), {}


def quantized_and_back_by_tensors(dtype: torch.dtype) -> Iterator[Call]:
    for (x, scale, zero, low, high), _ in quantized_and_back(dtype):
        about = torch.tensor([scale], dtype=dtype), torch.tensor([zero], dtype=torch.int32)
        yield (x, *about, torch.ones(1, dtype=torch.int64), low, high), {}


def quantized_and_back_per_channel(dtype: torch.dtype) -> Iterator[Call]:
    for shape, axis in (((3, 4), 0), ((2, 3, 4), 1), ((4, 2), 1)):
        zero = torch.arange(shape[axis], dtype=torch.int32)
        scale = torch.full((shape[axis],), 0.25, dtype=dtype)
        yield (_between_steps(shape, 0.25, dtype), scale, zero, axis, -128, 127), {}


def _between_steps(shape: tuple[int, ...], step: float, dtype: torch.dtype) -> torch.Tensor:
    return ((torch.randint(-20, 20, shape) + torch.rand(shape) * 0.6 - 0.3) * step).to(dtype)


def learnable(dtype: torch.dtype) -> Iterator[Call]:
    for (x, scale, zero, low, high), _ in quantized_and_back(dtype):
        about = torch.tensor([scale], dtype=dtype), torch.tensor([zero], dtype=dtype)
        yield (x, *about, low, high, 1.0), {}


def learnable_per_channel(dtype: torch.dtype) -> Iterator[Call]:
    for (x, scale, zero, axis, low, high), _ in quantized_and_back_per_channel(dtype):
        yield (x, scale, zero.to(dtype), axis, low, high, 1.0), {}


def learnable_backward(dtype: torch.dtype) -> Iterator[Call]:
    for (x, *about), _ in learnable(dtype):
        yield (numbers(*x.shape, dtype=dtype), x, *about), {}


def learnable_per_channel_backward(dtype: torch.dtype) -> Iterator[Call]:
    for (x, *about), _ in learnable_per_channel(dtype):
        yield (numbers(*x.shape, dtype=dtype), x, *about), {}


def statistics(dtype: torch.dtype) -> Iterator[Call]:
    for shape in ((4, 3), (2, 3, 5), (2, 3, 4, 4)):
        yield (numbers(*shape, dtype=dtype), None, None, 0.1), {}


def masked_softmax(dtype: torch.dtype) -> Iterator[Call]:
    """Yields calls of masked softmax with three kinds of mask: for all elements, for queries and keys, and for keys
    only. No row is masked as a whole."""
    for shape, kind in (((2, 2, 3, 3), 2), ((3, 3), 0), ((2, 3), 1)):
        mask = torch.rand(shape) > 0.5
        mask[..., 0] = False
        yield (numbers(2, 2, 3, 3, dtype=dtype), mask, 3, kind), {}


def masked_softmax_backward(dtype: torch.dtype) -> Iterator[Call]:
    for (x, mask, dim, kind), _ in masked_softmax(dtype):
        if kind == 2:
            result = torch._masked_softmax(x, mask, dim, kind)
            yield (numbers(*x.shape, dtype=dtype), result, mask, dim), {}


def _attention(width: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Returns the weights and biases of an attention layer's projections: first to queries, keys and values, then to
    the output."""
    sizes: tuple[tuple[int, ...], ...] = (
        (3 * width, width),
        (3 * width,),
        (width, width),
        (width,),
    )
    return tuple(numbers(*size, dtype=dtype) * 0.3 for size in sizes)


def projected(dtype: torch.dtype) -> Iterator[Call]:
    for batch, length, width, heads in ((2, 3, 8, 2), (1, 5, 16, 4), (2, 4, 9, 3)):
        bias = numbers(3 * width, dtype=dtype)
        yield (numbers(batch, length, 3 * width, dtype=dtype), bias, heads), {}


def attended(dtype: torch.dtype) -> Iterator[Call]:
    for batch, length, width, heads in ((2, 3, 8, 2), (1, 5, 16, 4), (2, 4, 9, 3)):
        x = numbers(batch, length, width, dtype=dtype)
        given = (x, x, x, width, heads, *_attention(width, dtype))
        yield given, {}
        yield given, {"need_weights": False}


def encoded(dtype: torch.dtype) -> Iterator[Call]:
    inner = 12
    for width, heads, gelu, first in (
        (8, 2, False, False),
        (8, 2, True, True),
        (9, 3, False, True),
    ):
        x = numbers(2, 3, width, dtype=dtype)
        norms = [numbers(width, dtype=dtype) for _ in range(4)]
        layers = [
            numbers(*size, dtype=dtype) * 0.3
            for size in ((inner, width), (inner,), (width, inner), (width,))
        ]
        about: tuple[Any, ...] = (width, heads, *_attention(width, dtype), gelu, first, 1e-5)
        yield (x, *about, *norms, *layers), {}


#: The calls by the overload's name in ``torch.ops.aten``.
NETWORK_CALLS: Final[Mapping[str, Calls]] = {
    "_weight_norm_interface": weight_norm,
    "_weight_norm_interface_backward": weight_norm_backward,
    "native_dropout": dropout_without_chance,
    "native_channel_shuffle": in_groups,
    "_upsample_bicubic2d_aa": resized_with_antialias,
    "_upsample_bicubic2d_aa_backward": resized_with_antialias_backward,
    "_upsample_lanczos2d_aa": resized_with_antialias,
    "_upsample_lanczos2d_aa_backward": resized_with_antialias_backward,
    "batch_norm_update_stats": statistics,
    "_masked_softmax": masked_softmax,
    "_masked_softmax_backward": masked_softmax_backward,
    "_transform_bias_rescale_qkv": projected,
    "_native_multi_head_attention": attended,
    "_transformer_encoder_layer_fwd": encoded,
    "fake_quantize_per_tensor_affine_cachemask": quantized_and_back,
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams": quantized_and_back_by_tensors,
    "fake_quantize_per_channel_affine_cachemask": quantized_and_back_per_channel,
    "_fake_quantize_learnable_per_tensor_affine": learnable,
    "_fake_quantize_learnable_per_tensor_affine_backward": learnable_backward,
    "_fake_quantize_learnable_per_channel_affine": learnable_per_channel,
    "_fake_quantize_learnable_per_channel_affine_backward": learnable_per_channel_backward,
}
