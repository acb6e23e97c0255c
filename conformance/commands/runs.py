"""Commands about results folders: ``conform gate``, ``results``, ``diff``, ``merge``, ``crcr`` and ``dashboard``."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from devices.errors import ConformError
from devices.files import write_whole

if TYPE_CHECKING:
    from devices.cell import CellKey
    from reports.merge import Merged
    from reports.model import Run

#: Missing cells that the terminal shows; the file has all.
_SHOWN = 20
_MISSING = "missing.txt"


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--allow-improvements",
    is_flag=True,
    help="Allow improvements that the manifest does not record, such as those of a new driver.",
)
@click.option(
    "--against",
    metavar="RUN",
    type=click.Path(path_type=Path),
    help="A baseline: cells that are as bad in that run do not count.",
)
def gate(run: Path, allow_improvements: bool, against: Path | None) -> int:
    """Exit 0 only if a run is complete and free of regressions.

    RUN is the folder given to --results, or its record, run.conform. Exits 1 for regressions and for improvements that the
    manifest does not record, 2 for an incomplete, partial or empty run, 3 if nothing could be checked, 4 if the
    run's files cannot be read or were edited.
    """
    from reports.gate import gate as judge
    from reports.run import load_run
    from reports.summary import publish, summarise

    loaded = load_run(run)
    baseline = load_run(against) if against is not None else None
    result = judge(loaded, allow_improvements=allow_improvements, against=baseline)
    click.echo(summarise(result, styled=_coloured()))
    for line in publish(result, os.environ):
        click.echo(line)
    return result.exit_code.value


def _coloured() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print all that the record holds, as JSON.")
def results(run: Path, as_json: bool) -> None:
    """Show a run again: the summary that ended it, or its record as JSON.

    RUN is the folder given to --results, or its record, run.conform. The JSON has the plan, the provenance and the
    result of each cell. Exits 4 if the record cannot be read.
    """
    from reports.gate import gate as judge
    from reports.run import as_json as record_as_json
    from reports.run import load_run
    from reports.summary import summarise

    loaded = load_run(run)
    if as_json:
        click.echo(record_as_json(loaded))
    else:
        partial = loaded.provenance.partial or loaded.provenance.is_shard
        click.echo(summarise(judge(loaded, partial=partial), styled=_coloured()))


def _json(document: msgspec.Struct) -> str:
    return msgspec.json.format(msgspec.json.encode(document)).decode()


@click.command()
@click.argument("before", type=click.Path(path_type=Path))
@click.argument("after", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--limit", default=20, show_default=True, help="Cells to show for each kind of change."
)
def diff(before: Path, after: Path, as_json: bool, limit: int) -> int:
    """Compare two runs.

    Lists the cells that newly fail, are fixed, newly crash, are missing, or have another expectation. BEFORE and AFTER are results folders, of one device or of two. Exits 1 if a cell newly fails, newly crashes or is
    missing, else 0; 4 if a run cannot be read.
    """
    from reports.diff import as_data, as_text
    from reports.diff import diff as compare
    from reports.gate import ExitCode
    from reports.run import load_run

    found = compare(load_run(before), load_run(after))
    if as_json:
        click.echo(_json(as_data(found)))
    else:
        click.echo(as_text(found, limit=limit))
    return ExitCode.REGRESSION.value if found.worse else ExitCode.GREEN.value


@click.command()
@click.argument("shards", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path),
    help="The folder for the joined run.",
)  # fmt: skip
@click.option(
    "--junitxml",
    type=click.Path(path_type=Path),
    help="Write one more JUnit file, with all families.",
)
def merge(shards: tuple[Path, ...], output: Path, junitxml: Path | None) -> int:
    """Join the shards of one run into one run. SHARDS are their results folders.

    Shards with a different plan, torch, driver, device or manifest are refused (exit 4), and so are shards that
    disagree on a cell that both ran. Exits 0 if every planned cell has an outcome, 2 if not: the missing cells are
    listed in missing.txt. `conform gate` then judges the joined run.
    """
    from reports.gate import ExitCode
    from reports.run import collector_paused

    if any(shard.resolve() == output.resolve() for shard in shards):
        raise ConformError(f"-o {output} is one of the shards: give another folder")
    with collector_paused():  # it would visit millions of objects again and again
        merged = _merged(shards, output, junitxml)
    click.echo(f"{len(shards):,} shards, {len(merged.results):,} cells: {output}")
    if merged.absent:
        click.echo(f"absent shards: {', '.join(map(str, merged.absent))}")
    _tell_missing(merged.missing, output)
    whole = not merged.missing and not merged.absent
    return ExitCode.GREEN.value if whole else ExitCode.INCOMPLETE.value


def _merged(shards: Sequence[Path], output: Path, junitxml: Path | None) -> Merged:
    """Read the shards, and write the joined run with its report."""
    from reports.gate import gate
    from reports.merge import load_shards
    from reports.merge import merge as join
    from reports.run import write_run
    from reports.summary import write_failures

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
    write_failures(gate(run, partial=run.provenance.partial))
    return merged


def _manifest(runs: Sequence[Run]) -> bytes:
    """The manifest, from the first shard that has it unchanged."""
    for run in runs:
        path = run.folder / "expected.toml"
        if path.is_file():
            text = path.read_bytes()
            if hashlib.blake2b(text, digest_size=8).hexdigest() == run.provenance.manifest_hash:
                return text
    return b""


def _copy_repros(runs: Sequence[Run], merged: Merged, output: Path) -> None:
    """Copy the repro scripts. A script that is not in its shard's folder is left out."""
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
    write_whole(path, "".join(f"{cell}\n" for cell in missing))
    click.echo(f"{len(missing):,} cells have no outcome ({path} lists all):")
    for cell in missing[:_SHOWN]:
        click.echo(f"  {cell}")
    if len(missing) > _SHOWN:
        click.echo(f"  and {len(missing) - _SHOWN:,} more")


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--allow-improvements", is_flag=True, help="Like `conform gate`: improvements are not failures."
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Write to this file instead of stdout."
)
def crcr(run: Path, allow_improvements: bool, output: Path | None) -> int:
    """Print a run for PyTorch's Cross-Repository CI Relay.

    Prints counts and environment of the run in folder RUN. This is the input `test-results` of the relay's callback action: one line of JSON, under 100 KiB. In GitHub Actions
    it is also written to $GITHUB_OUTPUT, as `test-results`, with `conclusion` (success or failure). Exits 0 for green
    and red runs, as only `conform gate` judges; 4 if the run cannot be read.
    """
    from reports.crcr import payload, text_of
    from reports.gate import gate
    from reports.run import load_run

    loaded = load_run(run)
    found = payload(gate(loaded, allow_improvements=allow_improvements))
    text = text_of(found)
    if output is None:
        click.echo(text)
    else:
        try:
            write_whole(output, text + "\n")
        except OSError as error:
            raise ConformError(f"{output}: cannot be written: {error.strerror or error}") from None
    into = os.environ.get("GITHUB_OUTPUT")
    if into:
        lines = f"test-results={text}\nconclusion={found.conclusion}\n"
        with Path(into).open("a", encoding="utf-8") as stream:  # steps of a job append to it
            stream.write(lines)
    return 0


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN…", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    metavar="SITE",
    help="The site's folder. Runs that are already in it stay and are not read again.",
)
@click.option("--title", default="Compatibility dashboard", show_default=True)
@click.option(
    "--skip-refused",
    is_flag=True,
    help="Leave out runs that must not be published instead of stopping.",
)
@click.option("--fresh", is_flag=True, help="Remove the runs that are already in the site.")
@click.option(
    "--details",
    default=2,
    show_default=True,
    metavar="N",
    help="Keep messages and repro scripts of each device's N newest runs. Statuses are kept for all.",
)
@click.option(
    "--jobs",
    default=None,
    type=click.IntRange(1, 64),
    help="Processes (default: the number of CPUs).",
)
def dashboard(
    runs: tuple[Path, ...],
    output: Path,
    title: str,
    skip_refused: bool,
    fresh: bool,
    details: int,
    jobs: int | None,
) -> None:
    """Build a static site from results folders.

    It has an overview, grids, cells, comparisons and trends. Each RUN is the folder given to --results, or a folder of such folders. If a run is partial, incomplete or empty,
    the command says why, exits 2 and does not change the site. Exits 4 if a run's files cannot be read or were
    edited.
    """
    from reports.dashboard.build import Options, build
    from reports.gate import number

    made = build(
        runs,
        output,
        Options(title=title, skip_refused=skip_refused, fresh=fresh, details=details, jobs=jobs),
    )
    for refusal in made.refused:
        click.echo(f"skipped: {refusal}", err=True)
    click.echo(
        f"{output / 'index.html'}: {number(made.devices, 'device')}, {number(made.runs, 'run')} "
        f"({made.read} read, {made.runs - made.read} already there)"
    )
