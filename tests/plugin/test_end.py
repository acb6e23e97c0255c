"""The end of a run costs the same for each item, however many items there are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from conformance import plugin


class CountingOrders:
    """Orders that count how often their items are put into a dictionary."""

    def __init__(self, count: int) -> None:
        self.built, self._ids = 0, [f"layout-op{number}-float32" for number in range(count)]

    def items_by_id(self) -> dict[str, Any]:
        self.built += 1
        return dict.fromkeys(self._ids)


def test_reports_are_told_apart_without_building_the_items_for_each() -> None:
    orders = CountingOrders(1_000)
    run = plugin._Run(cast(Any, SimpleNamespace()), cast(Any, orders), None)
    path = "conformance/test_conformance.py::test_conformance"
    assert all(run.has(f"{path}[layout-op{number}-float32]") for number in range(1_000))
    assert not run.has("tests/test_other.py::test_other")
    assert orders.built == 1
