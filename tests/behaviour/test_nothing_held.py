"""Streams and events of a device that has nothing which keeps a stream occupied, or only work that takes a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from devices.cell import CellKey, Outcome
from tests.behaviour import table
from tests.behaviour.server import Seen, Server, serving
from tests.plugin.running import environment

#: The fields by which a descriptor names such a thing.
HOLDS = ("gate", "busy")


@pytest.fixture(scope="module")
def server(cache: Path) -> Iterator[Server]:
    with serving(environment(cache)) as started:
        yield started


@pytest.fixture(scope="module")
def seen(server: Server) -> dict[CellKey, Seen]:
    families = (
        "streams.",
        "events.",
        "transfer.non_blocking",
        "transfer.snapshot",
        "transfer.scalars",
    )
    cells = [cell for cell in table.all_cells() if cell.clause.startswith(families)]
    return server.run("", cells, HOLDS)


@pytest.mark.slow
def test_what_values_show_is_judged_and_the_rest_is_unsupported_by_declaration(
    seen: dict[CellKey, Seen],
) -> None:
    assert {each.outcome for each in seen.values()} == {Outcome.PASS, Outcome.UNSUPPORTED}
    unsupported = {str(cell) for cell, each in seen.items() if each.outcome is Outcome.UNSUPPORTED}
    assert {"streams.concurrent::host_goes_on", "events.record::moved_away"} <= unsupported
    assert not unsupported & {
        *(
            "streams.in_order::one_after_the_other",
            "streams.wait::wait_event",
            "streams.wait::drawn",
        ),
        *("streams.query::false_in_flight", "streams.synchronize::waits", "events.record::moved"),
        "streams.autograd::caller_waits_for_backward",
    }
    assert all("gate" in seen[CellKey.parse(cell)].message for cell in unsupported)


@pytest.mark.parametrize("fault", ["streams.ignore_wait", "streams.reorder_tasks"])
@pytest.mark.slow
def test_broken_order_is_found_by_its_values(server: Server, fault: str) -> None:
    [found] = server.run(fault, [CellKey("streams.wait", "drawn", "")], HOLDS).values()
    assert found.outcome is Outcome.FAIL


def test_what_is_in_flight_is_not_judged_where_nothing_is_held(server: Server) -> None:
    [found] = server.run(
        "streams.query_always_true", [CellKey("streams.query", "false_in_flight", "")], HOLDS
    ).values()
    assert found.outcome is Outcome.PASS


@pytest.mark.parametrize(
    "cell", ["allocator.record_stream::of_several", "transfer.pinned::part_not_reused"]
)
@pytest.mark.slow
def test_of_two_streams_that_work_keeps_busy_the_one_let_go_ends_first(
    server: Server, cell: str
) -> None:
    """As on CUDA, which has no gate: nobody can end such work early, so that it has to be shorter."""
    [found] = server.run("", [CellKey.parse(cell)], ("gate",)).values()
    assert found.outcome is Outcome.PASS, found.message
