"""Guarded buffers: the view that an op gets, and the bytes around it."""

from __future__ import annotations

from itertools import product
from operator import mul

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from devices import registry
from opinfo.guarded import GUARD_BYTES, ByValues, Damage, Guarded, identity, storage_bytes
from opinfo.layouts import Layout, covering_set
from tests.opinfo.test_layouts import layouts, shapes

DTYPES = sorted(registry.get("cpu").dtypes)
UNIFORM = sorted({case.first.id for case in covering_set().cases if ":" not in case.first.id})
SHAPE = (2, 3, 4, 5)


def values(shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    """Small whole numbers, told apart as far as the dtype can."""
    counted = torch.arange(torch.Size(shape).numel()).reshape(shape) % 5 + 1
    if dtype == "bool":
        return counted % 2 == 1
    if dtype == "float8_e8m0fnu":  # powers of two alone
        return (2.0**counted).to(torch.float8_e8m0fnu)
    return counted.float().to(getattr(torch, dtype))


def expanded(tensor: torch.Tensor, dim: int | None) -> torch.Tensor:
    return tensor if dim is None else tensor.narrow(dim, 0, 1).expand(tensor.shape)


def raw(tensor: torch.Tensor) -> torch.Tensor:
    """The elements' bytes: some dtypes have no comparison."""
    return tensor.clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8)


def strided(text: str = "transposed+step_inner+offset", dtype: str = "float32") -> Guarded:
    return Guarded(values((3, 4), dtype), Layout.parse(text).geometry((3, 4)), identity)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_view_has_the_layout_and_the_values_asked_for(dtype: str) -> None:
    given_values = values(SHAPE, dtype)
    for text in UNIFORM:
        geometry = Layout.parse(text).geometry(SHAPE)
        view = Guarded(given_values, geometry, identity).view
        assert str(view.dtype) == f"torch.{dtype}"
        assert (tuple(view.shape), view.stride()) == (geometry.shape, geometry.stride)
        assert view.storage_offset() == geometry.offset
        assert torch.equal(raw(view), raw(expanded(given_values, geometry.expanded))), text


@pytest.mark.parametrize("dtype", DTYPES)
def test_without_an_offset_the_view_starts_aligned_to_64_bytes(dtype: str) -> None:
    for text in UNIFORM:
        guarded = Guarded(values(SHAPE, dtype), Layout.parse(text).geometry(SHAPE), identity)
        assert guarded.base.data_ptr() % 64 == 0
        past = (17 if "offset" in text else 0) * guarded.itemsize
        assert guarded.view.data_ptr() == guarded.base.data_ptr() + past


@pytest.mark.parametrize("dtype", DTYPES)
def test_channels_last_is_torch_s_own(dtype: str) -> None:
    for shape, known in (
        (SHAPE, torch.channels_last),
        ((2, 3, 4, 5, 2), torch.channels_last_3d),
    ):
        geometry = Layout("channels_last").geometry(shape)
        view = Guarded(values(shape, dtype), geometry, identity).view
        assert view.is_contiguous(memory_format=known)


@settings(deadline=None, max_examples=200)
@given(layouts, shapes, st.sampled_from([1, 2, 4, 8, 16]))
def test_the_storage_holds_the_view_and_a_dense_row_and_the_guard(
    layout: Layout, shape: tuple[int, ...], itemsize: int
) -> None:
    # A kernel that ignores strides writes a row from the offset on: that must hit the guard.
    geometry = layout.geometry(shape)
    row = geometry.offset + torch.Size(shape).numel()
    assert storage_bytes(geometry, itemsize) == max(geometry.extent, row) * itemsize + GUARD_BYTES


def test_the_guard_is_32_elements_of_the_widest_dtype() -> None:
    assert 32 * torch.complex128.itemsize <= GUARD_BYTES


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "complex64", "float64"])
def test_around_floating_point_elements_the_guard_reads_as_nan(dtype: str) -> None:
    guarded = strided(dtype=dtype)
    whole = guarded.base.view(getattr(torch, dtype))
    mine = guarded.element_mask()[:: guarded.itemsize][: len(whole)]
    assert bool(whole[~mine].isnan().all()) and not bool(whole[mine].isnan().any())


@pytest.mark.parametrize("dtype", ["int64", "bool", "uint8"])
def test_around_other_elements_the_guard_is_5b(dtype: str) -> None:
    guarded = strided(dtype=dtype)
    assert set(guarded.base[~guarded.element_mask()].tolist()) == {0x5B}


def test_fill_gives_every_element_that_value() -> None:
    geometry = Layout.parse("reversed+step_outer+offset").geometry((3, 4))
    guarded = Guarded(torch.zeros(3, 4), geometry, identity, fill=7.0)
    assert guarded.view.tolist() == [[7.0] * 4] * 3
    assert bool(guarded.base.view(torch.float32)[:17].isnan().all())


def test_a_fresh_buffer_is_intact() -> None:
    assert strided().intact(identity) and not strided().damage(identity)


def test_the_known_bytes_are_not_those_that_the_op_writes() -> None:
    guarded = strided()
    guarded.view.add_(1)
    assert not guarded.intact(identity)


@pytest.mark.parametrize("shape", [(3, 4), ()])
@pytest.mark.parametrize("text", UNIFORM)
def test_each_byte_is_judged_by_where_it_lies(text: str, shape: tuple[int, ...]) -> None:
    geometry = Layout.parse(text).geometry(shape)
    guarded = Guarded(values(shape, "int16"), geometry, identity)
    elements = {
        geometry.offset + sum(map(mul, index, geometry.stride))
        for index in product(*map(range, shape))
    }
    for byte in range(len(guarded.base)):
        guarded.base[byte] ^= 0x80
        element = byte // 2
        if element in elements:
            wanted = Damage(inside=1, between=0, outside=0, first_offset=byte)
        elif geometry.offset <= element < geometry.extent:
            wanted = Damage(inside=0, between=1, outside=0, first_offset=byte)
        else:
            wanted = Damage(inside=0, between=0, outside=1, first_offset=byte)
        assert guarded.damage(identity) == wanted
        assert guarded.outside_intact(identity) == (wanted.inside == 1)
        guarded.base[byte] ^= 0x80
    assert guarded.intact(identity)


def test_damage_in_all_three_places_is_counted_apart() -> None:
    guarded = strided("contiguous+step_inner+offset", "int16")
    guarded.base[0] ^= 1  # before the first element
    guarded.base[17 * 2] ^= 1  # the first element
    guarded.base[18 * 2 : 19 * 2] ^= 1  # the gap behind it
    guarded.base[-3:] ^= 1  # the guard at the end
    assert guarded.damage(identity) == Damage(inside=1, between=2, outside=4, first_offset=0)


def test_every_byte_of_an_empty_view_lies_outside() -> None:
    guarded = Guarded(torch.zeros(0, 3), Layout("contiguous").geometry((0, 3)), identity)
    guarded.base[0] ^= 1
    assert guarded.damage(identity) == Damage(inside=0, between=0, outside=1, first_offset=0)


def test_restore_writes_the_known_bytes_back() -> None:
    guarded = strided()
    before = guarded.view.clone()
    guarded.base.fill_(0)
    guarded.restore(identity)
    assert guarded.intact(identity) and torch.equal(guarded.view, before)


def test_remember_takes_what_is_there_for_known() -> None:
    guarded = strided()
    guarded.view.add_(1)
    guarded.remember(identity)
    assert guarded.intact(identity)
    guarded.view.add_(1)
    assert not guarded.intact(identity)


def test_a_device_that_builds_another_layout_is_noticed() -> None:
    guarded = strided()
    assert guarded.as_asked()
    guarded.view = guarded.view.contiguous()  # what a device without strides gives
    assert not guarded.as_asked()


def test_a_device_that_loses_the_offset_is_noticed() -> None:
    guarded = strided()
    guarded.view = guarded.base.view(torch.float32).as_strided(
        guarded.geometry.shape, guarded.geometry.stride, 0
    )
    assert not guarded.as_asked()


# Judged by values


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_view_by_slicing_is_the_view_by_strides(dtype: str) -> None:
    for text, shape in product(UNIFORM, (SHAPE, (3, 4), (5,), (), (1, 3, 1), (0, 3), (1, 1))):
        geometry = Layout.parse(text).geometry(shape)
        made = ByValues(values(shape, dtype), geometry, identity)
        known = raw(expanded(values(shape, dtype), geometry.expanded))
        assert torch.equal(raw(made.view), known), (text, shape)
        if 0 not in shape:
            assert made.view.storage_offset() == geometry.offset
            steps = zip(made.view.stride(), geometry.stride, shape, strict=True)
            assert all(a == b for a, b, size in steps if size > 1), (text, shape)
        assert made.as_asked() and made.intact(identity) and made.arrived(identity)


def by_values(text: str = "transposed+step_outer+offset") -> ByValues:
    return ByValues(values((3, 4), "float32"), Layout.parse(text).geometry((3, 4)), identity)


@pytest.mark.parametrize("text", ["contiguous", "transposed+step_outer+offset"])
def test_by_values_changes_inside_and_outside_are_told_apart(text: str) -> None:
    made = by_values(text)
    made.view[1, 2] = 77.0
    assert not made.intact(identity) and made.outside_intact(identity)
    damage = made.damage(identity)
    assert damage.inside > 0 and not damage.outside
    made.restore(identity)
    assert made.intact(identity)
    if text != "contiguous":
        made.base[0] = 5.0
        assert not made.outside_intact(identity) and made.damage(identity).outside > 0


def test_by_values_another_nan_is_no_change() -> None:
    made = by_values()
    made.base[0] = -made.base[0]
    assert made.base[0].isnan() and made.intact(identity)


def test_a_view_that_left_its_base_has_not_arrived() -> None:
    made = by_values()
    made.view = made.view.clone()
    made.view.fill_(3.0)
    assert not made.arrived(identity)


def test_a_base_that_was_resized_is_changed_and_can_be_put_back() -> None:
    made = by_values("contiguous")
    made.base = torch.zeros(2)
    assert not made.intact(identity)
    made.restore(identity)
    assert made.intact(identity) and made.as_asked()
