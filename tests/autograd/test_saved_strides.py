"""Gradients while saved-tensor hooks give backward the saved tensors with other strides."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from conformance.checks.cells import CellRecord
from conformance.checks.ops.calls import Invocation, laid_out
from conformance.checks.ops.context import run_checks
from conformance.suites.autograd import SUITE
from conformance.suites.autograd.gradient_judge import judge_gradients, judge_gradients_of_kernels
from conformance.suites.autograd.gradients import (
    Cotangent,
    differentiated,
    differentiated_with_saved,
    held_by,
    restrided,
)
from conformance.suites.autograd.saved_strides import MEMORY, SAVED
from devices.cell import Outcome
from devices.simulated.backend.fault_switches import planted
from opinfo.compare import DEFAULT_TOLERANCES, Wrong
from opinfo.exceptions import exceptions
from opinfo.guarded import identity
from opinfo.layouts import CONTIGUOUS
from tests.autograd.saved_mutants import subjects
from tests.mutation.items import Subject
from tests.planting.tensors import as_dense

STEPPED = MEMORY[0]


@pytest.mark.parametrize("memory", MEMORY)
@pytest.mark.parametrize("shape", [(5,), (2, 3), (2, 3, 4), (2, 3, 4, 5), (2, 3, 4, 5, 2)])
def test_a_restrided_tensor_has_the_same_values(memory: str, shape: tuple[int, ...]) -> None:
    given = torch.arange(torch.Size(shape).numel()).reshape(shape)
    found = restrided(given, memory)
    assert torch.equal(found, given)
    alike = memory != STEPPED and len(shape) < (2 if memory == "reversed" else 4)
    assert found.is_contiguous() == alike


def test_a_restrided_tensor_is_in_channels_last() -> None:
    found = restrided(torch.rand(2, 3, 4, 5), "channels_last")
    assert found.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("given", [torch.tensor(1.0), torch.zeros(0, 3), torch.eye(3).to_sparse()])
def test_a_tensor_without_other_strides_is_left_as_it_is(given: torch.Tensor) -> None:
    assert restrided(given, STEPPED) is given


@pytest.mark.slow
def test_the_ops_that_are_left_out_are_those_that_save_nothing_or_have_no_gradient() -> None:
    """A pass of an op that saves nothing, or whose gradient is zero whatever was saved, would say nothing."""
    known = exceptions()
    wrong = []
    for op, subject in subjects():
        context = subject.context([SAVED])
        run_checks(context, SUITE.op_checks)
        judged = bool(context.recorder.cells[SAVED].checks)
        left_out = known.excluded(SAVED, op, "float32", fake_only=False) is not None
        wrong += [op] if judged == left_out else []
    assert wrong == []


@pytest.mark.parametrize("op", ["add", "sgn"])
def test_a_backward_that_saves_nothing_or_gives_zeros_is_not_judged(op: str) -> None:
    context = Subject(op, "float32", run=False).context([SAVED])
    run_checks(context, SUITE.op_checks)
    outcome = context.recorder.cells[SAVED].to_outcome()
    assert outcome.outcome is Outcome.UNSUPPORTED
    assert "no saved tensor that could have other strides" in outcome.message


class _Squared(torch.autograd.Function):
    """The square, whose backward reads the saved operand as if it were contiguous."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return cotangents[0] * as_dense(x) * 2


def test_a_backward_that_reads_saved_tensors_as_dense_is_wrong_with_hooks_alone() -> None:
    values = [torch.linspace(-2, 3, 12).reshape(3, 4)]
    there = laid_out(values, [None], identity)
    cpu = torch.device("cpu")
    call = Invocation(
        _Squared.apply,
        lambda tensors, _: (tensors, {}),
        values,
        there,
        cpu,
        identity,
        identity,
        lambda _: None,
    )
    cotangent = Cotangent(torch.float32, CONTIGUOUS.geometry((3, 4)))
    spoilt = differentiated_with_saved(call, [0], (cotangent,), "reversed")
    reference: Any = SimpleNamespace(
        wants=[(held_by(cotangent) * values[0] * 2).double()],
        least=[None],
        slack=[None],
        kinds=[torch.float32],
        subjects=["the gradient of input 0"],
        gradient_tolerances=DEFAULT_TOLERANCES,
        mutable=frozenset(),
        alike=spoilt,
        shared={},
    )
    sound = differentiated(call, [0], (cotangent,))
    assert list(judge_gradients_of_kernels(sound, reference)) == [None]
    (wrong,) = judge_gradients_of_kernels(spoilt, reference)
    assert isinstance(wrong, Wrong) and wrong.kind == "values"
    # The CPU's kernel, which is as wrong, excuses no other.
    assert list(judge_gradients(spoilt, reference)) == [None]


def test_a_kernel_of_the_device_that_reads_saved_tensors_as_dense_is_noticed() -> None:
    def judged() -> CellRecord:
        context = Subject("softmax", "float32", run=False).context([SAVED])
        run_checks(context, SUITE.op_checks)
        return context.recorder.cells[SAVED]

    with planted("autograd.saved_as_dense"):
        record = judged()
    assert {each.layout.partition("=")[0] for each in record.failures} == {"saved"}
    assert judged().outcome() is Outcome.PASS
