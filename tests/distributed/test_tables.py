"""What the cases of collectives expect, without processes: each result follows from what all ranks give."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from conformance.checks.cases.exceptions import NotDeclared
from conformance.suites.distributed import collectives, views
from conformance.suites.distributed.backend import subsets
from conformance.suites.distributed.collective_calls import (
    COLLECTIVES,
    VARIANTS,
    Collective,
    Views,
    root_of,
)
from conformance.suites.distributed.collectives import LAST, WHOLE
from conformance.suites.distributed.collectives import SHAPES as CHANGES
from conformance.suites.distributed.reductions import MEANT, QUICK, given, reduced
from conformance.suites.distributed.sizes import SPLITS
from conformance.suites.distributed.views import LAYOUTS, SHAPE, VALUES, numbers, shown

RANKS = 4


@pytest.mark.parametrize("name", COLLECTIVES)
def test_no_target_holds_its_result_before_the_call(name: str) -> None:
    collective = COLLECTIVES[name]
    for rank in range(RANKS):
        about = (rank, RANKS, Views())
        pairs = zip(collective.outputs(*about), collective.wanted(*about))
        changed = [not torch.equal(a, b) for a, b in pairs if b is not None]
        root = root_of(RANKS)
        keeps = (name == "broadcast" and rank == root) or (name == "gather" and rank != root)
        assert keeps or all(changed)


@pytest.mark.parametrize("name", COLLECTIVES)
def test_ranks_receive_different_values_or_the_same_by_definition(name: str) -> None:
    collective = COLLECTIVES[name]
    same = {"all_reduce", "broadcast", "all_gather", "all_gather_single", "reduce", "gather"}
    first, second = (collective.wanted(rank, RANKS, Views())[0] for rank in (0, 1))
    assert name in same or (
        first is not None and second is not None and not torch.equal(first, second)
    )


def test_no_two_values_of_two_ranks_or_parts_are_equal() -> None:
    values = [numbers(rank, part=part) for rank in range(RANKS) for part in range(RANKS)]
    everything = torch.cat([each.flatten() for each in values])
    assert len(everything.unique()) == len(everything)


def test_an_expanded_view_shows_the_first_values() -> None:
    values = numbers(0)
    assert torch.equal(shown(values, "expanded")[3], values[0])
    assert all(shown(values, view) is values for view in LAYOUTS if view != "expanded")


def test_every_extent_is_different_and_the_ranks_divide_the_first() -> None:
    assert len({*SHAPE}) == len(SHAPE)
    assert SHAPE[0] % RANKS == 0


@pytest.mark.parametrize("dtype", QUICK)
def test_no_reduction_gives_the_result_of_another(dtype: str) -> None:
    kind = getattr(torch, dtype)
    tensors = [given(rank, kind) for rank in range(2)]
    results = {name: reduced(name, tensors) for name, dtypes in MEANT.items() if dtype in dtypes}
    names = [*results]
    pairs = [(a, b) for place, a in enumerate(names) for b in names[place + 1 :]]
    assert [(a, b) for a, b in pairs if torch.equal(results[a], results[b])] == []


def test_a_reduction_is_exact_in_its_own_dtype() -> None:
    for name, dtypes in MEANT.items():
        for dtype in dtypes:
            kind = getattr(torch, dtype)
            found = reduced(name, [given(rank, kind) for rank in range(2)])
            assert found.dtype is kind
    assert reduced("SUM", [given(rank, torch.int64) for rank in range(2)])[-1] == 2**53 + 2


@pytest.mark.parametrize("name", SPLITS)
@pytest.mark.parametrize("count", [2, 4])
def test_splits_are_what_their_names_say(name: str, count: int) -> None:
    rows = [[SPLITS[name](a, b, count) for b in range(count)] for a in range(count)]
    flat = [number for row in rows for number in row]
    says = {
        "even": len({*flat}) == 1 and flat[0] > 0,
        "uneven": len({*flat}) > 1 and min(flat) > 0,
        "some_empty": {*flat} == {0, 2},
        "one_sends_nothing": not any(rows[0]) and all(map(any, rows[1:])),
        "one_receives_nothing": not any(row[0] for row in rows) and all(map(any, rows)),
        "all_empty": not any(flat),
    }
    assert says[name]


@pytest.mark.parametrize("count", [2, 4])
def test_subgroups_leave_ranks_out_and_one_has_all(count: int) -> None:
    found = subsets(count)
    assert any(len(members) < count for members in found)
    assert any(sorted(members) == [*range(count)] for members in found)


# -- shapes and dtypes of operands

#: A dtype that must not have the values of another.
NARROWER = {
    "float32": torch.bfloat16,
    "float64": torch.float32,
    "int64": torch.float64,
    "float16": torch.bfloat16,
}
dtypes = pytest.mark.parametrize("dtype", VALUES)


@dtypes
def test_sums_of_operands_are_exact(dtype: str) -> None:
    for times, count in ((1, RANKS), (LAST, 2)):
        given = [numbers(rank, dtype=dtype, times=times) for rank in range(count)]
        wide = torch.complex128 if given[0].is_complex() else torch.float64
        wide = torch.int64 if dtype == "int64" else wide
        total = torch.stack([each.to(wide) for each in given]).sum(0)
        assert torch.equal(total.to(given[0].dtype).to(wide), total)
        assert torch.equal(torch.stack(given).sum(0).to(wide), total)


@pytest.mark.parametrize("dtype", NARROWER)
def test_a_narrower_dtype_does_not_have_the_values_nor_their_sums(dtype: str) -> None:
    changes = CHANGES if dtype in WHOLE else ["all elements", "one dimension"]
    for change in (CHANGES[each] for each in changes):
        one, other = (change(numbers(rank, dtype=dtype)) for rank in (0, 1))
        for values in (other, one + other):
            assert not torch.equal(values.to(NARROWER[dtype]).to(values.dtype), values)


@dtypes
def test_elements_ranks_and_parts_beside_each_other_differ(dtype: str) -> None:
    values = numbers(0, dtype=dtype)
    flat = values.flatten()
    assert not (flat[1:] == flat[:-1]).any()
    assert not (values == values.roll(1, 0)).any()
    for other in (numbers(1, dtype=dtype), numbers(0, part=1, dtype=dtype)):
        assert not (values == other).any()


@dtypes
def test_operands_have_both_signs(dtype: str) -> None:
    values = numbers(0, dtype=dtype)
    real = values.real if values.is_complex() else values
    assert 0.2 < (real < 0).double().mean() < 0.5


@pytest.mark.parametrize("shape", CHANGES)
def test_as_much_is_taken_of_the_part_of_each_rank(shape: str) -> None:
    change, parts = CHANGES[shape], [numbers(0, part=part) for part in range(RANKS)]
    together = change(torch.cat(parts)).chunk(RANKS)
    assert all(torch.equal(one, change(part)) for one, part in zip(together, parts))


@pytest.mark.parametrize("name", VARIANTS)
def test_the_other_call_of_a_collective_gives_other_results(name: str) -> None:
    def results(calls: dict[str, Collective]) -> list[list[torch.Tensor | None]]:
        return [[*calls[name].wanted(rank, RANKS, Views())] for rank in range(RANKS)]

    def same(one: list[torch.Tensor | None], other: list[torch.Tensor | None]) -> bool:
        return len(one) == len(other) and all(
            a is b if a is None or b is None else a.shape == b.shape and torch.equal(a, b)
            for a, b in zip(one, other)
        )

    pairs = zip(results(COLLECTIVES), results(VARIANTS))
    assert not all(same(one, other) for one, other in pairs)


# -- views


class Opened:
    """A device that lays out contiguous tensors only."""

    def takes(self, layout: str) -> bool:
        return layout == "contiguous"


def test_a_view_that_the_device_cannot_lay_out_is_not_replaced_by_a_contiguous_tensor() -> None:
    context: Any = SimpleNamespace(opened=Opened())
    views.require_layout(context, "contiguous")
    with pytest.raises(NotDeclared, match="cannot have the layout transposed"):
        views.require_layout(context, "transposed")


@pytest.mark.parametrize(
    ("refused", "made"),
    [
        ([], ["a float32", "b float32", "a int64", "b int64"]),
        (["a float32"], []),  # it refuses every view
        (["a int64"], ["a float32", "b float32"]),
        (["b float32"], ["a float32", "a int64", "b int64"]),
    ],
)
def test_after_a_refusal_the_calls_of_the_other_dtypes_are_made(
    refused: list[str], made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []
    ranks: Any = SimpleNamespace(
        context=SimpleNamespace(check=lambda *given: None, note=notes.append)
    )
    monkeypatch.setattr(
        collectives, "_prepare", lambda ranks, name, shape, view: f"{shape} {view.values}"
    )
    monkeypatch.setattr(
        collectives,
        "_make_all",
        lambda ranks, calls: ("no" if calls[0] in refused else "", calls[0]),
    )
    wanted = [(shape, Views(values=dtype)) for dtype in ("float32", "int64") for shape in "ab"]
    found: Any = collectives._make_until_refused(ranks, "broadcast", "input", wanted)
    assert found == made
    assert notes == [f"input, {each}: no" for each in refused]
