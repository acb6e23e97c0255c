"""The program ``conform``, which combines all commands.

An error that the user can fix is printed as one line ``error: …`` on stderr, without a traceback. The exit codes are
those of ``reports.gate.ExitCode``: 0 green, 1 regression, 2 incomplete, 3 infrastructure, 4 usage (wrong
arguments, and files of a run that cannot be read or were edited), 5 nothing selected.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from conformance.checks.scratch import keep_tools_in
from conformance.commands.bundle import bundle
from conformance.commands.contract import contract, freeze_levels
from conformance.commands.coverage import coverage
from conformance.commands.devices import devices, init
from conformance.commands.examples import minimise, pin
from conformance.commands.history import history
from conformance.commands.issue import issue
from conformance.commands.kernels import kernels
from conformance.commands.locate import locate
from conformance.commands.manifest import manifest
from conformance.commands.precision import precision
from conformance.commands.recordings import record
from conformance.commands.runs import crcr, dashboard, diff, gate, merge, results, serve
from conformance.recordings.formats import FORMATS
from conformance.version import VERSION
from devices import autoload
from devices.errors import ConformError
from devices.files import cache_root
from reports.gate import ExitCode


class Conform(click.Group):
    """The group of all ``conform`` commands. It prints errors in one line and exits with the exit codes of the
    suite."""

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Runs a command as click's ``main`` does, but exits with 4 after a usage error, and with the error's own exit
        code after a ConformError.

        If ``standalone_mode`` is False, errors are raised and the exit code is returned.
        """
        extra.setdefault("prog_name", "conform")
        if autoload.INSTALLED:
            autoload.put_off()
        call = partial(super().main, *args, standalone_mode=False, **extra)
        if not standalone_mode:
            return call()
        sys.exit(_exit_code(call))

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the chosen command, and exits if its output cannot be written."""
        try:
            return super().invoke(ctx)
        except OSError as error:
            if not _is_of_stdout(error):
                raise
            raise click.exceptions.Exit(_unwritable(error)) from None


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
        context = getattr(error, "ctx", None)
        hint = f" (see `{context.command_path} --help`)" if context is not None else ""
        click.echo(f"error: {error.format_message()}{hint}", err=True)
        return ExitCode.USAGE.value
    except click.Abort:
        click.echo("error: interrupted", err=True)
        return ExitCode.INCOMPLETE.value
    return int(code or 0)


#: The status that a shell shows for a program that a closed pipe ended. Not 0: no verdict was read.
_SIGPIPE: Final = 128 + 13


def _unwritable(error: OSError) -> int:
    """Prints an error about an output that cannot be written, and returns the exit code. If the output is a pipe that
    was closed, nothing is printed."""
    # Without this, flushing at exit would fail again.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.stdout.flush()
    if isinstance(
        error, BrokenPipeError
    ):  # the reader has closed its end: `conform contract | head`
        return _SIGPIPE
    click.echo(f"error: the output cannot be written: {error.strerror or error}", err=True)
    return ExitCode.INFRASTRUCTURE.value


def _is_of_stdout(error: OSError) -> bool:
    """Returns True if an error was caused by writing to stdout, which is assumed if the error names no file."""
    return error.filename is None and error.errno in (errno.EPIPE, errno.ENOSPC, errno.EIO)


@click.group(cls=Conform, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, message="torch-conformance %(version)s")
def conform() -> None:
    """Test whether a PyTorch device honours the contract that programs rely on."""


main = conform


@conform.command(
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(arguments: tuple[str, ...]) -> int:
    """Run the suite on a device. `conform run --help` lists the suite's options. All other arguments are passed to
    pytest.

    The command runs `pytest -p conformance.plugin --pyargs conformance ARGUMENTS` and has the same exit code.
    """
    return _run_pytest(arguments)


@conform.command(context_settings={"ignore_unknown_options": True})
@click.argument("recording", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--format",
    "name",
    metavar="NAME",
    help=f"The format of RECORDING: {', '.join(FORMATS)} (default: recognized from its content).",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def replay(recording: Path, name: str | None, arguments: tuple[str, ...]) -> int:
    """Judge the recorded calls of a program on a device: conform replay calls.jsonl --device NAME.

    RECORDING is a file that `conform record` or another recorder wrote. Each call is made with the recorded shapes, strides
    and offsets, and in other layouts; the end of the run says what the file does not contain, and what was assumed instead.
    ARGUMENTS are those of `conform run`; with --backward, gradients are judged too; --max-elements N leaves out large calls. At the end, the calls that are not
    right are listed with their places in the program. The command has the exit code of `conform run`.
    """
    given = () if name is None else (f"--recording-format={name}",)
    return _run_pytest((f"--recording={recording}", *given, *arguments))


def _run_pytest(arguments: tuple[str, ...]) -> int:
    """Runs the suite with the given options. Returns the exit code."""
    import pytest

    from conformance.plan.options import joined

    ours = ["-p", "conformance.plugin", *_kept_in_the_cache(arguments), "--pyargs", "conformance"]
    return int(pytest.main([*ours, *joined(arguments)]))


def _kept_in_the_cache(arguments: Iterable[str]) -> Iterator[str]:
    """Yields pytest options that put pytest's cache into the suite's cache folder. Also sets environment variables, so
    that torch and hypothesis write their files into the cache folder too. A run then writes only its results into the
    current folder."""
    folder = cache_root()
    with suppress(OSError):  # the cache cannot be written: they are where they are by default
        (folder / "pytest").mkdir(parents=True, exist_ok=True)
        keep_tools_in(folder)
        if not any(each.endswith("no:cacheprovider") for each in arguments):  # which has the option
            yield from ("-o", f"cache_dir={folder / 'pytest' / 'cache'}")


_COMMANDS = [
    bundle,
    contract,
    coverage,
    crcr,
    dashboard,
    devices,
    diff,
    freeze_levels,
    gate,
    history,
    init,
    issue,
    kernels,
    locate,
    manifest,
    merge,
    minimise,
    pin,
    precision,
    record,
    results,
    serve,
]
for command in _COMMANDS:
    conform.add_command(command)

if __name__ == "__main__":
    conform()
