"""Random search in a process of its own, as seen from outside: it is started, restarted and listened to.

Candidate number ``k`` of item ``i`` in pass ``p`` depends on the seed, ``p``, ``i`` and ``k`` alone, and so do
programs: a longer search finds what a shorter one found, and more. Nothing but the set of findings grows.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import msgspec

from conformance.aside import AsideDied, reports_of
from conformance.explore.turns import Item, Turns
from conformance.minimise.aside import Bench
from devices.cell import CellKey
from reports.model import Example

#: Seconds without a report after which the process hangs.
_SILENCE = 120.0
#: An item has no more turns once it has ended so many processes.
_DEATHS = 3
_MODULE = "conformance.explore.hunt"


@dataclass(frozen=True, slots=True)
class Finding:
    """A failure that random search found: minimised, with its script, and what pinning needs.

    Of a call that are ``example``, ``call`` and ``layouts``; of a program ``told``, the program and what
    is wrong with it, and ``program``. Where no data can hold it, ``unpinnable`` says why. A finding
    with neither an example nor a text killed the process: ``kind`` says how.
    """

    cell: CellKey
    kind: str
    where: str
    number: (
        str  # ``pass:item:candidate``, of a program ``pass:item``: with the seed it draws it again
    )
    example: Example | None = None
    script: str = ""
    call: dict[str, Any] = field(default_factory=dict)
    layouts: dict[str, str] = field(default_factory=dict)
    unpinnable: str = ""
    told: str = ""
    program: list[Any] = field(default_factory=list)


@dataclass(slots=True)
class Effort:
    """What a search did."""

    candidates: int = 0
    checks: int = 0
    unmade: int = 0  # candidates that could not be laid out, such as index values that do not fit
    programs: int = 0
    unshown: int = 0  # programs that proved nothing, as no work was in flight in time
    passes: float = 0.0  # over all ops and dtypes; with none, over the cases that draw programs
    restarts: int = 0
    seconds: float = 0.0
    start_bytes: int = 0  # largest resident memory of the searching process after its first item …
    halfway_bytes: int = (
        0  # … when half of the time was over: nothing should be added behind that …
    )
    peak_bytes: int = 0  # … and in the end


#: What the process counts in every item.
COUNTED = ("candidates", "checks", "unmade", "programs", "unshown")


def explored(
    bench: Bench, items: Sequence[Item], seed: int, seconds: float, effort: Effort
) -> Iterator[Finding]:
    """Search for so many seconds, loading torch not counted; yields findings, and fills in ``effort``.

    Raises AsideDied where the process does not come up.
    """
    turns = Turns(items, seed)
    position, last = 0, ""
    seen: list[list[str]] = []
    deaths: Counter[CellKey] = Counter()
    while effort.seconds < seconds:
        orders = {
            **asdict(bench),
            "items": items,
            "seed": seed,
            "position": position,
            "seconds": seconds - effort.seconds,
            "seen": seen,
            "left_out": [item for item in items if deaths[_process(item)] >= _DEATHS],
        }
        before, up = position, None
        failing: Finding | None = None  # a program that is being shrunk
        try:
            for report in reports_of(_MODULE, orders, _SILENCE):
                up = time.monotonic() if up is None else up
                if report["what"] == "item":
                    position, last, failing = report["position"], report["number"], None
                    _add(effort, report["effort"])
                    if 2 * (effort.seconds + time.monotonic() - up) < seconds:
                        effort.halfway_bytes = effort.peak_bytes
                elif report["what"] == "failing":
                    failing = msgspec.convert(report["finding"], Finding)
                elif report["what"] == "found":
                    finding = msgspec.convert(report["finding"], Finding)
                    seen.append([*finding.cell, finding.kind, finding.where])
                    failing = None
                    yield finding
                elif report["what"] == "over":
                    break  # the time is over: the process need not unload torch first
            effort.seconds += time.monotonic() - up if up is not None else 0.0
            break
        except AsideDied as death:
            if up is None:
                raise
            effort.seconds += time.monotonic() - up
            effort.restarts += 1
            if failing is not None:
                seen.append([*failing.cell, failing.kind, failing.where])
                yield replace(
                    failing, told=f"{failing.told} (not shrunk, the process died: {death.how})"
                )
            item, _, _ = turns.at(position)
            cell = _process(item)
            deaths[cell] += 1
            if deaths[cell] == 1:
                yield Finding(cell, death.how, "", last, unpinnable="it killed the process")
            position = max(position, before) + 1
    effort.passes = turns.passes(position)


def _process(item: Item) -> CellKey:
    """What a death of the process is reported under."""
    op, dtype, clauses = item
    return CellKey("process", op, dtype) if dtype else CellKey("process", f"{clauses[0]}::{op}", "")


def _add(effort: Effort, more: Mapping[str, int]) -> None:
    for name in COUNTED:
        setattr(effort, name, getattr(effort, name) + more[name])
    effort.start_bytes = effort.start_bytes or more["peak_bytes"]
    effort.peak_bytes = max(effort.peak_bytes, more["peak_bytes"])
