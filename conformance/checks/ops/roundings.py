"""Computes the rounding errors that are accepted in a result: errors that one rounding of the operands would also
cause, or that the CPU's own result has.

Repro scripts contain these functions, which need only torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from opinfo.compare import Tolerances, tensors_of, turned
from opinfo.reference import ValueAnswer, epsilon_of, value_answer

#: Number of random perturbations, and the factor by which their largest effect is multiplied.
DRAWS, FACTOR = 3, 16.0
#: Number of random perturbations of the operands of a call. With three, those of two terms that cancel have one sign in one
#: call of eight, and show nothing.
_DRAWS_OF_CALL = 6
#: Largest relative error that counts as a rounding error. (For bfloat16, its larger machine epsilon is used instead.)
ROUNDING = 2.0**-10
#: Relative error of one rounding in float32, and in float64; and the number of roundings by which float64 is changed.
_EPSILON, _EPSILON_64, _COARSE = 2.0**-24, 2.0**-53, 16.0


def allowance(
    function: Callable[..., Any],
    arguments: Callable[[list[torch.Tensor], torch.device], Any],
    values: Sequence[torch.Tensor],
    process: Callable[[Any], Any] | None = None,
) -> list[torch.Tensor]:
    """Returns the accepted error of each tensor of a result, element by element. If ``process`` is given, it is applied
    to the result first, to get the part that is unique. The list is empty if the CPU raises.

    A result is accepted if it is the exact result for slightly other operands, as in the analysis of backward errors (N.
    J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, sections 1.5, 1.6 and 3.1): the error of an
    algorithm is bounded by its backward error times the condition number. The condition of an element is estimated from
    the changes that random perturbations of the operands cause (C. S. Kenney and A. J. Laub, Small-sample statistical
    condition estimates, SIAM J. Sci. Comput. 15, 1994). The accepted error is the sum of two terms:

    - FACTOR times the largest change of the element when each floating-point operand and each float argument is changed by
      one rounding relative to itself: of float64 if the operands have float64, otherwise of float32, in which ops of
      16-bit dtypes compute.
    - FACTOR times the CPU's largest error in the operands' dtype, because an algorithm may be stable only relative to the
      largest element. The term is at most one rounding error of the largest element. If no error of the CPU is larger,
      it is also at most FACTOR times the largest change of the element when each operand is changed by one rounding
      relative to its largest element, so that an error in a large element excuses no error in a small one.

    The CPU's error is the difference from its result in float64. For integers and for float64, which have no wider dtype,
    it is the difference from its result for the same operands in another memory order. Integers are not changed.
    """

    def found(given: Sequence[torch.Tensor], argued: Any = arguments) -> list[torch.Tensor]:
        with epsilon_of(values):
            answer = value_answer(function, argued, given, mutates=True)
        if answer.raises is not None:
            return []
        return densified(answer.result if process is None else process(answer.result))

    def argued(tensors: list[torch.Tensor], device: torch.device) -> Any:
        args, kwargs = arguments(tensors, device)
        jolts = {name: jolted_number(each, source, epsilon) for name, each in kwargs.items()}
        return tuple(jolted_number(each, source, epsilon) for each in args), jolts

    source = torch.Generator().manual_seed(0)
    floating = [each for each in values if floats(each)]
    widest = bool(floating) and all(each.dtype in _WIDEST for each in floating)
    # A change of float64 by less than one unit in the last place would be lost, so it is larger, and its effect divided.
    epsilon, factor = (_COARSE * _EPSILON_64, FACTOR / _COARSE) if widest else (_EPSILON, FACTOR)
    # Integers and float64 cannot be widened; a result for another order of dimensions shows the CPU's rounding error.
    better = list(map(wider if floating and not widest else turned, values))
    exact, narrow = found(better), found(values)
    jolts = [[jolted(each, epsilon, source) for each in better] for _ in range(_DRAWS_OF_CALL)]
    moved = [found(each, argued) for each in jolts]
    if any(a.shape != b.shape for each in moved for a, b in zip(each, exact)):
        moved = [found(each) for each in jolts]  # a number determines the result's shape: keep it
    if any(len(each) != len(exact) for each in (narrow, *moved)):
        return []
    draws = range(DRAWS if floating else 0)
    shifted = [found([shaken(each, epsilon, source) for each in better]) for _ in draws]
    slack = []
    for place, want in enumerate(exact):
        error = off(narrow[place], want)
        size = float(want.abs().nan_to_num(0.0, 0.0, 0.0).max()) if want.numel() else 0.0
        own = float(error.max()) if want.numel() else 0.0
        eps = torch.finfo(narrow[place].dtype).eps if floats(narrow[place]) else 0.0
        most = torch.full_like(error, min(FACTOR * own, max(ROUNDING, eps) * size))
        # A perturbation may leave the domain of the function, so that it raises or returns another shape.
        beside = [each[place] for each in shifted if len(each) == len(exact)]
        if beside and all(each.shape == want.shape for each in beside):
            bound = _largest_change(beside, want) * factor + off(want * (1 + eps), want)
            if bool((error <= bound).all()):  # the CPU's algorithm is stable for these operands
                most = torch.minimum(most, bound)
        slack.append(_largest_change([each[place] for each in moved], want) * factor + most)
    return slack


_WIDEST = (torch.float64, torch.complex128)


def _largest_change(results: Sequence[torch.Tensor], want: torch.Tensor) -> torch.Tensor:
    """Returns, for each element, the largest difference of the results from ``want``."""
    most = torch.zeros_like(want.abs())
    for each in results:
        most = torch.maximum(most, off(each, want))
    return most


def within(read: Any, want: Any, slack: Sequence[torch.Tensor]) -> bool:
    """Returns True if each element of a result differs from the reference by at most its accepted error. Infinities and
    NaN must be equal."""
    got, wanted = densified(read), densified(want)
    if not len(got) == len(wanted) == len(slack):
        return False
    for mine, theirs, allowed in zip(got, wanted, slack, strict=True):
        if (
            mine.shape != theirs.shape
            or theirs.shape != allowed.shape
            or mine.dtype != theirs.dtype
        ):
            return False
        same = torch.isclose(mine, theirs, rtol=0.0, atol=0.0, equal_nan=True)
        near = (wider(mine) - wider(theirs)).abs() <= allowed  # the comparison is False for NaN
        if not bool((same | (near & mine.isfinite() & theirs.isfinite())).all()):
            return False
    return True


def exact_answer(
    function: Callable[..., Any],
    arguments: Callable[[list[torch.Tensor], torch.device], Any],
    values: Sequence[torch.Tensor],
) -> ValueAnswer:
    """Returns the CPU's result for the values in float64. The result is None if a tensor has no elements: nothing needs
    rounding then, and torch's embedding_bag would end the process."""
    if not all(each.numel() for each in values):
        return ValueAnswer(None)

    def widened(tensors: list[torch.Tensor], device: torch.device) -> Any:
        args, kwargs = arguments(tensors, device)
        wide = {name: _widest(each) for name, each in kwargs.items()}
        return tuple(map(_widest, args)), wide

    with epsilon_of(values):
        return value_answer(function, widened, list(map(wider, values)), mutates=True)


def _widest(given: Any) -> Any:
    """Returns float64 or complex128 for an argument that is a shorter dtype of the same kind; other arguments are
    returned unchanged."""
    if not isinstance(given, torch.dtype) or given.itemsize == 1:
        return given
    if given.is_complex:
        return torch.complex128
    return torch.float64 if given.is_floating_point else given


def as_exact(read: Any, want: Any, exact: Any, tolerances: Tolerances, roundings: float) -> bool:
    """Returns True if each element is as close to the exact result as the CPU's result is, or within tolerance of one
    of the two results. If the exact result is not finite, only the CPU's result counts. Integer results must equal the
    CPU's or the exact results."""
    three = densified(read), densified(want), densified(exact)
    if len({*map(len, three)}) != 1 or not any(map(floats, three[1])):
        return False
    for mine, theirs, true in zip(*three, strict=True):
        if mine.dtype != theirs.dtype or not mine.shape == theirs.shape == true.shape:
            return False
        if not floats(theirs) or not floats(true):
            if true.dtype != theirs.dtype or not bool(((mine == theirs) | (mine == true)).all()):
                return False
            continue
        rtol, atol = tolerances.get(str(theirs.dtype).removeprefix("torch."), (0.0, 0.0))
        got, cpus, rounded = (wider(each) for each in (mine, theirs, true.to(theirs.dtype)))
        if roundings and rounded.numel():
            size = float(rounded.abs().nan_to_num(0.0, 0.0, 0.0).max())
            atol = max(atol, roundings * rtol * size)
        near = torch.isclose(got, rounded, rtol=rtol, atol=atol, equal_nan=True)
        # Beyond the range of a dtype, or for NaN, the op may have another meaning in float64 (nan_to_num).
        near &= rounded.isfinite() | ~cpus.isfinite()
        no_further = (got - rounded).abs() <= (
            cpus - rounded
        ).abs()  # the comparison is False for NaN
        same = torch.isclose(got, cpus, rtol=rtol, atol=atol, equal_nan=True)
        if not bool((near | same | (no_further & got.isfinite() & cpus.isfinite())).all()):
            return False
    return True


def densified(result: Any) -> list[torch.Tensor]:
    """Returns the tensors of a result. Sparse tensors are converted to dense ones."""
    return [t if t.layout == torch.strided else t.to_dense() for t in tensors_of(result)]


def off(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    return (got - want).abs().nan_to_num(0.0, 0.0, 0.0)


def jolted(tensor: torch.Tensor, epsilon: float, source: torch.Generator) -> torch.Tensor:
    """Returns the tensor with each floating-point element changed by a relative rounding error of ``epsilon`` or half of
    it, or a number between, up or down at random. (Changes of equal size would leave the difference of two elements that
    are nearly equal as it is in one draw of two.)"""
    if not floats(tensor):
        return tensor
    return tensor * (1 + epsilon * _signed(tensor.shape, source))


def _signed(shape: torch.Size, source: torch.Generator) -> torch.Tensor:
    """Returns a float64 tensor of random numbers from 0.5 to 1, with random signs."""
    drawn = torch.rand(shape, generator=source, dtype=torch.float64) - 0.5
    return drawn + torch.where(drawn < 0, -0.5, 0.5)


def shaken(tensor: torch.Tensor, epsilon: float, source: torch.Generator) -> torch.Tensor:
    """Returns the tensor with each finite floating-point element changed by up to ``epsilon`` times the largest finite
    element, up or down at random."""
    if not floats(tensor) or not tensor.numel():
        return tensor
    largest = tensor.abs().nan_to_num(0.0, 0.0, 0.0).max()
    return tensor + epsilon * largest * _signed(tensor.shape, source)


def jolted_number(given: Any, source: torch.Generator, epsilon: float) -> Any:
    """Returns a float argument, or a list of floats, with each number changed by one rounding, up or down at random.
    Whole numbers and other arguments, such as the name of a norm or a mode, are returned unchanged."""
    if isinstance(given, (list, tuple)) and all(type(each) is float for each in given):
        return type(given)(jolted_number(each, source, epsilon) for each in given)
    if type(given) is not float or given.is_integer() or not math.isfinite(given):
        return given
    sign = int(torch.randint(0, 2, (), generator=source)) * 2 - 1
    return given * (1 + epsilon * sign)


def wider(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a copy of a tensor in float64 or complex128; integer tensors keep their dtype."""
    kind = torch.complex128 if tensor.is_complex() else torch.float64
    return tensor.detach().to(kind, copy=True) if floats(tensor) else tensor.detach().clone()


def floats(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def doubled(values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Returns the given tensors, with floating-point ones converted to float64."""
    return [each.double() if each.is_floating_point() else each for each in values]
