"""Cases about ops that reduce, scan, sort or count about 2^24, 2^31 or 2^32 elements whose exact result is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.suites.size.limits import (
    ALONE,
    MORE,
    WHOLE,
    around,
    at_each_size,
    few,
    most,
    variant_of,
)
from conformance.suites.size.periodic import (
    PERIOD,
    check_piece,
    check_repeats,
    period,
    pieces,
    repeated,
)
from devices.failure import Kind

cases = Cases(Kind.VALUES)

#: Of sums of equal float32 numbers: a counter that stops at 2^24, or a block that is left out, is off by more.
RTOL = 1e-3

_REDUCED = "a reduction of a large tensor gave a wrong result"


class Marked(NamedTuple):
    """An op that finds one marked element. ``call`` takes a tensor of zeros with a single 1 and returns the op's
    result. ``known`` takes the index of the 1 and the number of elements, and returns the right result."""

    call: Callable[[torch.Tensor], torch.Tensor]
    known: Callable[[int, int], int]


_MARKED: dict[str, Marked] = {
    "argmax": Marked(torch.argmax, lambda place, count: place),
    "amax": Marked(lambda x: x.amax(), lambda place, count: 1),
    "max": Marked(lambda x: x.max(0).indices, lambda place, count: place),
    "any": Marked(lambda x: x.any(), lambda place, count: 1),
    "nonzero": Marked(lambda x: x.nonzero()[-1, 0], lambda place, count: place),
    "count_nonzero": Marked(torch.count_nonzero, lambda place, count: 1),
    "where": Marked(lambda x: torch.where(x)[0][0], lambda place, count: place),
    "masked_select": Marked(lambda x: x.masked_select(x.view(torch.bool)).sum(), lambda place, count: 1),
}  # fmt: skip

#: where with a condition alone; with three operands it is an elementwise op.
_WHERE = {"where": ("where",)}
#: argmax has cases of its own.
_FOUND_ELSEWHERE = ("argmax", *_WHERE)
_FINDS = {op: (op,) for op in _MARKED if op not in _FOUND_ELSEWHERE}


_FAR = variant_of(2**31, "elements") | variant_of(2**32, "elements")


def _memory_of_marked(op: str, limit: int) -> int:
    return most(limit) + 2**26


@cases("layout.large", over={"argmax": ("argmax",)}, variants=variant_of(2**24, "elements"), memory=_memory_of_marked, **ALONE)  # fmt: skip
@cases("layout.large", over=_FINDS, variants=variant_of(2**24, "elements"), memory=_memory_of_marked, **MORE)  # fmt: skip
@cases("layout.large", over=_WHERE, variants=variant_of(2**24, "elements of a condition"), memory=_memory_of_marked, **MORE)  # fmt: skip
@cases("layout.large", over=_FINDS | {"argmax": ("argmax",)}, variants=_FAR, memory=_memory_of_marked, **WHOLE)  # fmt: skip
@cases("layout.large", over=_WHERE, variants=variant_of(2**31, "elements of a condition"), memory=_memory_of_marked, **WHOLE)  # fmt: skip
def finds_the_marked(context: CaseContext, op: str, limit: int) -> None:
    """A tensor of slightly fewer than, exactly, and more than 2^24, 2^31 or 2^32 bytes is 1 at its end or near the
    limit, and 0 elsewhere. The op finds the 1 and returns its index."""
    marked = _MARKED[op]

    def check(count: int) -> None:
        x = torch.zeros(count, dtype=torch.uint8, device=context.device)
        for place in sorted({count - 1, min(count, limit) - 2}):
            x[place] = 1
            found = int(context.from_device(marked.call(x)))
            at = f"the 1 is element {place:,} of {count:,}"
            x[place] = 0
            context.same(found, marked.known(place, count), _REDUCED, at=at)

    at_each_size(context, check, limit, "elements", sizes=few(limit))


_OF_ONES: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[float], float]]] = {
    "sum": (torch.sum, lambda count: count),
    "mean": (torch.mean, lambda count: 1.0),
    "linalg.vector_norm": (torch.linalg.vector_norm, lambda count: count**0.5),
    "logsumexp": (lambda x: x.logsumexp(0), lambda count: 1.0 + torch.tensor(count).log().item()),
    "dot": (lambda x: torch.dot(x, x), lambda count: count),
    "nn.functional.mse_loss": (lambda x: functional.mse_loss(x, x * 3, reduction="sum"), lambda count: 4 * count),
    "softmax": (lambda x: x.softmax(0).amax() * len(x), lambda count: 1.0),
    "cumsum": (lambda x: x.cumsum(0)[-1], lambda count: count),
    "mv": (lambda x: (x[None] @ x)[0], lambda count: count),
    "nanmean": (torch.nanmean, lambda count: 1.0),
    "std": (lambda x: (x * torch.arange(2.0, device=x.device).repeat(len(x) // 2)).std(), lambda count: 0.5),
}  # fmt: skip


#: How many large tensors an op needs at a time, beside its input.
_COPIES = {"softmax": 1, "cumsum": 1, "logsumexp": 1, "nn.functional.mse_loss": 2, "std": 2}


def _memory_of_ones(op: str, limit: int) -> int:
    return limit * 4 * (1 + _COPIES.get(op, 0)) + 2**24


@cases("layout.large", over={op: (op,) for op in _OF_ONES}, variants={"2^25 ones": (2**25,)}, memory=_memory_of_ones, **MORE)  # fmt: skip
def of_many_ones(context: CaseContext, op: str, limit: int) -> None:
    """2^24 + 2 and 2^25 ones in float32 are summed, or reduced by another op. The result is right within 0.1 %: a sum
    in float32 that adds one element at a time would stop at 2^24."""
    call, known = _OF_ONES[op]

    def check(count: int) -> None:
        found = call(torch.ones(count, device=context.device))
        want = torch.tensor(known(count), dtype=torch.float32)
        context.assert_close(found, want, _REDUCED, f"{count:,} ones", rtol=RTOL)

    at_each_size(context, check, limit, "ones", 510, (limit // 2 + 2, limit))


_EXPANDED: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[int], float]]] = {
    "sum": (torch.sum, float),
    "amax": (torch.amax, lambda count: 1.0),
    "argmax": (lambda x: (x.argmax() >= 0) & (x.argmax() < len(x)), lambda count: 1.0),
    "all": (torch.all, lambda count: 1.0),
    "count_nonzero": (torch.count_nonzero, float),
    "linalg.vector_norm": (lambda x: torch.linalg.vector_norm(x, 1), float),
}  # fmt: skip


#: Plan core has the sum alone.
_EXPANDED_IN_CORE = {"sum": ("sum",)}
_EXPANDED_RARELY = {op: (op,) for op in _EXPANDED if op not in _EXPANDED_IN_CORE}


@cases("layout.large", over=_EXPANDED_IN_CORE, variants=variant_of(2**31, "expanded elements"), memory=2**26, **MORE)  # fmt: skip
@cases("layout.large", over=_EXPANDED_RARELY, variants=variant_of(2**31, "expanded elements"), memory=2**26, **WHOLE)  # fmt: skip
@cases("layout.large", over={op: (op,) for op in _EXPANDED}, variants=variant_of(2**32, "expanded elements"), memory=2**26, **WHOLE)  # fmt: skip
def of_one_expanded(context: CaseContext, op: str, limit: int) -> None:
    """A single float64 (or float32) 1 is expanded to slightly fewer than, exactly, and more than 2^31 or 2^32 elements,
    and reduced. The result is exact."""
    call, known = _EXPANDED[op]
    wide = "float64" in context.descriptor.dtypes
    dtype = torch.float64 if wide else torch.float32

    def check(count: int) -> None:
        one = torch.ones(1, dtype=dtype, device=context.device)
        found = float(context.from_device(call(one.expand(count))))
        want = known(count) if wide else float(torch.tensor(known(count)))
        context.same(found, want, _REDUCED, at=f"{count:,} elements")

    at_each_size(
        context, check, limit, "elements", sizes=around(limit)[:3] if limit > 2**31 else ()
    )


@cases("layout.large", over={"expand": ()}, variants=variant_of(2**31, "elements, backward"), memory=2**26, **WHOLE)  # fmt: skip
def gradient_of_expanded(context: CaseContext, limit: int) -> None:
    """A float64 (or float32) 1 is expanded to slightly fewer than, exactly, and more than 2^31 elements, and summed.
    Its gradient is the number of elements."""
    wide = "float64" in context.descriptor.dtypes
    dtype = torch.float64 if wide else torch.float32

    def check(count: int) -> None:
        one = torch.ones(1, dtype=dtype, device=context.device).requires_grad_()
        one.expand(count).sum().backward()
        context.must(one.grad is not None, "the expanded element has no gradient after backward")
        want, text = (
            torch.tensor([count], dtype=dtype),
            "the gradient of an element that was expanded and summed is wrong",
        )
        assert one.grad is not None
        context.equal(one.grad, want, text, f"{count:,} elements")

    at_each_size(context, check, limit, "elements")


# -- scans


def _scannable() -> torch.Tensor:
    """Returns a period of bytes whose sum is 0 modulo 256, so that the running sum of repeated periods also repeats."""
    slices = period((), torch.uint8)
    slices[-1] -= slices.sum(dtype=torch.uint8)
    return slices


@cases("layout.large", over={"cumsum": ()}, variants=variant_of(2**24, "elements"), memory=lambda limit: most(limit) * 3, **MORE)  # fmt: skip
@cases("layout.large", over={"cumsum": ()}, variants=variant_of(2**31, "elements"), memory=lambda limit: most(limit) * 2 + 2**26, **WHOLE)  # fmt: skip
def running_sum(context: CaseContext, limit: int) -> None:
    """The running sum of slightly fewer than, exactly, and more than 2^24 or 2^31 bytes is computed modulo 256.
    Every element of the result is right."""
    slices = _scannable()
    want = slices.cumsum(0, dtype=torch.uint8)

    def check(count: int) -> None:
        found = repeated(context, slices, count).cumsum(0, dtype=torch.uint8)
        check_repeats(
            context, found, want, "an element of a running sum is wrong", at=f"{count:,} elements"
        )

    at_each_size(context, check, limit, "elements", sizes=few(limit))


class _Running(NamedTuple):
    """A running maximum or minimum: the op, and the last three values that it must return for the input of the case
    ``running_maximum``."""

    call: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
    last: tuple[int, int, int]


_MAXIMA: dict[str, _Running] = {
    "cummax": _Running(lambda x: torch.cummax(x, 0), (1, 2, 2)),
    "cummin": _Running(lambda x: torch.cummin(255 - x, 0), (254, 253, 253)),
}


@cases("layout.large", over={op: (op,) for op in _MAXIMA}, variants=variant_of(2**24, "elements"), memory=lambda op, limit: most(limit) * 11, **MORE)  # fmt: skip
def running_maximum(context: CaseContext, op: str, limit: int) -> None:
    """The running maximum or minimum of slightly fewer than, exactly, and more than 2^24 bytes is computed. The last
    but one is larger than all others. The values and indices at this element and before it are right."""

    def check(count: int) -> None:
        x = torch.zeros(count, dtype=torch.uint8, device=context.device)
        x[2], x[-2] = 1, 2
        values, places = _MAXIMA[op].call(x)
        text, at = (
            "a value or index of a running maximum or minimum is wrong",
            f"{count:,} elements",
        )
        last = [int(each) for each in context.from_device(places[-4:])]
        context.same(last[2:], [count - 2, count - 2], text, at=at)
        context.same(last[:2], [2, 2], text, at=at)
        high = context.from_device(values[-3:]).to(torch.int64)
        context.equal(high, torch.tensor(_MAXIMA[op].last), text, at)

    at_each_size(context, check, limit, "elements")


# -- sorting and counting


def _runs(count: int) -> list[tuple[int, int]]:
    """Returns, for each value in a sorted tensor of repeated periods, the index of its first element and its number of
    elements."""
    found, start = [], 0
    for value in range(PERIOD):
        times = (count - value + PERIOD - 1) // PERIOD
        found.append((start, times))
        start += times
    return found


_SORTS: dict[str, Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]] = {
    "sort": lambda x: x.sort(stable=True),
    "argsort": lambda x: (x.sort().values, x.argsort(stable=True)),
    "msort": lambda x: (x.msort(), x.sort(stable=True).indices),
}


@cases("layout.large", over={op: (op,) for op in _SORTS}, variants=variant_of(2**24, "elements"), memory=lambda op, limit: most(limit) * 30, **MORE)  # fmt: skip
def sorted_stably(context: CaseContext, op: str, limit: int) -> None:
    """Slightly fewer than, and more than 2^24 bytes, whose values repeat, are sorted stably. Every value and every
    index is right."""
    slices, text = period((), torch.uint8), "a value or index of a sorted tensor is wrong"

    def check(count: int) -> None:
        values, places = _SORTS[op](repeated(context, slices, count))
        for value, (start, times) in enumerate(_runs(count)):
            part = context.from_device(values[start : start + times])
            at = f"{count:,} elements, {value}"
            check_piece(
                context, part, torch.full((times,), value, dtype=torch.uint8), text, at, start
            )
            part = context.from_device(places[start : start + times])
            check_piece(context, part, torch.arange(times) * PERIOD + value, text, at, start)

    at_each_size(context, check, limit, "elements", sizes=(limit - 1, most(limit)))


@cases("layout.large", over={"topk": ()}, variants=variant_of(2**24, "elements"), memory=lambda limit: most(limit) * 16, **MORE)  # fmt: skip
def largest_elements(context: CaseContext, limit: int) -> None:
    """topk is called with slightly fewer than, exactly, and more than 2^24 int16 numbers. The three largest are at
    known places on both sides of the limit, and topk finds them there."""

    def check(count: int) -> None:
        x = torch.zeros(count, dtype=torch.int16, device=context.device)
        where = sorted({count - 1, min(count, limit) - 2, 5})
        for number, place in enumerate(where):
            x[place] = 1000 + number
        values, found = x.topk(3)
        text, at = "topk of a large tensor did not find the largest elements", f"{count:,} elements"
        context.same(context.from_device(found).tolist(), where[::-1], text, at=at)
        context.same(context.from_device(values).tolist(), [1002, 1001, 1000], text, at=at)

    at_each_size(context, check, limit, "elements")


_COUNTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "bincount": lambda x: torch.bincount(x, minlength=PERIOD),
    "unique": lambda x: x.unique(return_counts=True)[1],
    "unique_consecutive": lambda x: x.sort().values.unique_consecutive(return_counts=True)[1],
}


@cases("layout.large", over={op: (op,) for op in _COUNTS}, variants=variant_of(2**24, "elements"), memory=lambda op, limit: most(limit) * 20, **MORE)  # fmt: skip
@cases("layout.large", over={"bincount": ("bincount",)}, variants=variant_of(2**31, "elements"), memory=lambda op, limit: most(limit) + 2**27, **WHOLE)  # fmt: skip
def counts_of_values(context: CaseContext, op: str, limit: int) -> None:
    """The occurrences of each value in slightly fewer than, exactly, and more than 2^24 or 2^31 bytes are counted, and
    those of two values, with which many threads add to one counter, in a million bytes. All counts are right."""
    slices, text = period((), torch.uint8), "a count of the values in a large tensor is wrong"

    def check(count: int) -> None:
        found = _COUNTS[op](repeated(context, slices, count))
        want = torch.tensor([times for _, times in _runs(count)])
        context.equal(found, want, text, f"{count:,} elements")

    def check_two_values(count: int) -> None:
        some = repeated(context, slices, count)
        ones = int((context.from_device(some) > 100).sum())
        found = _COUNTS[op]((some > 100).to(torch.uint8))
        want = torch.tensor([count - ones, ones])
        context.equal(found[:2], want, text, f"{count:,} elements of two values")

    at_each_size(context, check_two_values, 10**6, "elements", sizes=(10**6 + 3,))
    at_each_size(context, check, limit, "elements", sizes=few(limit))


@cases("layout.large", over={"unique": ()}, variants=variant_of(2**24, "elements, inverse"), memory=lambda limit: most(limit) * 30, **WHOLE)  # fmt: skip
def inverse_of_unique(context: CaseContext, limit: int) -> None:
    """unique is called with int32 numbers up to 2^24 and more, each of which occurs once. It returns all of them, and
    the index of each."""

    def check(count: int) -> None:
        numbers = torch.arange(count, dtype=torch.int32, device=context.device).flip(0)
        found, inverse = numbers.unique(return_inverse=True)
        text, at = "unique of many different numbers gave a wrong result", f"{count:,} elements"
        context.same(len(found), count, text, at=at)
        for start, length in pieces(count, 2**20):
            end = start + length
            want = torch.arange(start, end, dtype=torch.int32)
            check_piece(context, context.from_device(found[start:end]), want, text, at, start)
            want = torch.arange(count - 1 - start, count - 1 - end, -1)
            check_piece(context, context.from_device(inverse[start:end]), want, text, at, start)

    at_each_size(context, check, limit, "elements", sizes=(limit - 1, most(limit)))


_EQUAL: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "equal": torch.equal,
    "allclose": lambda x, y: torch.allclose(x, y, atol=0.5, rtol=0.0),
}


@cases("layout.large", over={op: (op,) for op in _EQUAL}, variants=variant_of(2**24, "elements"), memory=lambda op, limit: most(limit) * 8, **MORE)  # fmt: skip
@cases("layout.large", over={"equal": ("equal",)}, variants=variant_of(2**31, "elements"), memory=lambda op, limit: most(limit) * 2 + 2**26, **WHOLE)  # fmt: skip
def compared(context: CaseContext, op: str, limit: int) -> None:
    """Two tensors of slightly fewer than, exactly, and more than 2^24 or 2^31 bytes are compared. The op reports a
    difference exactly if the last element, or one near the limit, differs."""
    call, text = _EQUAL[op], "a comparison of two large tensors gave a wrong result"

    def check(count: int) -> None:
        x = torch.zeros(count, dtype=torch.uint8, device=context.device)
        y = torch.zeros_like(x)
        context.same(bool(call(x, y)), True, text, at=f"{count:,} equal elements")
        for place in (count - 1, min(count, limit) - 2):
            y[place] = 1
            context.same(
                bool(call(x, y)), False, text, at=f"element {place:,} of {count:,} differs"
            )
            y[place] = 0

    at_each_size(context, check, limit, "elements", sizes=few(limit))
