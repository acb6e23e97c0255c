"""The seconds of cells add up to those of their item."""

from __future__ import annotations

import pytest

from conformance.run.item_report import share_out
from devices.cell import CellKey, CellOutcome, Outcome

CELL = CellKey("layout.values", "mm", "int64")


@pytest.mark.parametrize(
    ("own", "whole", "shares"),
    [
        ([1.0, 2.0], 4.0, [1.5, 2.5]),  # the second that remains is divided
        ([0.0, 0.0, 0.0], 0.3, [0.1, 0.1, 0.1]),
        ([1.0, 2.0], 2.9, [1.0, 2.0]),  # a clock that disagrees takes nothing away
        ([], 1.0, []),
    ],
)
def test_time_of_no_cell_is_shared_out(own: list[float], whole: float, shares: list[float]) -> None:
    cells = [CellOutcome(cell=CELL, outcome=Outcome.PASS, seconds=each) for each in own]
    assert [told.seconds for told in share_out(cells, whole)] == pytest.approx(shares)
