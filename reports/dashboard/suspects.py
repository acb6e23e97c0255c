"""Finds the cells that fail on every device of a site: the test may be wrong, not the devices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field
from typing import Final

from devices.cell import CellKey, Outcome
from reports.dashboard.axes import Axis, keys
from reports.dashboard.documents import Cause
from reports.dashboard.series import Series
from reports.status_letters import LETTERS

#: A cell with one of these letters failed. Cells that a device does not support, or that were not tried, say nothing.
_FAILED: Final = frozenset(
    code
    for code, letter in LETTERS.items()
    if letter.outcome in (Outcome.FAIL, Outcome.CRASH, Outcome.HANG, Outcome.ERROR)
)
_PASSED: Final = frozenset(
    code for code, letter in LETTERS.items() if letter.outcome is Outcome.PASS
)


@dataclass(slots=True)
class _Seen:
    """The devices on which a cell failed, and whether it passed on one."""

    failed: set[str] = field(default_factory=set)
    passed: bool = False


def suspect_cells(series: Iterable[Series], axes: dict[str, Axis]) -> frozenset[CellKey]:
    """Returns the cells that fail in the newest run of every device that tries them, where at least two devices do. Two
    plans of one device are one device. ``axes`` has the cells of the runs, by id."""
    of_axis: dict[str, list[Series]] = {}
    for each in series:
        of_axis.setdefault(each.latest.axis, []).append(each)
    seen: dict[CellKey, _Seen] = {}
    for name, having in of_axis.items():
        devices = [each.device for each in having]
        rows = zip(*(each.latest.codes for each in having), strict=True)
        for cell, codes in zip(keys(axes[name]), rows, strict=True):
            if cell in seen or not _FAILED.isdisjoint(codes):
                found = seen.setdefault(cell, _Seen())
                found.failed |= {one for one, code in zip(devices, codes) if code in _FAILED}
    for name, having in of_axis.items():
        rows = zip(*(each.latest.codes for each in having), strict=True)
        for cell, codes in zip(keys(axes[name]), rows, strict=True):
            if cell in seen and not _PASSED.isdisjoint(codes):
                seen[cell].passed = True
    return frozenset(
        cell for cell, found in seen.items() if len(found.failed) > 1 and not found.passed
    )


def suspect_causes(
    series: Sequence[Series], axes: dict[str, Axis]
) -> frozenset[tuple[str, CellKey]]:
    """Returns the causes all of whose cells fail on every device of the site: each with the slug of its device and the
    cell that its page shows first."""
    cells = suspect_cells(series, axes)
    return frozenset(
        (each.slug, cause.example)
        for each in series
        for places in [list(keys(axes[each.latest.axis])) if cells else []]
        for cause in each.latest.causes
        if _all_in(cause, places, cells)
    )


def _all_in(cause: Cause, places: Sequence[CellKey], cells: Set[CellKey]) -> bool:
    return (
        bool(cells) and bool(cause.positions) and all(places[at] in cells for at in cause.positions)
    )
