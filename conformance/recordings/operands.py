"""Creates the tensors of a recorded call, with the recorded dtypes and shapes, and with random elements from the
recorded range."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from math import frexp, isfinite, prod
from typing import Any

import torch

from conformance.recordings.wire import RecordedCall, RecordedTensor, RecordingError, Values
from devices.errors import first_line
from opinfo.compare import Arguments
from opinfo.encoding import ARGUMENTS, read_value
from opinfo.layouts import Geometry, Layout, recorded_geometry

#: What the elements of a tensor are drawn from if their range was not recorded.
_UNKNOWN = Values(-2.0, 2.0)
#: A range whose largest number is smaller is multiplied.
_LARGE_ENOUGH = 0.25
_CONTIGUOUS = Layout("contiguous")


def arguments_of(call: RecordedCall, seed: int) -> Arguments:
    """Returns the arguments of a recorded call, with contiguous CPU tensors. The elements are the recorded ones or, if
    none were recorded, random numbers from the recorded range, which depend on the seed only. Raises RecordingError if
    the recording does not suffice to make the call."""
    generator = torch.Generator().manual_seed(seed)
    return _bound(call, lambda each: draw_tensor(each, generator))


def shapes_of(call: RecordedCall) -> Arguments:
    """Returns the arguments of a recorded call, with contiguous tensors on the meta device, which have no elements. Raises
    the same errors as :func:`arguments_of`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of complex32 once per process
        return _bound(call, _without_elements)


def _bound(call: RecordedCall, make: Callable[[RecordedTensor], torch.Tensor]) -> Arguments:
    try:
        found = bind(call, [make(each) for each in call.tensors])
    except (
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        ArithmeticError,
        RuntimeError,
    ) as error:
        raise RecordingError(f"{call.name}: {first_line(error)}") from None
    if len(found.tensors) != len(call.tensors):
        raise RecordingError(
            f"{call.name}: its arguments have {len(found.tensors)} tensors, and {len(call.tensors)} are described"
        )
    return found


def _without_elements(recorded: RecordedTensor) -> torch.Tensor:
    if recorded.elements is not None:  # a damaged file is refused before the run begins
        read_value({"tensor": recorded.elements})
    return torch.empty(recorded.shape, dtype=getattr(torch, recorded.dtype), device="meta")


def bind(call: RecordedCall, tensors: Sequence[torch.Tensor]) -> Arguments:
    """Returns the arguments of a recorded call, with the given tensors. Raises the same errors as
    :func:`opinfo.encoding.read_value`."""

    def read(document: Any) -> Any:
        return read_value(document, ARGUMENTS, lambda number: tensors[number])

    args = tuple(read(each) for each in call.args)
    return Arguments(args, {name: read(each) for name, each in call.kwargs.items()})


def geometries_of(call: RecordedCall) -> tuple[Geometry, ...]:
    """Returns the shape, strides and offset of each tensor of a call. A tensor whose strides were not recorded is
    contiguous."""
    return tuple(
        _CONTIGUOUS.geometry(each.shape)
        if each.stride is None
        else recorded_geometry(each.shape, each.stride, each.offset)
        for each in call.tensors
    )


def repeat_elements(tensor: torch.Tensor, stride: Sequence[int]) -> torch.Tensor:
    """Returns a copy of a tensor in which elements are equal along each dimension that has stride 0 in ``stride``,
    because they would share one memory location in a tensor with these strides."""
    repeats = [dim for dim, step in enumerate(stride) if step == 0 and tensor.shape[dim] > 1]
    if not repeats:
        return tensor
    one = tensor
    for dim in repeats:
        one = one.narrow(dim, 0, 1)
    return one.expand(tensor.shape).contiguous()


def draw_tensor(recorded: RecordedTensor, generator: torch.Generator) -> torch.Tensor:
    """Returns a contiguous CPU tensor with random elements like those that were recorded. Raises AttributeError if
    torch does not have the dtype."""
    if recorded.elements is not None:
        tensor: torch.Tensor = read_value({"tensor": recorded.elements})
        return tensor.contiguous()
    dtype: torch.dtype = getattr(torch, recorded.dtype)
    shape, values = recorded.shape, recorded.values
    if dtype.is_complex:
        parts = _floats((*shape, 2), values, generator, torch.float64)
        return torch.view_as_complex(parts).to(dtype)
    if dtype.is_floating_point:
        return _floats(shape, values, generator, torch.float64).to(dtype)
    return _integers(shape, dtype, values, generator)


def _floats(
    shape: tuple[int, ...], values: Values, generator: torch.Generator, dtype: torch.dtype
) -> torch.Tensor:
    low, high = values.low, values.high
    if low is None or high is None:
        low, high = _UNKNOWN.low or 0.0, _UNKNOWN.high or 0.0
    low, high = _enlarged(low, high)
    share = torch.rand(shape, generator=generator, dtype=dtype)
    # In place, because a tensor may have gigabytes; high - low may be larger than any number.
    drawn = share.neg().add_(1).mul_(low).add_(share.mul_(high))
    flat = drawn.view(-1)
    special = [float("nan")] * values.nan + [float("inf")] * values.infinite
    for number, each in enumerate(special[: flat.numel()]):
        flat[-1 - number] = each
    if flat.numel() > len(special) and values.low is not None:
        flat[0] = low  # the range is met at both ends
        if flat.numel() > len(special) + 1:
            flat[1] = high
    return drawn


def _enlarged(low: float, high: float) -> tuple[float, float]:
    """Returns the range of random elements, multiplied by a power of 2 if both of its bounds are small. Gradients and
    optimizer states are often smaller than the absolute tolerance of a comparison, so wrong results would pass without
    this."""
    largest = max(abs(low), abs(high))
    if largest == 0 or largest >= _LARGE_ENOUGH:
        return low, high
    factor = 2.0 ** -frexp(largest)[1]
    return low * factor, high * factor


def _integers(
    shape: tuple[int, ...], dtype: torch.dtype, values: Values, generator: torch.Generator
) -> torch.Tensor:
    """Returns a tensor of random integers or booleans from the recorded range. They are generated as the bits of int64,
    so that every uint64 can occur."""
    low, high = _within(dtype, values)
    count = prod(shape)
    if not values.repeats and high - low + 1 >= count:
        drawn = _distinct(low, high, count, generator)
    else:
        drawn = _bits(low) + _offsets(high - low, count, generator)
        if count > 1:
            drawn[0], drawn[1] = _bits(low), _bits(high)
    drawn = drawn.view(dtype) if dtype is torch.uint64 else drawn.to(dtype)
    return drawn.view(shape)


def _within(dtype: torch.dtype, values: Values) -> tuple[int, int]:
    """Returns the recorded range of integers, clipped to the range of the dtype."""
    limits = (0, 1) if dtype is torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    low, high = (
        max(limits[0], min(limits[1], int(given))) if isfinite(given) else default
        for given, default in (
            (0 if values.low is None else values.low, 0),
            (1 if values.high is None else values.high, 1),
        )
    )
    return low, max(low, high)


def _bits(number: int) -> int:
    """Returns the int64 that has the same bits as ``number``, an int64 or uint64."""
    return (number + 2**63) % 2**64 - 2**63


def _offsets(most: int, count: int, generator: torch.Generator) -> torch.Tensor:
    """Returns ``count`` random integers from 0 to ``most`` (less than 2**64), as int64 with the bits of uint64."""
    if most < 2**63 - 1:
        return torch.randint(0, most + 1, (count,), generator=generator)
    drawn = torch.randint(0, 2**63 - 1, (count,), generator=generator)
    return drawn + _bits(most - (2**63 - 2)) * torch.randint(0, 2, (count,), generator=generator)


def _distinct(low: int, high: int, count: int, generator: torch.Generator) -> torch.Tensor:
    """Returns ``count`` different random integers from ``low`` to ``high``, as int64 with the bits of uint64. If
    ``count`` is at least 2, both bounds are among them."""
    if count <= 1:
        return torch.full((count,), _bits(low))
    # one integer from each of ``count`` equal parts of the range, in random order
    step, rest = divmod(high - low, count - 1)
    places = torch.arange(count)
    parts = places * _bits(step) + places * rest // (count - 1) + _bits(low)
    return parts[torch.randperm(count, generator=generator)]
