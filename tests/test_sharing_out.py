"""The seconds of cells add up to those of their item."""

from __future__ import annotations

from typing import Any

import pytest

from conformance.worker import share_out


def cell(seconds: float) -> dict[str, Any]:
    return {"cell": ["layout.values", "mm", "int64"], "seconds": seconds}


@pytest.mark.parametrize(
    ("own", "whole", "shares"),
    [
        ([1.0, 2.0], 4.0, [1.5, 2.5]),  # half of what is over to each
        ([0.0, 0.0, 0.0], 0.3, [0.1, 0.1, 0.1]),
        ([1.0, 2.0], 2.9, [1.0, 2.0]),  # a clock that disagrees takes nothing away
        ([], 1.0, []),
    ],
)
def test_what_no_cell_took_is_shared_out(
    own: list[float], whole: float, shares: list[float]
) -> None:
    documents = [*map(cell, own), {"references": [3, 1]}]
    share_out(documents, whole)
    assert [document["seconds"] for document in documents[:-1]] == pytest.approx(shares)
    assert documents[-1] == {"references": [3, 1]}
