"""The commands ``conform bundle`` and ``conform bundle verify``."""

from __future__ import annotations

from pathlib import Path

import click

from conformance.commands import PATH, RUN, options, print_json
from conformance.version import VERSION
from reports.bundle import SUFFIX, check_bundle, checked_as_data, make_bundle
from reports.failures import write_failures
from reports.folder import RECORD_FILE
from reports.gate import ExitCode, gate, number
from reports.junit import one_line
from reports.model import Run, write_file
from reports.run import load_run, manifest_in, repro_script, write_run


class _BundleGroup(click.Group):
    """A group whose first argument may also be the path of a run, which is then packed."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Puts the name of the command in front of a path, and of options."""
        if args and args[0] not in (*self.commands, "-h", "--help"):
            args = ["pack", *args]
        return super().parse_args(ctx, args)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage(ctx.command_path, "RUN -o FILE [--redact]")
        formatter.write_usage(ctx.command_path, "verify FILE [--json]")


@click.group(cls=_BundleGroup)
def bundle() -> None:
    """Pack a run into one file that a third party can check.

    `conform bundle RUN -o FILE` packs the record of a run, its JUnit files, the manifest with its reasons, the
    environment, the plan and the repro scripts, with checksums. --redact leaves out the host's name and the device's
    uuid. `conform bundle verify FILE` checks such a file; neither torch nor the device is needed.
    """


@bundle.command(hidden=True)
@RUN
@options("bundle")
def pack(run: Path, output: Path, redact: bool) -> None:
    """Pack the run in the folder RUN into a file, by convention NAME.conform.zip."""
    loaded = load_run(run)
    if redact:
        import tempfile

        with tempfile.TemporaryDirectory(prefix="conform-bundle-") as temporary:
            content = make_bundle(_redacted(loaded, Path(temporary) / "run"), VERSION)
    else:
        content = make_bundle(loaded, VERSION)
    write_file(output, content)
    click.echo(f"{output}: {number(len(loaded.results), 'cell')}, {len(content) / 1e6:.1f} MB")
    if not output.name.endswith(SUFFIX):
        click.echo(f"note: only names that end in {SUFFIX} are found by `conform dashboard FOLDER`")


def _redacted(run: Run, folder: Path) -> Run:
    """Writes a run without the host's name and the device's uuid into a new folder, with its repro scripts, and returns
    it."""
    write_run(folder, run.plan, run.results, run.provenance, redact=True, manifest=manifest_in(run))
    write_failures(gate(load_run(folder), partial=run.provenance.partial))
    for result in run.results.values():
        script = repro_script(run.folder, result) if result.repro else None
        if script is not None and result.repro is not None:
            write_file(folder / result.repro, script.read_bytes())
    return load_run(folder)


@bundle.command()
@click.argument("file", type=PATH)
@options("bundle-verify")
def verify(file: Path, as_json: bool) -> int:
    """Check a bundle: its checksums, its record, and whether everything else follows from the record.

    The JUnit files, the plan, the environment and the waivers are made again from the record, and each verdict is derived
    again from the manifest. Exits 4 if the file is no bundle or anything is wrong, else 0: a bundle of a red run is valid
    too.
    """
    found = check_bundle(file, VERSION)
    if as_json:
        print_json(checked_as_data(found))
    else:
        index = found.index
        state = f", commit {index.commit}" if index.commit else ""
        click.echo(f"device {index.device}, plan {index.plan}, torch {index.torch}")
        click.echo(f"made by torch-conformance {index.suite}{state}")
        click.echo(f"{one_line(index.verdict)}")
        click.echo(f"sha256 {found.sha256}")
        for note in found.notes:
            click.echo(f"note: {one_line(note)}")
        for problem in found.problems:
            click.echo(f"problem: {one_line(problem)}")
        files = number(len(index.files), "file")
        click.echo(
            f"not valid: {number(len(found.problems), 'problem')}"
            if found.problems
            else f"valid: {files} as in the index; {RECORD_FILE} and everything derived from it agree"
        )
    return ExitCode.USAGE if found.problems else ExitCode.GREEN
