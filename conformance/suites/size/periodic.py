"""Creates and checks large tensors whose slices repeat those of a small tensor, so that every element of a large result
is known.

The period is a prime number, so that an index which overflows or loses its low bits leads to a wrong value.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from conformance.checks.cases.context import CaseContext

#: The number of different slices.
PERIOD = 251

#: Bytes that are copied to the device or back at a time.
_CHUNK = 2**24


def period(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Returns ``PERIOD`` different slices of a shape, stacked along dimension 0 of a CPU tensor. If a slice has one
    element, all values are different. Floating-point numbers are between -1 and 1."""
    if not dtype.is_floating_point and not dtype.is_complex:
        count = PERIOD * torch.Size(shape).numel()
        least = -125 if dtype.is_signed else 0
        return ((torch.arange(count) + seed) % PERIOD + least).to(dtype).reshape(PERIOD, *shape)
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand((PERIOD, *shape), generator=generator) * 2 - 1).to(dtype)


def repeated(
    context: CaseContext, slices: torch.Tensor, count: int, dim: int = 0, *, innermost: bool = False
) -> torch.Tensor:
    """Returns a tensor on the device whose ``count`` slices along ``dim`` repeat ``slices``. With ``innermost``, the
    slices lie side by side in memory, so that the tensor is transposed unless ``dim`` is its last dimension."""
    others = [*slices.shape[1:]]
    place = len(others) if innermost else dim
    shape = [*others[:place], count, *others[place:]]
    made = torch.empty(shape, dtype=slices.dtype, device=context.device)
    chunk = context.to_device(chunk_of(slices, count).movedim(0, place).contiguous())
    for start, length in pieces(count, chunk.shape[place]):
        made.narrow(place, start, length).copy_(chunk.narrow(place, 0, length))
    return made.movedim(place, dim)


def chunk_of(slices: torch.Tensor, count: int) -> torch.Tensor:
    """Returns the tensor ``slices`` repeated along dimension 0 as often as fits into a chunk of memory, but not more
    often than ``count`` slices need."""
    size = max(slices[0].numel() * slices.itemsize, 1)
    times = max(1, min(_CHUNK // (PERIOD * size), -(-count // PERIOD)))
    return slices.repeat(times, *[1] * (slices.dim() - 1))


def pieces(count: int, length: int) -> Iterator[tuple[int, int]]:
    """Cuts ``count`` slices of ``length`` elements into pieces. Yields the number of the first slice of each piece,
    and its number of slices."""
    for start in range(0, count, length):
        yield start, min(length, count - start)


def check_repeats(
    context: CaseContext,
    found: torch.Tensor,
    slices: torch.Tensor,
    text: str,
    *,
    dim: int = 0,
    at: str = "",
    rtol: float = 0.0,
    atol: float = 0.0,
) -> None:
    """Checks that all slices of a tensor on the device along ``dim`` repeat ``slices``. The tensor is copied to the CPU
    piece by piece."""
    count = found.shape[dim]
    shape = (*slices.shape[1 : dim + 1], count, *slices.shape[dim + 1 :])
    context.same(tuple(found.shape), shape, text, at=at)
    chunk = chunk_of(slices, count).movedim(0, dim)
    for start, length in pieces(count, chunk.shape[dim]):
        part = context.from_device(found.narrow(dim, start, length))
        check_piece(context, part, chunk.narrow(dim, 0, length), text, at, start, rtol, atol)


def check_piece(
    context: CaseContext,
    part: torch.Tensor,
    want: torch.Tensor,
    text: str,
    at: str,
    start: int,
    rtol: float = 0.0,
    atol: float = 0.0,
) -> None:
    """Checks that ``part``, a piece of a large tensor that begins at slice ``start``, equals ``want``. ``text`` is
    the message of the failure, ``at`` says which call is checked."""
    if part.dtype == want.dtype and torch.equal(part, want):
        context.checks += 1
        return
    where = f"{at}; slice 0 of the index is slice {start:,} of the tensor"
    context.assert_close(part, want, text, where, rtol=rtol, atol=atol)
