"""``conform merge``: the shards of a run joined into one."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from devices.errors import ConformError

if TYPE_CHECKING:
    from devices.cell import CellKey
    from reports.merge import Merged
    from reports.model import Run

#: Missing cells that the terminal shows; the file has all.
_SHOWN = 20
_MISSING = "missing.txt"


@click.command()
@click.argument("shards", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path),
    help="The folder that the joined run is written to.",
)  # fmt: skip
@click.option("--junitxml", type=click.Path(path_type=Path), help="All families in one more file.")
def merge(shards: tuple[Path, ...], output: Path, junitxml: Path | None) -> int:
    """Join the shards of one run (SHARDS: their results folders) into one run.

    Shards whose plan, torch, driver, device or manifest differ are refused (exit 4), and so are such that
    disagree on a cell that both ran. Exits 0 where every planned cell has an outcome, 2 where some have none: they
    are named, and listed in missing.txt. What the run is worth is for `conform gate` to say.
    """
    from reports.gate import ExitCode
    from reports.run import collector_paused

    if any(shard.resolve() == output.resolve() for shard in shards):
        raise ConformError(f"-o {output}: is one of the shards; give another folder")
    with collector_paused():  # it would look through millions of objects again and again
        merged = _merged(shards, output, junitxml)
    click.echo(f"{len(shards):,} shards, {len(merged.results):,} cells: {output}")
    if merged.absent:
        click.echo(f"absent shards: {', '.join(map(str, merged.absent))}")
    _tell_missing(merged.missing, output)
    whole = not merged.missing and not merged.absent
    return ExitCode.GREEN.value if whole else ExitCode.INCOMPLETE.value


def _merged(shards: Sequence[Path], output: Path, junitxml: Path | None) -> Merged:
    """Read the shards, and write the whole with its report."""
    from reports.failures import write_failures
    from reports.judgement import judge
    from reports.merge import load_shards
    from reports.merge import merge as join
    from reports.run import write_run

    runs = load_shards(shards)
    merged = join(runs)
    run = write_run(
        output,
        merged.document,
        merged.results,
        merged.provenance,
        junitxml=junitxml,
        manifest=_manifest(runs),
        like=merged.plan,
    )
    _copy_repros(runs, merged, output)
    write_failures(run, judge(run, partial=run.provenance.partial))
    return merged


def _manifest(runs: Sequence[Run]) -> bytes:
    """The text of the expectations, from the first shard that kept it as it was."""
    for run in runs:
        path = run.folder / "expected.toml"
        if path.is_file():
            text = path.read_bytes()
            if hashlib.blake2b(text, digest_size=8).hexdigest() == run.provenance.manifest_hash:
                return text
    return b""


def _copy_repros(runs: Sequence[Run], merged: Merged, output: Path) -> None:
    """The scripts that show the failures; one that its shard did not bring along is left out."""
    for run in runs:
        if not (run.folder / "repro").is_dir():
            continue
        for cell, result in run.results.items():
            if result.repro is None or merged.results[cell].repro != result.repro:
                continue
            source, target = run.folder / result.repro, output / result.repro
            if source.is_file() and source.resolve().is_relative_to(run.folder.resolve()):
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)


def _tell_missing(missing: Sequence[CellKey], output: Path) -> None:
    path = output / _MISSING
    if not missing:
        path.unlink(missing_ok=True)
        return
    path.write_text("".join(f"{cell}\n" for cell in missing), encoding="utf-8")
    click.echo(f"{len(missing):,} cells have no outcome ({path} lists all):")
    for cell in missing[:_SHOWN]:
        click.echo(f"  {cell}")
    if len(missing) > _SHOWN:
        click.echo(f"  and {len(missing) - _SHOWN:,} more")
