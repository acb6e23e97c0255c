"""A fault in front of a function: which calls it affects, and what is left as it was."""

from __future__ import annotations

import pytest
import torch

from opinfo.catalog import catalogue
from tests.faulty import Moved, faulty
from tests.planting.calls import NOT_MET, Effect, KernelCall, Refusal
from tests.planting.derivatives import Backward, wrong_derivative
from tests.planting.places import overload_of, planted, replaced
from tests.planting.seen import Names


def zeros(call: KernelCall) -> object:
    return torch.zeros_like(call.honest())


def refuses(call: KernelCall) -> object:
    raise Refusal("not built for this")


def is_mistaken(call: KernelCall) -> object:
    raise KeyError("no such operand")


@pytest.mark.parametrize(
    ("name", "args", "form", "read", "targets"),
    [
        ("add.Tensor", (1, 1), "functional", 2, 0),
        ("add_.Tensor", (1, 1), "in-place", 1, 1),
        ("cat", ([1, 1],), "functional", 2, 0),
    ],
)
def test_a_call_of_an_overload_knows_its_operands(
    name: str, args: tuple[object, ...], form: str, read: int, targets: int
) -> None:
    tensors = [[torch.ones(2) for _ in a] if isinstance(a, list) else torch.ones(2) for a in args]
    call = KernelCall(overload_of(name), tuple(tensors), {})
    assert (call.form, len(call.read), len(call.targets)) == (form, read, targets)


def test_the_form_of_a_python_function_follows_from_its_name_and_out() -> None:
    x = torch.ones(2)
    forms = [
        KernelCall(torch.neg, (x,), {}).form,
        KernelCall(torch.Tensor.neg_, (x,), {}).form,
        KernelCall(torch.neg, (x,), {"out": x}).form,
    ]
    assert forms == ["functional", "in-place", "out"]


def test_an_argument_is_replaced_by_name_and_the_others_stay() -> None:
    call = KernelCall(overload_of("add.Tensor"), (torch.ones(2), torch.ones(2)), {"alpha": 3})
    assert call.honest(other=torch.zeros(2)).tolist() == [1, 1] and call.changed
    assert call.honest().tolist() == [4, 4]


@pytest.mark.parametrize(("effect", "want"), [(zeros, [0, 0]), (lambda call: NOT_MET, [-1, -1])])
def test_a_replaced_function_has_the_fault_for_a_block(effect: Effect, want: list[float]) -> None:
    x = torch.ones(2)
    with replaced(torch, "neg", effect):
        assert torch.neg(x).tolist() == want
    assert torch.neg(x).tolist() == [-1, -1]


def test_an_op_is_faulty_on_moved_tensors_alone_and_its_reference_is_not() -> None:
    op, moved, x = catalogue()["neg"], Moved(), torch.ones(2)
    wrong = faulty(op, zeros, moved.here)
    there = moved.move(x)
    assert [wrong.function(each).tolist() for each in (x, there)] == [[-1, -1], [0, 0]]
    assert wrong.inplace is not None and wrong.inplace(there).tolist() == [0, 0]
    assert wrong.reference(there[:1]).tolist() == [1] and op.function(there[1:]).tolist() == [1]
    # Checks that call one function on device and CPU are made of it.
    assert wrong.runs_on_cpu and wrong.reference is not wrong.function


def test_a_refusal_and_a_mistake_of_the_effect_are_told_apart() -> None:
    x = torch.ones(2)
    with planted(["neg"], refuses, "CPU") as run, pytest.raises(RuntimeError, match="not built"):
        torch.neg(x)
    assert (run.reached, run.failures) == (1, [])
    with planted(["neg"], is_mistaken, "CPU") as run:
        assert torch.neg(x).tolist() == [-1, -1]
    assert (run.calls, run.reached, run.failures) == (1, 0, ["KeyError: 'no such operand'"])


def test_gradients_are_recorded_above_autograd_and_not_below() -> None:
    x = torch.ones(2, requires_grad=True)
    seen: list[bool] = []

    def looks(call: KernelCall) -> object:
        seen.append(torch.is_grad_enabled())
        return NOT_MET

    for key in ("AutogradCPU", "CPU"):
        with planted(["neg"], looks, key):
            assert torch.neg(x).requires_grad
    assert seen == [True, False]


def test_the_names_of_overloads_are_those_by_which_they_are_planted() -> None:
    with Names() as seen:
        torch.ones(2).add_(1).neg()
    assert seen.names >= {"add_.Tensor", "neg"}
    assert [overload_of(name)._schema.name for name in ("add_.Tensor", "neg")] == [
        "aten::add_",
        "aten::neg",
    ]


class Doubled:
    """A derivative that doubles the gradient of the second input, and notes the cotangents."""

    def left(self, way: Backward, cotangent: torch.Tensor) -> torch.Tensor:
        self.way = way
        return cotangent

    def entered(self, way: Backward, place: int, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 2 if place == 1 else gradient


def test_a_wrong_derivative_leaves_the_result_as_it_is() -> None:
    x, y = (torch.full((2,), n, requires_grad=True) for n in (3.0, 5.0))
    fault = Doubled()
    with replaced(torch, "mul", wrong_derivative(fault)):
        result = torch.mul(x, y)
        assert torch.mul(x.detach(), 2).tolist() == [6, 6]
    result.backward(torch.ones(2))
    assert result.tolist() == [15, 15] and (fault.way.wanted, fault.way.outputs) == (2, 1)
    assert x.grad is not None and y.grad is not None
    assert (x.grad.tolist(), y.grad.tolist()) == ([5, 5], [6, 6])
    assert [each.tolist() for each in fault.way.cotangents] == [[1, 1]]
