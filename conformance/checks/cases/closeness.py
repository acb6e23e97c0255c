"""Compares two tensors within tolerances, and describes the difference in words.

Repro scripts contain a copy of this module.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from devices.failure import Difference


@dataclass(frozen=True, slots=True)
class NotClose:
    """The elements that differ by more than the tolerances. ``expected`` and ``found`` are texts about the element with
    the largest difference."""

    expected: str
    found: str
    where: Difference


def differences(
    found: torch.Tensor,
    want: torch.Tensor,
    *,
    rtol: float = 0.0,
    atol: float | torch.Tensor = 0.0,
    equal_nan: bool = False,
) -> NotClose | None:
    """Compares two CPU tensors of the same shape, which may have different dtypes. Returns None if all elements are
    close.

    An element is close if it equals the expected one or if ``|found - want| <= atol + rtol * |want|``, computed in
    float64. An infinity is close only to itself. NaN is close only to NaN, and only if ``equal_nan`` is True. ``atol``
    may be a tensor, with a number for each element; an element with an infinite tolerance must be equal.
    """
    if not found.numel():
        return None
    mine, theirs = _wide(found), _wide(want)
    apart = (mine - theirs).abs()
    inexact = any(each.is_floating_point() or each.is_complex() for each in (found, want))
    if not inexact:  # float64 does not tell all integers beyond 2**53 apart
        apart = torch.where(found.long() == want.long(), 0.0, apart.clamp(min=1.0))
    allowed = atol + rtol * theirs.abs()
    close = (apart <= allowed) & (allowed < torch.inf)
    if bool(close.all()):
        return None
    close |= mine == theirs if inexact else apart == 0
    if equal_nan:
        close |= mine.isnan() & theirs.isnan()
    if bool(close.all()):
        return None
    worst = _worst(apart, close)
    each_its_own = isinstance(atol, torch.Tensor)
    tolerances = f"rtol {rtol:g}, atol {atol:g}" if rtol and not each_its_own else ""
    return NotClose(
        _expected(want[worst].item(), worst, float(allowed[worst]), tolerances),
        _found(found[worst].item(), float(apart[worst])),
        _where(apart, ~close),
    )


def largest(tensor: torch.Tensor) -> float:
    """Returns the largest absolute value of the finite elements; 0.0 if there are none."""
    sizes = _wide(tensor).abs()
    sizes = sizes[sizes.isfinite()]
    return float(sizes.max()) if sizes.numel() else 0.0


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.complex128) if tensor.is_complex() else tensor.double()


def _worst(apart: torch.Tensor, close: torch.Tensor) -> tuple[int, ...]:
    """Returns the index of the element with the largest difference. NaN and infinity are larger than all numbers."""
    sizes = apart.masked_fill(~apart.isfinite(), torch.inf).masked_fill(close, -1.0)
    return tuple((sizes == sizes.max()).nonzero()[0].tolist())


def _where(apart: torch.Tensor, wrong: torch.Tensor) -> Difference:
    first = tuple(wrong.nonzero()[0].tolist())
    numbers = apart[wrong & apart.isfinite()]
    error = float(numbers.max()) if numbers.numel() else None
    return Difference(int(wrong.sum()), wrong.numel(), first, error)


def _expected(number: object, place: tuple[int, ...], allowed: float, tolerances: str) -> str:
    text = _number(number)
    if place:
        text += f" at index {list(place)}"
    if 0 < allowed < torch.inf:
        text += f", with a tolerance of {allowed:.3g}"
    return f"{text} ({tolerances})" if tolerances else text


def _found(number: object, apart: float) -> str:
    finite = apart < torch.inf  # False for NaN
    return _number(number) + (f", the largest difference is {apart:.3g}" if finite else "")


def _number(number: object) -> str:
    return f"{number:.9g}" if isinstance(number, (float, complex)) else repr(number)
