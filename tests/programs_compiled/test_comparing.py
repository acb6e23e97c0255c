"""What a compiler does wrong is noticed by the comparison with eager execution."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from conformance.checks.behaviour.compiler import AOT_EAGER, compiling
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.exceptions import CheckFailed
from conformance.suites.compile import comparing
from conformance.suites.compile.comparing import compare
from devices import registry
from devices.failure import Kind
from opinfo.device import Device, open_device
from tests.programs_compiled.wrong_compilers import WRONG, Remembered, backend


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device(registry.get("cpu"))


def context(device: Device) -> CaseContext:
    return CaseContext(device, "compile.programs::a_test")


def _program(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor, i: torch.Tensor) -> Any:
    """Reads strided operands, writes to one of them, and returns strided, aliased and integer results."""
    y.mul_(2)
    z = (x * 3 + w).exp()
    return z, x.t(), y, z[1:], (x > 0), i + 3, (x - y.sum()).t(), torch.where(x > 0, x, torch.nan)


def _inputs(new: Any) -> Any:
    x = new(4, 5, layout="transposed", grad=True)
    y = new(4, 5, layout="contiguous+step_inner+offset")
    return x, new(4, 5, grad=True), y, new(6, dtype=torch.int64)


def test_a_right_compiler_passes(device: Device) -> None:
    here = context(device)
    compare(here, _program, _inputs, backend=AOT_EAGER)
    assert here.checks > 30


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_compiler_is_noticed(device: Device, name: str) -> None:
    here, made = context(device), backend(*WRONG[name])
    with pytest.raises((CheckFailed, AssertionError, RuntimeError)):
        compare(here, _program, _inputs, backend=made)


def test_a_wrong_gradient_of_a_leaf_behind_an_input_is_noticed(device: Device) -> None:
    with pytest.raises(CheckFailed, match="the gradient of the leaf behind input 0"):
        compare(
            context(device),
            lambda x: x.mul_(3) + 1,
            lambda new: ((new(8, 3, grad=True) * 2)[0::2],),
            backend=backend(*WRONG["gradients are doubled"]),
        )


def test_a_result_that_is_remembered_is_noticed(device: Device) -> None:
    with pytest.raises(CheckFailed, match="call 1"):
        compare(
            context(device),
            lambda x, n: x * n,
            lambda new: (new.of(torch.ones(3)), 2),
            lambda new: (new.of(torch.zeros(3)), 2),
            backend=backend(Remembered()),
        )


def test_a_program_that_is_not_compiled_fails(device: Device) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x

    with pytest.raises(CheckFailed, match="no graph was compiled"):
        compare(context(device), program, lambda new: (new(3),), backend=AOT_EAGER, fullgraph=False)


def test_a_program_that_compiles_too_often_fails(device: Device) -> None:
    calls = [lambda new, n=n: (new(n),) for n in (3, 4)]
    with pytest.raises(CheckFailed, match="more graphs than expected"):
        compare(
            context(device), lambda x: x + 1, *calls, backend=AOT_EAGER, dynamic=False, graphs=1
        )


def test_an_exception_that_compiled_code_loses_is_noticed(device: Device) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            raise IndexError("out of range")
        return x + 1

    with pytest.raises(CheckFailed) as caught:
        compare(context(device), program, lambda new: (new(3),), backend=AOT_EAGER, may_raise=True)
    assert caught.value.failure.kind is Kind.NOT_RAISED


def test_an_exception_of_the_compiler_is_no_pass(device: Device) -> None:
    def refuses(graph: Any, inputs: Any) -> Any:
        raise RuntimeError("cannot be compiled")

    with pytest.raises(Exception, match="cannot be compiled"):
        compare(context(device), lambda x: x + 1, lambda new: (new(3),), backend=refuses)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda made: made.rose.reverse(), "version counter"),
        (lambda made: made.leaves.reverse(), "output 0"),
        (lambda made: made.gradients.clear(), "an input has a gradient only in one of"),
    ],
)
def test_parts_of_a_run_are_compared(device: Device, spoil: Any, says: str) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x * 2, y.add_(1)

    here = context(device)
    given = [_pair(comparing.Inputs(here)) for _ in range(2)]
    eager, made = (comparing.run(here, program, each, "contiguous") for each in given)
    spoil(made)
    with pytest.raises(CheckFailed, match=says):
        comparing.Comparison(here, "", 1e-5, 1e-5).judge(eager, made)


def _pair(new: comparing.Inputs) -> Any:
    return new(3, grad=True), new(3)


@pytest.fixture(autouse=True)
def own_compiler() -> Iterator[None]:
    """Nothing that a test compiles is there in the next one."""
    yield
    with compiling(AOT_EAGER):
        pass
