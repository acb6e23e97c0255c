"""Cases about products, convolutions, pooling and softmax whose input or result has about 2^31 or 2^32 elements, or
2^32 bytes.

Operands are small integers, so that the results are exact in every dtype.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.suites.size.elements import declared
from conformance.suites.size.limits import MORE, WHOLE, around, at_each_size, most
from conformance.suites.size.periodic import PERIOD, check_piece, check_repeats, pieces, repeated
from devices.failure import Kind

cases = Cases(Kind.VALUES)

TEXT = "an element of a large result is wrong"

_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def _digits(count: int, dtype: torch.dtype) -> torch.Tensor:
    """Returns a matrix of ``count`` rows and three columns: row ``i`` has the three lowest digits of ``i`` in base
    8."""
    number = torch.arange(count)
    return torch.stack([number % 8, number // 8 % 8, number // 64 % 8], 1).to(dtype)


def _picks(count: int, dtype: torch.dtype) -> torch.Tensor:
    """Returns a matrix of three rows and ``count`` columns; column ``i`` is 1 in row ``i % 3`` and 0 elsewhere. If a
    matrix of digits is multiplied by it, column ``i`` of the product is digit ``i % 3``."""
    return (torch.arange(count) % 3 == torch.arange(3)[:, None]).to(dtype)


Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

#: Each multiplies a matrix of ``rows`` x 3 by one of 3 x ``columns``.
_PRODUCTS: dict[str, Product] = {
    "mm": torch.mm,
    "matmul": lambda x, y: torch.matmul(x[None], y)[0],
    "addmm": lambda x, y: torch.addmm(x.new_zeros(()).expand(1, y.shape[1]), x, y),
    "nn.functional.linear": lambda x, y: functional.linear(x, y.t()),
    "bmm": lambda x, y: torch.bmm(x[None], y[None])[0],
}

#: By name: the dtype, the columns, and the number of rows with which the product has as many elements as the limit.
_LARGE_RESULTS: dict[str, tuple[str, int, int]] = {
    "2^31 elements of the result": ("bfloat16", 2**15, 2**16),
    "2^32 bytes of the result": ("float32", 2**14, 2**16),
    "2^32 elements of the result": ("bfloat16", 2**16, 2**16),
}
_LARGE_BATCHES: dict[str, tuple[str, int, int]] = {
    "2^31 elements of batches": ("bfloat16", 2**15, 2**16),
    "2^32 elements of batches": ("bfloat16", 2**16, 2**16),
}


def _memory(op: str, dtype: str, columns: int, rows: int) -> int:
    return most(rows) * columns * _DTYPES[dtype].itemsize + 2**28


@cases("layout.large", over={op: (op,) for op in _PRODUCTS}, variants=_LARGE_RESULTS, memory=_memory, **WHOLE)  # fmt: skip
def large_product(context: CaseContext, op: str, dtype: str, columns: int, rows: int) -> None:
    """A matrix of about 65,536 rows and 3 columns is multiplied by another matrix, so that the result has slightly
    fewer than, exactly, and more than 2^31 or 2^32 elements, or 2^32 bytes. Every element is right."""
    declared(context, dtype)
    kind = _DTYPES[dtype]

    def check(count: int) -> None:
        y = context.to_device(_picks(columns, kind))
        found = _PRODUCTS[op](repeated(context, _digits(PERIOD, kind), count), y)
        want = _digits(PERIOD, kind)[:, torch.arange(columns) % 3]
        check_repeats(context, found, want, TEXT, at=f"{count:,} x {columns:,}")

    at_each_size(context, check, rows, "rows", sizes=(rows - 1, rows, rows + 1))


@cases("layout.large", over={op: (op,) for op in ("bmm", "matmul")}, variants=_LARGE_BATCHES, memory=_memory, **WHOLE)  # fmt: skip
def large_batches(context: CaseContext, op: str, dtype: str, columns: int, rows: int) -> None:
    """About 65,536 matrices of 32 rows are multiplied in a batch, so that the results together have slightly fewer
    than, exactly, and more than 2^31 or 2^32 elements. One operand is a transposed view. Every element is right."""
    declared(context, dtype)
    kind, width = _DTYPES[dtype], columns // 32

    def check(count: int) -> None:
        # Row r of matrix i has the digits of i * 5 + r.
        lines = _digits(PERIOD * 5 + 32, kind).unfold(0, 32, 5)[:PERIOD]
        x = repeated(context, lines.contiguous(), count).transpose(1, 2)
        y = context.to_device(_picks(width, kind)).expand(count, 3, width)
        found = getattr(torch, op)(x, y)
        want = lines.transpose(1, 2)[:, :, torch.arange(width) % 3]
        check_repeats(context, found, want, TEXT, at=f"{count:,} matrices")

    at_each_size(context, check, rows, "matrices", sizes=(rows - 1, rows, rows + 1))


#: Each makes one number of each square of 8 x 8 elements.
_SHRINKS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "nn.functional.max_pool2d": lambda x: functional.max_pool2d(x, 8),
    "nn.functional.avg_pool2d": lambda x: functional.avg_pool2d(x, 8),
    "nn.functional.max_pool3d": lambda x: functional.max_pool3d(x[None], (1, 8, 8))[0],
    "nn.functional.conv2d": lambda x: functional.conv2d(
        x, torch.ones(1, 1, 1, 1, dtype=x.dtype, device=x.device), stride=8
    ),
    "nn.functional.interpolate": lambda x: functional.interpolate(x, scale_factor=0.125),
}


@cases(
    "layout.large",
    over={op: (op,) for op in _SHRINKS},
    variants={"2^31 elements of the input": (2**15,)},
    memory=lambda op, columns: (2**16 + 8) * columns * (7 if op.endswith("conv2d") else 2) + 2**30,
    **WHOLE,
)
def shrunk_image(context: CaseContext, op: str, columns: int) -> None:
    """An image of 65,528, 65,536 and 65,544 rows and 32,768 columns (slightly fewer than, exactly, and more than 2^31
    elements) is reduced to an eighth of its height and width. Every element of the result is right."""
    declared(context, "bfloat16")
    call = _SHRINKS[op]

    def check(count: int) -> None:
        lines = _digits(PERIOD, torch.bfloat16)[:, :1].repeat(1, columns)
        lines[:, ::8] += 1
        image = repeated(context, lines, count)
        found = call(image[None, None])[0, 0]
        want = call(lines.repeat(8, 1)[None, None])[0, 0]
        at = f"{count:,} x {columns:,}"
        check_repeats(context, found, want, TEXT, at=at, rtol=2**-7)

    at_each_size(context, check, 2**16, "rows", 512, (2**16 - 8, 2**16, 2**16 + 8))


@cases("layout.large", over={"softmax": ()}, variants={"2^24 elements of a row": (2**24,)}, memory=lambda limit: most(limit) * 10, **MORE)  # fmt: skip
@cases("layout.large", over={"softmax": ()}, variants={"2^31 elements of a row": (2**31,)}, memory=lambda limit: most(limit) * 10, **WHOLE)  # fmt: skip
def one_row(context: CaseContext, limit: int) -> None:
    """softmax reads one bfloat16 row with slightly fewer than, exactly, and more than 2^24 or 2^31 elements. The last
    element and one near the limit are 8, all others are 0. The results at these two places are the largest, and all
    others are equal."""
    declared(context, "bfloat16")

    def check(count: int) -> None:
        x = torch.zeros(count, dtype=torch.bfloat16, device=context.device)
        marked = sorted({count - 1, min(count, limit) - 3})
        for place in marked:
            x[place] = 8
        found = x.softmax(0)
        del x
        e = torch.tensor(8.0, dtype=torch.float64).exp().item()
        rest = 1 / (count - len(marked) + len(marked) * e)
        for start, length in pieces(count, 2**22):
            want = torch.full((length,), rest, dtype=torch.float32)
            for place in marked:
                if start <= place < start + length:
                    want[place - start] = rest * e
            part = context.from_device(found[start : start + length]).float()
            at = f"{count:,} elements"
            check_piece(context, part, want, TEXT, at, start, rtol=2**-6)

    at_each_size(context, check, limit, "elements", sizes=around(limit)[:3])


_COLUMNS: dict[str, Callable[[torch.Tensor, tuple[int, int]], torch.Tensor]] = {
    "nn.functional.fold": lambda x, size: functional.fold(x.view(1, 1, -1), size, 1)[0, 0],
    "nn.functional.unfold": lambda x, size: functional.unfold(x.view(1, 1, *size), 1)[0, 0].view(size),
}  # fmt: skip

#: Rows and columns of an image, just below, at, and past 2^32 elements.
_IMAGES = {rows * columns: (rows, columns) for rows, columns in ((65535, 65537), (65536, 65536), (65537, 65537))}  # fmt: skip


@cases("layout.large", over={op: (op,) for op in _COLUMNS}, variants={"2^32 columns": (2**32,)}, memory=lambda op, limit: most(limit) * 2 + 2**28, **WHOLE)  # fmt: skip
def columns_of_images(context: CaseContext, op: str, limit: int) -> None:
    """An image of bool with slightly fewer than, exactly, and more than 2^32 elements is assembled from its columns
    (fold, col2im) or cut into columns (unfold, im2col), with a kernel of one element. Every element must be right."""
    declared(context, "bool")
    shapes = {**_IMAGES, 67 * 509: (67, 509)}

    def check(count: int) -> None:
        rows, columns = shapes[count]
        lines = torch.arange(PERIOD)[:, None] * 7 + torch.arange(columns)
        lines = (lines % PERIOD % 11 < 5).to(torch.bool)
        found = _COLUMNS[op](repeated(context, lines, rows), (rows, columns))
        check_repeats(context, found, lines, TEXT, at=f"{rows:,} x {columns:,}")

    at_each_size(context, check, limit, "columns", 67 * 509, tuple(_IMAGES))
