"""Comparison of results with their reference: bit-equal first, within tolerance second."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from opinfo.structure import tensors_of

#: (rtol, atol) by dtype, as ``torch.testing.assert_close`` documents them
#: (https://docs.pytorch.org/docs/stable/testing.html). Other dtypes must be equal.
DEFAULT_TOLERANCES: dict[str, tuple[float, float]] = {
    "float16": (1e-3, 1e-5),
    "bfloat16": (1.6e-2, 1e-5),
    "float32": (1.3e-6, 1e-5),
    "float64": (1e-7, 1e-7),
    "complex32": (1e-3, 1e-5),
    "complex64": (1.3e-6, 1e-5),
    "complex128": (1e-7, 1e-7),
}


#: dtypes that ``torch.equal`` implements on the CPU; the others take the long way.
_COMPARABLE = frozenset(
    {
        torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16,
        torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Difference:
    """Why two results differ. ``error`` is the largest absolute difference, where there is one."""

    text: str
    error: float | None = None


#: How many roundings at the size of its largest element a sum of many terms may be off by.
SUM_ROUNDINGS = 4.0


def difference(
    actual: Any,
    expected: Any,
    tolerances: dict[str, tuple[float, float]],
    *,
    roundings: float = 0.0,
) -> Difference | None:
    """How ``actual`` (on the CPU) differs from ``expected``, or None. NaN equals NaN.

    ``tolerances`` maps dtype names to (rtol, atol); a dtype that it lacks must be equal bit for bit
    (but for the bits of NaN). With ``roundings`` each element may also be off by that many rtol of the
    largest element: where terms cancel, the rounding of a sum is that of its terms.
    """
    if isinstance(actual, torch.Tensor) and isinstance(expected, torch.Tensor):
        return tensor_difference(actual, expected, tolerances, roundings=roundings)
    got, want = tensors_of(actual), tensors_of(expected)
    if len(got) != len(want):
        return Difference(f"{len(want)} tensors expected, {len(got)} came")
    for place, (a, e) in enumerate(zip(got, want, strict=True)):
        found = tensor_difference(a, e, tolerances, roundings=roundings)
        if found is not None:
            prefix = f"output {place}: " if len(got) > 1 else ""
            return Difference(prefix + found.text, found.error)
    if not want and not _same_plain(actual, expected):
        return Difference(f"expected {expected!r}, got {actual!r}")
    return None


def tensor_difference(
    actual: torch.Tensor,
    expected: torch.Tensor,
    tolerances: dict[str, tuple[float, float]],
    *,
    roundings: float = 0.0,
) -> Difference | None:
    """The same for one pair of tensors on the CPU."""
    if (
        actual.dtype == expected.dtype
        and actual.dtype in _COMPARABLE
        and actual.layout == expected.layout == torch.strided
        and torch.equal(actual, expected)  # False where shapes differ
    ):
        return None
    if actual.dtype != expected.dtype:
        return Difference(f"dtype {expected.dtype} expected, {actual.dtype} came")
    if actual.shape != expected.shape:
        return Difference(f"shape {tuple(expected.shape)} expected, {tuple(actual.shape)} came")
    if actual.layout != torch.strided or expected.layout != torch.strided:
        if actual.layout != expected.layout:
            return Difference(f"layout {expected.layout} expected, {actual.layout} came")
        actual, expected = actual.to_dense(), expected.to_dense()
    if actual.dtype.itemsize == 1 and actual.dtype.is_floating_point:  # torch.equal lacks float8
        actual, expected = actual.float(), expected.float()
    rtol, atol = tolerances.get(str(expected.dtype).removeprefix("torch."), (0.0, 0.0))
    if actual.dtype == torch.complex32:  # torch.equal lacks it too
        actual, expected = actual.to(torch.complex64), expected.to(torch.complex64)
    if torch.equal(actual, expected):
        return None
    if actual.dtype in (torch.uint16, torch.uint32, torch.uint64):  # no comparison kernels
        wrong = int((actual.view(torch.uint8) != expected.view(torch.uint8)).any(-1).sum())
        return Difference(f"{wrong} of {actual.numel()} elements differ")
    if roundings and rtol:
        atol = max(atol, roundings * rtol * _largest(expected))
    close = torch.isclose(actual, expected, rtol=rtol, atol=atol, equal_nan=True)
    if bool(close.all()):
        return None
    wrong = int((~close).sum())
    where = tuple((~close).nonzero()[0].tolist())
    error = _largest_error(actual, expected, close)
    return Difference(
        f"{wrong} of {actual.numel()} elements differ; first at {list(where)}: "
        f"expected {expected[where].item()!r}, got {actual[where].item()!r}",
        error,
    )


def bit_equal(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two CPU tensors hold the same bits: NaN at the same places, and zeros of the same sign."""
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    numbers = left.dtype != torch.bool and not left.is_floating_point() and not left.is_complex()
    if numbers:  # equal values are equal bits
        return torch.equal(left, right)
    return torch.equal(_bytes(left), _bytes(right))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    # Not contiguous(): it returns a one-element tensor as it is, whatever its stride.
    flat = tensor.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    return flat.view(-1).view(torch.uint8)


def _largest(tensor: torch.Tensor) -> float:
    sizes = tensor.abs()
    finite = sizes[sizes.isfinite()]
    return float(finite.max()) if finite.numel() else 0.0


def _largest_error(
    actual: torch.Tensor, expected: torch.Tensor, close: torch.Tensor
) -> float | None:
    if actual.dtype == torch.bool:
        return None
    wide = torch.complex128 if actual.is_complex() else torch.float64
    gap = (actual.to(wide) - expected.to(wide)).abs()[~close]
    finite = gap[gap.isfinite()]
    return float(finite.max()) if finite.numel() else None


def _same_plain(actual: Any, expected: Any) -> bool:
    if isinstance(expected, (list, tuple)) and isinstance(actual, (list, tuple)):
        return len(actual) == len(expected) and all(
            _same_plain(a, e) for a, e in zip(actual, expected, strict=True)
        )
    if isinstance(expected, float) and isinstance(actual, float):
        return actual == expected or (actual != actual and expected != expected)
    return bool(type(actual) is type(expected) and actual == expected)
