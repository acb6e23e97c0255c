"""Functions that compute errors in units in the last place (ulps), and the inputs on which elementwise functions are
called. The module needs only torch, because repro scripts contain copies of its functions."""

from __future__ import annotations

from typing import Any, Final

import torch

#: For each dtype: bits of precision, and the exponents of the smallest normal and of the largest finite number.
FORMATS: Final = {"float32": (24, -126, 127), "bfloat16": (8, -126, 127), "float16": (11, -14, 15)}

#: Number of float32 inputs in each of the 256 binades of each sign.
IN_A_BINADE: Final = 128
#: Number of random fractions with which each two exponents of a 16-bit dtype meet, at most, and the number of pairs.
_FRACTIONS, _PAIRS = 16, 2**16
#: The mantissas of both ends of a binade, and of its middle.
_ENDS: Final = (0, 1, 2**22, 2**23 - 1)


def inputs(dtype: str, seed: int = 0, interval: tuple[float, float] | None = None) -> torch.Tensor:
    """Return the values on which an elementwise function is called.

    For a 16-bit dtype, the values are all numbers of the dtype except signalling NaN. For float32, they are 2^16
    values: both ends and the middle of each binade of each sign, and random values between. They include NaN,
    infinities, zeros and subnormals. A different seed gives a different order, but one value in 32 keeps its place, so
    operands drawn with two seeds are equal at these places.

    Values outside ``interval`` are replaced by random values inside it, spread over the binades if the interval is
    positive. Seven values are appended, so that the length is not a multiple of a vector size and kernels also run
    their code for the remainder.
    """
    source = torch.Generator().manual_seed(seed)
    if dtype == "float32":
        mantissas = torch.randint(0, 2**23, (512, IN_A_BINADE), generator=source)
        mantissas[:, : len(_ENDS)] = torch.tensor(_ENDS)
        bits = (mantissas + (torch.arange(512) << 23)[:, None]).to(torch.int32).flatten()
    else:
        bits = torch.arange(2**16).to(torch.int16)
    if seed:
        places = torch.arange(len(bits))
        places = places[places % IN_A_BINADE >= len(_ENDS)]
        bits[places] = bits[places[torch.randperm(len(places), generator=source)]]
    found = _inside(_quiet(bits, dtype), interval, source)
    return torch.cat([found, found[-(2**14) :: 2**11][:7]])


def operand_values(
    dtype: str, count: int, interval: tuple[float, float] | None = None
) -> list[torch.Tensor]:
    """Return the values of each operand of an elementwise function with ``count`` operands: those of :func:`inputs`. For two
    operands of a 16-bit dtype, all pairs of exponents follow, each with several random fractions and signs, so that sums meet
    each alignment of the two operands, and products and quotients each place relative to overflow and underflow."""
    found = [inputs(dtype, seed, interval) for seed in range(count)]
    if count != 2 or dtype == "float32":
        return found
    source = torch.Generator().manual_seed(count)
    digits = FORMATS[dtype][0] - 1  # the bits of a fraction
    exponents = torch.arange(2 ** (15 - digits))
    times = min(_FRACTIONS, _PAIRS // len(exponents) ** 2)
    places = exponents.repeat_interleave(len(exponents)), exponents.repeat(len(exponents))
    for number, each in enumerate(places):
        whole = each.repeat(times)
        fractions = torch.randint(0, 2**digits, whole.shape, generator=source)
        signs = torch.randint(0, 2, whole.shape, generator=source)
        bits = (signs << 15 | whole << digits | fractions).to(torch.int16)
        pairs = _inside(_quiet(bits, dtype), interval, source)
        found[number] = torch.cat([pairs, found[number]])
    return found


def _quiet(bits: torch.Tensor, dtype: str) -> torch.Tensor:
    """Return the numbers with these bits, in which every NaN is made quiet: the result of fmax for a signalling NaN depends on
    the C library, and programs have none."""
    found = bits.view(getattr(torch, dtype))
    bits[found.isnan()] |= 1 << (FORMATS[dtype][0] - 2)
    return found


def _inside(
    found: torch.Tensor, interval: tuple[float, float] | None, source: torch.Generator
) -> torch.Tensor:
    """Return the values with those outside of the interval replaced by random values inside."""
    if interval is None:
        return found
    limits = torch.finfo(found.dtype)
    low, high = max(interval[0], limits.min), min(interval[1], limits.max)
    drawn = torch.rand(len(found), generator=source, dtype=torch.float64)
    drawn = low * (high / low) ** drawn if low > 0 else low + (high - low) * drawn
    inside = (found >= low) & (found <= high)
    return torch.where(inside, found, drawn.to(found.dtype).clamp(low, high))


def ulps(got: torch.Tensor, want: torch.Tensor, dtype: str) -> torch.Tensor:
    """Return the error of each element of ``got`` against ``want`` (float64), in units in the last place of ``want`` in
    the dtype.

    The unit is clamped at the smallest normal number, and an infinity counts as the power of two after the largest
    finite number (as the Khronos conformance tests of OpenCL do). If both elements are NaN, the error is 0; if only one
    of them is NaN, the error is infinite.
    """
    digits, lowest, highest = FORMATS[dtype]
    top = 2.0 ** (highest + 1)
    wide, clamped = got.double().clamp(-top, top), want.clamp(-top, top)
    exponents = torch.frexp(clamped).exponent.sub_(1).clamp_(lowest, highest)
    found = torch.ldexp((wide - clamped).abs_(), (digits - 1) - exponents)
    return torch.where(got.isnan() == want.isnan(), found.nan_to_num_(nan=0.0), torch.inf)


def allowed(
    want: torch.Tensor, operands: list[torch.Tensor], dtype: str, limit: dict[str, Any]
) -> torch.Tensor | float:
    """Return the largest allowed error of each element, in ulps of the result. The error is the sum of the limit's
    ``ulps``, ``absolute`` (an absolute error) and ``of_operand`` (ulps of the largest operand), where the last two are
    converted to ulps of the result. ``absolute`` and ``of_operand`` are for functions that lose digits by cancellation,
    or near an argument other than 0 for which the function is 0."""
    bound: float = limit["ulps"]
    if not limit.get("absolute") and not limit.get("of_operand"):
        return bound
    digits, lowest, highest = FORMATS[dtype]

    def exponents(value: torch.Tensor) -> torch.Tensor:
        top = 2.0 ** (highest + 1)
        return torch.frexp(value.clamp(-top, top)).exponent.sub_(1).clamp_(lowest, highest)

    unit = torch.ldexp(torch.ones_like(want), exponents(want) - (digits - 1))
    found: torch.Tensor = bound + limit.get("absolute", 0.0) / unit
    if limit.get("of_operand"):
        largest = torch.stack([each.double().abs() for each in operands]).amax(0)
        found += (
            limit["of_operand"]
            * torch.ldexp(torch.ones_like(want), exponents(largest))
            / (unit * 2.0 ** (digits - 1))
        )
    return found


def of_the_cpu(
    alike: torch.Tensor,
    got: torch.Tensor,
    want: torch.Tensor,
    operands: list[torch.Tensor],
    dtype: str,
    bound: torch.Tensor | float,
) -> torch.Tensor:
    """Return the largest allowed error of each element, in ulps, for a function that replaces an op and need not be more
    precise than torch's own op, whose result on the CPU is ``alike``.

    In a binade of the largest operand in which torch's errors stay within ``bound``, this is ``bound``. In any other
    binade, up to twice torch's largest absolute error in the binade is allowed. An infinite error of torch, such as an
    early overflow, is allowed only where ``got`` has the same value.
    """
    digits, lowest, highest = FORMATS[dtype]
    base = torch.zeros_like(want) + bound
    own = ulps(alike, want, dtype)
    top = 2.0 ** (highest + 1)
    scale = torch.frexp(want.clamp(-top, top)).exponent.sub_(1).clamp_(lowest, highest)
    scale = scale - (digits - 1)
    wide = torch.stack([each.double().nan_to_num(0.0) for each in operands])
    largest = wide.gather(0, wide.abs().argmax(0, keepdim=True))[0]
    binade = torch.frexp(largest).exponent.long().clamp_(-1200, 1200) * 2 + (largest < 0)
    groups = (binade - binade.min()).long()
    beyond = torch.where((own > base) & own.isfinite(), torch.ldexp(own, scale), 0.0)
    worst = torch.zeros(int(groups.max()) + 1, dtype=torch.float64)
    worst.scatter_reduce_(0, groups, beyond, "amax")
    found = torch.maximum(base, torch.ldexp(2 * worst[groups], -scale))
    same = (got == alike) | (got.isnan() & alike.isnan())
    return torch.where(same & (own > base), torch.maximum(found, own), found)


def flushed(value: torch.Tensor, dtype: str) -> torch.Tensor:
    """Return the values with subnormal numbers of the dtype replaced by zeros of the same sign."""
    smallest = 2.0 ** FORMATS[dtype][1]
    return torch.where(value.abs() < smallest, value * 0, value)
