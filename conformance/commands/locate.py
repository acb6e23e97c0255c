"""The command ``conform locate``, which finds the first wrong call of a program."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from conformance.commands import options, print_json
from conformance.commands.program_command import (
    Command,
    checked_output,
    command_of,
    exit_code_of,
    run_launcher,
)
from devices.errors import ConformError
from devices.torch_version import require_torch
from reports.gate import ExitCode, number

if TYPE_CHECKING:
    from conformance.locate.orders import Orders
    from conformance.locate.traces import Comparison, Parting
    from conformance.locate.wire import Located, LocatedCall

#: The most tensors of a call, and the most reasons, that are shown.
_SHOWN = 8
#: The longest time that a repro script may take, in seconds.
_SCRIPT_SECONDS = 600


@click.command(context_settings={"ignore_unknown_options": True})
@options("locate")
@click.argument("program", nargs=-1, type=click.UNPROCESSED, required=True)
def locate(
    program: tuple[str, ...],
    output: Path | None,
    against: Path | None,
    results: Path | None,
    window: int,
    as_json: bool,
    **given: Any,
) -> int:
    """Find the first wrong call of a Python program on a device.

    PROGRAM is the program's command line, which begins with `python`: conform locate --device NAME -- python infer.py. Each
    call on the device is made again on the CPU, from the device's own inputs. Exits 0 if no call is wrong, 1 if one is, 2 if
    the program failed.
    """
    require_torch()
    from conformance.locate.locate_script import check_folder
    from conformance.locate.traces import compare, read_trace

    command = command_of(program)
    other = read_trace(against) if against is not None else None
    folder = (results or Path("conform-results") / "locate").absolute()
    check_folder(folder)
    trace = checked_output(output) if output is not None else None
    with tempfile.TemporaryDirectory(prefix="conform-locate-") as scratch:
        if trace is None and other is not None:
            trace = Path(scratch) / "trace"
        text = " ".join(program)
        runner = _Runner(command, text, Path(scratch), folder, given, quiet=as_json)
        found = [runner.run(trace=trace)]
        if other is None and window > 1 and found[0].fault is None and not runner.was_killed:
            for phase in range(window - 1):
                found.append(runner.run(window=window, phase=phase))
                if found[-1].fault is not None or runner.was_killed:
                    break
        compared = (
            compare(read_trace(trace).calls, other.calls)
            if other is not None and trace is not None
            else None
        )
    lines = [
        *_lines(found, command.python),
        *(() if compared is None else _parting_lines(compared, against)),
    ]
    if as_json:
        print_json({"runs": found, "comparison": compared})
    else:
        click.echo("\n".join(lines))
    return _exit_code(found, compared)


def _exit_code(found: Sequence[Located], compared: Comparison | None) -> int:
    if any(each.fault for each in found) or (compared is not None and compared.parting):
        return ExitCode.REGRESSION
    return ExitCode.INCOMPLETE if any(each.ended for each in found) else ExitCode.GREEN


class _Runner:
    """Runs the user's program under the judge, each time in a new process. ``was_killed`` is True if a signal ended the
    latest of these processes."""

    def __init__(
        self,
        command: Command,
        text: str,
        scratch: Path,
        folder: Path,
        given: dict[str, Any],
        *,
        quiet: bool,
    ) -> None:
        from conformance.plan.selection import find_descriptor

        self.text, self.command = text, command
        self.scratch, self.folder, self.given, self.quiet = scratch, folder, given, quiet
        place = given["descriptor"]
        self.descriptor = str(place.absolute()) if place is not None else ""
        self.device = find_descriptor(given["device"], place and place.absolute()).name
        self.was_killed = False
        self._stdin = _position_of_stdin()

    def run(self, *, window: int = 1, phase: int = 0, trace: Path | None = None) -> Located:
        """Runs the program once in a new process and judges its calls. Returns the result: the first wrong call, if
        any, and the counts. Results are read back from the device only after every ``window`` calls, of which the first
        window begins after ``phase`` calls. With ``trace``, a trace of the calls is written to this path. Raises
        ConformError if the program made no call on the device."""
        from conformance.locate.orders import Orders

        orders = Orders(
            device=self.device,
            descriptor=self.descriptor,
            located=str(self.scratch / f"located-{window}-{phase}.json"),
            journal=str(self.scratch / f"journal-{window}-{phase}"),
            scripts=str(self.folder),
            trace=str(trace) if trace is not None else "",
            command=self.text,
            window=window,
            phase=phase,
            limit=self.given["calls"] or 0,
            seed=self.given["seed"],
            growth=not self.given["no_growth"],
            same_random=self.given["same_random"],
            default_device=self.given["default_device"],
            instead_of=self.given["instead_of"] or "",
        )
        if window > 1:
            click.echo(
                f"no single call is wrong; the program runs again, and results are read back only after every {window} calls, from call {phase + 1} on",
                err=True,
            )
            if self._stdin is not None:
                os.lseek(0, self._stdin, os.SEEK_SET)
        path = self.scratch / "orders.json"
        path.write_bytes(msgspec.json.encode(orders))
        code = run_launcher(
            self.command,
            ["conformance.locate.launch", str(path)],
            {"PYTHONHASHSEED": "0"},
            silent=window > 1 or self.quiet,
        )
        self.was_killed = code < 0
        return self._found(orders, code)

    def _found(self, orders: Orders, code: int) -> Located:
        from conformance.locate.journal import read_journal
        from conformance.locate.wire import Fault, Located, read_located

        path = Path(orders.located)
        if code < 0:
            ended = f"the process was ended by {signal.Signals(-code).name}"
        else:
            ended = f"exit code {code}" if code else ""
        newest = read_journal(Path(orders.journal))
        if path.exists():
            found = read_located(path)
            if not found.calls and not found.ended and not code:
                raise ConformError(_no_calls(found))
            return msgspec.structs.replace(found, ended=found.ended or ended)
        if newest is None:
            failed = ConformError(
                f"the program ended (exit code {exit_code_of(code)}) before it made a call on {self.device}"
            )
            failed.exit_code = code if code == ExitCode.INFRASTRUCTURE else failed.exit_code
            raise failed
        ended = ended or "the process ended at once (exit code 0)"
        fault = Fault(newest.call, f"{ended} while the call was made")
        return Located(
            device=self.device,
            calls=newest.call.number,
            window=orders.window,
            fault=None if newest.is_done else fault,
            wrong=0 if newest.is_done else 1,
            ended=f"{ended} after {_named(newest.call)}" if newest.is_done else ended,
        )


def _position_of_stdin() -> int | None:
    """Returns the current position in the standard input if that is a file, otherwise None. Each further run of the
    program reads from this position on."""
    try:
        return os.lseek(0, 0, os.SEEK_CUR)
    except OSError:
        return None


def _no_calls(found: Located) -> str:
    return (
        f"the program made no call on {found.device} ({found.elsewhere:,} elsewhere). Expected the program to use the device: "
        "pass it in the program's own options, or add --default-device (tensors without a device are made there) or "
        "--instead-of cuda (for a program that names cuda)"
    )


# -- what is printed


def _lines(found: Sequence[Located], python: str) -> Iterator[str]:
    last = found[-1]
    if last.fault is not None:
        yield from _fault_lines(last, python)
    first = found[0]
    if first.growth is not None:
        growth = first.growth
        yield f"the error grows most in {_named(growth.call)}"
        yield (
            f"    relative to float64: {growth.before:.2g} before the call, {growth.after:.2g} after it"
            + (f"; {first.error:.2g} in the last result" if first.error is not None else "")
        )
    for reason, count in first.unjudged[:_SHOWN]:
        yield f"not judged: {number(count, 'call')}: {reason}"
    failed = next((each for each in found if each.ended), None)
    if failed is not None and last.fault is None:
        again = "" if failed.window == 1 else f" in a run in windows of {failed.window}"
        yield f"the program failed{again}: {failed.ended}"
    if last.fault is None:
        done = "" if last.window == 1 else f", alone and in windows of {last.window}"
        yield f"no wrong call on {first.device}: {first.judged:,} of {number(first.calls, 'call')} judged{done}"


def _fault_lines(located: Located, python: str) -> Iterator[str]:
    fault = located.fault
    assert fault is not None
    yield f"wrong: {_named(fault.call)}, of {located.calls:,} calls on {located.device}"
    if fault.call.call:
        yield f"    {_short(fault.call.call)}"
    for place, each in enumerate(fault.call.inputs[:_SHOWN]):
        yield f"    t[{place}]: {each}"
    if (more := len(fault.call.inputs) - _SHOWN) > 0:
        yield f"    and {number(more, 'tensor')} more"
    yield f"    {fault.message}"
    if fault.with_calls:
        yield "    the call is right alone; it is wrong if nothing is read back between these calls:"
        yield from (f"        {_named(each)}" for each in fault.with_calls)
    if fault.script:
        yield f"    python {_relative(fault.script)}  # {_tried(fault.script, python)}"
    if located.wrong > 1:
        ops = ", ".join(f"{op} ({count:,})" for op, count in located.wrong_ops)
        yield f"wrong calls in all: {located.wrong:,}: {ops}"


def _named(call: LocatedCall) -> str:
    return f"call {call.number:,}, {call.op}, at {call.where}" + (
        f", in {call.phase}" if call.phase not in ("", "forward") else ""
    )


def _short(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:199]}…"


def _relative(path: str) -> str:
    short = os.path.relpath(path)
    return path if short.startswith("..") else short


def _tried(script: str, python: str) -> str:
    """Runs a repro script once, and returns a phrase about its result for the report."""
    try:
        done = subprocess.run(
            [python, script], capture_output=True, timeout=_SCRIPT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return "does not end"
    if done.returncode == 1:
        return "exits 1 while the fault is present, 0 once it is fixed"
    if done.returncode == 0:
        return "exits 0: in a new process the call is right, so the fault depends on what ran before it, or on time"
    return f"the call cannot be made again alone (exit code {done.returncode})"


def _parting_lines(compared: Comparison, against: Path | None) -> Iterator[str]:
    yield f"against {against}: {compared.equal:,} of {number(compared.compared, 'call')} have equal bits"
    if compared.first_bits is not None:
        yield f"    other bits first after {_named(compared.first_bits)}"
    if compared.parting is None:
        yield f"    the runs do not part; the last result differs by {compared.last:.2g}"
    else:
        yield f"    the runs first differ at {_named(compared.parting.call)}: {compared.parting.why}{_by(compared.parting)}"
    if compared.growth is not None:
        yield f"    their difference grows most in {_named(compared.growth.call)}{_by(compared.growth)}"


def _by(parting: Parting) -> str:
    if not parting.after:
        return ""
    return (
        f" (relative difference {parting.before:.2g} before the call, {parting.after:.2g} after it)"
    )
