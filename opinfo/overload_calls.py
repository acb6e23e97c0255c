"""Calls of overloads of aten that users reach, but that no sample of torch's database calls. Each function yields the
arguments of some calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch

#: Positional and keyword arguments.
Call = tuple[tuple[Any, ...], dict[str, Any]]
Calls = Callable[[torch.dtype], Iterator[Call]]


def numbers(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Returns random numbers from -3 to 3, for an integer dtype whole ones."""
    return (torch.rand(shape) * 6 - 3).to(dtype)


def element_in_tensor(dtype: torch.dtype) -> Iterator[Call]:
    for shape in ((), (5,), (3, 4), (0,)):
        tested = numbers(*shape, dtype=dtype).round()
        for element in (1, -2, 7):
            yield (element, tested), {}
    yield (1, tested), {"invert": True}
    yield (1, numbers(6, dtype=dtype).round()), {"assume_unique": True, "invert": True}


def elements_equal_to_number(dtype: torch.dtype) -> Iterator[Call]:
    for shape in ((), (5,), (3, 4), (0,)):
        yield (numbers(*shape, dtype=dtype).round(), 1), {}
    yield (numbers(3, 4, dtype=dtype).round(), -2), {"invert": True, "assume_unique": True}


def number_in_buckets(dtype: torch.dtype) -> Iterator[Call]:
    for size in (0, 1, 4, 19):
        boundaries = numbers(size, dtype=dtype).sort().values
        for right in (False, True):
            yield (0.5, boundaries), {"right": right, "out_int32": right}
    yield (float(boundaries[3]), boundaries), {}
    yield (float(boundaries[3]), boundaries), {"right": True}


def number_in_sequence(dtype: torch.dtype) -> Iterator[Call]:
    for size in (0, 1, 4, 19):
        sequence = numbers(size, dtype=dtype).sort().values
        for right in (False, True):
            yield (sequence, 0.5), {"right": right, "out_int32": right}
    yield (sequence, float(sequence[3])), {"side": "right"}
    shuffled = numbers(7, dtype=dtype)
    yield (shuffled, 0.5), {"sorter": shuffled.argsort()}


def number_and_tensor(dtype: torch.dtype) -> Iterator[Call]:
    """Divisors that are not near zero, nor near a fraction of the number."""
    for shape in ((), (5,), (3, 4), (0,)):
        divisor = torch.randint(1, 4, shape) * torch.randint(0, 2, shape).mul(2).sub(1) * 0.75
        for number in (5, -5):
            yield (number, divisor.to(dtype)), {}


def shifted_by_number(dtype: torch.dtype) -> Iterator[Call]:
    for shape in ((), (5,), (3, 4), (0,)):
        yield (torch.randint(0, 50, shape).to(dtype), 2), {}


def shifted_by_tensor(dtype: torch.dtype) -> Iterator[Call]:
    for shape in ((), (5,), (3, 4), (0,)):
        yield (torch.randint(0, 50, shape).to(dtype), torch.randint(0, 5, shape).to(dtype)), {}


def weight_norm(dtype: torch.dtype) -> Iterator[Call]:
    """The norm of each slice along the first or the last dimension."""
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
    """Calls whose results do not depend on random numbers: all elements are kept, or none."""
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
    """Values halfway between two steps are left out: a rounding error would move them by a step."""
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


#: The calls by the overload's name in ``torch.ops.aten``.
CALLS: Final[Mapping[str, Calls]] = {
    "isin.Scalar_Tensor": element_in_tensor,
    "isin.Tensor_Scalar": elements_equal_to_number,
    "bucketize.Scalar": number_in_buckets,
    "searchsorted.Scalar": number_in_sequence,
    "remainder.Scalar_Tensor": number_and_tensor,
    "_weight_norm_interface": weight_norm,
    "_weight_norm_interface_backward": weight_norm_backward,
    "native_dropout": dropout_without_chance,
    "native_channel_shuffle": in_groups,
    "_upsample_bicubic2d_aa": resized_with_antialias,
    "_upsample_bicubic2d_aa_backward": resized_with_antialias_backward,
    "fake_quantize_per_tensor_affine_cachemask": quantized_and_back,
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams": quantized_and_back_by_tensors,
    "fake_quantize_per_channel_affine_cachemask": quantized_and_back_per_channel,
    "_fake_quantize_learnable_per_tensor_affine": learnable,
    "_fake_quantize_learnable_per_channel_affine": learnable_per_channel,
}
