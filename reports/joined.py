"""The folder of a merged run: one record and one set of reports for all shards, their manifest and repro scripts."""

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
    """Merge the shards in these folders and write the run into ``folder``. Raises RunError."""
    if any(shard.resolve() == folder.resolve() for shard in shards):
        raise ConformError(f"-o {folder} is the folder of a shard: give a folder of its own")
    with collector_paused():  # the collector would visit millions of objects again and again
        runs = [load_run(shard) for shard in shards]
        merged = merge(runs)
        manifests = (manifest_of(run, run.folder / MANIFEST_FILE) for run in runs)
        run = write_run(
            *(folder, merged.document, merged.results, merged.provenance),
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
    """Copy the repro scripts. A script that is not in its shard's folder is left out."""
    for run in runs:
        for cell, result in run.results.items():
            if result.repro is None or merged.results[cell].repro != result.repro:
                continue
            if (source := repro_script(run.folder, result)) is not None:
                target = folder / result.repro
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
