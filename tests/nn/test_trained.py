"""How modules are given and judged: each sample and each way, buffers of known bytes, tolerances."""

from __future__ import annotations

import pytest
import torch

from conformance.checks.behaviour.guarded_tensors import GuardedTensors
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.exceptions import CheckFailed
from conformance.checks.cases.layouts import DENSE
from conformance.suites.nn.forward_backward import WAYS, assert_equals_cpu, cotangents
from conformance.suites.nn.modules import LONG, MOST, NAMES, runs
from devices import registry
from opinfo.device import open_device
from opinfo.module_catalog import module_entries


@pytest.fixture(scope="module")
def opened() -> object:
    return open_device(registry.get("cpu"))


@pytest.fixture
def context(opened: object) -> CaseContext:
    return CaseContext(opened, "a test")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["BatchNorm2d", "CrossEntropyLoss", "ReLU"])
@pytest.mark.parametrize("training", [True, False])
def test_a_module_meets_every_way(name: str, training: bool) -> None:
    made = list(runs(module_entries()[name], MOST, training=training))
    assert {way for _, _, way in made} == set(WAYS)
    assert len(made) <= max(MOST, len(WAYS) + 2)


def test_larger_plans_take_every_sample() -> None:
    entry = module_entries()["MultiheadAttention"]
    taken = {number for number, _, _ in runs(entry, 1000, training=True)}
    assert taken == set(range(len(entry.samples(training=True))))


def test_the_modules_with_more_samples_are_modules() -> None:
    assert set(LONG) <= set(NAMES)


def test_rounding_is_no_difference(context: CaseContext) -> None:
    want = torch.randn(50, dtype=torch.float64)
    assert_equals_cpu(context, want.float(), want, "it is near", "")
    assert context.checks > 0


@pytest.mark.parametrize("wrong", [1.001, 0.0, -1.0])
def test_one_wrong_element_is_noticed(context: CaseContext, wrong: float) -> None:
    want = torch.linspace(1, 2, 50, dtype=torch.float64)
    found = want.float()
    found[-1] *= wrong
    with pytest.raises(CheckFailed, match="it is near"):
        assert_equals_cpu(context, found, want, "it is near", "")


def test_nan_is_noticed(context: CaseContext) -> None:
    with pytest.raises(CheckFailed):
        assert_equals_cpu(
            context, torch.tensor([torch.nan]), torch.zeros(1).double(), "it is near", ""
        )


@pytest.mark.parametrize("layout", ["scalar", "contiguous+expand_first", "transposed", DENSE])
def test_cotangents_are_the_same_in_both(context: CaseContext, layout: str) -> None:
    generator = torch.Generator().manual_seed(1)
    outputs = [torch.zeros(3, 4, dtype=torch.float64)]
    mine, theirs = cotangents(GuardedTensors(context), outputs, layout, generator)
    assert torch.equal(mine[0].double(), theirs[0])
    assert (0 in mine[0].stride()) == (layout in ("scalar", "contiguous+expand_first"))
