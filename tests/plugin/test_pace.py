"""While a run goes on it says how far it is: cells of planned, failing so far, time left."""

from __future__ import annotations

import pytest

from conformance.run.progress import EVERY, FIRST, Pace, duration


def test_a_line_is_printed_now_and_then_with_an_estimate() -> None:
    pace = Pace(planned=1_100, before=100, began=50.0)
    assert pace.line(200, 0, 50.0 + FIRST - 1) == ""
    told = pace.line(350, 7, 50.0 + FIRST)
    assert told == "350 of 1,100 cells, 7 failing, about 2 min left"  # 250 in 30 s
    assert pace.line(400, 7, 50.0 + FIRST + EVERY - 1) == ""
    assert pace.line(600, 9, 50.0 + FIRST + EVERY).startswith("600 of 1,100 cells, 9 failing")


@pytest.mark.parametrize("done", [100, 1_100])
def test_nothing_is_said_before_the_first_cell_and_after_the_last(done: int) -> None:
    assert Pace(planned=1_100, before=100, began=0.0).line(done, 0, 1_000.0) == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(3, "10 s"), (44, "40 s"), (60, "1 min"), (200, "3 min"), (7_800, "2 h 10 min")],
)
def test_a_duration_is_rough(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_first_few_cells_give_no_estimate() -> None:
    pace = Pace(planned=15_340, before=0, began=0.0)
    assert pace.line(3, 0, 30.0) == "3 of 15,340 cells, 0 failing"
    assert pace.line(766, 0, 300.0) == "766 of 15,340 cells, 0 failing"
    assert pace.line(768, 0, 360.0).endswith(" left")
