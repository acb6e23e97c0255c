"""Cases about ops that read or write a few elements of a large tensor, by an index or through a view.

Only a few ranges of elements, called windows, are written and read: around the limit, at both ends, and where an index
that lost its high bits would lead. The other elements cost memory but no time.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch.nn import functional

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.suites.size.limits import MORE, at_each_size, most, variant_of
from conformance.suites.size.periodic import PERIOD, period, repeated
from devices.failure import Kind

cases = Cases(Kind.VALUES)

#: Elements on each side of a place that are looked at.
_WIDTH = 320

#: The first size, which is larger than all windows together.
_SMALL = 8 * _WIDTH + 5

READ = "an element of a large tensor that was read by its index has a wrong value"
WRITTEN = "a write to a few elements of a large tensor was lost or went to other elements"


def places(count: int, limit: int) -> list[tuple[int, int]]:
    """Returns the windows of a tensor of ``count`` elements, in order, each as its first element and its number of
    elements: at the start, at the limit, at the end, and where an index past the limit leads if it is truncated to
    16 or 24 bits."""
    middles = (0, 2**16, 2**24, 2**31, 2**32, limit, count)
    found: list[tuple[int, int]] = []
    for middle in sorted(set(middles)):
        first = max(0, middle - _WIDTH)
        last = min(count, middle + _WIDTH)
        if found and first <= sum(found[-1]):
            first, _ = found.pop()
        if first < last:
            found.append((first, last - first))
    return found


def parts(count: int, limit: int) -> list[tuple[int, int]]:
    """Returns the windows of a tensor of ``count`` elements as ``places`` does, with the window around the limit cut
    in two: its second part begins exactly at the limit."""
    found = []
    for first, length in places(count, limit):
        end = first + length
        edges = [first, limit, end] if first < limit < end else [first, end]
        found += [(start, stop - start) for start, stop in pairwise(edges)]
    return found


def value_at(index: torch.Tensor) -> torch.Tensor:
    """Returns, for each of these indices, the value that the case gives to the element with this index."""
    return (index % PERIOD).to(torch.uint8)


def indices(count: int, limit: int) -> torch.Tensor:
    """Returns the indices of all elements in the windows of a tensor of ``count`` elements."""
    spans = [torch.arange(first, first + length) for first, length in places(count, limit)]
    return torch.cat(spans)


def prepared(context: CaseContext, count: int, limit: int) -> torch.Tensor:
    """Returns a tensor of ``count`` bytes on the device. The elements in the windows have known values; the others are
    not initialised."""
    made = torch.empty(count, dtype=torch.uint8, device=context.device)
    for first, length in places(count, limit):
        values = value_at(torch.arange(first, first + length))
        made[first : first + length].copy_(context.to_device(values))
    return made


def read_back(context: CaseContext, x: torch.Tensor, limit: int) -> torch.Tensor:
    """Returns the elements of ``x`` in the windows, as a tensor on the CPU."""
    spans = places(x.numel(), limit)
    return torch.cat([context.from_device(x[first : first + length]) for first, length in spans])


Read = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

_READS: dict[str, Read] = {
    "index_select": lambda x, index: x.index_select(0, index),
    "__getitem__": lambda x, index: x[index],
    "gather": lambda x, index: x.gather(0, index),
    "take": lambda x, index: x.take(index),
    "take_along_dim": lambda x, index: x.take_along_dim(index, 0),
    "nn.functional.embedding": lambda x, index: functional.embedding(index, x.unsqueeze(1)).squeeze(1),
}  # fmt: skip

_NEAR = variant_of(2**24, "elements")
_FAR = variant_of(2**31, "elements") | variant_of(2**32, "elements")


def _memory(op: str, limit: int) -> int:
    return most(limit) + 2**25


@cases("layout.large", over={op: (op,) for op in _READS}, variants=_NEAR | _FAR, memory=_memory, **MORE)  # fmt: skip
def read_by_index(context: CaseContext, op: str, limit: int) -> None:
    """Elements at both ends and on both sides of the limit are read by their index, in a tensor of slightly fewer than,
    exactly, and more than 2^24, 2^31 or 2^32 elements. Each has the right value."""

    def check(count: int) -> None:
        x, index = prepared(context, count, limit), indices(count, limit).flip(0)
        found = _READS[op](x, context.to_device(index))
        context.equal(found, value_at(index), READ, f"{count:,} elements")

    at_each_size(context, check, limit, "elements", _SMALL)


#: Each takes a matrix with rows of 64 bytes, the numbers of some rows, and returns these rows.
_ROW_READS: dict[str, Read] = {
    "index_select": lambda x, rows: x.index_select(0, rows),
    "nn.functional.embedding": lambda x, rows: functional.embedding(rows, x),
    "gather": lambda x, rows: x.gather(0, rows[:, None].long().expand(-1, x.shape[1])),
    "__getitem__": lambda x, rows: x[rows.long()],
}
_COLUMNS = 64


@cases(
    "layout.large",
    over={op: (op,) for op in _ROW_READS},
    variants={
        f"2^{power} bytes of rows, {dtype}": (dtype, 2**power)
        for power in (31, 32)
        for dtype in ("int32", "int64")
    },
    memory=lambda op, dtype, limit: limit + 2**25,
    **MORE,
)
def rows_by_index(context: CaseContext, op: str, dtype: str, limit: int) -> None:
    """Rows of 64 bytes are read by their int32 or int64 index, in a table of slightly fewer than, exactly, and more
    than 2^31 or 2^32 bytes. Each row is right."""
    middle = limit // _COLUMNS

    def check(count: int) -> None:
        x = torch.empty((count, _COLUMNS), dtype=torch.uint8, device=context.device)
        rows = torch.cat(
            [
                torch.arange(max(0, at - 5), min(count, at + 5))
                for at in (5, min(middle, count), count)
            ]
        )
        want = (rows[:, None] * 3 + torch.arange(_COLUMNS)).remainder(PERIOD).to(torch.uint8)
        for row, values in zip(rows.tolist(), context.to_device(want)):
            x[row].copy_(values)
        number = context.to_device(rows.flip(0).to(getattr(torch, dtype)))
        found = _ROW_READS[op](x, number)
        context.equal(found, want.flip(0), READ, f"{count:,} rows, {dtype} indices")

    at_each_size(context, check, middle, "rows", 40, (middle - 1, middle, middle + 1, middle + 7))


Write = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]

_WRITES: dict[str, Write] = {
    "index_copy": lambda x, index, values: x.index_copy_(0, index, values),
    "index_put": lambda x, index, values: x.index_put_((index,), values),
    "__setitem__": lambda x, index, values: x.__setitem__(index, values),
    "scatter": lambda x, index, values: x.scatter_(0, index, values),
    "put": lambda x, index, values: x.put_(index, values),
}
#: These write 77, whatever the values are.
_WRITES_OF_ONE: dict[str, Write] = {
    "index_fill": lambda x, index, values: x.index_fill_(0, index, 77),
    "scatter": lambda x, index, values: x.scatter_(0, index, 77),
    "index_put": lambda x, index, values: x.index_put_((index,), x.new_tensor(77)),
}
#: These add the values to what is there.
_WRITES_OF_SUMS: dict[str, Write] = {
    "index_add": lambda x, index, values: x.index_add_(0, index, values),
    "scatter_add": lambda x, index, values: x.scatter_add_(0, index, values),
}
_WRITE_TABLES = {"values": _WRITES, "a number": _WRITES_OF_ONE, "sums": _WRITES_OF_SUMS}

_BY_VALUES = {op: ("values", op) for op in _WRITES}
_BY_A_NUMBER = {op: ("a number", op) for op in _WRITES_OF_ONE}
_BY_SUMS = {op: ("sums", op) for op in _WRITES_OF_SUMS}


def _with_a_number(variants: dict[str, tuple[int]]) -> dict[str, tuple[int]]:
    """Returns the given variants of cases with ", one number" at the end of their names, for ops that write one
    number instead of a tensor."""
    return {f"{name}, one number": limit for name, limit in variants.items()}


def _memory_of_write(what: str, op: str, limit: int) -> int:
    return most(limit) + 2**25


@cases("layout.large", over=_BY_VALUES, variants=_NEAR | _FAR, memory=_memory_of_write, **MORE)
@cases("layout.large", over=_BY_SUMS, variants=_NEAR | _FAR, memory=_memory_of_write, **MORE)
@cases("layout.large", over=_BY_A_NUMBER, variants=_with_a_number(_NEAR | _FAR), memory=_memory_of_write, **MORE)  # fmt: skip
def written_by_index(context: CaseContext, what: str, op: str, limit: int) -> None:
    """At both ends and on both sides of the limit, every third element is written by its index, in a tensor of slightly
    fewer than, exactly, and more than 2^24, 2^31 or 2^32 elements. Each has the new value, and the elements between
    them are unchanged."""

    def check(count: int) -> None:
        x, seen = prepared(context, count, limit), indices(count, limit)
        want, chosen = value_at(seen), torch.arange(0, len(seen), 3)
        values = (seen[chosen] * 7 % 101).to(torch.uint8)
        index = context.to_device(seen[chosen])
        _WRITE_TABLES[what][op](x, index, context.to_device(values))
        if what == "sums":
            want[chosen] += values
        else:
            want[chosen] = values if what == "values" else 77
        context.equal(read_back(context, x, limit), want, WRITTEN, f"{count:,} elements")

    at_each_size(context, check, limit, "elements", _SMALL)


def _step(x: torch.Tensor, start: int) -> torch.Tensor:
    """Returns a view of ``x`` that begins at element ``start`` and whose elements are about 2^20 elements apart."""
    return x[start :: max(len(x) // 4096, 1)]


#: By name: makes a small tensor from a view of bytes that lies at a large offset, or has large strides.
_VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "clone": torch.clone,
    "bitwise_not": torch.bitwise_not,
    "add": lambda x: x + x,
    "sum": lambda x: x.sum(),
    "cat": lambda x: torch.cat([x, x]),
    "to": lambda x: x.to(torch.float32),
    "sort": lambda x: x.sort().values,
    "mm": lambda x: x.float()[None, :] @ x.float()[:, None],
    "as_strided": lambda x: torch.as_strided(x, (len(x) // 2,), (2 * x.stride(0),)).clone(),
    "flip": lambda x: x.flip(0),
}  # fmt: skip


@cases(
    "layout.large",
    over={op: (op,) for op in _VIEWS},
    variants={"offset 2^31": (2**31,), "offset 2^32": (2**32,)},
    memory=_memory,
    **MORE,
)
def far_views(context: CaseContext, op: str, limit: int) -> None:
    """An op reads views of a tensor of slightly fewer than, exactly, and more than 2^31 or 2^32 bytes: slices at both
    ends and on both sides of the limit, and views with large strides. The results are right."""
    call = _VIEWS[op]

    def check(count: int) -> None:
        x = prepared(context, count, limit)
        for first, length in parts(count, limit):
            values = value_at(torch.arange(first, first + length))
            at = f"{length} of {count:,} elements, beginning at index {first:,}"
            found = context.from_device(call(x[first : first + length]))
            context.equal(found, call(values), READ, at)
        for start in (0, 3):
            view = _step(x, start)
            index = torch.arange(start, count, max(count // 4096, 1))
            view.copy_(context.to_device(value_at(index)))
            at = f"{len(index):,} of {count:,} elements, with steps of {view.stride(0):,}"
            context.equal(context.from_device(call(view)), call(value_at(index)), READ, at)

    at_each_size(context, check, limit, "elements", _SMALL)


@cases(
    "layout.large",
    over={"copy_": ()},
    variants={
        f"offset 2^{power}, into {what}": (what, 2**power)
        for power in (31, 32)
        for what in ("a slice", "steps", "columns")
    },
    memory=_memory,
    **MORE,
)
def far_targets(context: CaseContext, what: str, limit: int) -> None:
    """A small tensor is copied into a view of a tensor of slightly fewer than, exactly, and more than 2^31 or 2^32
    bytes. The elements of the view have the new values, and the elements beside the view are unchanged."""

    def check(count: int) -> None:
        x, want = prepared(context, count, limit), value_at(indices(count, limit))
        index = indices(count, limit)
        for first, length in parts(count, limit):
            target = x[first : first + length]
            if what == "a slice":
                target = target[2:-2]
            elif what == "steps":
                target = target[::2]
            else:
                target = target[: length // 4 * 4].view(-1, 4).t()[1:3]
            fresh = (torch.arange(target.numel()) * 5 % 97).to(torch.uint8).reshape(target.shape)
            target.copy_(context.to_device(fresh))
            mine = want[(index >= first) & (index < first + length)].clone()
            if what == "a slice":
                mine[2:-2] = fresh
            elif what == "steps":
                mine[::2] = fresh
            else:
                mine[: length // 4 * 4].view(-1, 4).t()[1:3] = fresh
            want[(index >= first) & (index < first + length)] = mine
        context.equal(read_back(context, x, limit), want, WRITTEN, f"{count:,} elements")

    at_each_size(context, check, limit, "elements", _SMALL)


@cases(
    "layout.large",
    over={"nn.functional.embedding": ()},
    variants=variant_of(2**16, "rows of the table"),
    memory=lambda limit: 2**25,
    **MORE,
)
def gradient_of_table(context: CaseContext, limit: int) -> None:
    """Every row of a table is read once or twice; the table has slightly fewer than, exactly, and more than 65,536
    rows. In the gradient of the table, rows that were read twice get twice the gradient, including the last row."""

    def check(count: int) -> None:
        slices = period((2,), torch.float32)
        table = repeated(context, slices, count).requires_grad_()
        index = torch.cat([torch.arange(count), torch.arange(0, count, 2)])
        cotangent = (index % 7 + 1.0)[:, None].expand(-1, 2).contiguous()
        found = functional.embedding(context.to_device(index), table)
        context.equal(found.detach(), slices[index % PERIOD], READ, f"{count:,} rows")
        found.backward(context.to_device(cotangent))
        context.must(table.grad is not None, "the table has no gradient after backward")
        assert table.grad is not None
        want = (torch.arange(count) % 7 + 1.0) * (2.0 - torch.arange(count) % 2)
        text = "a row in the gradient of a large table is wrong"
        context.equal(table.grad, want[:, None].expand(-1, 2).contiguous(), text, f"{count:,} rows")

    at_each_size(context, check, limit, "rows")
