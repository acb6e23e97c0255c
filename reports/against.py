"""A run held against an earlier one: what was as bad before stops nobody now. Pure.

For a device whose manifest is behind its failures: the gate then asks whether a change makes anything worse.
What the baseline had too is told and counted, and never a pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from devices.cell import CellKey, Verdict
from reports.judgement import number
from reports.model import CellResult, Run
from reports.plan import RunError

_BAD: Final = (Verdict.REGRESSION, Verdict.IMPROVEMENT)


class NoBaseline(RunError):
    """This run cannot be held against that one. The text says why."""


@dataclass(frozen=True, slots=True)
class Against:
    """``inherited`` are the cells that stand as badly in the baseline; ``gone`` those that it has an outcome for, and
    that are not planned any more though torch and suite are the same."""

    baseline: Run
    inherited: frozenset[CellKey]
    gone: tuple[CellKey, ...]

    @property
    def note(self) -> str:
        """What is told of the baseline."""
        origin = self.baseline.provenance
        return (
            f"against the run of {origin.start} (torch {origin.torch}): "
            f"{number(len(self.inherited), 'cell')} as bad there, not counted as new"
        )


def hold_against(run: Run, baseline: Run) -> Against:
    """Compare cell by cell. Raises NoBaseline where the baseline is of another device or plan, or not whole."""
    for name in ("device", "plan"):
        here, there = getattr(run.provenance, name), getattr(baseline.provenance, name)
        if here != there:
            raise NoBaseline(f"--against {baseline.folder}: its {name} is {there!r}, not {here!r}")
    if baseline.provenance.partial or baseline.provenance.shard not in ("", "1/1"):
        raise NoBaseline(
            f"--against {baseline.folder}: is a partial run or a shard; expected a whole run"
        )
    if missing := baseline.missing:
        raise NoBaseline(
            f"--against {baseline.folder}: {number(len(missing), 'cell')} of it "
            f"{'has' if len(missing) == 1 else 'have'} no outcome; expected a complete run"
        )
    inherited = frozenset(
        cell
        for cell, result in run.results.items()
        if result.verdict in _BAD and _as_bad(result, baseline.results.get(cell))
    )
    gone: tuple[CellKey, ...] = ()
    if _alike(run, baseline):
        gone = tuple(cell for cell in baseline.parsed.cells if cell not in run.parsed.known)
    return Against(baseline, inherited, gone)


def _as_bad(now: CellResult, before: CellResult | None) -> bool:
    """Whether the baseline has the same verdict for the same reason: the outcome, what was raised, and no
    layout that fails now and did not."""
    return (
        before is not None
        and (before.verdict, before.outcome, before.raises)
        == (now.verdict, now.outcome, now.raises)
        and set(now.layouts) <= set(before.layouts)
    )


def _alike(run: Run, baseline: Run) -> bool:
    """Whether the two have the same reasons to plan the same cells."""
    return all(
        getattr(run.provenance, name) == getattr(baseline.provenance, name)
        for name in ("torch", "suite_version")
    )
