"""Functions that build equal lists of tensors of many sizes and layouts on the CPU and on the device, and that compare
results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch

from conformance.checks.cases.closeness import differences
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.layouts import GuardedTensor
from conformance.checks.ops.roundings import as_exact
from devices.descriptor import Tolerance
from opinfo.compare import DEFAULT_TOLERANCES
from opinfo.layouts import parse_layout

#: The layout (an id of opinfo/layouts.py) and the shape of a tensor.
Piece = tuple[str, tuple[int, ...]]

#: The value of the elements between the tensors of a buffer, and their number.
FILL, GAP = 77.0, 3


@lru_cache(maxsize=2048)
def values(count: int, seed: int, *, away: bool = False) -> torch.Tensor:
    """Return ``count`` float64 numbers, of which two thirds are positive. Magnitudes are alternately below 1 and below
    4 or, if ``away`` is true, from 0.5 to 2, so that the numbers can be divisors. The tensor is shared, so callers must
    not write to it."""
    drawn = torch.rand(count, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    place = torch.arange(count)
    size = (0.5 + 1.5 * drawn) if away else drawn * torch.where(place % 2 == 0, 1.0, 4.0)
    return torch.where(place % 3 == 1, -size, size)


@dataclass(slots=True)
class Tensors:
    """One list of tensors, on the CPU (``here``) and on the device (``there``). If ``buffer`` is set, the tensors are
    views of the buffer, and the elements between them are known."""

    here: list[torch.Tensor]
    there: list[torch.Tensor]
    buffer: torch.Tensor | None = None  # on the CPU
    its_copy: torch.Tensor | None = None  # on the device
    edges: list[GuardedTensor] = field(default_factory=list)  # those with known bytes around them

    def outside(self) -> torch.Tensor:
        """Return a mask of the buffer's elements that belong to none of the tensors."""
        assert self.buffer is not None
        mask = torch.ones_like(self.buffer, dtype=torch.bool)
        for each in self.here:
            mask.as_strided(each.shape, each.stride(), each.storage_offset()).fill_(False)
        return mask


@lru_cache(maxsize=64)
def _layout(pieces: tuple[Piece, ...]) -> tuple[list[tuple[Any, Any, int]], int]:
    """Return a list with the (size, strides, storage offset) of each piece, and the length of a buffer that contains all
    pieces. A piece is a pair of layout and shape."""
    places: list[tuple[Any, Any, int]] = []
    end = GAP
    for layout, shape in pieces:
        geometry = parse_layout(layout).geometry(shape)
        places.append((shape, geometry.stride, end))
        end += geometry.extent + GAP
    return places, end


@lru_cache(maxsize=64)
def _buffer(pieces: tuple[Piece, ...], seed: int, away: bool) -> torch.Tensor:
    """Return a buffer that contains a tensor with random values for each pair of layout and shape in ``pieces``. The
    elements between the tensors have the value FILL."""
    places, end = _layout(pieces)
    buffer = torch.full((end,), FILL)
    drawn = values(end, seed, away=away).float()
    for place in places:
        tensor = buffer.as_strided(*place)
        if tensor.numel():
            stored = strip_expanded(tensor)
            stored.copy_(drawn[place[2] : place[2] + stored.numel()].view(stored.shape))
    return buffer


def packed(context: CaseContext, pieces: Sequence[Piece], seed: int, *, away: bool) -> Tensors:
    """Return a list of float32 tensors that are views of one buffer, on the CPU and on the device."""
    places, _ = _layout(tuple(pieces))
    buffer = _buffer(tuple(pieces), seed, away).clone()
    copy = context.to_device(buffer.clone())
    return Tensors(
        [buffer.as_strided(*place) for place in places],
        [copy.as_strided(*place) for place in places],
        buffer,
        copy,
    )


@lru_cache(maxsize=512)
def _drawn(shape: tuple[int, ...], dtype: torch.dtype, seed: int, away: bool) -> torch.Tensor:
    drawn = values(torch.Size(shape).numel(), seed, away=away)
    if not dtype.is_floating_point and not dtype.is_complex:
        drawn = torch.where(drawn < 0, drawn.floor(), drawn.ceil())
    return drawn.view(shape).to(dtype)


def apart(
    context: CaseContext,
    shapes: Sequence[tuple[int, ...]],
    dtypes: Sequence[torch.dtype],
    seed: int,
    *,
    away: bool,
    indices: Sequence[int] = (0,),
) -> Tensors:
    """Return a list of contiguous tensors that share no memory, on the CPU and on the device. The tensors take the
    dtypes and device indices in turn. Some tensors have known elements before and after them in memory."""
    made = Tensors([], [])
    for number, shape in enumerate(shapes):
        dtype, index = dtypes[number % len(dtypes)], indices[number % len(indices)]
        drawn = _drawn(tuple(shape), dtype, seed + number, away)
        made.here.append(drawn.clone())
        if (
            len(shapes) < 20
            and number % 3 == 2
            and dtype.is_floating_point
            and context.has("storage")
        ):
            made.edges.append(context.guarded(drawn, "free:offset=2", index))
            made.there.append(made.edges[-1].view)
        else:
            made.there.append(context.to_device(drawn.clone(), index))
    return made


def strip_expanded(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view of the tensor that has size 1 in each dimension of stride 0."""
    shape = [
        1 if step == 0 else size for size, step in zip(tensor.shape, tensor.stride(), strict=True)
    ]
    return tensor.as_strided(shape, tensor.stride(), tensor.storage_offset())


def tolerance(context: CaseContext, dtype: torch.dtype) -> Tolerance:
    """Return the tolerance for results of the given dtype; zero for a dtype without a tolerance, such as an integer
    dtype.

    The tolerance is the one in the descriptor or, if the descriptor has none, four times torch's rtol: two functions
    that are each right within a few units in the last place may differ by the sum of their errors. The precision suite
    checks the errors themselves.
    """
    name = str(dtype).removeprefix("torch.")
    own = context.descriptor.tolerances.get(name)
    if own is not None:
        return own
    rtol, atol = DEFAULT_TOLERANCES.get(name, (0.0, 0.0))
    return Tolerance(4 * rtol, atol)


def compare(
    context: CaseContext,
    found: Sequence[torch.Tensor],
    want: Sequence[torch.Tensor],
    text: str,
    at: str,
    *,
    strides: bool = False,
    exact: Callable[[], Sequence[torch.Tensor]] | None = None,
) -> None:
    """Check that device tensors have the dtypes, shapes and values (within tolerance) of the CPU tensors ``want``. A
    tensor also passes if its values are as close to the ``exact`` result as the CPU's."""
    context.same(len(found), len(want), f"{text}: the number of tensors is wrong", at=at)
    for number, (mine, theirs) in enumerate(zip(found, want, strict=True)):
        where = f"{at}, tensor {number}"
        if mine.dtype != theirs.dtype:
            context.same(mine.dtype, theirs.dtype, f"{text} in dtype", at=where)
        if mine.shape != theirs.shape:
            context.same(tuple(mine.shape), tuple(theirs.shape), f"{text} in shape", at=where)
        if strides and theirs.numel() > 1 and mine.stride() != theirs.stride():
            context.same(mine.stride(), theirs.stride(), f"{text} in strides", at=where)
    if not found:
        return
    if len(found) > 40 and len({each.dtype for each in want}) == 1:  # one comparison, not hundreds
        every = torch.cat([each.reshape(-1) for each in found])
        wanted = torch.cat([each.reshape(-1) for each in want])
        if _agree(context, context.from_device(every), wanted):
            context.check(True, text)
            return
    for number, (mine, theirs) in enumerate(zip(found, want, strict=True)):
        got = context.from_device(mine)
        if _agree(context, got, theirs):
            continue
        if exact is not None:
            allowed = tolerance(context, theirs.dtype)
            tolerances = {str(theirs.dtype).removeprefix("torch."): (allowed.rtol, allowed.atol)}
            if as_exact(got, theirs, list(exact())[number : number + 1], tolerances, 0.0):
                continue
        context.assert_close(
            got, theirs, text, f"{at}, tensor {number} of {len(want)}", **_within(context, theirs)
        )
    context.check(True, text)


def _agree(context: CaseContext, found: torch.Tensor, want: torch.Tensor) -> bool:
    return torch.equal(found, want) or differences(found, want, **_within(context, want)) is None


def _within(context: CaseContext, want: torch.Tensor) -> dict[str, Any]:
    allowed = tolerance(context, want.dtype)
    return {"rtol": allowed.rtol, "atol": allowed.atol, "equal_nan": True}
