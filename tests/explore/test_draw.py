"""Random candidates: the same for the same seed, beyond the covering set, and laid out without overlap."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conformance.plan.selection import Item
from conformance.search.explore.encoding import encode
from conformance.search.explore.exploration import worth_exploring
from conformance.search.explore.search_worker import random_candidate, random_layout
from devices.manifest import Manifest
from devices.verdicts import Matcher
from opinfo.catalog import catalogue
from opinfo.layouts import FreeLayout, Layout, covering_set, parse_layout
from opinfo.samples import Sample, draw

LAYOUTS = st.integers(0, 2**32).map(lambda seed: random_layout(Random(seed)))
SHAPES = st.lists(st.integers(0, 4), max_size=5).map(tuple)


@given(LAYOUTS)
def test_a_random_layout_has_an_id_that_reads_back(layout: FreeLayout | Layout) -> None:
    assert parse_layout(layout.id) == layout


@given(LAYOUTS, SHAPES)
def test_elements_lie_apart_inside_the_extent(
    layout: FreeLayout | Layout, shape: tuple[int, ...]
) -> None:
    geometry = layout.geometry(shape)
    places = [
        geometry.offset + sum(i * s for i, s in zip(index, geometry.stride, strict=True))
        for index in product(
            *(range(1 if d == geometry.expanded else n) for d, n in enumerate(shape))
        )
    ]
    assert len(set(places)) == len(places)
    assert not places or (min(places) == geometry.offset and max(places) < geometry.extent)


def test_a_free_layout_is_what_it_says() -> None:
    geometry = FreeLayout((1, 2, 0), (2, 1, 3), None, 5).geometry((2, 3, 4))
    assert (geometry.stride, geometry.offset) == ((2, 48, 4), 5)
    expanded = FreeLayout(expand=1).geometry((2, 3))
    assert (expanded.stride, expanded.expanded) == ((1, 0), 1)
    assert FreeLayout(expand=1).geometry((2, 3), may_expand=False).stride == (3, 1)
    assert FreeLayout(expand=4).geometry((2, 3)).expanded is None


@pytest.fixture(scope="module")
def pool() -> list[Sample]:
    return draw(catalogue()["add"], "float32")


def test_the_same_seed_gives_the_same_candidate(pool: list[Sample]) -> None:
    def candidates(seed: int) -> list[object]:
        random = Random(seed)
        return [encode(random_candidate(random, pool, may_resize=True)) for _ in range(20)]

    assert candidates(3) == candidates(3) != candidates(4)


def test_candidates_leave_the_covering_set(pool: list[Sample]) -> None:
    random = Random(0)
    found = [random_candidate(random, pool, may_resize=True) for _ in range(200)]
    known = covering_set().ids
    assert sum(c.case.id not in known for c in found) > 100
    shapes = {t.shape for s in pool for t in s.tensors}
    assert sum(any(t.shape not in shapes for t in c.sample.tensors) for c in found) > 30
    assert all("expand" not in c.target.id for c in found)
    assert all(t.is_contiguous() for c in found for t in c.sample.tensors)


def test_sizes_stay_where_they_must(pool: list[Sample]) -> None:
    random = Random(0)
    shapes = {tuple(t.shape for t in s.tensors) for s in pool}
    found = [random_candidate(random, pool, may_resize=False) for _ in range(50)]
    assert {tuple(t.shape for t in c.sample.tensors) for c in found} <= shapes


def test_calls_with_indices_are_not_resized() -> None:
    pool = draw(catalogue()["index_select"], "float32")
    shapes = {tuple(t.shape for t in s.tensors) for s in pool}
    random = Random(0)
    found = [random_candidate(random, pool, may_resize=True) for _ in range(50)]
    assert {tuple(t.shape for t in c.sample.tensors) for c in found} <= shapes
    assert all(t.dtype != torch.float64 for c in found for t in c.sample.tensors)


MANIFEST = """
[[expect]]
clause = "layout.bounds"
op = "tril"
outcome = "fail"
reason = "writes past the end"

[[expect]]
clause = "layout.values"
op = "exp"
outcome = "fail"
reason = "wrong"
"""


def test_what_is_known_to_fail_is_left_out_and_with_stray_writes_all_that_writes() -> None:
    clauses = ["layout.values", "layout.bounds", "layout.out_kept", "layout.inplace"]
    items = [Item(op, "float32", clauses) for op in ("tril", "exp", "cos")]
    found = worth_exploring(items, Matcher(Manifest.parse(MANIFEST)))
    assert {item.unit: item.clauses for item in found} == {
        "tril": ["layout.values"],
        "exp": clauses[1:],
        "cos": clauses,
    }
