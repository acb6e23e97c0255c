"""What a manifest says of a cell: the manifest that applies, and the verdict on what was seen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path

from conformance.contract import Contract
from conformance.flaky import is_flaky
from conformance.options import Request
from conformance.planner import known_layouts
from devices.cell import CellKey, Observed, Verdict
from devices.descriptor import Descriptor
from devices.expectations import Manifest, Matcher, judge
from devices.verdicts import judge_flaky


def verdict_of(
    matcher: Matcher,
    cell: CellKey,
    observed: Observed,
    ran: Iterable[str] | None,
    others: Sequence[Observed] = (),
) -> tuple[Verdict, str]:
    """The outcome of a cell against its expectation, and the words for it. ``others`` is what further runs of a
    flaky cell saw."""
    expectation = matcher.expect(cell)
    expired = expectation is not None and expectation.is_expired(date.today())
    if others and expectation is not None and is_flaky(expectation):
        judgement = judge_flaky(expectation, [observed, *others], expired=expired)
    else:
        judgement = judge(
            expectation, observed, ran=frozenset(ran) if ran is not None else None, expired=expired
        )
    if judgement.verdict is Verdict.EXPECTED and judgement.blocks:
        # The reader of a report wants the reason, and where it stands.
        reasons = {f"{b.reason} ({Path(b.where).name})" for b in judgement.blocks}
        return judgement.verdict, "; ".join(sorted(reasons))
    return judgement.verdict, judgement.why


def load_manifest(
    request: Request, descriptor: Descriptor, contract: Contract
) -> tuple[Manifest, Path | None]:
    """The expectations that apply: a path given, the device's own, or none. Raises ManifestError."""
    if request.expectations == "none":
        return Manifest(), None
    path = Path(request.expectations) if request.expectations else descriptor.expectations
    if path is None:
        return Manifest(), None
    return (
        Manifest.load(
            path, known_clauses=set(contract.clauses), known_layouts=known_layouts(descriptor)
        ),
        path.absolute(),
    )
