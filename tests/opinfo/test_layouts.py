"""Layouts: their ids, the covering set, and the addresses that a geometry reaches."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import empty

from opinfo.layouts import (
    CONTIGUOUS,
    EXPAND,
    MEMORY,
    OFFSET,
    STEP,
    Geometry,
    Layout,
    Operand,
    covering,
    covering_set,
    geometries_of,
    parse_layout,
)

#: Ids are names in manifests and reports: changing one of these raises the version in layouts.toml.
VERSION = 3
CASES = [
    "contiguous",
    "contiguous+offset",
    "contiguous+step_inner",
    "contiguous+step_inner+offset",
    "contiguous+step_outer+expand_last",
    "contiguous+step_outer+expand_last+offset",
    "contiguous+expand_first",
    "contiguous+expand_first+offset",
    "transposed",
    "transposed+offset",
    "transposed+step_inner+expand_first",
    "transposed+step_inner+expand_first+offset",
    "transposed+step_outer",
    "transposed+step_outer+offset",
    "transposed+expand_last",
    "transposed+expand_last+offset",
    "reversed+expand_first",
    "reversed+expand_first+offset",
    "reversed+step_inner+expand_last",
    "reversed+step_inner+expand_last+offset",
    "reversed+step_outer",
    "reversed+step_outer+offset",
    "channels_last",
    "channels_last+offset",
    "channels_last+step_inner",
    "channels_last+step_inner+offset",
    "channels_last+step_outer+expand_first",
    "channels_last+step_outer+expand_first+offset",
    "channels_last+step_inner+expand_last",
    "channels_last+step_inner+expand_last+offset",
    "free:order=1.2.0",
    "free:order=2.0.1,steps=3,offset=4",
    "free:expand=1",
    "free:offset=1",
    "free:offset=2",
    "free:steps=3,offset=4",
    "free:ones=0",
    "free:ones=2147483649",
    "transposed/contiguous",
    "contiguous/transposed",
    "channels_last/contiguous+offset",
    "contiguous+offset/channels_last",
    "contiguous+step_inner/contiguous",
    "contiguous/contiguous+expand_first",
    "contiguous/contiguous/contiguous+step_inner+offset",
    "contiguous/contiguous/transposed",
    "contiguous/contiguous+step_inner/contiguous",
    "contiguous/free:order=1.2.0,offset=1",
    "transposed/contiguous+step_inner/free:order=1.2.0,offset=1",
]
TARGETS = [
    "contiguous",
    "contiguous+offset",
    "transposed",
    "reversed+offset",
    "contiguous+step_inner",
    "transposed+step_outer+offset",
    "channels_last",
    "channels_last+step_inner+offset",
    "free:steps=3,offset=2",
]
DIRECTED = [
    "high",
    "highest again",
    "through backward",
    "inplace_slice",
    "out=empty",
    "out=wrong_shape",
    "out=smaller",
    "out=wrong_dtype",
    "out=wrong_device",
    "out=requires_grad",
    "self=broadcast",
    "method",
    "operator",
    "inplace",
    "inplace_operator",
    "out",
    "out_self",
    "self=expanded",
    "out=expanded",
    "out=partial_overlap",
    "conj",
    "neg",
    "addresses",
    "out_of_range",
    "set_",
    "allocates",
    "of_view",
    "of_base",
    "in_place",
    "preserve_format",
    "contiguous_format",
    "channels_last_format",
    "channels_last_3d_format",
    "tensors",
    "0-d",
    "python_scalar",
    "int64_bits",
    "int_to_float",
    "nan",
    "nan_last",
    "bool_bytes",
    "nan_strided",
    "zero_divisor",
    "beta_zero",
    "k_zero",
    "dim",
    "all",
    "highest",
    "precise",
    "step",
    "into",
    *("grad=large", "output=0", "output=1", "output=2", "output=3"),
    *("input=0", "input=1", "input=2", "input=3", "input=0+1", "input=0+2", "input=1+2"),
    *("batched", "inplace=contiguous", "inplace=transposed"),
    *("inplace_slice=contiguous", "inplace_slice=transposed"),
    *("saved=contiguous+step_inner+offset", "saved=reversed", "saved=channels_last"),
]

#: Of gradients: each is a name of its own, and one with inputs in the same layout.
COTANGENTS = [
    "sum",
    "transposed",
    "contiguous+step_inner+offset",
    "channels_last",
    "contiguous+expand_first",
    "free:order=2.0.1,steps=3,offset=4",
    "conj",
]

EVERY_LAYOUT = [
    Layout(memory, step, expand, offset)
    for memory, step, expand, offset in product(MEMORY, STEP, EXPAND, (False, True))
]
UNIFORM = [case for case in covering_set().cases if not {"/", ":"} & set(case.id)]
FACTORS = {"memory": MEMORY, "step": STEP, "expand": EXPAND, "offset": (False, True)}

layouts = st.sampled_from(EVERY_LAYOUT)
shapes = st.lists(st.integers(0, 4), max_size=5).map(tuple)


def addresses(geometry: Geometry) -> Iterator[tuple[tuple[int, ...], int]]:
    """Each index with its storage element."""
    for index in product(*(range(n) for n in geometry.shape)):
        yield (
            index,
            geometry.offset + sum(i * s for i, s in zip(index, geometry.stride, strict=True)),
        )


def test_ids_and_version_are_those_that_manifests_name() -> None:
    found = covering_set()
    assert (found.version, [case.id for case in found.cases]) == (VERSION, CASES)
    assert [target.id for target in found.targets] == TARGETS
    assert list(found.directed) == DIRECTED
    assert list(found.cotangents) == COTANGENTS


@pytest.mark.parametrize("stride", [0, 2**31 + 1])
def test_strides_of_dimensions_of_size_1_are_as_asked(stride: int) -> None:
    layout = parse_layout(f"free:ones={stride}")
    geometry = layout.geometry((3, 1, 5, 1))
    assert (geometry.stride, geometry.extent) == ((5, stride, 1, stride), 15)
    assert geometry.expanded is None
    assert empty(15).as_strided(geometry.shape, geometry.stride).is_contiguous()
    assert layout.geometry((3, 5)) == CONTIGUOUS.geometry((3, 5))


def test_ids_are_unique() -> None:
    found = covering_set()
    assert len({case.id for case in found.cases}) == len(found.cases)
    assert len({target.id for target in found.targets}) == len(found.targets)
    every = len(CASES) + len(TARGETS) + len(DIRECTED) + 2 * len(COTANGENTS)
    assert len(found.ids) == every + 2  # and the two cases of a recorded call


@pytest.mark.parametrize("layout", EVERY_LAYOUT, ids=lambda layout: layout.id)
def test_an_id_parses_back_to_its_layout(layout: Layout) -> None:
    assert Layout.parse(layout.id) == layout


def test_a_mixed_id_names_the_layout_of_the_first_tensor_and_of_the_others() -> None:
    for case in covering_set().cases:
        first, *others = map(parse_layout, case.id.split("/"))
        assert case.layout(0) == first
        assert case.layout(1) == (others or [first])[0]
        assert case.layout(2) == case.layout(3) == (others or [first])[-1]


@pytest.mark.parametrize(
    "text",
    ["", "diagonal", "contiguous+", "contiguous+step_both", "contiguous+expand_all", "offset"],
)
def test_an_unknown_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="layout"):
        Layout.parse(text)


@pytest.mark.parametrize(
    ("one", "other"), list(combinations(FACTORS, 2)), ids=lambda factor: str(factor)
)
def test_every_pair_of_values_of_two_factors_is_in_some_layout(one: str, other: str) -> None:
    wanted = set(product(FACTORS[one], FACTORS[other]))
    assert {(getattr(c.first, one), getattr(c.first, other)) for c in UNIFORM} == wanted


def test_every_combination_comes_with_and_without_an_offset() -> None:
    with_offset = {
        (c.first.memory, c.first.step, c.first.expand) for c in UNIFORM if c.first.offset
    }
    without = {
        (c.first.memory, c.first.step, c.first.expand) for c in UNIFORM if not c.first.offset
    }
    assert with_offset == without


def test_every_layout_of_the_set_is_a_geometry_of_its_own() -> None:
    geometries = [case.first.geometry((2, 3, 4, 5)) for case in UNIFORM]
    assert len(set(geometries)) == len(geometries)


def test_mixed_cases_give_the_first_tensor_another_geometry_than_the_rest() -> None:
    for case in covering_set().cases:
        if "/" in case.id:
            others = {case.layout(place).geometry((2, 3, 4, 5)) for place in (1, 2)}
            assert others != {case.first.geometry((2, 3, 4, 5))}


@settings(deadline=None, max_examples=400)
@given(layouts, shapes, st.booleans())
def test_elements_share_an_address_only_along_the_expanded_dimension(
    layout: Layout, shape: tuple[int, ...], may_expand: bool
) -> None:
    geometry = layout.geometry(shape, may_expand=may_expand)
    owners: dict[int, tuple[int, ...]] = {}
    for index, address in addresses(geometry):
        if geometry.expanded is not None:
            index = (*index[: geometry.expanded], 0, *index[geometry.expanded + 1 :])
        assert owners.setdefault(address, index) == index


@settings(deadline=None, max_examples=400)
@given(layouts, shapes)
def test_the_extent_ends_at_the_last_element(layout: Layout, shape: tuple[int, ...]) -> None:
    geometry = layout.geometry(shape)
    reached = [address for _, address in addresses(geometry)]
    assert geometry.extent == max(reached, default=geometry.offset - 1) + 1
    assert min(reached, default=geometry.offset) == geometry.offset


@settings(deadline=None, max_examples=200)
@given(layouts, shapes)
def test_the_shape_stays_and_the_offset_is_17_or_none(
    layout: Layout, shape: tuple[int, ...]
) -> None:
    geometry = layout.geometry(shape)
    assert geometry.shape == shape and len(geometry.stride) == len(shape)
    assert geometry.offset == (OFFSET if layout.offset else 0) and OFFSET == 17


@settings(deadline=None, max_examples=200)
@given(layouts, shapes)
def test_only_an_expand_that_is_allowed_has_stride_0(
    layout: Layout, shape: tuple[int, ...]
) -> None:
    geometry = layout.geometry(shape)
    long = [dim for dim, size in enumerate(shape) if size > 1]
    at = {"none": None, "first": long[0] if long else None, "last": long[-1] if long else None}
    assert geometry.expanded == at[layout.expand]
    assert [d for d, s in enumerate(geometry.stride) if s == 0] == (
        [] if geometry.expanded is None else [geometry.expanded]
    )
    assert layout.geometry(shape, may_expand=False).expanded is None


@pytest.mark.parametrize(
    ("text", "shape", "stride"),
    [
        ("contiguous", (2, 3, 4), (12, 4, 1)),
        ("transposed", (2, 3, 4), (12, 1, 3)),
        ("reversed", (2, 3, 4), (1, 2, 6)),
        ("channels_last", (2, 3, 4, 5), (60, 1, 15, 3)),
        ("channels_last", (2, 3, 4, 5, 6), (360, 1, 90, 18, 3)),
        ("contiguous+step_inner", (2, 3, 4), (24, 8, 2)),
        ("contiguous+step_outer", (2, 3, 4), (24, 4, 1)),
        ("transposed+step_inner", (2, 3, 4), (24, 2, 6)),
        ("channels_last+step_outer", (2, 3, 4, 5), (120, 1, 15, 3)),
        ("contiguous+expand_first", (2, 3, 4), (0, 4, 1)),
        ("contiguous+expand_last", (2, 3, 4), (3, 1, 0)),
        ("contiguous+expand_first", (1, 3, 4), (4, 0, 1)),
        ("contiguous+step_outer+expand_first", (2, 3, 4), (0, 8, 1)),
    ],
)
def test_strides_by_example(text: str, shape: tuple[int, ...], stride: tuple[int, ...]) -> None:
    assert Layout.parse(text).geometry(shape).stride == stride


@pytest.mark.parametrize("memory", MEMORY)
@pytest.mark.parametrize("shape", [(), (5,)])
def test_an_order_of_one_dimension_or_none_is_contiguous(
    memory: str, shape: tuple[int, ...]
) -> None:
    assert Layout(memory).geometry(shape) == Layout("contiguous").geometry(shape)


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4), (2, 3, 4, 2, 2, 2)])
def test_channels_last_outside_ranks_4_and_5_is_contiguous(shape: tuple[int, ...]) -> None:
    assert Layout("channels_last").geometry(shape) == Layout("contiguous").geometry(shape)


@pytest.mark.parametrize("expand", EXPAND)
@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (0, 1)])
def test_an_expand_without_a_long_dimension_falls_away(expand: str, shape: tuple[int, ...]) -> None:
    layout = Layout("contiguous", expand=expand)
    assert layout.geometry(shape) == Layout("contiguous").geometry(shape)


@pytest.mark.parametrize("step", ["inner", "outer"])
def test_a_step_of_a_scalar_falls_away(step: str) -> None:
    assert Layout("contiguous", step).geometry(()) == Layout("contiguous").geometry(())


def test_the_cases_of_a_call_are_the_first_of_each_layout() -> None:
    """And where a dimension may not have stride 0, it has another."""
    operands = (Operand((2, 3, 4), 1), Operand((4,), 0), Operand((5, 5), 2, strided=False))
    every = [geometries_of(case, operands) for case in covering_set().cases]
    found = covering(operands, None)
    assert [placed for _, placed in found] == list(dict.fromkeys(every))
    assert {placed[0].expanded for _, placed in found} == {None, 0}
    assert all(placed[1].expanded is None and not placed[2].stride for _, placed in found)
    named = [case.id for case, _ in covering(operands, ("transposed", "contiguous"))]
    assert named == ["contiguous", "transposed"]


@pytest.mark.parametrize(
    ("text", "stride", "offset"),
    [
        ("free:pads=2", (18, 6, 1), 0),  # [..., :4] of shape (2, 3, 6)
        ("free:pads=0.2,offset=4", (20, 4, 1), 4),  # [:, 1:4] of shape (2, 5, 4)
        ("free:order=2.1.0,steps=3,pads=1", (3, 9, 27), 0),  # two of three elements, each third
    ],
)
def test_pads_are_room_for_more_elements_along_a_dimension(
    text: str, stride: tuple[int, ...], offset: int
) -> None:
    geometry = parse_layout(text).geometry((2, 3, 4))
    assert (geometry.stride, geometry.offset) == (stride, offset)
    assert parse_layout(text).id == text
