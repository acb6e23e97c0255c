"""The documented fields of a snapshot: each that is missing or of another type is seen."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch

from conformance.suites.allocator.history import documented

_SIZES = (1000, 90_000, 3 * 2**20)


def snapshot() -> dict[str, Any]:
    """Of a device that rounds up to 512 bytes, with each block in a segment of its own."""
    made = []
    for number, size in enumerate(_SIZES):
        rounded = -(-size // 512) * 512
        block = {"size": rounded, "requested_size": size}
        made.append(
            {
                "device": 0, "address": number, "total_size": rounded, "stream": 0,
                "segment_type": "small" if size < 2**20 else "large", "segment_pool_id": (0, 0),
                "allocated_size": rounded, "active_size": rounded,
                "blocks": [{**block, "state": "active_allocated", "frames": []}],
            }
        )  # fmt: skip
    return {"segments": made}


class Told:
    """What the case is given: a check that fails ends it."""

    def __init__(self, told: dict[str, Any]) -> None:
        self.told = told

    def own(self, role: str) -> Callable[[], dict[str, Any]]:
        return lambda: self.told

    def bytes_of(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8)

    def must(self, happened: object, text: str) -> None:
        assert happened, text

    def check(self, right: Any, text: str, found: object = None) -> None:
        assert right, text


def test_a_snapshot_as_documented_passes() -> None:
    documented(Told(snapshot()))  # type: ignore[arg-type]


def wrong(field: str, value: object) -> dict[str, Any]:
    """The snapshot in which the last segment or block has this instead; None stands for nothing."""
    told = deepcopy(snapshot())
    segment = told["segments"][-1]
    for each in (segment, segment["blocks"][0]):
        if field in each:
            each[field] = value
        if value is None:
            each.pop(field, None)
    return told


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("total_size", "3 MiB"), ("stream", None), ("segment_type", "huge"), ("segment_type", None),
        ("allocated_size", None), ("active_size", None), ("address", None), ("size", None),
        ("requested_size", None), ("requested_size", 3 * 2**20 + 512), ("state", 1), ("frames", None), ("segment_pool_id", None), ("segment_pool_id", 0),
    ],
)  # fmt: skip
def test_what_is_missing_or_of_another_type_is_seen(field: str, value: object) -> None:
    with pytest.raises(
        AssertionError, match=field if value != "huge" else "neither small nor large"
    ):
        documented(Told(wrong(field, value)))  # type: ignore[arg-type]
