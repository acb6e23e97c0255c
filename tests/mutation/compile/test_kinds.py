"""Each kind of mutants of compile changes what it says, changes nothing where it only counts, and is noticed by its cells."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from conformance.suites.compile.fake_calls import BesideFake
from devices.cell import Outcome
from tests.compile.running import EQUAL, META
from tests.mutation import compilers
from tests.mutation.compile import fake_kernels, interfaces, op_graphs, traced_backward
from tests.mutation.compile.op_cells import OpCell, outcome
from tests.mutation.compilers import Spec
from tests.mutation.kernels import Result


def nothing(result: Result) -> None:
    pass


def fake_strides(spec: fake_kernels.Spec, sham: bool) -> tuple[Any, int]:
    x = torch.ones(2, 3)
    with fake_kernels.planted(spec, sham) as state, BesideFake() as mode:
        x.cumsum(0)
    (call,) = mode.calls
    assert call.fake is not None
    return call.fake[0].stride, state.reached


def test_a_mutant_of_a_fake_kernel_changes_the_fake_result_and_its_sham_only_counts() -> None:
    spec = fake_kernels.Spec("aten.cumsum.default", "column-major strides", "always")
    assert fake_strides(spec, sham=False) == ((1, 2), 1)
    assert fake_strides(spec, sham=True) == ((3, 1), 1)


def test_a_mutant_of_a_fake_kernel_without_its_condition_is_not_reached() -> None:
    spec = fake_kernels.Spec(
        "aten.cumsum.default", "column-major strides", "some operand has an offset"
    )
    assert fake_strides(spec, sham=False) == ((3, 1), 0)


def test_the_fake_mutants_of_a_call_are_those_that_change_something() -> None:
    with fake_kernels.noting() as notes, BesideFake():
        torch.ones(2, 3).cumsum(0)
    effects = {each.effect for each in notes if each.overload == "aten.cumsum.default"}
    assert "column-major strides" in effects
    assert not {"a copy", "row-major strides", "no storage offset"} & effects


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "get_device_properties|of index 0|always",
        "Worker.get_device_properties|of index 0|on another index than 0",
        "device|acts on index 0|on another index than 0",
        "set_stream|raises an exception|after the first call",
        "maybe_exchange_device|acts on index 0|always",
        "memory_allocated|of index 0|always",
        "is_available|the opposite|on another index than 0",
        "synchronize|acts on index 0|always",
        "get_raw_stream|answers as at first|always",
        "current_stream|answers as at first|on another index than 0",
    ],
)
def test_the_cases_notice_a_mutant_of_the_device_interface(name: str) -> None:
    found = interfaces.tried(1, 0, name, nothing)
    assert (found.result, found.by) == ("noticed", ["compile.device_interface"])


@pytest.mark.slow
def test_a_right_answer_in_other_words_is_no_mutant_of_the_device_interface() -> None:
    found = interfaces.tried(1, 0, "is_dtype_supported|always true|always", nothing)
    assert (found.result, found.unsteady) == ("equivalent", [])


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "accumulate_grad|keeps the earlier gradient|always",
        "apply_functional|exchanges two gradients|always",
        "validate_outputs|negates gradients|the first call of a pass",
    ],
)
def test_the_cases_notice_a_mutant_of_compiled_autograd(name: str) -> None:
    found = traced_backward.tried(1, 0, name, nothing)
    assert (found.result, found.by) == ("noticed", ["compile.autograd"])


@pytest.mark.slow
@pytest.mark.parametrize(("sham", "outcome"), [(True, Outcome.PASS), (False, Outcome.FAIL)])
def test_hooks_that_keep_the_order_of_the_trace_are_noticed(sham: bool, outcome: Outcome) -> None:
    spec = traced_backward.Spec("reorder_post_acc_grad_hook_nodes", "is not done", "always")
    case = next(each for each in traced_backward.cases() if each.name == "hooks")
    with traced_backward.planted(spec, sham) as state:
        assert compilers.outcome(case) is outcome
    assert state.reached == 1


@pytest.mark.slow
@pytest.mark.parametrize("sham", [False, True])
def test_the_cell_of_an_op_notices_a_mutant_of_its_graph(sham: bool) -> None:
    cell = OpCell(EQUAL, "nn.functional.glu", "float32")
    with op_graphs.planted(Spec("dropped", "glu", "forward", "always"), sham) as state:
        found = outcome(cell)
    assert state.reached
    assert found is (Outcome.PASS if sham else Outcome.FAIL)


@pytest.mark.slow
def test_the_mutant_of_an_op_is_the_same_each_time_and_a_cell_notices_it() -> None:
    op, spec = fake_kernels.bred(1, 5, "gt")
    assert (op, spec) == fake_kernels.bred(1, 5, "gt")
    found = fake_kernels.tried(1, 5, "gt", nothing)
    assert (found.result, found.by) == ("noticed", [META])
