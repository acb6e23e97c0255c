"""All suites: one test an item, which is an op and dtype with its clauses of a suite, or a case of one clause."""

from __future__ import annotations

from collections.abc import Callable


def test_conformance(item_id: str, run_item: Callable[[str], None]) -> None:
    run_item(item_id)
