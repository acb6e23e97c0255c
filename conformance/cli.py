"""The ``conform`` command: what the contract says, what devices there are, run, and gate.

Errors that people can act on are told once, as ``error: …`` on stderr, without a traceback. Exit
codes are those of ``reports.gate.ExitCode``: 0 green, 1 regression, 2 incomplete, 3 infrastructure,
4 usage (bad arguments, and files of a run that cannot be read or were edited), 5 nothing selected.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from conformance.commands.crcr import crcr
from conformance.commands.dashboard import dashboard
from conformance.commands.devices import devices
from conformance.commands.diff import diff
from conformance.commands.init import init
from conformance.commands.manifest import manifest
from conformance.commands.merge import merge
from conformance.commands.minimise import minimise
from conformance.commands.pin import pin
from devices.errors import ConformError
from reports.gate import ExitCode

DISTRIBUTION = "torch-conformance"


class Conform(click.Group):
    """A group that tells errors in one line and exits by our codes."""

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """As click's, but a usage error exits 4 and a domain error by its own code.

        Without ``standalone_mode`` errors are raised, and the exit code is returned.
        """
        extra.setdefault("prog_name", "conform")
        call = partial(super().main, *args, standalone_mode=False, **extra)
        if not standalone_mode:
            return call()
        sys.exit(_exit_code(call))


def _exit_code(call: Callable[[], Any]) -> int:
    try:
        code = call()
    except ConformError as error:
        click.echo(f"error: {error}", err=True)
        return error.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return ExitCode.USAGE.value
    except click.ClickException as error:
        message = error.format_message()
        context = getattr(error, "ctx", None)
        hint = f" (see `{context.command_path} --help`)" if context is not None else ""
        click.echo(f"error: {message}{hint}", err=True)
        return ExitCode.USAGE.value
    except click.Abort:
        click.echo("error: interrupted", err=True)
        return ExitCode.INCOMPLETE.value
    except BrokenPipeError:
        # The reader went away (`conform contract | head`): nothing is wrong. Without this, flushing
        # at exit would raise again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.GREEN.value
    return int(code or 0)


def _version(context: click.Context, _: click.Parameter, value: bool) -> None:
    if not value or context.resilient_parsing:
        return
    try:
        version = importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        raise ConformError(
            f"{DISTRIBUTION} is not installed, so its version is not known; in the checkout, "
            "run `pip install -e .`"
        ) from None
    click.echo(f"{DISTRIBUTION} {version}")
    context.exit()


@click.group(cls=Conform, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_version,
    help="Show the version and exit.",
)  # fmt: skip
def conform() -> None:
    """Does a PyTorch device honour the contract that programs rely on?"""


main = conform


@conform.command()
@click.option("--json", "as_json", is_flag=True, help="As JSON, for programs.")
@click.option("--clauses", metavar="GLOB,…", help="These clauses alone, such as 'layout.*'.")
def contract(as_json: bool, clauses: str | None) -> None:
    """Show the contract: every clause that a device is held to."""
    from conformance.contract import load

    whole = load()
    if clauses is None:
        text = whole.to_markdown().rstrip("\n")
        click.echo(json.dumps(whole.snapshot(), indent=2) if as_json else text)
        return
    globs = [glob.strip() for glob in clauses.split(",") if glob.strip()]
    if not globs:
        raise click.UsageError("--clauses: expected globs such as 'layout.*,streams.wait'")
    chosen = whole.select(globs)
    if as_json:
        families = {clause.family for clause in chosen}
        snapshot = whole.snapshot()
        snapshot["families"] = [f for f in snapshot["families"] if f["name"] in families]
        snapshot["clauses"] = [clause.snapshot() for clause in chosen]
        click.echo(json.dumps(snapshot, indent=2))
        return
    for clause in chosen:
        state = f"{clause.status}, provisional" if clause.provisional else str(clause.status)
        needs = f"; requires {', '.join(clause.requires)}" if clause.requires else ""
        click.echo(f"{clause.id} ({state}; level {clause.level}{needs})")
        click.echo(f"    {clause.statement}")
        click.echo(f"    source: {clause.source}")


@conform.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--allow-improvements",
    is_flag=True,
    help="Let unrecorded improvements through (a driver that mends cells).",
)
@click.option(
    "--against",
    metavar="RUN",
    type=click.Path(path_type=Path),
    help="A baseline: what is as bad in that run stops nobody.",
)
def gate(run: Path, allow_improvements: bool, against: Path | None) -> int:
    """Exit 0 only if the run in folder RUN is complete and free of regressions.

    RUN is the folder given to --results, or its plan.json. Exits 1 for regressions (or
    improvements that the manifest does not record), 2 for an incomplete, partial or empty run, 3 if
    nothing could be checked, 4 if the run's files cannot be read or were edited.
    """
    from reports.gate import gate as judge
    from reports.gate import publish, summarise
    from reports.run import load_run

    loaded = load_run(run)
    baseline = load_run(against) if against is not None else None
    result = judge(loaded, allow_improvements=allow_improvements, against=baseline)
    click.echo(summarise(loaded, result, styled=_coloured()))
    for line in publish(result, os.environ):
        click.echo(line)
    return result.exit_code.value


def _coloured() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


@conform.command(
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(arguments: tuple[str, ...]) -> int:
    """Run the suite; every argument goes to pytest (see `conform run --help`).

    The same as `pytest -p conformance.plugin --pyargs conformance ARGUMENTS`, and exits as it does.
    """
    try:
        import pytest
    except ModuleNotFoundError:
        raise ConformError("pytest is not installed: `pip install pytest`") from None
    from conformance.options import joined

    return int(
        pytest.main(["-p", "conformance.plugin", "--pyargs", "conformance", *joined(arguments)])
    )


for command in (crcr, dashboard, devices, diff, init, manifest, merge, minimise, pin):
    conform.add_command(command)

if __name__ == "__main__":
    conform()
