"""The layout suite: one item an op and dtype, which records its cells."""

from __future__ import annotations

from typing import Any


def test_layout(item_name: str, run_item: Any) -> None:
    run_item("layout", item_name)
