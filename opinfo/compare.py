"""Splits calls and results into tensors, puts them together again, and compares results: first for equal bits, then
within tolerances."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, TypeAlias

import torch

from devices.errors import in_a_line
from devices.failure import sentence

#: The types of most arguments. They cannot contain tensors.
_PLAIN = frozenset({int, float, bool, str, type(None)})


def tensors_of(value: Any) -> list[torch.Tensor]:
    """Returns all tensors in a nested structure of lists, tuples and dicts, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    found: list[torch.Tensor] = []
    _collect(value, found)
    return found


def _collect(value: Any, found: list[torch.Tensor]) -> None:
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return
    for item in value:
        if isinstance(item, torch.Tensor):
            found.append(item)
        elif type(item) not in _PLAIN:  # skips numbers, since some lists hold thousands of them
            _collect(item, found)


def outputs_of(result: Any) -> list[torch.Tensor] | None:
    """Returns the tensors of a result that ``out=`` could receive; None if the result is not a tensor or a sequence of
    strided tensors."""
    found = [result] if isinstance(result, torch.Tensor) else result
    if not isinstance(found, (tuple, list)) or not found:
        return None
    if not all(isinstance(each, torch.Tensor) and each.layout == torch.strided for each in found):
        return None
    return [each.resolve_conj().resolve_neg() for each in found]


def fits_in(target: Any, result: Any) -> bool:
    """Returns True if an in-place variant could write ``result`` into ``target``: the shapes are equal, and the
    dtype of the result can be cast to that of the target."""
    tensors = isinstance(target, torch.Tensor) and isinstance(result, torch.Tensor)
    return tensors and result.shape == target.shape and torch.can_cast(result.dtype, target.dtype)


def replace_tensors(value: Any, swap: Callable[[torch.Tensor], Any]) -> Any:
    """Returns a copy of a structure with ``swap`` applied to each tensor, in the order of :func:`tensors_of`."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, torch.Tensor):
        return swap(value)
    if isinstance(value, tuple):
        items = [replace_tensors(item, swap) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, list):
        return [replace_tensors(item, swap) for item in value]
    if isinstance(value, dict):
        return {key: replace_tensors(item, swap) for key, item in value.items()}
    return value


def on_device(kwargs: dict[str, Any], device: torch.device | str) -> dict[str, Any]:
    """Returns keyword arguments that were made for the CPU, with ``device=`` replaced by the given device."""
    if "device" in kwargs and kwargs["device"] is not None:
        return {**kwargs, "device": torch.device(device)}
    return kwargs


def _on(given: Any, device: torch.device) -> Any:
    return device if isinstance(given, torch.device) else given


class Arguments:
    """The positional and keyword arguments of a call, separated from the tensors in them.

    ``bind(tensors)`` returns the arguments with other tensors at the same positions.
    """

    __slots__ = (
        *("_form", "_holding", "_in_kwargs", "_names_device", "_places"),
        *("args", "kwargs", "tensors"),
    )

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.args = args
        self.kwargs = kwargs
        held, in_kwargs = [tensors_of(a) for a in args], tensors_of(kwargs)
        self.tensors = [*chain.from_iterable(held), *in_kwargs]
        # Arguments without tensors are passed on without a copy, since lists of thousands of numbers are common.
        self._places = [n for n, a in enumerate(args) if isinstance(a, torch.Tensor)]
        self._holding = frozenset(n for n, each in enumerate(held) if each)
        self._in_kwargs = bool(in_kwargs)
        self._names_device = any(isinstance(each, torch.device) for each in args)
        self._form: str | None = None

    @property
    def form(self) -> str:
        """The arguments as text, with ``tensor`` in place of each tensor."""
        if self._form is None:
            self._form = repr(replace_tensors((self.args, self.kwargs), lambda _: "tensor"))
        return self._form

    def on(
        self, tensors: list[torch.Tensor], device: torch.device
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the arguments with other tensors, for a call on ``device``: if the call names a device, that device
        is replaced too."""
        args, kwargs = self.bind(tensors)
        if self._names_device:
            # On a machine with an accelerator, some samples of `to` in the database name that device.
            args = tuple(_on(each, device) for each in args)
        return args, on_device(kwargs, device)

    def bind(self, tensors: list[torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the arguments with ``tensors`` in place of the call's own tensors, in order."""
        if not self._in_kwargs and len(self._places) == len(self.tensors):
            given = list(self.args)
            for place, tensor in zip(self._places, tensors, strict=True):
                given[place] = tensor
            return tuple(given), self.kwargs
        feed = iter(tensors)

        def swap(_: torch.Tensor) -> torch.Tensor:
            return next(feed)

        args = tuple(
            replace_tensors(a, swap) if n in self._holding else a for n, a in enumerate(self.args)
        )
        return args, replace_tensors(self.kwargs, swap) if self._in_kwargs else self.kwargs


Tolerances: TypeAlias = dict[str, tuple[float, float]]

#: (rtol, atol) by dtype, as ``torch.testing.assert_close`` documents them
#: (https://docs.pytorch.org/docs/stable/testing.html). Other dtypes must be equal.
DEFAULT_TOLERANCES: Tolerances = {
    "float16": (1e-3, 1e-5),
    "bfloat16": (1.6e-2, 1e-5),
    "float32": (1.3e-6, 1e-5),
    "float64": (1e-7, 1e-7),
    "complex32": (1e-3, 1e-5),
    "complex64": (1.3e-6, 1e-5),
    "complex128": (1e-7, 1e-7),
}


#: The integer dtype of each size in bytes. From _MANY_BYTES on, comparing as int64 is faster than comparing bytes.
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_MANY_BYTES = 4096

#: The dtypes that ``torch.equal`` implements on the CPU; others are compared in a slower way.
_COMPARABLE = frozenset(
    {
        torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16,
        torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Wrong:
    """A difference between a result and its reference. The class has the fields of :class:`devices.failure.Failure`
    that a comparison can fill in.

    The class has no dependencies, because repro scripts contain a copy of it. ``kind`` is the value of a
    :class:`devices.failure.Kind`; ``count`` of ``total`` elements differ, the first of them at ``first``; ``error`` is
    the largest absolute difference; ``raises`` is the type of an exception and ``said`` its text.
    """

    kind: str
    expected: object = ""
    found: object = ""
    subject: str = ""
    detail: str = ""
    count: int = 0
    total: int = 0
    first: tuple[int, ...] = ()
    error: float | None = None
    raises: str | None = None
    said: str | None = None

    def about(self, subject: str) -> Wrong:
        """Returns a copy of the difference with ``subject`` (such as "output 1") put in front of its own subject."""
        inner = f", {self.subject}" if self.subject else ""
        return replace(self, subject=subject + inner)

    def __str__(self) -> str:
        return sentence(
            self.subject, self.expected, self.found, self.detail, self.count, self.total, self.first
        )


@dataclass(frozen=True, slots=True)
class Measured:
    """The precision of a result. ``ulps`` is the largest error, in units in the last place; ``at`` has the operands for
    which that error occurred. ``wrong`` is set if the error is too large."""

    ulps: float
    at: str
    wrong: Wrong | None = None


def raised(error: BaseException, expected: str = "no exception", **more: Any) -> Wrong:
    """Returns the difference for a call that raised an exception although no exception, or an exception of another
    type, was expected."""
    line = (str(error).strip().splitlines() or [""])[0][:300]
    name = type(error).__name__
    return Wrong("raised", expected, in_a_line(error), raises=name, said=line, **more)


#: The integer dtypes for which torch's CPU has no comparison kernels.
UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)

#: The error that a sum of many terms may have, in roundings of its largest element.
SUM_ROUNDINGS = 4.0


def difference(
    actual: Any, expected: Any, tolerances: Tolerances, *, roundings: float = 0.0
) -> Wrong | None:
    """Returns the difference between ``actual`` (on the CPU) and ``expected``; None if they are equal. NaN equals NaN.

    ``tolerances`` maps dtype names to (rtol, atol). Elements of a dtype that is not listed must be equal. If
    ``roundings`` is not 0, each element may also differ by ``roundings`` * rtol * the largest element, because the
    rounding error of a sum depends on its largest terms even where they cancel.
    """
    if isinstance(actual, torch.Tensor) and isinstance(expected, torch.Tensor):
        return tensor_difference(actual, expected, tolerances, roundings)
    got, want = tensors_of(actual), tensors_of(expected)
    if len(got) != len(want):
        return Wrong("count", f"{len(want)} tensors", len(got))
    for place, (a, e) in enumerate(zip(got, want, strict=True)):
        found = tensor_difference(a, e, tolerances, roundings)
        if found is not None:
            return found.about(f"output {place}") if len(got) > 1 else found
    if not want and not _same_plain(actual, expected):
        return Wrong("values", repr(expected), repr(actual))
    return None


def tensor_difference(
    actual: torch.Tensor, expected: torch.Tensor, tolerances: Tolerances, roundings: float
) -> Wrong | None:
    """Returns the difference between two tensors on the CPU, by the rules of ``difference``."""
    compared = (
        actual.dtype == expected.dtype
        and actual.dtype in _COMPARABLE
        and actual.layout == expected.layout == torch.strided
    )
    # torch.equal is False for different shapes and for NaN; bit_equal also accepts equal NaNs.
    if compared and (torch.equal(actual, expected) or bit_equal(actual, expected)):
        return None
    if actual.dtype != expected.dtype:
        return Wrong("dtype", expected.dtype, actual.dtype)
    if actual.shape != expected.shape:
        return Wrong("shape", f"shape {tuple(expected.shape)}", tuple(actual.shape))
    if actual.layout != torch.strided or expected.layout != torch.strided:
        if actual.layout != expected.layout:
            return Wrong("strides", f"layout {expected.layout}", actual.layout)
        actual, expected = actual.to_dense(), expected.to_dense()
    if (
        actual.dtype.itemsize == 1 and actual.dtype.is_floating_point
    ):  # torch.equal does not implement float8
        actual, expected = actual.float(), expected.float()
    rtol, atol = tolerances.get(str(expected.dtype).removeprefix("torch."), (0.0, 0.0))
    if actual.dtype == torch.complex32:  # torch.equal does not implement complex32
        actual, expected = actual.to(torch.complex64), expected.to(torch.complex64)
    if not compared and torch.equal(actual, expected):
        return None
    if actual.dtype in UNSIGNED:
        actual, expected = _signed(actual), _signed(expected)
    if roundings and rtol:
        atol = max(atol, roundings * rtol * (_largest(expected) or 0.0))
        # Most differences are mere roundings, which this test accepts faster than isclose below. It is False for NaN.
        if float((actual - expected).abs().max()) <= atol:
            return None
    close = torch.isclose(actual, expected, rtol=rtol, atol=atol, equal_nan=True)
    if bool(close.all()):
        return None
    where = tuple((~close).nonzero()[0].tolist())
    return Wrong(
        "values",
        repr(expected[where].item()),
        repr(actual[where].item()),
        count=int((~close).sum()),
        total=actual.numel(),
        first=where,
        error=_largest_error(actual, expected, close),
    )


def turned(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor with the same values, but with the last two dimensions swapped in memory."""
    return tensor.mT.contiguous().mT if tensor.dim() > 1 else tensor


def bit_equal(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Returns True if two CPU tensors have the same bits: NaNs must have equal bits, too, and zeros must have equal
    signs."""
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    if left.dtype.itemsize > 8:
        return same_bytes(raw_bytes(left), raw_bytes(right))
    bits = _INTEGERS[left.dtype.itemsize]
    one, other = (t.detach().resolve_conj().resolve_neg().view(bits) for t in (left, right))
    return torch.equal(one, other)


def same_bytes(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Returns True if two one-dimensional uint8 tensors are equal. Large tensors are compared as int64, because
    ``torch.equal`` takes as long for one byte as for eight."""
    words = left.numel() // 8 * 8
    if left.numel() != right.numel() or words < _MANY_BYTES:
        return torch.equal(left, right)
    whole = torch.equal(left[:words].view(torch.int64), right[:words].view(torch.int64))
    return whole and torch.equal(left[words:], right[words:])


def in_order_of(result: Any, want: Any) -> Any:
    """Returns a copy of ``result`` in which the elements of each row (along the last dimension) are in the order of the
    elements of ``want`` that they are closest to. The closest pair of a row is matched first. Tensors of another shape
    than in ``want``, and rows with an element that is not finite, keep their order."""
    wants = iter(tensors_of(want))

    def ordered(got: torch.Tensor) -> torch.Tensor:
        expected = next(wants, None)
        if expected is None or expected.shape != got.shape or not got.dim() or not got.numel():
            return got
        made = got.clone()
        rows = made.reshape(-1, made.shape[-1])
        for row, want_row in zip(rows, expected.reshape(-1, expected.shape[-1])):
            wide = want_row.to(torch.complex128)
            distance = (row.to(torch.complex128)[:, None] - wide[None, :]).abs()
            if not distance.isfinite().all():
                continue
            before = row.clone()
            for _ in range(len(row)):
                here, there = divmod(int(distance.argmin()), len(row))
                row[there] = before[here]
                distance[here, :] = torch.inf
                distance[:, there] = torch.inf
        return rows.reshape(made.shape)

    return replace_tensors(result, ordered)


def raw_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the bytes of a tensor's elements as a one-dimensional uint8 tensor. When bytes are compared, a NaN
    equals itself and -0.0 differs from 0.0."""
    # contiguous() would not do: it returns a one-element tensor unchanged, whatever its stride.
    flat = tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    return flat.view(-1).view(torch.uint8)


def _signed(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.int64) if tensor.dtype == torch.uint64 else tensor.to(torch.int64)


def _largest(tensor: torch.Tensor) -> float | None:
    sizes = tensor.abs()
    if sizes.numel() and math.isfinite(most := float(sizes.max())):
        return most
    finite = sizes[sizes.isfinite()]
    return float(finite.max()) if finite.numel() else None


def _largest_error(
    actual: torch.Tensor, expected: torch.Tensor, close: torch.Tensor
) -> float | None:
    if actual.dtype == torch.bool:
        return None
    wide = torch.complex128 if actual.is_complex() else torch.float64
    return _largest((actual.to(wide) - expected.to(wide))[~close])


def _same_plain(actual: Any, expected: Any) -> bool:
    if isinstance(expected, (list, tuple)) and isinstance(actual, (list, tuple)):
        return len(actual) == len(expected) and all(
            _same_plain(a, e) for a, e in zip(actual, expected, strict=True)
        )
    if isinstance(expected, float) and isinstance(actual, float):
        return actual == expected or (actual != actual and expected != expected)
    return bool(type(actual) is type(expected) and actual == expected)
