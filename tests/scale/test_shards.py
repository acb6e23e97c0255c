"""Dividing a plan among shards: every item once, evenly by time, the identity cells everywhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.plan.selection import (
    Shard,
    cells_of,
    divided,
    is_identity,
    item_of,
    seconds_by_item,
)
from devices.cell import CellKey
from devices.errors import ConformError
from tests.fuzzing import examples

CLAUSES = ("layout.values", "layout.bounds")
ADD = CellKey("layout.values", "add", "float32")


def cells(ops: int) -> list[CellKey]:
    return [CellKey(c, f"op{n}", "float32") for n in range(ops) for c in CLAUSES] + [ADD]


@st.composite
def timed(draw: st.DrawFn) -> tuple[list[CellKey], dict[CellKey, float], int]:
    planned = cells(draw(st.integers(1, 60)))
    known = draw(st.lists(st.sampled_from(planned), unique=True))
    seconds = {cell: draw(st.floats(0, 100)) for cell in known}
    return planned, seconds, draw(st.integers(1, len(planned) // 2))


@given(timed())
@examples(40)
def test_every_cell_is_in_one_shard_and_identity_cells_in_all(
    drawn: tuple[list[CellKey], dict[CellKey, float], int],
) -> None:
    planned, seconds, count = drawn
    shards = [cells_of(Shard(n, count), planned, seconds) for n in range(1, count + 1)]
    for cell in planned:
        assert sum(cell in shard for shard in shards) == (count if is_identity(cell) else 1)
    for shard in shards:
        assert shard == [cell for cell in planned if cell in set(shard)]  # in the plan's order


@given(timed())
@examples(40)
def test_no_shard_is_longer_than_the_mean_by_more_than_one_item(
    drawn: tuple[list[CellKey], dict[CellKey, float], int],
) -> None:
    planned, seconds, count = drawn
    times = seconds_by_item([cell for cell in planned if not is_identity(cell)], seconds)
    load = dict.fromkeys(range(1, count + 1), 0.0)
    for item, number in divided(count, planned, seconds).items():
        load[number] += times[item]
    assert max(load.values()) <= sum(load.values()) / count + max(times.values()) + 1e-9


def test_many_items_are_divided_within_a_few_per_cent() -> None:
    planned = cells(600)
    seconds = {cell: 0.01 * (1 + hash_of(cell) % 97) for cell in planned}
    times = seconds_by_item([cell for cell in planned if not is_identity(cell)], seconds)
    load = dict.fromkeys(range(1, 9), 0.0)
    for item, number in divided(8, planned, seconds).items():
        load[number] += times[item]
    assert max(load.values()) < 1.02 * min(load.values())


def hash_of(cell: CellKey) -> int:
    return sum(map(ord, "".join(cell))) * 31


def test_cells_that_the_earlier_run_lacks_take_the_median() -> None:
    planned = cells(3)
    times = seconds_by_item(planned[:4], {planned[0]: 1.0, planned[1]: 3.0})
    assert times[item_of(planned[2])] == pytest.approx(4.0, abs=0.01)  # two cells of 2 s


@pytest.mark.parametrize("text", ["0/3", "4/3", "1", "a/b", "1/0", "-1/3", "1/3/4", "", "1/٣"])
def test_what_is_no_shard_is_refused(text: str) -> None:
    with pytest.raises(
        ConformError, match="expected the number of a shard and the number of shards"
    ):
        Shard.parse(text)


def test_more_shards_than_items_are_refused() -> None:
    with pytest.raises(ConformError, match="there are only 3 items to divide"):
        cells_of(Shard(1, 9), cells(3), {})
