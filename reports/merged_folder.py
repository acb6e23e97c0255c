"""Writes the folder of a run that was merged from shards: a record, the reports, the manifest and the repro scripts."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from devices.errors import ConformError
from reports.failures import write_failures
from reports.gate import gate
from reports.merge import Merged, merge
from reports.model import Run, write_file
from reports.run import (
    MANIFEST_FILE,
    collector_paused,
    load_run,
    manifest_of,
    repro_script,
    write_run,
)

#: The list of cells without an outcome.
MISSING_FILE = "missing.txt"


def join(shards: Sequence[Path], folder: Path, junitxml: Path | None) -> Merged:
    """Merges the shards in the given folders and writes the merged run into ``folder``. Raises RunError."""
    if any(shard.resolve() == folder.resolve() for shard in shards):
        raise ConformError(
            f"-o {folder} is the folder of a shard: give another folder for the merged run"
        )
    with collector_paused():  # the collector would visit millions of objects again and again
        runs = [load_run(shard) for shard in shards]
        merged = merge(runs)
        manifests = (manifest_of(run, run.folder / MANIFEST_FILE) for run in runs)
        run = write_run(
            folder,
            merged.document,
            merged.results,
            merged.provenance,
            junitxml=junitxml,
            manifest=next((text for text in manifests if text is not None), b""),
            like=merged.plan,
        )
        _copy_repros(runs, merged, folder)
        write_failures(gate(run, partial=run.provenance.partial))
    if merged.missing:
        write_file(folder / MISSING_FILE, "".join(f"{c}\n" for c in merged.missing).encode())
    else:
        (folder / MISSING_FILE).unlink(missing_ok=True)
    return merged


def _copy_repros(runs: Sequence[Run], merged: Merged, folder: Path) -> None:
    """Copies the repro scripts of the shards into the folder of the merged run. A script that is missing in the folder
    of its shard is left out."""
    for run in runs:
        for cell, result in run.results.items():
            if result.repro is None or merged.results[cell].repro != result.repro:
                continue
            if (source := repro_script(run.folder, result)) is not None:
                target = folder / result.repro
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
