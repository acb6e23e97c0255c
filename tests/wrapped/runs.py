"""Runs of the wrapped device as folders on disk: real outcomes of a few items, judged as a run is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

from conformance.contract import load
from conformance.run.item_report import result_of
from devices.manifest import Manifest
from devices.verdicts import Matcher
from opinfo.device import Device
from reports.gate import GateResult, gate
from reports.run import load_run, write_run
from tests.reports.builders import PROVENANCE, plan_document
from tests.trials import Item, Subject
from tests.wrapped.descriptor import DESCRIPTOR
from tests.wrapped.faults import planted
from tests.wrapped.trial import RIG


@dataclass(frozen=True, slots=True)
class Station:
    """A device under test with its manifest: runs are made and judged here."""

    subjects: Sequence[Subject]
    manifest: Path

    @classmethod
    def of(cls, items: Sequence[Item], cache: Path, manifest: Path, device: Device) -> Station:
        return cls([Subject(item, RIG, device, cache) for item in items], manifest)

    def run(self, folder: Path, *faults: str) -> Path:
        """Run every item with these faults on, and write the results folder."""
        with planted(*faults):
            records = [record for each in self.subjects for record in each.run().cells.values()]
        manifest = Manifest()
        if self.manifest.exists():
            manifest = Manifest.load(self.manifest).active(DESCRIPTOR.facts())
        matcher = Matcher(manifest)
        results = {record.key: result_of(matcher, record.to_outcome()) for record in records}
        facts = dict(DESCRIPTOR.facts())
        document = plan_document(
            results, device="wrapped", facts=facts, clauses=load().snapshot()["clauses"]
        )
        start = datetime.now(timezone.utc).isoformat(timespec="microseconds")
        provenance = replace(
            PROVENANCE, device="wrapped", start=start, expectations=str(self.manifest)
        )
        write_run(folder, document, results, provenance)
        return folder


def gated(folder: Path) -> GateResult:
    """The gate's answer to a results folder, read back."""
    return gate(load_run(folder))
