"""Planted faults of copies and streams that the cases of autograd notice too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from devices.cell import CellKey, Outcome
from tests.behaviour.server import Server, serving
from tests.plugin.running import environment

NOTICED = {
    "transfer.pinned_reused_early": "autograd.saved::pinned_until_read",
    "transfer.non_blocking_off_stream": "autograd.saved::pinned_while_busy",
    "transfer.synchronize_misses_copy": "autograd.saved::kept_pinned",
    "streams.backward_on_default_stream": "autograd.threads::hooks_on_the_stream",
    "streams.backward_not_joined": "autograd.threads::caller_waits_on_each_index",
}


@pytest.fixture(scope="module")
def server(cache: Path) -> Iterator[Server]:
    with serving(environment(cache)) as started:
        yield started


@pytest.mark.parametrize("fault", NOTICED)
def test_a_fault_of_another_family_is_noticed(fault: str, server: Server) -> None:
    clause, _, case = NOTICED[fault].partition("::")
    cell = CellKey(clause, case, "")
    assert server.run("", [cell])[cell].outcome is Outcome.PASS
    assert server.run(fault, [cell])[cell].outcome is Outcome.FAIL
