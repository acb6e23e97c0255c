"""Tensors that cases lay out: the layout, the values, and the bytes around them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from conformance.checks.behaviour.guarded_tensors import GuardedTensors
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.exceptions import CheckFailed
from devices import registry
from opinfo.device import Device, open_device
from opinfo.layouts import parse_layout

LAYOUTS = (
    "contiguous",
    "transposed+step_inner+offset",
    "channels_last",
    "free:pads=2,offset=3",
    "free:order=2.0.1,steps=3,expand=0,offset=5",
)


@pytest.fixture(scope="module")
def opened() -> Device:
    return open_device(registry.get("cpu"))


@pytest.fixture
def context(opened: Device) -> CaseContext:
    return CaseContext(opened, "a test")


@pytest.fixture
def sliced(opened: Device) -> CaseContext:
    """Of a device without strides."""
    fewer = opened.descriptor.capabilities - {"strides"}
    few = replace(opened, descriptor=replace(opened.descriptor, capabilities=fewer))
    return CaseContext(few, "a test")


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.complex64])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_tensor_has_its_values_in_the_layout(
    context: CaseContext, layout: str, dtype: torch.dtype
) -> None:
    values = torch.arange(120).reshape(2, 3, 4, 5).to(dtype)
    made = context.guarded(values, layout)
    geometry = parse_layout(layout).geometry(values.shape)
    assert (made.view.stride(), made.view.storage_offset()) == (geometry.stride, geometry.offset)
    wanted = values[:1].expand(values.shape) if "expand" in layout else values
    for found in (made.view, made.values, made.read()):
        assert torch.equal(found, wanted)
    assert torch.equal(context.lay(values, layout), wanted)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_without_strides_a_tensor_has_the_same_values(sliced: CaseContext, layout: str) -> None:
    values = torch.arange(120.0).reshape(2, 3, 4, 5)
    made = sliced.guarded(values, layout)
    assert torch.equal(made.view, made.values) and torch.equal(made.read(), made.values)
    assert made.view.storage_offset() == parse_layout(layout).geometry(values.shape).offset


def test_an_unknown_layout_is_an_error(context: CaseContext) -> None:
    with pytest.raises(ValueError, match="sideways"):
        context.lay(torch.ones(2), "sideways")


@pytest.mark.parametrize("values", [torch.tensor(2.0), torch.empty(0, 3), torch.ones(1, 1)])
def test_tensors_without_dimensions_or_elements_can_be_laid_out(
    context: CaseContext, values: torch.Tensor
) -> None:
    assert torch.equal(context.lay(values, "transposed+step_outer+expand_last+offset"), values)


@pytest.mark.parametrize("place", [0, 16, 18, -1])
def test_a_write_beside_the_elements_is_noticed(context: CaseContext, place: int) -> None:
    made = context.guarded(torch.ones(4), "contiguous+step_inner+offset")
    made.view.fill_(2)
    assert made.outside_intact() and not made.intact()
    made.storage[place] = 0
    assert not made.outside_intact()


@pytest.mark.parametrize("on", ["context", "sliced"])
def test_equal_tensors_have_equal_storages(on: str, request: pytest.FixtureRequest) -> None:
    context: CaseContext = request.getfixturevalue(on)
    one, other = (context.guarded(torch.ones(2, 3, 4), "free:pads=2,offset=3") for _ in range(2))
    context.equal(one.stored(), other.stored(), "equal storages differ")
    one.storage[1] = 0  # before the view
    with pytest.raises(CheckFailed, match="a write was seen"):
        context.equal(one.stored(), other.stored(), "a write was seen")


def test_a_read_beside_the_elements_gives_nan(context: CaseContext) -> None:
    view = context.lay(torch.ones(4), "contiguous+step_inner+offset")
    assert view.as_strided((4,), (1,)).sum().isnan()


@pytest.mark.parametrize("place", [0, -1, 1])
def test_a_write_beside_one_of_several_tensors_names_it(context: CaseContext, place: int) -> None:
    laid = GuardedTensors(context)
    laid.put(torch.ones(2), "contiguous", "a state")
    made = laid.put(torch.randn(3, 4), "transposed+step_inner+offset", "an input")
    laid.check_intact("")
    assert context.checks == 2
    made.storage[place] = 1
    with pytest.raises(CheckFailed, match="an input or the bytes around it"):
        laid.check_intact("")


def test_a_layout_that_the_device_cannot_build_is_contiguous(sliced: CaseContext) -> None:
    assert GuardedTensors(sliced).put(torch.ones(2, 3), "reversed", "").view.is_contiguous()


def test_indices_that_are_read_in_a_row_are_other_indices(context: CaseContext) -> None:
    values = torch.tensor([4, 1, 2])
    view = GuardedTensors(context).put_indices(values, "channels_last", "an input")
    assert view.tolist() == [4, 1, 2] and view.stride() == (2,)
    assert view.as_strided((3,), (1,)).tolist() == [4, 2, 1]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_elements_around_a_tensor_can_have_a_value(context: CaseContext, layout: str) -> None:
    made = context.guarded(torch.zeros(2, 3, 4, 5), layout, around=1.5)
    made.view.fill_(1.5)
    assert (made.storage == 1.5).all()
