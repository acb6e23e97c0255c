"""Which overloads count as judged: those whose results reach what a judge reads."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from conformance.coverage.dataflow import LoggedCall, TensorId, calls_in, used
from conformance.coverage.measuring import Noted, sets_values
from conformance.coverage.observer import Observer, observed_calls
from devices.cell import CallKey

pytestmark = [
    pytest.mark.slow,  # compiling the observer takes half a minute
    pytest.mark.skipif(shutil.which("c++") is None, reason="the observer is compiled at first use"),
]
CALL = CallKey(0, "contiguous")


@pytest.fixture
def noted() -> Iterator[Noted]:
    observer = Observer()
    with observer.on():
        yield Noted(observer)


def names_of(call: Callable[[], Any]) -> list[str]:
    with observed_calls() as found:
        call()
    return found


def test_a_call_of_the_function_counts_for_the_clauses_that_judge_it(noted: Noted) -> None:
    x = torch.ones(2)
    noted.call(CALL, ("layout.values", "layout.bounds"))
    y = noted.noted(torch.sin)(x)
    noted.judging("layout.values")
    torch.equal(y, x)
    noted.end()
    assert noted.judged == {"layout.values": {"aten::sin"}}
    assert noted.reached == {"aten::ones", "aten::equal"}


def test_a_call_whose_result_nobody_reads_is_only_reached(noted: Noted) -> None:
    """The function calls two overloads, and returns the result of one."""
    x = torch.ones(2)

    def function(x: torch.Tensor) -> torch.Tensor:
        torch.cos(x)
        return torch.sin(x.neg())

    noted.call(CALL, ("layout.values",))
    y = noted.noted(function)(x)
    noted.judging("layout.values")
    torch.equal(y, x)
    noted.end()
    assert noted.judged == {"layout.values": {"aten::sin", "aten::neg"}}
    assert "aten::cos" in noted.reached


def test_what_is_done_before_and_after_the_call_is_only_reached(noted: Noted) -> None:
    x = torch.ones(2)
    noted.call(CALL, ("layout.values",))
    x.neg()
    y = noted.noted(torch.sin)(x)
    noted.judging("layout.values")
    y.cos()
    noted.end()
    assert noted.judged == {"layout.values": {"aten::sin"}}
    assert {"aten::neg", "aten::cos"} <= noted.reached


def test_a_call_whose_result_no_clause_judges_does_not_count(noted: Noted) -> None:
    noted.call(CALL, ("layout.values",))
    noted.noted(torch.sin)(torch.ones(2))
    noted.call(CALL, ("layout.bounds",))
    noted.judging("layout.bounds")
    noted.end()
    assert noted.judged == {"layout.bounds": set()}


def test_of_a_backward_only_what_the_gradient_depends_on_counts(noted: Noted) -> None:
    """The gradient of sin does not depend on its result, and that of relu does."""
    x = torch.ones(2, requires_grad=True)
    noted.call(CALL, ("autograd.first",))
    y = noted.noted(torch.sin)(x)
    (gradient,) = torch.autograd.grad(y, x, torch.ones(2))
    noted.judging("autograd.first")
    gradient.neg()
    noted.call(CALL, ("autograd.second",))
    y = noted.noted(torch.relu)(x)
    (gradient,) = torch.autograd.grad(y, x, torch.ones(2))
    noted.judging("autograd.second")
    gradient.neg()
    noted.end()
    assert noted.judged["autograd.first"] == {"aten::cos", "aten::mul.Tensor"}
    assert noted.judged["autograd.second"] == {"aten::relu", "aten::threshold_backward"}


def test_a_number_counts_if_the_function_returns_one(noted: Noted) -> None:
    x = torch.ones(1)
    noted.call(CALL, ("layout.values",))
    noted.noted(torch.Tensor.item)(x)
    noted.judging("layout.values")
    noted.end()
    assert noted.judged == {"layout.values": {"aten::_local_scalar_dense"}}


def test_a_result_with_free_values_does_not_count() -> None:
    assert not sets_values("aten::empty.memory_layout")
    assert sets_values("aten::zeros")


def test_the_observer_sees_the_calls_that_torch_makes_without_it() -> None:
    """A dispatch mode would see ``view``: torch asks whether a mode is active."""
    x = torch.randn(4, 6)
    assert names_of(lambda: x[:, ::2].reshape(2, 2, 3)) == [
        "aten::slice.Tensor",
        "aten::_reshape_alias",
    ]


def test_an_overload_that_a_composite_function_calls_is_noted_by_its_own_name() -> None:
    x, w, b = torch.ones(2, 3), torch.ones(4, 3), torch.ones(4)
    assert names_of(lambda: torch.nn.functional.linear(x, w, b)) == ["aten::t", "aten::addmm"]


def test_what_a_kernel_calls_inside_is_not_noted() -> None:
    assert names_of(lambda: torch.zeros(3)) == ["aten::zeros"]
    x = torch.ones(3, requires_grad=True)
    assert names_of(lambda: x.sum()) == ["aten::sum"]


def test_the_calls_of_a_forward_mode_derivative_are_noted() -> None:
    with torch.autograd.forward_ad.dual_level():
        x = torch.autograd.forward_ad.make_dual(torch.ones(3), torch.ones(3))
        assert {"aten::sin", "aten::cos", "aten::mul.Tensor"} <= {*names_of(lambda: torch.sin(x))}


def test_the_calls_of_autocast_are_noted() -> None:
    x = torch.ones(2, 2)
    with torch.autocast("cpu", torch.bfloat16):
        assert {"aten::_to_copy", "aten::mm"} <= {*names_of(lambda: torch.mm(x, x))}


def test_an_observer_does_not_change_what_autograd_does() -> None:
    """It holds no tensor: otherwise the gradients of the three terms would be added out of place."""

    def step() -> None:
        x = torch.ones(3, requires_grad=True)
        (x.sin() + x.cos() + x.exp()).sum().backward()

    with torch.autograd.profiler.profile() as profile:
        step()
    unobserved = [event.name for event in profile.function_events]
    names = names_of(step)
    for op, overload in (("aten::add", "aten::add.Tensor"), ("aten::add_", "aten::add_.Tensor")):
        assert unobserved.count(op) == names.count(overload) > 0


def test_results_are_replaced_in_the_call_with_the_number() -> None:
    observer, x = Observer(), torch.zeros(3)
    with observer.on(), observer.spoiling("aten::cos", 1):
        found = [x.cos() for _ in range(3)]
    assert [bool((each == 1).all()) for each in found] == [True, False, True]
    assert bool((x.cos() == 1).all())


def test_a_tensor_that_a_call_writes_to_is_replaced_too() -> None:
    observer, xs = Observer(), [torch.ones(3)]
    with observer.on(), observer.spoiling("aten::_foreach_add_.Scalar"):
        torch._foreach_add_(xs, 1)
    assert not (xs[0] == 2).any()


def test_a_view_is_used_only_if_the_view_is_read() -> None:
    x, view, y = TensorId(0, 0), TensorId(1, 0), TensorId(2, 1)
    detach = LoggedCall("aten::detach", (x,), (view,))
    read = LoggedCall("aten::neg", (x,), (y,))
    assert used([detach, read], [True, False]) == []
    read = LoggedCall("aten::neg", (view,), (y,))
    assert used([detach, read], [True, False]) == [detach]


def test_a_write_to_a_storage_is_used_if_another_view_is_read() -> None:
    x, view, y = TensorId(0, 0), TensorId(1, 0), TensorId(2, 1)
    write = LoggedCall("aten::add_.Tensor", (view, y), (view,))
    read = LoggedCall("aten::neg", (x,), (TensorId(3, 2),))
    assert used([write, read], [True, False]) == [write]
    assert used([write], [True]) == []


def test_a_log_is_read_with_its_marks() -> None:
    log = "=call\n[ aten::sum 0:0\n< aten::sum.dim_IntList 0:0\n] 1:1\n] 2:1\n(\n[ aten::neg 2:1\n] 3:2\n)\n"
    first, second, third = calls_in(log)
    assert first.mark == "call"
    assert second == LoggedCall("aten::sum", (TensorId(0, 0),), (TensorId(2, 1),))
    assert (third.overload, third.in_backward) == ("aten::neg", True)
