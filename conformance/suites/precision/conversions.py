"""Cases of the clause precision.conversions: conversions between floating-point dtypes, for every number of the 8-bit and
16-bit dtypes and around every number of the narrower dtype.

The expected values are computed here in float64 from the formats of the dtypes, so that the CPU's own conversions are
checked, too.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.exceptions import NotDeclared
from devices.failure import Kind

cases = Cases(Kind.VALUES)


class Format(NamedTuple):
    """A binary floating-point format: bits of precision (with the leading one), the exponents of the smallest normal number and
    of the largest number, the largest number, and what a number beyond it becomes. ``may_saturate`` is True if such a number,
    and infinity, may also become the largest number. ``signed_zero`` is False for a dtype without -0."""

    digits: int
    lowest: int
    largest: float
    overflow: float
    may_saturate: bool = False
    signed_zero: bool = True


_INF, _NAN = float("inf"), float("nan")

#: The formats by dtype (torch/headeronly/util/Float8_*.h). "FP8 Formats for Deep Learning", arXiv 2209.05433, leaves the choice
#: between saturation and infinity or NaN; torch's CPU saturates float8_e4m3fn, and did not in earlier versions.
FORMATS: Final = {
    "float8_e4m3fn": Format(4, -6, 448.0, _NAN, may_saturate=True),
    "float8_e4m3fnuz": Format(4, -7, 240.0, _NAN, may_saturate=True, signed_zero=False),
    "float8_e5m2": Format(3, -14, 57344.0, _INF, may_saturate=True),
    "float8_e5m2fnuz": Format(3, -15, 57344.0, _NAN, may_saturate=True, signed_zero=False),
    "float16": Format(11, -14, 65504.0, _INF),
    "bfloat16": Format(8, -126, (2 - 2**-7) * 2.0**127, _INF),
    "float32": Format(24, -126, (2 - 2**-23) * 2.0**127, _INF),
    "float64": Format(53, -1022, (2 - 2**-52) * 2.0**1023, _INF),
}


def rounded(values: torch.Tensor, dtype: str) -> torch.Tensor:
    """Returns float64 numbers rounded to the format of a dtype: to the nearest number, and to the even one of two that are as
    near. What lies beyond the largest number is infinity or NaN, as the format says."""
    known = FORMATS[dtype]
    exponent = torch.frexp(values).exponent.to(torch.int64) - 1
    exponent = exponent.clamp(known.lowest) - (known.digits - 1)
    unit = torch.ldexp(torch.ones_like(values), exponent)
    # round() takes the even one of two; the quotient is exact.
    made = torch.where(values.isfinite(), (values / unit).round() * unit, values)
    beyond = (made.abs() > known.largest) & ~values.isnan()
    made = torch.where(beyond, torch.copysign(torch.tensor(known.overflow), values), made)
    return made if known.signed_zero else torch.where(made == 0, 0.0, made)


def numbers_of(dtype: str) -> torch.Tensor:
    """Returns every number of an 8-bit or 16-bit dtype, by its bits, as a tensor of the dtype on the CPU."""
    kind = getattr(torch, dtype)
    if kind.itemsize == 1:
        return torch.arange(256, dtype=torch.int64).to(torch.uint8).view(kind)
    return torch.arange(2**16, dtype=torch.int64).to(torch.int16).view(kind)


def around(dtype: str, of: str) -> torch.Tensor:
    """Returns numbers of the wider dtype ``of`` (float32 or float64) around each number of the narrower ``dtype``: the numbers, the
    middle of each two neighbours, the next numbers on both sides of it, and numbers beyond the largest."""
    known, kind = FORMATS[dtype], getattr(torch, of)
    found = torch.tensor([_INF, _NAN, 0.0, -0.0], dtype=torch.float64)
    if getattr(torch, dtype).itemsize > 2:
        # Too many to name each: the first, the last and some others of each binade.
        exponents = torch.arange(known.lowest - known.digits, 128)
        parts = torch.tensor([0, 1, 2, 3, 2**22 - 1, 2**22, 2**22 + 1, 2**23 - 2, 2**23 - 1])
        grid = ((1 + parts.double()[None] / 2**23) * (2.0 ** exponents.double())[:, None]).flatten()
        grid = rounded(grid[grid <= known.largest], dtype).unique()
    else:
        grid = values_of(numbers_of(dtype), dtype)
        grid = grid[grid.isfinite() & (grid >= 0)].unique()
    step = grid[-1] - grid[-2]
    grid = torch.cat([grid, grid[-1:] + step, grid[-1:] + 4 * step])
    middles = ((grid[1:] + grid[:-1]) / 2).to(kind)
    up = torch.nextafter(middles, torch.tensor(_INF, dtype=kind))
    down = torch.nextafter(middles, torch.tensor(0.0, dtype=kind))
    positive = torch.cat([found, grid, middles.double(), up.double(), down.double()])
    return torch.cat([positive, -positive]).to(kind)


def values_of(numbers: torch.Tensor, dtype: str) -> torch.Tensor:
    """Returns the values of numbers on the CPU in float64, decoded from their bits by the format of the dtype."""
    known = FORMATS[dtype]
    if numbers.dtype.itemsize > 2:
        return numbers.double()  # whose conversion is exact, and the CPU's own instruction
    width = 8 * numbers.dtype.itemsize
    raw = numbers.view(torch.uint8 if width == 8 else torch.int16).to(torch.int64) & (2**width - 1)
    mantissa, rest = raw & (2 ** (known.digits - 1) - 1), raw >> (known.digits - 1)
    exponent = rest & (2 ** (width - known.digits) - 1)
    normal = exponent > 0
    digits = mantissa + torch.where(normal, 2 ** (known.digits - 1), 0)
    power = torch.where(normal, exponent - 1, 0) + known.lowest - (known.digits - 1)
    size = torch.ldexp(digits.double(), power)
    value = torch.where(raw >> (width - 1) > 0, -size, size)
    if not known.signed_zero:  # the bits of -0 are those of NaN, and there is no infinity
        return torch.where(raw == 2 ** (width - 1), _NAN, value)
    # What lies beyond the largest number: infinity if its mantissa is 0 and the format has infinities, else NaN.
    special = torch.where(
        (mantissa == 0) & (known.overflow == _INF), torch.copysign(torch.tensor(_INF), value), _NAN
    )
    return torch.where(size > known.largest, special, value)


def _same(found: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    """Returns where two float64 tensors are equal, with signs of zeros; NaN equals NaN."""
    alike = (found == want) & (found.signbit() == want.signbit())
    return alike | (found.isnan() & want.isnan())


@cases("precision.conversions", over={f"from_{dtype}": (dtype,) for dtype in FORMATS})
def converted(context: CaseContext, source: str) -> None:
    """Convert numbers of a dtype to each other floating-point dtype that the device declares: all numbers of a dtype of 8 or 16
    bits, or numbers around each number of the other dtype, with those that are as near to two. Each result must be the
    nearest number, the even one of two that are as near, infinity or NaN; also if the tensor has a step."""
    declared = context.descriptor.dtypes
    targets = [dtype for dtype in FORMATS if dtype in declared and dtype != source]
    if source not in declared or not targets:
        raise NotDeclared(
            f"the descriptor does not declare {source} and another floating-point dtype"
        )
    refused: list[NotImplementedError] = []
    for target in targets:
        try:
            _convert(context, source, target)
        except NotImplementedError as error:
            refused.append(error)
            context.note(f"the device does not convert {source} to {target}")
    if len(refused) == len(targets):
        raise refused[0]


def _convert(context: CaseContext, source: str, target: str) -> None:
    """Checks the conversion from one dtype to another."""
    kind, flushing = getattr(torch, target), context.descriptor.flushes_subnormals
    if getattr(torch, source).itemsize <= 2:
        given = numbers_of(source)
    else:
        wider = FORMATS[target].digits >= FORMATS[source].digits
        given = around(source if wider else target, source)
    given = torch.cat([given, given[:7]])  # so that kernels also run their code for the remainder
    values = values_of(given, source)
    # A conversion of float64 may round to float32 first, as torch's own does; then the numbers must be float32's.
    if source == "float64" and target != "float32":
        kept = (values.float().double() == values) | values.isnan()
        given, values = given[kept], values[kept]
    want, most = rounded(values, target), FORMATS[target]
    saturated = values.clamp(-most.largest, most.largest)
    if not most.may_saturate:
        saturated = want
    mask = torch.ones(len(values), dtype=torch.bool)
    for dtype, each in ((source, values), (target, want)):
        if dtype in flushing:
            mask &= (each == 0) | ~(each.abs() < 2.0 ** FORMATS[dtype].lowest)
    for step in (1, 2):
        there = context.to_device(given.repeat_interleave(step))[::step]
        found = values_of(context.from_device(there.to(kind)), target)
        beyond = (values.abs() > most.largest) & _same(found, saturated)
        beyond &= want.isnan() | want.isinf()
        wrong = (~_same(found, want) & ~beyond & mask).nonzero().flatten()
        first = int(wrong[0]) if len(wrong) else 0
        at = f"of {values[first].item()!r}" + (", in a tensor with a step of 2" if step > 1 else "")
        context.check(
            not len(wrong),
            f"the conversion from {source} to {target} is wrong ({len(wrong)} of {len(want)} numbers)",
            expected=want[first].item(),
            found=found[first].item(),
            at=at,
        )
