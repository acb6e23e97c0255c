"""Statistics that are compared with the allocator's snapshot."""

from __future__ import annotations

from typing import Any

import pytest

from conformance.suites.allocator import history

_STATISTICS = ("allocation", "allocated_bytes", "active", "active_bytes", "requested_bytes")


class _Context:
    """Stands for the context of a case: a freed block of 512 bytes, 500 of which were requested, waits for a stream. Its
    requested bytes are still counted, as torch's own allocators do."""

    def __init__(self, **changed: int) -> None:
        told = {"active": 1, "active_bytes": 512, "requested_bytes": 500, **changed}
        parts = ("all", "small_pool", "large_pool")
        self._counters = {
            f"{name}.{part}.current": told.get(name, 0) if part != "large_pool" else 0
            for name in (*_STATISTICS, "segment", "reserved_bytes")
            for part in parts
        }
        self.wrong: dict[str, Any] = {}

    def counters(self) -> dict[str, int]:
        return self._counters

    def same(self, found: dict[str, Any], expected: Any, text: str, at: str) -> None:
        self.wrong = found


@pytest.mark.parametrize(
    ("waits", "changed", "wrong"),
    [
        (True, {}, set()),
        (True, {"requested_bytes": 0}, set()),  # the device subtracts them when the block is freed
        (False, {}, {"requested_bytes"}),
        (True, {"active_bytes": 0}, {"active_bytes"}),
        (True, {"allocation": 1}, {"allocation"}),
    ],
)
def test_requested_bytes_of_a_block_that_waits_are_not_judged(
    waits: bool, changed: dict[str, int], wrong: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    block = {"state": "active_pending_free", "size": 512, "requested_size": 500}
    segment = {
        "segment_type": "small",
        "total_size": 2048,
        "is_expandable": True,
        "blocks": [block],
    }
    monkeypatch.setattr(history, "_segments", lambda _: [segment])
    monkeypatch.setattr(history, "has_statistics", lambda *_: True)
    context: Any = _Context(**changed)
    history._judge_statistics(context, "", waits=waits)
    assert {name.partition(".")[0] for name in context.wrong} == wrong
