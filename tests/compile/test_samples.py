"""Which samples of an op are compiled, and which inputs of a further call are differentiated."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from conformance.suites.compile import meta_agrees
from conformance.suites.compile.compiled_calls import differentiable
from conformance.suites.compile.compiled_samples import (
    WHOLE,
    aten_calls,
    draws,
    laid_for,
    lead_first,
)
from devices.cell import Outcome
from tests.compile.running import EQUAL, META, context_of, record_of


def overloads(op: str, variant: str) -> set[str]:
    """The overloads of aten that the compiled samples of an op call."""
    context = context_of(META, op, variant=variant)
    return {name for each in lead_first(context) for name, _ in aten_calls(context, each)}


def test_samples_in_several_layouts_make_all_aten_calls_of_an_op() -> None:
    assert "aten.mean.dim" in overloads("nn.functional.adaptive_avg_pool3d", WHOLE)
    assert "aten.mean.dim" not in overloads("nn.functional.adaptive_avg_pool3d", "")


@pytest.mark.slow
def test_a_call_that_needs_the_values_of_its_operands_is_not_compiled() -> None:
    assert record_of(EQUAL, "tensor_split").outcome() is Outcome.PASS


def test_an_op_that_takes_contiguous_operands_only_is_compiled_with_an_offset() -> None:
    context = context_of(EQUAL, "aten._transform_bias_rescale_qkv")
    laid = laid_for(context, lead_first(context)[0], lead=True)
    assert {each.case.id for each in laid} == {"contiguous", "contiguous+offset"}


def test_inputs_that_another_call_lacks_or_that_have_no_gradient_are_not_differentiated() -> None:
    tensors = [torch.ones(2), torch.ones(2, dtype=torch.int64), torch.ones(2).cfloat()]
    assert differentiable(tensors, (0, 1, 2, 3)) == [0, 2]


@pytest.mark.slow
def test_calls_of_one_op_with_several_numbers_of_operands_are_compared() -> None:
    outcome = record_of(EQUAL, "meshgrid.variadic_tensors", variant="dynamic").to_outcome()
    assert (outcome.outcome, outcome.message) == (Outcome.PASS, "")


def test_a_call_that_fails_after_some_aten_calls_is_made_with_contiguous_operands_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``kron`` refuses the transposed operands when it has multiplied them: its backward was never compared."""
    ended, made = [], meta_agrees.called_beside_fake

    def noted(*given: Any) -> Any:
        found = made(*given)
        ended.append((bool(found.calls), found.raised is None))
        return found

    monkeypatch.setattr(meta_agrees, "called_beside_fake", noted)
    assert record_of(META, "kron", variant="").outcome() is Outcome.PASS
    assert ended == [(True, False), (True, True)]


def test_values_are_compared_unless_they_depend_on_random_numbers() -> None:
    """Calls of attention that drop nothing have one result, in each layout and with each compiler."""
    assert not draws(
        context_of(EQUAL, "nn.functional.scaled_dot_product_attention").traits.families
    )
    assert draws(context_of(EQUAL, "nn.functional.dropout").traits.families)
    assert draws(context_of(EQUAL, "svd_lowrank").traits.families)
