"""The graphs suite: one item a case, or an op and dtype, which records its cells."""

from __future__ import annotations

from typing import Any


def test_graphs(item_name: str, run_item: Any) -> None:
    run_item("graphs", item_name)
