"""Random search in a process of its own: :func:`main` searches, :func:`explored` starts it and gathers.

Candidate number ``k`` of item ``i`` in pass ``p`` depends on the seed, ``p``, ``i`` and ``k`` alone: a longer
search finds what a shorter one found, and more. Nothing but the set of findings grows.
"""

from __future__ import annotations

import faulthandler
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from conformance.aside import AsideDied, Tell, reports_of, teller
from conformance.minimise.aside import Bench
from devices.cell import CellKey
from reports.model import Example

#: Candidates of one item before the next one's turn.
BATCH = 24
#: Seconds that one candidate may take before it hangs.
_CANDIDATE_SECONDS = 60.0
_SILENCE = 120.0
_MODULE = "conformance.explore.aside"

Item = tuple[str, str, list[str]]


@dataclass(frozen=True, slots=True)
class Finding:
    """A failure that random search found: minimised, with its script, and what pinning needs.

    ``call`` and ``layouts`` are empty, and ``unpinnable`` says why, where no data can hold the call. A
    finding without an example killed the process: ``kind`` says how.
    """

    cell: CellKey
    kind: str
    where: str
    number: str  # ``pass:item:candidate``, which with the seed draws it again
    example: Example | None = None
    script: str = ""
    call: dict[str, Any] = field(default_factory=dict)
    layouts: dict[str, str] = field(default_factory=dict)
    unpinnable: str = ""


@dataclass(slots=True)
class Effort:
    """What a search did."""

    candidates: int = 0
    checks: int = 0
    unmade: int = 0  # candidates that could not be laid out, such as index values that do not fit
    passes: float = 0.0  # over all items
    restarts: int = 0
    seconds: float = 0.0
    start_bytes: int = 0  # largest resident memory of the searching process after its first item …
    peak_bytes: int = 0  # … and in the end


def explored(
    bench: Bench, items: Sequence[Item], seed: int, seconds: float, effort: Effort
) -> Iterator[Finding]:
    """Search for so many seconds, loading torch not counted; yields findings, and fills in ``effort``.

    Raises AsideDied where the process does not come up.
    """
    position, last = 0, ""
    seen: list[list[str]] = []
    while effort.seconds < seconds:
        orders = {
            **asdict(bench),
            "items": items,
            "seed": seed,
            "position": position,
            "seconds": seconds - effort.seconds,
            "seen": seen,
        }
        before, up = position, None
        try:
            for report in reports_of(_MODULE, orders, _SILENCE):
                up = time.monotonic() if up is None else up
                if report["what"] == "item":
                    position, last = report["position"], report["number"]
                    _add(effort, report["effort"])
                elif report["what"] == "found":
                    finding = msgspec.convert(report["finding"], Finding)
                    seen.append([*finding.cell, finding.kind, finding.where])
                    yield finding
                else:
                    break  # the time is over: the process need not unload torch first
            effort.seconds += time.monotonic() - up if up is not None else 0.0
            break
        except AsideDied as death:
            if up is None:
                raise
            effort.seconds += time.monotonic() - up
            effort.restarts += 1
            op, dtype, _ = _in_turn(items, seed, position)
            yield Finding(
                CellKey("process", op, dtype),
                death.how,
                "",
                last,
                unpinnable="it killed the process",
            )
            position = max(position, before) + 1
    effort.passes = position / len(items)


def _in_turn(items: Sequence[Item], seed: int, position: int) -> Item:
    """The item at this position: each pass goes through all of them in an order of its own."""
    visit, number = divmod(position, len(items))
    order = list(items)
    Random(f"{seed}:{visit}").shuffle(order)
    return order[number]


def _add(effort: Effort, more: Mapping[str, int]) -> None:
    effort.candidates += more["candidates"]
    effort.checks += more["checks"]
    effort.unmade += more["unmade"]
    effort.start_bytes = effort.start_bytes or more["peak_bytes"]
    effort.peak_bytes = max(effort.peak_bytes, more["peak_bytes"])


# -- in the process


def main(orders: dict[str, Any], pipe: int) -> None:
    """Search until the time is over."""
    import resource
    import sys

    from conformance.worker import limit_threads
    from devices import registry
    from opinfo.catalog import catalogue
    from opinfo.device import open_device
    from opinfo.layouts import forget_geometries
    from opinfo.reference import forget_dispatches

    tell = teller(pipe)
    limit_threads()
    path = orders["descriptor"]
    device = open_device(registry.load_file(Path(path)) if path else registry.get(orders["device"]))
    catalogue()  # takes seconds: before any work is told to have begun
    unit = 1 if sys.platform == "darwin" else 1024
    items: list[Item] = [(op, dtype, clauses) for op, dtype, clauses in orders["items"]]
    end = time.time() + orders["seconds"]
    hunt = Hunt(device, orders["samples"], orders["seed"], end, tell)
    hunt.seen = {tuple(sign) for sign in orders["seen"]}
    position = orders["position"]
    while time.time() < end:
        visit, number = divmod(position, len(items))
        tell(_progress(position, f"{visit}:{number}", Counter(), 0))
        counts = hunt.item(_in_turn(items, orders["seed"], position), visit, number)
        position += 1
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        tell(_progress(position, f"{visit}:{number}", counts, peak))
        forget_dispatches()
        forget_geometries()
    tell({"what": "over"})


def _progress(position: int, number: str, counts: Counter[str], peak: int) -> dict[str, Any]:
    effort = {name: counts[name] for name in ("candidates", "checks", "unmade")}
    return {
        "what": "item",
        "position": position,
        "number": number,
        "effort": {**effort, "peak_bytes": peak},
    }


class Hunt:
    """The search itself."""

    def __init__(self, device: Any, samples: int, seed: int, end: float, tell: Tell) -> None:
        self.device = device
        self.samples = samples
        self.seed = seed
        self.end = end
        self.tell = tell
        self.seen: set[tuple[str, ...]] = set()

    def item(self, item: Item, visit: int, place: int) -> Counter[str]:
        """One batch of candidates of an item."""
        from conformance.explore.draw import random_candidate
        from conformance.layout import suite
        from conformance.minimise.subject import Subject
        from opinfo.samples import draw

        op, dtype, clauses = item
        counts: Counter[str] = Counter()
        subject = Subject.of(op, dtype, self.device, self.samples)
        drawn = Random(f"{self.seed}:{visit}:{op}:{dtype}").getrandbits(31)
        pool = draw(subject.op, dtype, seed=drawn) or subject.drawn
        if not pool:
            return counts
        may_resize = "explore.keeps_sizes" not in subject.traits.families
        for number in range(BATCH):
            if time.time() > self.end:
                break
            random = Random(f"{self.seed}:{visit}:{op}:{dtype}:{number}")
            faulthandler.dump_traceback_later(_CANDIDATE_SECONDS, exit=True)
            try:
                candidate = random_candidate(random, pool, may_resize=may_resize)
                records = subject.run(candidate, clauses, suite.SAMPLED)
            except (RuntimeError, IndexError, ValueError, TypeError):
                counts["unmade"] += (
                    1  # values that do not go with the size, a dtype without a kernel
                )
                continue
            finally:
                faulthandler.cancel_dump_traceback_later()
            counts["candidates"] += 1
            for clause, record in records.items():
                counts["checks"] += record.checks
                for failure in record.failures:
                    self._found(subject, clause, candidate, failure, f"{visit}:{place}:{number}")
        return counts

    def _found(self, subject: Any, clause: str, candidate: Any, failure: Any, number: str) -> None:
        from conformance.explore.encoding import NotEncodable, encode
        from conformance.layout.directed import DirectedScript
        from conformance.minimise.describe import example_of
        from conformance.minimise.search import minimise
        from conformance.minimise.subject import Sign

        if isinstance(failure.repro, DirectedScript):
            return  # made on tensors of its own: the plan makes the very same check
        sign = Sign.of(failure)
        key = (clause, subject.op.id, subject.dtype, sign.kind, sign.where)
        if key in self.seen:
            return
        self.seen.add(key)
        faulthandler.dump_traceback_later(_CANDIDATE_SECONDS, exit=True)
        found = minimise(subject, clause, candidate, failure)
        faulthandler.cancel_dump_traceback_later()
        try:
            (call, layouts), unpinnable = encode(found.candidate), ""
        except NotEncodable as error:
            call, layouts, unpinnable = {}, {}, str(error)
        script = found.failure.repro
        finding = Finding(
            CellKey(clause, subject.op.id, subject.dtype),
            sign.kind,
            sign.where,
            number,
            example_of(found),
            script() if script is not None else "",
            call,
            layouts,
            unpinnable,
        )
        self.tell({"what": "found", "finding": asdict(finding)})
