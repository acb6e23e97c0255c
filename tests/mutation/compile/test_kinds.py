"""Each kind of mutants of compile changes what it says, changes nothing where it only counts, and is noticed by its cells."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch

from conformance.suites.compile.fake_calls import BesideFake
from devices.cell import Outcome
from tests.compile.running import EQUAL, META
from tests.mutation import compilers
from tests.mutation.compile import (
    exported,
    fake_kernels,
    interfaces,
    op_graphs,
    runtime_wrappers,
    stride_tags,
    traced_backward,
)
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
        "_set_stream_by_id|raises an exception|on another index than 0",
        "set_stream|does nothing|on another index than 0",
        "stream|does nothing|on another index than 0",
        "get_compute_capability|another each time|on another index than 0",
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


def test_a_mutant_of_a_wrapper_changes_its_text_and_its_sham_only_counts() -> None:
    compilers.register()
    spec = runtime_wrappers.Spec("output_alias_wrapper", "a view is a copy")

    def shares(sham: bool) -> tuple[bool, int]:
        torch._dynamo.reset()
        x = torch.ones(2, 3)
        with runtime_wrappers.planted(spec, sham) as state:
            made = torch.compile(lambda x: (x.t(), x + 1), backend=compilers.NAME)(x)
        return made[0].data_ptr() == x.data_ptr(), state.reached

    assert shares(sham=False) == (False, 1)
    assert shares(sham=True) == (True, 1)
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("runtime_wrapper_orchestration|gradients stay switched off", "mutated_inputs"),
        ("runtime_wrapper_orchestration|a change of the gradient mode is lost", "mode_that_stays"),
        ("runtime_wrapper_orchestration|autocast stays switched on", "in_an_autocast_region"),
        ("mutation_epilogue|no input is written", "written_activations"),
        ("compiled_function_backward|a gradient of a gradient is zero", "gradient_of_a_gradient"),
        ("synthetic_base_wrapper|the memory of aliased inputs is copied", "overlapping_inputs"),
    ],
)
def test_a_program_notices_a_mutant_of_a_wrapper(name: str, case: str) -> None:
    found = next(each for each in compilers.cases() if each.name == case)
    assert compilers.outcome(found) is Outcome.PASS
    with runtime_wrappers.planted(runtime_wrappers.Spec(*name.split("|")), sham=False) as state:
        assert compilers.outcome(found) is Outcome.FAIL
    assert state.reached


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "export|sizes are constants",
        "load|parameters are contiguous",
        "move|buffers are on index 0",
        "decompose|parameters are rounded",
        "decompose|buffers are on index 0",
    ],
)
def test_the_cases_notice_a_mutant_of_an_exported_program(name: str) -> None:
    found = exported.tried(1, 0, name, nothing)
    assert (found.result, found.by) == ("noticed", ["compile.export"])


@pytest.mark.slow
def test_the_cases_notice_a_constraint_of_another_tag() -> None:
    found = stride_tags.tried(1, 0, "needs_contiguous_strides|needs_exact_strides", nothing)
    assert (found.result, found.by) == ("noticed", ["compile.stride_tags"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "subject",
    [
        "reorder_post_hook_nodes",
        "reorder_pre_hook_nodes_to_mimic_eager",
        "reorder_pre_hook_nodes_to_schedule_asap",
    ],
)
def test_hooks_of_all_nodes_notice_another_order(subject: str) -> None:
    case = next(each for each in traced_backward.cases() if each.name == "hooks_of_all_nodes")
    assert compilers.outcome(case) is Outcome.PASS
    with traced_backward.planted(traced_backward.Spec(subject, "is not done", "always"), False):
        assert compilers.outcome(case) is Outcome.FAIL


@pytest.mark.slow
def test_a_mutant_inside_of_a_fake_kernel_that_changes_no_prediction_is_equivalent() -> None:
    spec = fake_kernels.Spec("aten.reshape.default", "column-major strides", "always")
    op = "nn.functional.max_unpool2d.grad"
    answer = fake_kernels.probe(
        lambda sham: fake_kernels.planted(spec, sham), op, Random("probe 20261129 42")
    )
    assert not answer.differs and answer.reached
