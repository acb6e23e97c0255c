"""The command ``conform init``: finds out what a device without a descriptor supports, runs the suite on the device,
and writes a folder with the device's descriptor and manifest."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import chain
from pathlib import Path
from types import FrameType
from typing import Final

from conformance.contract import load
from conformance.onboarding import drafting
from conformance.onboarding.primitives import nearest, why_none
from conformance.onboarding.questions import Question, Reply, ask
from devices.cell import CellKey, Outcome, Verdict
from devices.descriptor import CAPABILITIES
from devices.errors import ConformError
from devices.files import write_whole
from devices.lifecycle.evidence import judge_observation
from devices.manifest import ExpectedOutcome, Manifest
from devices.registry import load_file
from devices.torch_version import require_torch
from devices.verdicts import Matcher
from reports.advice import drafts
from reports.causes import causes_of
from reports.folder import PROGRESS_FILE, RECORD_FILE
from reports.gate import ExitCode, number
from reports.junit import one_line
from reports.model import CellResult, Run, by_declaration, seen_of
from reports.run import load_run

Say = Callable[[str], object]

#: What the process of a run executes after it has taken this process' ``sys.path``.
_CONFORM: Final = "from conformance.cli import main; main()"
#: The subfolder of the device's folder that gets the runs and their logs.
_RUNS: Final = "init"
#: Names of temporary files that an interrupted init may leave behind.
_HALF_WRITTEN: Final = r"\.(__init__\.py|descriptor\.py|expected\.toml)\.[0-9a-f]{8}"
#: Days until a flaky block expires.
_FLAKY_DAYS: Final = 30
#: Seconds after which a run reports its progress for the first time.
_FIRST_REPORT: Final = 8.0
#: Seconds that an interrupted run may take to write its results.
_TO_END: Final = 60.0


class Unreachable(ConformError):
    """The exception raised if the device, its Python module or a run of the suite on the device does not work."""

    exit_code = ExitCode.INFRASTRUCTURE.value


class Interrupted(ConformError):
    """The exception raised if the command was interrupted, or its time is up."""

    exit_code = ExitCode.INCOMPLETE.value


@dataclass(frozen=True, slots=True)
class InitOptions:
    name: str
    device_string: str
    module: str | None
    output: Path | None
    runs: int
    quick: bool
    ops: str | None
    workers: int
    max_time: float | None = None  # seconds for all runs together

    @property
    def folder(self) -> Path:
        return self.output or Path(self.name)

    @property
    def draft(self) -> Path:
        """The path of the drafted manifest, which lists the expected failures. Every run but the first uses it."""
        return self.folder / _RUNS / "expected.toml"

    @property
    def selection(self) -> tuple[str, ...]:
        """The options for ``conform run`` that select cells."""
        shard = ("--shard=1/6",) if self.quick and not self.ops else ()
        return (*shard, *((f"--ops={self.ops}",) if self.ops else ()))

    def question(self) -> Question:
        """Checks the options that name the device, and returns the device as a ``Question``. Raises ConformError for an
        invalid option."""
        _matched(
            r"[a-z][a-z0-9_-]*",
            self.name,
            "a device's name must begin with a lower-case letter and consist of lower-case letters, digits, '-' and '_'",
        )
        device = _matched(
            r"([a-z][a-z0-9_]*)(?::\d+)?",
            self.device_string,
            "--device-string: expected a device as torch writes it, such as 'npu' or 'lazy:0'",
        )
        module = _matched(
            r"(?:([A-Za-z_][\w.]*)(?::([A-Za-z_]\w*))?)?",
            self.module or "",
            "--module: expected a module, such as 'torch_npu', or a module and a function to call, such as "
            "'torch._lazy.ts_backend:init'",
        )
        named, init = module.groups(default="")
        return Question(name=self.name, torch_type=device[1], module=named, init=init)


def _matched(pattern: str, text: str, wanted: str) -> re.Match[str]:
    if found := re.fullmatch(pattern, text):
        return found
    raise ConformError(f"{wanted}, got {text!r}")


def begin(options: InitOptions, say: Say) -> int:
    """Writes the folder of a device: the descriptor, the runs of the suite and the manifest. Returns the exit code of
    the command; raises ConformError if the folder cannot be completed."""
    try:
        with _ended_by_sigterm():
            return _begun(options, say)
    except KeyboardInterrupt:
        raise Interrupted(
            f"interrupted; {_written(options.folder)}. Run the same command again to continue"
        ) from None


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Treats SIGTERM like Ctrl-C in the block, so that it also ends the run that init started."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _begun(options: InitOptions, say: Say) -> int:
    question = options.question()
    require_torch()  # before anything is written
    folder = options.folder
    path = folder / "descriptor.py"
    with _writing(folder):
        _look_at(folder)
    if path.exists():
        say(f"{path} exists already: continuing with the runs")
    else:
        _describe(options, question, path, say)
    described = load_file(folder)
    if (described.torch_type, described.module or "") != (question.torch_type, question.module):
        raise ConformError(
            f"the device or module in {path} differs from the one that you named: give another folder with -o"
        )
    until = None if options.max_time is None else time.monotonic() + options.max_time
    runs = [_run(options, 1, until, say)]
    if options.runs > 1:  # the other runs are judged by the draft, as the gate will judge
        drafted, _ = _draft(options, runs)
        with _writing(options.draft):
            write_whole(options.draft, drafted)
        runs += [_run(options, which, until, say) for which in range(2, options.runs + 1)]
    return _write_manifest(options, runs, say)


def _look_at(folder: Path) -> None:
    """Removes temporary files of an interrupted ``conform init`` from a folder. Raises ConformError if the folder holds
    a complete description of a device, or files that ``conform init`` did not write."""
    held = list(folder.iterdir()) if folder.exists() else []
    for each in held:
        if re.fullmatch(_HALF_WRITTEN, each.name):
            each.unlink()
    names = {each.name for each in held if not re.fullmatch(_HALF_WRITTEN, each.name)}
    if {"descriptor.py", "expected.toml"} <= names:
        raise ConformError(
            f"{folder} already describes a device: give another folder with -o, or remove this one"
        )
    if names - {"__init__.py", "descriptor.py", "__pycache__", _RUNS}:
        raise ConformError(
            f"{folder} is not empty: give another folder with -o, or remove this one"
        )


def _written(folder: Path) -> str:
    """Returns a part of a sentence, for messages, that says which files the folder has so far."""
    if not (folder / "descriptor.py").exists():
        return "nothing was written"
    return f"{folder} contains the descriptor, but no manifest yet"


def _describe(options: InitOptions, question: Question, path: Path, say: Say) -> None:
    say(f"asking {options.device_string} what it supports")
    reply = ask(question)
    if reply.error:
        raise Unreachable(
            f"{options.device_string} cannot be described, and nothing was written: {reply.error.rstrip('.')}. "
            f"To see the failure without the suite: {_without_us(question)}"
        )
    with _writing(path.parent):
        # No __init__.py: a folder with one would hide a module of the same name from programs that run beside it.
        write_whole(path, drafting.descriptor(question, reply))
    has = sorted(name for name, answer in reply.capabilities.items() if answer)
    say(
        f"wrote {path}: {len(reply.dtypes)} dtypes; capabilities that work: {', '.join(has) or 'none'}"
    )
    for line in _work_in_flight(question, reply):
        say(line)
    faults = {**reply.wrong, **reply.broken}
    if faults:
        say(
            "  the descriptor also declares the following, which exist and do not work; their clauses fail until they do:"
        )
    for name, seen in faults.items():
        say(f"    {name}: {one_line(seen)[:160]}")
    asked = {*CAPABILITIES, "facts", "device_count"} - reply.broken.keys()
    if silent := sorted(reply.raised.keys() & asked):
        say(
            f"  {number(len(silent), 'probe')} had no result; the descriptor says why: {', '.join(silent)}"
        )


def _work_in_flight(question: Question, reply: Reply) -> Iterator[str]:
    """Yields lines that say which draft of ``busy`` the descriptor declares and what was measured, or why it declares
    none."""
    for each in reply.busy:
        if each.works:
            yield f"  `busy` is drafted with {each.work(question.torch_type)}, so work in flight is checked: {each.found}"
            return
    streams = bool(reply.capabilities.get("streams"))
    yield f"  work in flight is not checked: {why_none(reply.busy, question.torch_type, streams)}"
    if nearest(reply.busy):
        yield "    the descriptor has the last of these drafts as a comment"


def _without_us(question: Question) -> str:
    """Returns a command line with the first steps that must work on the device: import the module, copy a tensor to the
    device, add, and copy the sum back."""
    imports = ", ".join(filter(None, ("torch", question.module)))
    call = f"{question.module}.{question.init}(); " if question.init else ""
    code = f'import {imports}; {call}x = torch.ones(2).to("{question.torch_type}"); print((x + x).cpu())'
    return shlex.join(["python", "-c", code])


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConformError(f"{path} cannot be written: {error.strerror or error}") from None


def _run(options: InitOptions, which: int, until: float | None, say: Say) -> Run:
    """Runs the plan ``quick`` in a subprocess and returns the run. The first run expects no failures; the other runs
    expect those in the drafted manifest. Raises Interrupted if the run is still going at ``until``, a time of
    the monotonic clock."""
    results = (options.folder / _RUNS / f"run-{which}").absolute()
    log, begun = results.with_suffix(".log"), (results / PROGRESS_FILE).exists()
    expectations = "none" if which == 1 else str(options.draft.absolute())
    what = "plan quick" if which == 1 else "plan quick, expecting the failures of run 1"
    say(f"run {which} of {options.runs}: {what}, {number(options.workers, 'worker')}; log: {log}")
    command = [
        *(sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; {_CONFORM}"),
        *("run", "-q", "--tb=no", "--no-header"),
        *("-n", str(options.workers), "--plan=quick", f"--expectations={expectations}"),
        *(f"--descriptor={options.folder.absolute()}", f"--results={results}", *options.selection),
        *(("--resume",) if begun else ()),
    ]
    began = time.monotonic()
    status: int | None = int(ExitCode.GREEN)
    if begun or not (results / RECORD_FILE).exists():
        with _writing(log):
            log.parent.mkdir(parents=True, exist_ok=True)
            status = _watched(command, log, until, say)
        if status is None:
            raise Interrupted(
                f"run {which} was stopped after {options.max_time:.0f} s (--max-time); {_written(options.folder)}. Run the "
                "same command again to continue"
            )
    if status not in (ExitCode.GREEN, ExitCode.REGRESSION, ExitCode.INCOMPLETE):
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        if status == ExitCode.USAGE and lines[-1].startswith("ERROR: "):  # such as a misspelt op
            raise ConformError(f"{lines[-1][len('ERROR: ') :]} ({_written(options.folder)})")
        raise Unreachable(
            f"run {which} ended with exit code {status} and without results: "
            f"{lines[-1] if lines else 'no message'} (log: {log}; {_written(options.folder)})"
        )
    if not (results / RECORD_FILE).is_file():
        raise Unreachable(
            f"run {which} wrote no results; see the end of {log} ({_written(options.folder)})"
        )
    run = load_run(results)
    say(
        f"  {time.monotonic() - began:.0f} s: {len(run.results):,} cells, {len(_failing(run)):,} fail, "
        f"{sum(map(by_declaration, run.results.values())):,} unsupported by declaration"
    )
    return run


def _watched(command: list[str], log: Path, until: float | None, say: Say) -> int | None:
    """Runs a command, writes its output to the file ``log``, and returns the exit status; None if the command had not
    ended when the clock showed ``until``, and was ended. Reports the progress, with an estimate of the remaining
    time, after some seconds and then three times more."""
    began, reported, quarters = time.monotonic(), False, 1
    process: subprocess.Popen[bytes] | None = None
    try:
        with log.open("wb") as stream, _signals_held():
            process = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT)
        while until is None or time.monotonic() < until:
            with suppress(subprocess.TimeoutExpired):
                return process.wait(timeout=1.0)
            took = time.monotonic() - began
            shares = re.findall(r"\[ *(\d+)%\]", log.read_text(errors="replace"))
            done = int(shares[-1]) if shares else 0
            if not reported and took >= _FIRST_REPORT:
                reported = True
                say(f"  {took:.0f} s: {_progress(done, took)}")
            elif 25 * quarters <= done < 100:
                quarters = done // 25 + 1
                say(f"  {took:.0f} s: {_progress(done, took)}")
    finally:
        if process is not None:
            _end(process)
    return None


@contextmanager
def _signals_held() -> Iterator[None]:
    """Holds SIGINT and SIGTERM back until the end of the block: a process that has just been started would otherwise be
    left, because nobody knows it yet."""
    came: list[int] = []
    names = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(name, lambda number, _: came.append(number)) for name in names]
    try:
        yield
    finally:
        for name, handler in zip(names, before, strict=True):
            signal.signal(name, handler)
    if came:
        raise KeyboardInterrupt


def _progress(done: int, took: float) -> str:
    """Returns a part of a sentence about a run of which ``done`` percent took ``took`` seconds."""
    if not done:
        return "less than 1 % is done; an estimate follows"
    return f"{done} % is done; about {took * (100 - done) / done:.0f} s left"


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a running process with SIGTERM, after which the run can be resumed. If the process does not end in time,
    kills it with SIGKILL."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(timeout=_TO_END)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _write_manifest(options: InitOptions, runs: list[Run], say: Say) -> int:
    """Writes the manifest and tells the user what to do next. Returns 0 if the gate is green with the manifest, else 1."""
    path = options.folder / "expected.toml"
    text, apart = _draft(options, runs)
    known = {layout for run in runs for result in run.results.values() for layout in result.layouts}
    manifest = Manifest.parse(text, path, {"clause": load().clauses, "layouts": known})
    for run in runs:  # the manifest must expect the failures that it was made from
        if left := _left_over(manifest, run) - set(apart):
            raise ConformError(
                f"no block of {path} expects {min(left)}, which failed: please report this as a defect of the suite"
            )
    with _writing(path):
        write_whole(path, text)
    flaky = sum(block.outcome is ExpectedOutcome.FLAKY for block in manifest.blocks)
    blocks = number(len(manifest.blocks), "block")
    if flaky:
        blocks = f"{blocks}, of which {flaky} for flaky cells expire in {_FLAKY_DAYS} days"
    say(f"wrote {path}: {blocks}")
    again = ["conform", "run", "-n", str(options.workers), *options.selection]
    command = shlex.join([*again, f"--descriptor={options.folder}"])
    if apart:
        say(
            f"cells in no block: {len(apart)}, so the gate is red; the end of the manifest lists them"
        )
    elif options.runs > 1:
        say("with this manifest the gate of the last run is green")
    elif parts := [f"--{part}" for part in ("quick", "ops") if getattr(options, part)]:
        say(
            "with this manifest the run is green, but it is a part of the plan, which the gate refuses: for a manifest of the "
            f"whole plan, leave out {' and '.join(parts)}, and give another folder"
        )
    else:
        say(
            "with this manifest the run is green; to find flaky cells, leave out --fast, so that the suite runs twice"
        )
    say(f"Next: replace each 'triage:' with the cause. To run the suite again: `{command}`")
    return (ExitCode.REGRESSION if apart else ExitCode.GREEN).value


def _draft(options: InitOptions, runs: list[Run]) -> tuple[str, dict[CellKey, str]]:
    """Returns the text of the manifest, and the failing cells that no block of the manifest contains, each with the
    reason for that."""
    agreed, flaky, apart = agreement(runs)
    today = date.today()
    until = today + timedelta(days=_FLAKY_DAYS)
    reasons = drafts(causes_of(runs[-1], [*agreed.values(), *flaky.values()]))
    text = drafting.manifest(options.name, agreed, flaky, apart, len(runs), today, until, reasons)
    return text, apart


def _failing(run: Run) -> list[CellKey]:
    """Returns the cells of a run that fail, whether the failure was expected or not."""
    return [
        key
        for key, each in run.results.items()
        if judge_observation(None, seen_of(each), date.today()).verdict is Verdict.REGRESSION
    ]


#: Cells that fail, as a block describes them.
Failing = dict[CellKey, CellResult]


def agreement(runs: list[Run]) -> tuple[Failing, Failing, dict[CellKey, str]]:
    """Divides the failing cells of several runs into three groups.

    Returns the cells that fail in every run, the cells that pass in some runs and fail in others, and the remaining
    cells, each with the reason why no block of the manifest can describe it.
    """
    agreed: Failing = {}
    flaky: Failing = {}
    apart: dict[CellKey, str] = {}
    for key in dict.fromkeys(chain(*map(_failing, runs))):
        results = [each for run in runs if (each := run.results.get(key)) is not None]
        outcomes = {each.outcome for each in results}
        failed = next(each for each in results if each.outcome is not Outcome.PASS)
        if len(results) < len(runs):
            apart[key] = "the cell has no outcome in one of the runs"
        elif outcomes == {Outcome.PASS, Outcome.FAIL}:
            flaky[key] = drafting.at_large(failed)
        elif len(outcomes) > 1:
            apart[key] = "the runs disagree: " + ", then ".join(
                str(each.outcome) for each in results
            )
        elif failed.outcome.name not in ExpectedOutcome.__members__:
            apart[key] = f"{failed.outcome}: {one_line(failed.message)[:200]}"
        else:  # it fails in every run; if in several ways, the block leaves the way open
            same = len({drafting.way_of(each) for each in results}) == 1
            agreed[key] = failed if same else drafting.at_large(failed)
    missing = {key for run in runs for key in run.missing if key in set(run.parsed.selected)}
    apart |= dict.fromkeys(sorted(missing), "the cell has no outcome")
    return (
        {key: each for key, each in agreed.items() if key not in apart},
        {key: each for key, each in flaky.items() if key not in apart},
        apart,
    )


def _left_over(manifest: Manifest, run: Run) -> set[CellKey]:
    """Returns the cells of a run that still turn the gate red when the manifest is applied."""
    matcher = Matcher(manifest.active({name: str(value) for name, value in run.plan.facts.items()}))
    return {
        key
        for key, result in run.results.items()
        if judge_observation(matcher.expect(key), seen_of(result), date.today()).verdict
        not in (Verdict.OK, Verdict.EXPECTED, Verdict.FLAKY)
    }
