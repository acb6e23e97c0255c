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
    """Returns a tensor of random numbers from -3 to 3; they are whole numbers if the dtype is an integer dtype."""
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
    """Yields divisions of a number by a tensor. No divisor is near zero and no quotient is near an integer, so that
    a rounding error changes no remainder and no rounded quotient."""
    for shape in ((), (5,), (3, 4), (0,)):
        divisor = torch.randint(1, 4, shape) * torch.randint(0, 2, shape).mul(2).sub(1) * 0.75
        for number in (5, -5):
            yield (number, divisor.to(dtype)), {}


def shifted_by_number(dtype: torch.dtype) -> Iterator[Call]:
    for shape in ((), (5,), (3, 4), (0,)):
        yield (torch.randint(0, 50, shape, dtype=dtype), 2), {}


def shifted_by_tensor(dtype: torch.dtype) -> Iterator[Call]:
    for shape in ((), (5,), (3, 4), (0,)):
        bits = torch.randint(0, 5, shape, dtype=dtype)
        yield (torch.randint(0, 50, shape, dtype=dtype), bits), {}


def bounded_by_numbers(dtype: torch.dtype) -> Iterator[Call]:
    for shape in ((), (5,), (3, 4), (0,)):
        yield (numbers(*shape, dtype=dtype), -1, 2), {}
        yield (numbers(*shape, dtype=dtype), None, 0.5), {}


def bounded_by_number(dtype: torch.dtype) -> Iterator[Call]:
    for shape in ((), (5,), (3, 4), (0,)):
        yield (numbers(*shape, dtype=dtype), 0.5), {}


def filled_with_tensor(dtype: torch.dtype) -> Iterator[Call]:
    for shape in ((), (5,), (3, 4), (0,)):
        yield (numbers(*shape, dtype=dtype), numbers(dtype=dtype)), {}


def activated(dtype: torch.dtype) -> Iterator[Call]:
    for shape in ((), (5,), (3, 4), (2, 3, 4), (0,)):
        yield (numbers(*shape, dtype=dtype) * 2,), {}


def number_to_power(dtype: torch.dtype) -> Iterator[Call]:
    for shape in ((), (5,), (3, 4), (0,)):
        yield (2.5, numbers(*shape, dtype=dtype)), {}


def along_dimension(dtype: torch.dtype) -> Iterator[Call]:
    for shape in ((5,), (3, 4), (2, 3, 4)):
        for dim in (0, -1):
            yield (numbers(*shape, dtype=dtype), dim), {}
    yield (numbers(3, 4, dtype=dtype), 1, True), {}


def norm_along_dimensions(dtype: torch.dtype) -> Iterator[Call]:
    for p in (2, 1, float("inf"), 3.5):
        yield (numbers(3, 4, dtype=dtype), p, [1]), {}
        yield (numbers(2, 3, 4, dtype=dtype), p, [0, 2], True), {}


def norm_in_dtype(dtype: torch.dtype) -> Iterator[Call]:
    for (x, p, dim, *_), _ in norm_along_dimensions(dtype):
        yield (x, p, dim, False), {"dtype": dtype}


def with_indices(dtype: torch.dtype) -> Iterator[Call]:
    yield (numbers(4, 3, dtype=dtype), [torch.tensor([3, 0, 0])]), {}
    yield (numbers(4, 3, dtype=dtype), [torch.tensor([[1], [2]]), torch.tensor([0, 2])]), {}
    yield (numbers(4, 3, dtype=dtype), [None, torch.tensor([2, 1])]), {}


def scattered_number(dtype: torch.dtype) -> Iterator[Call]:
    for dim, index in ((0, [[0, 2, 1]]), (1, [[1], [0], [2]])):
        yield (numbers(3, 3, dtype=dtype), dim, torch.tensor(index), 1.5), {}


def nonzero_places(dtype: torch.dtype) -> Iterator[Call]:
    for size in (0, 2, 9):
        yield (numbers(3, 3, dtype=dtype).round(),), {"size": size}


def unique_rows(dtype: torch.dtype) -> Iterator[Call]:
    x = torch.tensor([[1, 2], [1, 2], [3, 4], [1, 2]], dtype=dtype)
    yield (x, 0), {}
    yield (x, 0, True, True), {}
    yield (x.mT.contiguous(), 1, True, True), {}


def gradient_of_gamma(dtype: torch.dtype) -> Iterator[Call]:
    for shape in ((), (5,), (3, 4)):
        alpha = torch.rand(shape, dtype=dtype) * 4 + 0.5
        yield (alpha, alpha * 0.8), {}


def gradient_of_dirichlet(dtype: torch.dtype) -> Iterator[Call]:
    for shape in ((5,), (3, 4)):
        alpha = torch.rand(shape, dtype=dtype) * 4 + 0.5
        total = alpha.sum(-1, keepdim=True).expand(shape).contiguous()
        yield (torch.rand(shape, dtype=dtype) * 0.5 + 0.2, alpha, total), {}


#: The calls by the overload's name in ``torch.ops.aten``.
CALLS: Final[Mapping[str, Calls]] = {
    "isin.Scalar_Tensor": element_in_tensor,
    "isin.Tensor_Scalar": elements_equal_to_number,
    "bucketize.Scalar": number_in_buckets,
    "searchsorted.Scalar": number_in_sequence,
    "remainder.Scalar_Tensor": number_and_tensor,
    "clamp_": bounded_by_numbers,
    "clamp_min_": bounded_by_number,
    "clamp_max": bounded_by_number,
    "clamp_max_": bounded_by_number,
    "fill_.Tensor": filled_with_tensor,
    "relu_": activated,
    "scatter_.value": scattered_number,
    "gelu_": activated,
    "hardswish_": activated,
    "hardtanh_": activated,
    "norm.ScalarOpt_dim_dtype": norm_in_dtype,
    "unique_dim_consecutive": unique_rows,
    "_standard_gamma_grad": gradient_of_gamma,
    "_dirichlet_grad": gradient_of_dirichlet,
}

#: The same, for overloads that take integers only.
OF_INTEGERS: Final[Mapping[str, Calls]] = {
    f"__{name}__.{operand}": calls
    for operand, calls in (("Scalar", shifted_by_number), ("Tensor", shifted_by_tensor))
    for name in ("lshift", "rshift", "ilshift", "irshift")
}

#: Overloads with targets: the calls without targets, and the overload that makes such a call.
WITH_TARGETS: Final[Mapping[str, tuple[str, Calls]]] = {
    "isin.Tensor_Scalar_out": ("isin.Tensor_Scalar", elements_equal_to_number),
    "searchsorted.Scalar_out": ("searchsorted.Scalar", number_in_sequence),
    "clamp.out": ("clamp", bounded_by_numbers),
    "clamp_max.out": ("clamp_max", bounded_by_number),
    "clamp_min.out": ("clamp_min", bounded_by_number),
    "pow.Scalar_out": ("pow.Scalar", number_to_power),
    "prod.int_out": ("prod.dim_int", along_dimension),
    "median.dim_values": ("median.dim", along_dimension),
    "nanmedian.dim_values": ("nanmedian.dim", along_dimension),
    "norm.out": ("norm.ScalarOpt_dim", norm_along_dimensions),
    "norm.dtype_out": ("norm.ScalarOpt_dim_dtype", norm_in_dtype),
    "index.Tensor_out": ("index.Tensor", with_indices),
    "scatter.value_out": ("scatter.value", scattered_number),
    "nonzero_static.out": ("nonzero_static", nonzero_places),
}
