"""Failures that torch's CPU has in common with the tested device.

The manifest of the device ``cpu`` lists the known failures of eager CPU execution. If that manifest would accept the
result of another device as it is, the CPU fails in the same way, and the device's own code is not at fault.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from devices import registry
from devices.cell import Outcome, Verdict
from devices.manifest import Manifest
from devices.verdicts import Matcher, judge_cell
from reports.model import CellResult

CPU: Final = "cpu"


def reason_on_cpu(result: CellResult) -> str:
    """Returns the reason that the manifest of the CPU gives for this result; an empty text if the manifest would not
    accept the result, or if the cell passed.

    The outcome, the failing layouts and the exception must be those of the manifest. A block that names no layouts
    accepts every failure of its cells.
    """
    if result.outcome in (Outcome.PASS, Outcome.ERROR, Outcome.NOT_RUN):
        return ""
    expectation = _known_on_cpu().expect(result.key)
    if expectation is None:
        return ""
    judgement = judge_cell(expectation, result.observed_as(result.outcome, False))
    if judgement.verdict is not Verdict.EXPECTED:
        return ""
    return "; ".join(dict.fromkeys(block.reason for block in judgement.blocks))


@cache
def _known_on_cpu() -> Matcher:
    """Returns the known failures of the CPU on this machine."""
    device = registry.get(CPU)
    assert device.folder is not None
    manifest = Manifest.load(device.folder / "expected.toml")
    return Matcher(manifest.active(device.facts()))
