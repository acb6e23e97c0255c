"""Cases about ops that compute each element separately, or only move elements, for tensors of about 2^24, 2^31 or 2^32
elements, or 2^32 bytes.

The elements of the input repeat, so the elements of the result repeat, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.exceptions import NotDeclared
from conformance.suites.size.limits import MORE, WHOLE, at_each_size, few, most, variant_of
from conformance.suites.size.periodic import (
    PERIOD,
    check_piece,
    check_repeats,
    chunk_of,
    period,
    pieces,
    repeated,
)
from devices.failure import Kind

cases = Cases(Kind.VALUES)

#: bfloat16 has 8 bits: results of exp are compared with the CPU's within two roundings.
BFLOAT16_RTOL = 2**-7

TEXT = "an element in a large tensor differs from the result for the same element in a small tensor"


@dataclass(frozen=True)
class Elementwise:
    """An op that computes each element separately. ``tensors`` is the memory that it needs, as a multiple of the
    input's; ``rtol`` is the relative tolerance."""

    call: Callable[[torch.Tensor], torch.Tensor]
    tensors: float = 2
    rtol: float = 0.0


_EACH: dict[str, Elementwise] = {
    "bitwise_not": Elementwise(torch.bitwise_not),
    "add": Elementwise(lambda x: x.add_(3), 1),
    "mul": Elementwise(lambda x: x * x),
    "clamp": Elementwise(lambda x: x.clamp_(20, 90), 1),
    "clone": Elementwise(torch.clone),
    "to": Elementwise(lambda x: x.to(torch.bool)),
    "eq": Elementwise(lambda x: x == 7),
    "where": Elementwise(lambda x: torch.where(x > 100, x, x.new_tensor(9)), 3),
    "masked_fill": Elementwise(lambda x: x.masked_fill_(x > 100, 9), 2),
    "maximum": Elementwise(lambda x: torch.maximum(x, x.flip(0).flip(0)), 4),
    "expand": Elementwise(lambda x: x.unsqueeze(1).expand(-1, 2)[:, 1].add(1)),
}

#: Those that are tried with floating-point numbers: of float32 in place with 2^32 bytes, of bfloat16 with 2^31 elements.
_EACH_FLOAT: dict[str, Elementwise] = {
    "exp": Elementwise(lambda x: x.exp_(), 1, BFLOAT16_RTOL),
    "sigmoid": Elementwise(lambda x: x.sigmoid_(), 1, BFLOAT16_RTOL),
    "neg": Elementwise(lambda x: x.neg_(), 1),
    "mul": Elementwise(lambda x: x.mul_(0.5), 1),
    "nn.functional.relu": Elementwise(lambda x: x.relu_(), 1),
}

_DTYPES = {"uint8": torch.uint8, "bfloat16": torch.bfloat16, "float32": torch.float32}


def _each(op: str, dtype: str) -> Elementwise:
    return (_EACH if dtype == "uint8" else _EACH_FLOAT)[op]


def _memory(op: str, dtype: str, limit: int) -> int:
    size = _DTYPES[dtype].itemsize
    return int(most(limit) * size * _each(op, dtype).tensors) + 2**25


_UINT8 = {op: (op, "uint8") for op in _EACH}
_FLOAT32 = {op: (op, "float32") for op in _EACH_FLOAT}
_BFLOAT16 = {op: (op, "bfloat16") for op in _EACH_FLOAT}


@cases("layout.large", over=_UINT8, variants=variant_of(2**24, "elements"), memory=_memory, **MORE)
@cases("layout.large", over=_UINT8, variants=variant_of(2**31, "elements"), memory=_memory, **WHOLE)
@cases("layout.large", over=_UINT8, variants=variant_of(2**32, "elements"), memory=_memory, **WHOLE)
@cases(
    "layout.large",
    over=_FLOAT32,
    variants={"2^32 bytes": (2**30,)},
    memory=_memory,
    **WHOLE,
)
@cases(
    "layout.large",
    over=_BFLOAT16,
    variants={"2^31 elements of 2 bytes": (2**31,)},
    memory=_memory,
    **WHOLE,
)
def each_element(context: CaseContext, op: str, dtype: str, limit: int) -> None:
    """An elementwise op is called with slightly fewer than, exactly, and more than 2^24, 2^31 or 2^32 elements, or 2^32
    bytes. The elements repeat those of a small tensor, and every element of the result equals that of the small
    tensor."""
    declared(context, dtype)
    each, slices = _each(op, dtype), period((), _DTYPES[dtype])
    want = each.call(slices.clone())

    def check(count: int) -> None:
        found = each.call(repeated(context, slices, count))
        check_repeats(context, found, want, TEXT, at=f"{count:,} elements", rtol=each.rtol)

    at_each_size(context, check, limit, "elements", sizes=few(limit))


def declared(context: CaseContext, dtype: str) -> None:
    """Raises NotDeclared if the device does not declare a dtype."""
    if dtype not in context.descriptor.dtypes:
        raise NotDeclared(f"the descriptor does not declare {dtype}")


def _phase(count: int) -> torch.Tensor:
    return (count - 1 - torch.arange(PERIOD)) % PERIOD


@dataclass(frozen=True)
class Moves:
    """An op that moves elements. ``call`` takes a tensor of ``count`` elements and returns the result. ``known``
    takes the period of the input (the elements that the input repeats) and the number of elements, and returns the
    period of the result."""

    call: Callable[[torch.Tensor], torch.Tensor]
    known: Callable[[torch.Tensor, int], torch.Tensor] = lambda slices, count: slices
    tensors: float = 2


_MOVES: dict[str, Moves] = {
    "cat": Moves(lambda x: torch.cat([x[: 2 * PERIOD], x[2 * PERIOD :]])),
    "flip": Moves(lambda x: x.flip(0), lambda slices, count: slices[_phase(count)]),
    "roll": Moves(lambda x: x.roll(-9, 0)[:-9], lambda slices, count: slices.roll(-9)),
    "narrow": Moves(lambda x: x[3:].clone(), lambda slices, count: slices.roll(-3)),
    "copy_": Moves(lambda x: torch.empty_like(x).copy_(x)),
    "repeat": Moves(lambda x: x[: 4 * PERIOD].repeat(len(x) // (4 * PERIOD)), tensors=2),
    "split": Moves(lambda x: x.split([7, len(x) - 7])[1].clone(), lambda slices, count: slices.roll(-7)),
    "contiguous": Moves(
        lambda x: x[::3].contiguous(), lambda slices, count: slices[torch.arange(PERIOD) * 3 % PERIOD]
    ),
    "index_fill": Moves(lambda x: x.index_fill_(0, x.new_tensor([0], dtype=torch.int64), x[0].item()), tensors=1),
    "constant_pad_nd": Moves(
        lambda x: torch.nn.functional.pad(x, (0, -5))
    ),
}  # fmt: skip


def _memory_of_moves(op: str, limit: int) -> int:
    return int(most(limit) * _MOVES[op].tensors) + 2**25


_MOVED = {op: (op,) for op in _MOVES}


@cases("layout.large", over=_MOVED, variants=variant_of(2**24, "elements"), memory=_memory_of_moves, **MORE)  # fmt: skip
@cases("layout.large", over=_MOVED, variants=variant_of(2**31, "elements"), memory=_memory_of_moves, **WHOLE)  # fmt: skip
@cases("layout.large", over=_MOVED, variants=variant_of(2**32, "elements"), memory=_memory_of_moves, **WHOLE)  # fmt: skip
def moved_elements(context: CaseContext, op: str, limit: int) -> None:
    """An op that moves elements is called with slightly fewer than, exactly, and more than 2^24, 2^31 or 2^32 bytes,
    which repeat those of a small tensor. Every byte of the result is right."""
    moves, slices = _MOVES[op], period((), torch.uint8)

    def check(count: int) -> None:
        found = moves.call(repeated(context, slices, count))
        want, at = moves.known(slices, count), f"{count:,} elements"
        check_repeats(context, found, want, TEXT, at=at)

    at_each_size(context, check, limit, "elements", small=5 * PERIOD + 7, sizes=few(limit))


#: Rows and columns whose product is just below, at, and past a limit.
_MATRICES = {
    2**24: ((4095, 4097), (4096, 4096), (4099, 4097)),
    2**31: ((32767, 65537), (32768, 65536), (65537, 32769)),
    2**32: ((65535, 65537), (65536, 65536), (65537, 65537)),
}

_TRANSPOSES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "t": lambda x: x.t().contiguous(),
    "transpose_copy": lambda x: torch.transpose_copy(x, 0, 1),
    "rot90": lambda x: x.rot90().flip(0),
    "permute": lambda x: x.unsqueeze(1).permute(2, 1, 0).clone(memory_format=torch.contiguous_format)[:, 0],
}  # fmt: skip


#: Matrices that live at the same time: the operand, the result, and one more if the call makes an intermediate.
_LIVE_MATRICES = {**dict.fromkeys(_TRANSPOSES, 2), "rot90": 3}


def _memory_of_matrix(op: str, limit: int) -> int:
    return most(limit) * _LIVE_MATRICES[op] + 2**26


_TRANSPOSED = {op: (op,) for op in _TRANSPOSES}


@cases("layout.large", over=_TRANSPOSED, variants=variant_of(2**24, "elements"), memory=_memory_of_matrix, **MORE)  # fmt: skip
@cases("layout.large", over=_TRANSPOSED, variants=variant_of(2**31, "elements"), memory=_memory_of_matrix, **WHOLE)  # fmt: skip
@cases("layout.large", over=_TRANSPOSED, variants=variant_of(2**32, "elements"), memory=_memory_of_matrix, **WHOLE)  # fmt: skip
def transposed_matrix(context: CaseContext, op: str, limit: int) -> None:
    """A matrix of bytes is transposed. It has about 2^12, 2^15 or 2^16 rows and columns: slightly fewer than, exactly,
    and more than 2^24, 2^31 or 2^32 elements. Every row of the result is right."""
    shapes = {rows * columns: (rows, columns) for rows, columns in _MATRICES[limit]}
    small = 67 * 509
    shapes[small] = (67, 509)

    def check(count: int) -> None:
        rows, columns = shapes[count]
        # Element (i, j) is i * 3 + j, modulo the period; so is element (j, i) of the result.
        lines = (torch.arange(PERIOD)[:, None] * 3 + torch.arange(columns)) % PERIOD
        found = _TRANSPOSES[op](repeated(context, lines.to(torch.uint8), rows))
        want = (torch.arange(PERIOD)[:, None] + torch.arange(rows) * 3) % PERIOD
        check_repeats(context, found, want.to(torch.uint8), TEXT, at=f"{rows:,} x {columns:,}")

    at_each_size(context, check, limit, "elements", small, tuple(shapes)[:-1])


@cases(
    "layout.large",
    over={"copy_": ()},
    variants={"2^24 bytes, into steps": (2, 2**24), "2^24 bytes, into columns": (3, 2**24)},
    memory=lambda step, limit: most(limit) * 2 + 2**25,
    **MORE,
)
@cases(
    "layout.large",
    over={"copy_": ()},
    variants={"2^32 bytes, into steps": (2, 2**32), "2^32 bytes, into columns": (3, 2**32)},
    memory=lambda step, limit: most(limit) * 2 + 2**25,
    **WHOLE,
)
def written_steps(context: CaseContext, step: int, limit: int) -> None:
    """A copy writes every second element, or every third column, of a tensor of slightly fewer than, exactly, and more
    than 2^24 or 2^32 bytes. These elements have the new values, and the elements between them are unchanged."""
    slices = period((), torch.uint8)

    def check(count: int) -> None:
        target = torch.empty(count // step * step, dtype=torch.uint8, device=context.device)
        target.fill_(255)
        target.view(-1, step)[:, step - 1].copy_(repeated(context, slices, count // step))
        want = torch.full((PERIOD, step), 255, dtype=torch.uint8)
        want[:, step - 1] = slices
        check_repeats(context, target.view(-1, step), want, TEXT, at=f"{count:,} bytes")

    # The last size exceeds the limit by more than a step: the target has whole steps.
    at_each_size(context, check, limit, "bytes", sizes=(limit - 1, limit, most(limit)))


_FILLS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "fill": lambda x: x.fill_(5),
    "full_like": lambda x: torch.full_like(x, 5),
    "zero": lambda x: x.zero_().add_(5),
    "ones": lambda x: torch.ones(x.shape, dtype=x.dtype, device=x.device) * 5,
}


@cases("layout.large", over={op: (op,) for op in _FILLS}, variants=variant_of(2**24, "elements"), memory=lambda op, limit: most(limit) * 3 + 2**25, **MORE)  # fmt: skip
@cases("layout.large", over={op: (op,) for op in _FILLS}, variants=variant_of(2**32, "elements"), memory=lambda op, limit: most(limit) * 3, **WHOLE)  # fmt: skip
def filled(context: CaseContext, op: str, limit: int) -> None:
    """A tensor of slightly fewer than, exactly, and more than 2^24 or 2^32 bytes is filled. Every byte has the new
    value."""

    def check(count: int) -> None:
        x = torch.empty(count, dtype=torch.uint8, device=context.device)
        x[-1], x[0] = 1, 1
        want = torch.full((PERIOD,), 5, dtype=torch.uint8)
        check_repeats(context, _FILLS[op](x), want, TEXT, at=f"{count:,} elements")

    at_each_size(context, check, limit, "elements", sizes=few(limit))


@cases("layout.large", over={"arange": ()}, variants=variant_of(2**24, "elements"), memory=lambda limit: most(limit) * 4 + 2**25, **MORE)  # fmt: skip
def counted_elements(context: CaseContext, limit: int) -> None:
    """arange in int32 and int64 gives slightly fewer than, exactly, and more than 2^24 elements. Every element equals
    its index."""
    for dtype in (torch.int32, torch.int64):

        def check(count: int, dtype: torch.dtype = dtype) -> None:
            found = torch.arange(count, dtype=dtype, device=context.device)
            for start, length in pieces(count, 2**20):
                want = torch.arange(start, start + length, dtype=dtype)
                part = context.from_device(found[start : start + length])
                check_piece(context, part, want, TEXT, f"{count:,} elements of {dtype}", start)

        at_each_size(context, check, limit, "elements")


@cases("layout.large", over={"transfer": ()}, variants=variant_of(2**24, "bytes"), memory=lambda limit: most(limit) + 2**25, **MORE)  # fmt: skip
@cases("layout.large", over={"transfer": ()}, variants=variant_of(2**32, "bytes"), memory=lambda limit: most(limit) * 2, **WHOLE)  # fmt: skip
def copied_at_once(context: CaseContext, limit: int) -> None:
    """Slightly fewer than, exactly, and more than 2^24 or 2^32 bytes are copied to the device and back, each in one
    call. All bytes are right."""
    slices = period((), torch.uint8)

    def check(count: int) -> None:
        there = context.to_device(_on_host(slices, count))
        check_repeats(context, there, slices, TEXT, at=f"{count:,} bytes to the device")
        back = context.from_device(there)
        del there
        for start, length in pieces(count, PERIOD * 2**16):
            want = chunk_of(slices, count)[:length]
            at = f"{count:,} bytes from the device"
            check_piece(context, back[start : start + length], want, TEXT, at, start)

    at_each_size(context, check, limit, "bytes", sizes=few(limit))


def _on_host(slices: torch.Tensor, count: int) -> torch.Tensor:
    made, chunk = torch.empty(count, dtype=slices.dtype), chunk_of(slices, count)
    for start, length in pieces(count, len(chunk)):
        made[start : start + length] = chunk[:length]
    return made
