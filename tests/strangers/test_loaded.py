"""Comparing the runs of a quiet machine and of a crowded one."""

from __future__ import annotations

from devices.cell import Outcome
from tests.reports.builders import ADD, BOUNDS, passed, results
from tests.strangers.loaded import differences


def test_runs_that_agree_do_not_differ() -> None:
    assert differences(results(), results(passed(ADD, checks=99))) == []


def test_a_cell_that_ended_otherwise_or_not_at_all_is_named() -> None:
    loaded = results(passed(ADD, outcome=Outcome.HANG))
    del loaded[BOUNDS]
    assert differences(results(), loaded) == [
        f"{BOUNDS}: pass (ok) in peace, no result in a crowd",
        f"{ADD}: pass (ok) in peace, hang (ok) in a crowd",
    ]
