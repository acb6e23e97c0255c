"""16-bit arithmetic that does not round correctly, and sums that are accumulated in 16 bits, are noticed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from conformance.suites.precision import SUITE
from conformance.suites.precision.ulps import inputs
from devices.cell import Outcome
from opinfo.axes import samples_of
from opinfo.catalog import catalogue
from opinfo.compare import replace_tensors
from tests.faulty import run_faulty
from tests.planting.calls import NOT_MET, Effect, KernelCall


def outcome(clause: str, op: str, dtype: str, effect: Effect) -> Outcome:
    checks = [check for check in SUITE.op_checks if check.clause == clause]
    samples = samples_of(catalogue()[op], dtype, 16)
    return run_faulty(op, dtype, samples, checks, effect).cells[clause].outcome()


def honest(call: KernelCall) -> Any:
    return NOT_MET


def truncated(call: KernelCall) -> Any:
    """Computed in float32, whose last 16 bits are dropped instead of rounded."""
    if call.first.dtype != torch.bfloat16:
        return NOT_MET
    args, kwargs = replace_tensors((call.args, call.kwargs), torch.Tensor.float)
    wide = call.function(*args, **kwargs)
    return (wide.view(torch.int32) & -(2**16)).view(torch.float32).bfloat16()


def off_by_one(call: KernelCall) -> Any:
    """The last digit of float32 is flipped in every result that is finite and not 0."""
    result = call.honest()
    if result.dtype != torch.float32:
        return result
    return torch.where(result.isfinite() & (result != 0), (result.view(torch.int32) ^ 1).view(torch.float32), result)  # fmt: skip


@pytest.mark.parametrize("op", ["mul", "add", "sub", "div.no_rounding_mode", "sqrt"])
def test_truncated_bfloat16_is_noticed(op: str) -> None:
    assert outcome("precision.ulp", op, "bfloat16", truncated) is Outcome.FAIL


@pytest.mark.parametrize("op", ["mul", "add", "sub"])
def test_the_last_digit_of_float32_is_noticed(op: str) -> None:
    assert outcome("precision.ulp", op, "float32", off_by_one) is Outcome.FAIL


def stagnant(call: KernelCall) -> Any:
    """A product of matrices that adds its terms in the dtype of the operands."""
    first, second = call.first, call.args[1]
    if first.dtype.itemsize > 2 or first.dim() != 2 or second.dim() != 2:
        return NOT_MET
    made = first.new_zeros(first.shape[0], second.shape[1])
    for column, row in zip(first.unbind(1), second.unbind(0), strict=True):
        made += column[:, None] * row
    return made


def stagnant_sum(call: KernelCall) -> Any:
    """A sum over one dimension that adds its terms in the dtype of the operand."""
    dims = call.kwargs.get("dim", call.args[1] if len(call.args) > 1 else None)
    dims = (dims,) if isinstance(dims, int) else dims
    x = call.first
    if x.dtype.itemsize > 2 or "dtype" in call.kwargs or not dims or len(dims) != 1 or not x.dim():
        return NOT_MET
    made = torch.zeros_like(x.select(dims[0], 0)) if x.shape[dims[0]] else call.honest()
    for term in x.unbind(dims[0]):
        made = made + term
    return made.unsqueeze(dims[0]) if call.kwargs.get("keepdim") else made


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(("op", "effect"), [("mm", stagnant), ("sum", stagnant_sum)])
def test_a_sum_that_is_accumulated_in_16_bits_is_noticed(
    op: str, effect: Effect, dtype: str
) -> None:
    assert outcome("precision.exact_sums", op, dtype, effect) is Outcome.FAIL


@pytest.mark.parametrize(
    ("clause", "op"),
    [("precision.ulp", "mul"), ("precision.exact_sums", "mm"), ("precision.exact_sums", "sum")],
)
def test_right_results_pass(clause: str, op: str) -> None:
    assert outcome(clause, op, "bfloat16", honest) is Outcome.PASS


def _exponent(x: torch.Tensor) -> torch.Tensor:
    return x.view(torch.int16).to(torch.int64) >> 7 & 255


def wrong_at_one_pair_of_exponents(call: KernelCall) -> Any:
    """A sum of bfloat16 that is off by a digit where the first exponent is that of 2 and the second that of 2^8: the random
    pairs alone never meet there."""
    first, other = call.first, call.args[1] if len(call.args) > 1 else None
    if not isinstance(other, torch.Tensor) or {first.dtype, other.dtype} != {torch.bfloat16}:
        return NOT_MET
    result = call.honest()
    there = (_exponent(first) == 128) & (_exponent(other) == 135)
    return torch.where(there & result.isfinite(), (result.view(torch.int16) ^ 1).view(torch.bfloat16), result)  # fmt: skip


def test_a_sum_that_is_wrong_at_one_alignment_of_its_operands_is_noticed() -> None:
    old = [_exponent(inputs("bfloat16", seed)) for seed in range(2)]
    assert not bool(((old[0] == 128) & (old[1] == 135)).any())
    assert (
        outcome("precision.ulp", "add", "bfloat16", wrong_at_one_pair_of_exponents) is Outcome.FAIL
    )
