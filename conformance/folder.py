"""The results folder before a run: what an earlier run left in it, looked at and cleared away."""

from __future__ import annotations

from pathlib import Path

from conformance.isolation.progress import FILE as PROGRESS
from devices.cell import CellKey, Verdict
from devices.errors import ConformError
from reports.run import RunError, load_run


def failed_in(folder: Path) -> frozenset[CellKey]:
    """What an earlier run in the same folder left red; nothing where there is none that can be read."""
    try:
        results = load_run(folder).results.values()
    except RunError:
        return frozenset()
    bad = (Verdict.REGRESSION, Verdict.IMPROVEMENT, Verdict.MISSING)
    return frozenset(result.key for result in results if result.verdict in bad)


def make_folder(folder: Path, *, resume: bool = False) -> None:
    """An empty results folder: what an earlier run wrote there must not be read as this one's. To ``resume``
    leaves what it had done."""
    try:
        (folder / "journal").mkdir(parents=True, exist_ok=True)
        for stale in (
            *folder.glob("junit-*.xml"),
            *(folder / name for name in ("plan.json", "failures.json", "failures.md")),
            *(folder / name for name in ("explore.json", "explore.jsonl")),
            *folder.glob("journal/*"),
            *(() if resume else (folder / PROGRESS, *folder.glob("repro/*/*.py"))),
            *folder.glob("explore/*/*.py"),
        ):
            stale.unlink(missing_ok=True)
    except OSError as exc:
        raise ConformError(f"--results {folder}: cannot be written: {exc}") from exc
