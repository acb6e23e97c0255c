"""Cases of the clause precision.sparse_and_quantized about quantized operands: products of matrices whose operands are int8, packed int4 or float8.

The operands are small whole numbers and the scales are powers of two, so that the dequantised weights, all products and
all sums are exact in each format in which a device may compute them. The references are computed in float64 from the
dequantised operands, and a result may differ by the rounding to its dtype only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from devices.failure import Kind

cases = Cases(Kind.VALUES)

_NEEDS: dict[str, Any] = {"requires": {"quantized_products"}}

_FLOATS = (torch.bfloat16, torch.float16, torch.float32)


def _whole(seed: int, low: int, high: int, *shape: int) -> torch.Tensor:
    """Draws whole numbers from ``low`` to ``high`` as int32."""
    made = torch.Generator().manual_seed(seed)
    return torch.randint(low, high + 1, shape, generator=made, dtype=torch.int32)


def _powers(seed: int, *shape: int) -> torch.Tensor:
    """Draws powers of two from 1/4 to 2 in float32."""
    return torch.exp2(_whole(seed, -2, 1, *shape).float())


class _Products:
    """Compares products with their references, and collects the names of the products that the device does not
    implement."""

    def __init__(self, context: CaseContext) -> None:
        self.context = context
        self.refused: list[str] = []
        self.tried = 0

    def judge(self, name: str, call: Callable[[], torch.Tensor], want: torch.Tensor) -> None:
        """``want`` is the exact product in float64."""
        self.tried += 1
        try:
            found = call()
        except NotImplementedError:
            self.refused.append(name)
            return
        text = f"{name} differs from the product of the dequantised operands"
        error = torch.finfo(found.dtype).eps if found.is_floating_point() else 0.0
        self.context.assert_close(found.double().cpu(), want, text, "", rtol=error, atol=0.0)

    def end(self) -> None:
        """Notes what is not implemented. Raises NotImplementedError if nothing is."""
        if len(self.refused) == self.tried:
            raise NotImplementedError(f"the device implements none of: {', '.join(self.refused)}")
        if self.refused:
            names = dict.fromkeys(each.partition(" of ")[0] for each in self.refused)
            self.context.note(f"the device does not implement: {', '.join(names)}")


#: Rows, terms and columns. Devices ask for more than 16 rows, and for multiples of 8 or 16 of the others.
_SIZES = ((17, 64, 16), (33, 128, 48), (100, 1024, 32))


@cases("precision.sparse_and_quantized", **_NEEDS)
def int_mm(context: CaseContext) -> None:
    """torch._int_mm of int8 matrices, with the second one stored by rows and by columns, is the exact product in int32, also
    of the largest and smallest int8 numbers, whose sums need more than 24 bits."""
    products = _Products(context)
    for number, (rows, terms, columns) in enumerate((*_SIZES, (20, 2048, 24))):
        x = _whole(number, -128, 127, rows, terms).to(torch.int8)
        x[0], x[1] = 127, -128
        y = _whole(50 + number, -128, 127, terms, columns).to(torch.int8)
        y[:, 0], y[:, 1], y[0, 1] = -128, 127, 126  # one sum is odd, and above 2^24
        want, there = x.double() @ y.double(), context.to_device(x)
        by_rows, by_columns = context.to_device(y), context.to_device(y.t().contiguous()).t()
        size = f"{rows} x {terms} x {columns}"
        for form, other in (("by rows", by_rows), ("by columns", by_columns)):
            name = f"_int_mm of {size}, the second operand stored {form}"
            products.judge(name, partial(torch._int_mm, there, other), want)
    products.end()


@cases("precision.sparse_and_quantized", **_NEEDS)
def int8pack(context: CaseContext) -> None:
    """torch._weight_int8pack_mm, with int8 weights and a scale for each output, is the product with the dequantised weights,
    in bfloat16, float16 and float32."""
    products = _Products(context)
    for number, (rows, terms, columns) in enumerate(_SIZES):
        x = _whole(number, -4, 4, rows, terms)
        weight = _whole(60 + number, -128, 127, columns, terms)
        scales = _powers(70 + number, columns)
        want = x.double() @ (weight.double() * scales.double()[:, None]).t()
        for dtype in _FLOATS:
            operands = [context.to_device(each) for each in (x.to(dtype), weight.to(torch.int8), scales.to(dtype))]  # fmt: skip
            name = f"_weight_int8pack_mm of {rows} x {terms} x {columns} in {dtype}"
            products.judge(name, partial(torch._weight_int8pack_mm, *operands), want)
    products.end()


def _int4_for_cpu(x: Any, weight: Any, group: int, scales: Any) -> torch.Tensor:
    packed = torch._convert_weight_to_int4pack_for_cpu(weight, 8)
    return torch._weight_int4pack_mm_for_cpu(x, packed, group, scales)


def _int4(x: Any, weight: Any, group: int, scales: Any) -> torch.Tensor:
    pairs = (weight[:, ::2] << 4 | weight[:, 1::2]).to(torch.uint8)
    packed = torch._convert_weight_to_int4pack(pairs, 8)
    return torch._weight_int4pack_mm(x, packed, group, scales)


@cases("precision.sparse_and_quantized", **_NEEDS)
def int4pack(context: CaseContext) -> None:
    """torch._weight_int4pack_mm, or its form for the CPU, with packed int4 weights, and a scale and a zero point for each
    group of 32, 64 or 128 terms, is the product with the dequantised weights."""
    products = _Products(context)
    for number, (rows, terms, columns) in enumerate(((1, 128, 16), (19, 256, 64))):
        for group in (32, 64, 128):
            x = _whole(number, -2, 2, rows, terms)
            weight = _whole(80 + number, 0, 15, columns, terms)
            scales = _powers(90 + number, terms // group, columns)
            zeros = _whole(95 + number, -3, 3, terms // group, columns).float()
            spread = [each.t().double().repeat_interleave(group, 1) for each in (scales, zeros)]
            want = x.double() @ ((weight.double() - 8) * spread[0] + spread[1]).t()
            both = torch.stack((scales, zeros), -1).bfloat16()
            operands = [context.to_device(each) for each in (x.bfloat16(), weight, both)]
            for name, product in (("_weight_int4pack_mm", _int4), ("_weight_int4pack_mm_for_cpu", _int4_for_cpu)):  # fmt: skip
                about = f"{name} of {rows} x {terms} x {columns} in groups of {group}"
                given = (operands[0], operands[1], group, operands[2])
                products.judge(about, partial(product, *given), want)
    products.end()


def _scaled(operands: tuple[torch.Tensor, ...], bias: Any, out_dtype: torch.dtype) -> torch.Tensor:
    x, y, of_x, of_y = operands
    return torch._scaled_mm(x, y, of_x, of_y, bias=bias, out_dtype=out_dtype)


_F8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_PAIRS = {"e4m3": (_F8[0], _F8[0]), "e4m3_and_e5m2": _F8}


@cases("precision.sparse_and_quantized", **_NEEDS, over={f"scaled_mm_of_{name}": pair for name, pair in {n: (n,) for n in _PAIRS}.items()})  # fmt: skip
def scaled_mm(context: CaseContext, pair: str) -> None:
    """torch._scaled_mm of float8 matrices is the product of the scaled operands, with a scale for each operand or for each
    row and column, with and without a bias, for each out_dtype."""
    products = _Products(context)
    for number, (rows, terms, columns) in enumerate(((16, 64, 16), (48, 128, 32))):
        x = _whole(number, -4, 4, rows, terms)
        y = _whole(30 + number, -4, 4, columns, terms)
        bias = _whole(40 + number, -8, 8, columns)
        first, second = (
            context.to_device(each.float().to(dtype)) for each, dtype in zip((x, y), _PAIRS[pair])
        )
        rowwise = (_powers(41 + number, rows, 1), _powers(42 + number, 1, columns))
        for form, (one, other) in {
            "a scale for each operand": (torch.tensor(0.5), torch.tensor(2.0**-3)),
            "a scale for each row and column": rowwise,
        }.items():
            want = (x.double() * one.double()) @ (y.t().double() * other.double())
            scales = [context.to_device(each) for each in (one, other)]
            for out in _FLOATS:
                for added in (None, bias):
                    total = want if added is None else want + added.double()
                    given = None if added is None else context.to_device(added.to(out))
                    name = f"_scaled_mm of {rows} x {terms} x {columns} in {out} with {form}"
                    name += "" if added is None else " and a bias"

                    operands = (first, second.t(), *scales)
                    products.judge(name, partial(_scaled, operands, given, out), total)
    products.end()
