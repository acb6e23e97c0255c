"""``conform init``: ask a device that has no descriptor, and write its folder."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import date
from itertools import chain
from pathlib import Path
from typing import Final

from conformance.contract import load
from conformance.onboarding import drafting
from conformance.onboarding.questions import Question, ask
from devices.cell import CellKey, Verdict
from devices.descriptor import CAPABILITIES
from devices.errors import ConformError
from devices.files import write_whole
from devices.lifecycle.evidence import judged
from devices.manifest import ExpectedOutcome, Manifest
from devices.registry import load_file
from devices.verdicts import Matcher
from reports.gate import ExitCode
from reports.model import CellResult, Run, by_declaration, seen_of
from reports.run import PROGRESS_FILE, RECORD_FILE, load_run
from reports.summary import one_line

Say = Callable[[str], object]

#: What a run's process executes, with the path of this one: what is importable here is importable there.
_CONFORM: Final = "from conformance.cli import main; main()"
#: The runs' folder, in the device's.
_RUNS: Final = "init"


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

    @property
    def folder(self) -> Path:
        return self.output or Path(self.name)

    @property
    def selection(self) -> tuple[str, ...]:
        """Options of `conform run` for what is tried."""
        shard = ("--shard=1/6",) if self.quick else ()
        return (*shard, *((f"--ops={self.ops}",) if self.ops else ()))

    def question(self) -> Question:
        """The question to the device. Raises ConformError."""
        _matched(
            r"[a-z][a-z0-9_-]*",
            self.name,
            "a device's name must consist of lower-case letters, digits, '-' and '_', and begin with a letter",
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
    """Write the folder. Returns the exit code; raises ConformError."""
    question = options.question()
    folder = options.folder
    path = folder / "descriptor.py"
    held = {each.name for each in folder.iterdir()} if folder.exists() else set()
    if held - {"__init__.py", "descriptor.py", "__pycache__", _RUNS}:
        raise ConformError(f"{folder} is not empty: give another folder with -o, or remove it")
    if path.exists():
        say(f"{path} is there already: going on with the runs")
    else:
        _describe(options, question, path, say)
    described = load_file(folder)
    if (described.torch_type, described.module or "") != (question.torch_type, question.module):
        raise ConformError(
            f"{path} describes another device or module: give another folder with -o"
        )
    runs = [_run(options, number, say) for number in range(1, options.runs + 1)]
    _write_manifest(options, runs, say)
    return ExitCode.GREEN.value


def _describe(options: InitOptions, question: Question, path: Path, say: Say) -> None:
    say(f"asking {options.device_string} what it supports")
    reply = ask(question)
    if reply.error:
        raise ConformError(f"{options.device_string} cannot be described: {reply.error}")
    with _writing(path.parent):
        # No __init__.py: a folder with one would hide a module of the same name from programs that run beside it.
        write_whole(path, drafting.descriptor(question, reply))
    has = sorted(name for name, answer in reply.capabilities.items() if answer)
    say(
        f"wrote {path}: {len(reply.dtypes)} dtypes; capabilities that work: {', '.join(has) or 'none'}"
    )
    if silent := sorted(reply.raised.keys() & {*CAPABILITIES, "facts", "device_count"}):
        say(
            f"  {len(silent)} question(s) had no answer; the descriptor says why: {', '.join(silent)}"
        )


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConformError(f"{path} cannot be written: {error.strerror or error}") from None


def _run(options: InitOptions, number: int, say: Say) -> Run:
    """Run plan quick without expectations, in a subprocess: a crash costs one of its workers."""
    results = (options.folder / _RUNS / f"run-{number}").absolute()
    log, begun = results.with_suffix(".log"), (results / PROGRESS_FILE).exists()
    say(f"run {number} of {options.runs}: plan quick, {options.workers} worker(s); log: {log}")
    command = [
        *(sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; {_CONFORM}"),
        *("run", "-q", "--tb=no", "--no-header"),
        *("-n", str(options.workers), "--plan=quick", "--expectations=none"),
        *(f"--descriptor={options.folder.absolute()}", f"--results={results}", *options.selection),
        *(("--resume",) if begun else ()),
    ]
    began, status = time.monotonic(), int(ExitCode.GREEN)
    if begun or not (results / RECORD_FILE).exists():
        with _writing(log):
            log.parent.mkdir(parents=True, exist_ok=True)
            status = _watched(command, log, say)
    if status not in (ExitCode.GREEN, ExitCode.REGRESSION, ExitCode.INCOMPLETE):
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        raise ConformError(
            f"run {number} failed with exit code {status} and has no results: "
            f"{lines[-1] if lines else 'no message'} (log: {log}; {options.folder} has the descriptor but no "
            "manifest)"
        )
    if not (results / RECORD_FILE).is_file():
        raise ConformError(f"run {number} wrote no results; see the end of {log}")
    run = load_run(results)
    say(
        f"  {time.monotonic() - began:.0f} s: {len(run.results):,} cells, {len(_failing(run)):,} fail, "
        f"{sum(map(by_declaration, run.results.values())):,} unsupported by declaration"
    )
    return run


def _watched(command: list[str], log: Path, say: Say) -> int:
    """Run a command into its log; say each quarter that pytest has done, and how long the rest may take."""
    began, quarters = time.monotonic(), 1
    with log.open("wb") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT)
    while True:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(timeout=1.0)
        shares = re.findall(r"\[ *(\d+)%\]", log.read_text(errors="replace"))
        if shares and int(shares[-1]) >= 25 * quarters < 100:
            took, done = time.monotonic() - began, int(shares[-1])
            quarters = done // 25 + 1
            say(f"  {done} % after {took:.0f} s; about {took * (100 - done) / done:.0f} s left")


def _write_manifest(options: InitOptions, runs: list[Run], say: Say) -> None:
    agreed, apart = agreement(runs)
    path = options.folder / "expected.toml"
    text = drafting.manifest(options.name, agreed.values(), apart, len(runs), date.today())
    with _writing(path):
        write_whole(path, text)
    known = {layout for run in runs for result in run.results.values() for layout in result.layouts}
    manifest = Manifest.load(path, {"clause": load().clauses, "layouts": known})
    left = _left_over(manifest, runs[0]) - set(apart)
    if left:  # the draft must match the run that it was made from
        raise ConformError(f"{path} does not match {min(left)}, which failed: please report this")
    say(f"wrote {path}: {len(manifest.blocks)} block(s) for {len(agreed)} cell(s)")
    if apart:
        say(
            f"{len(apart)} cell(s) are not in a block, because the runs disagree or nothing could be checked; "
            "the end of the manifest lists them"
        )
    again = ["conform", "run", "-n", str(options.workers), *options.selection]
    again.append(f"--descriptor={options.folder}")
    say(
        f"with it the run is {'red for those cells' if apart else 'green'}. Next: replace each 'triage:' with the "
        "cause, and run `"
        f"{shlex.join(again)}`"
    )


def _failing(run: Run) -> list[CellKey]:
    return [key for key, each in run.results.items() if each.verdict is Verdict.REGRESSION]


def agreement(runs: list[Run]) -> tuple[dict[CellKey, CellResult], dict[CellKey, str]]:
    """The failing cells on which all runs agree, and for the other failing cells why they are left out."""
    agreed: dict[CellKey, CellResult] = {}
    apart: dict[CellKey, str] = {}
    for key in dict.fromkeys(chain(*map(_failing, runs))):
        results = [run.results.get(key) for run in runs]
        first = results[0]
        if first is None or len({each and drafting.way_of(each) for each in results}) > 1:
            apart[key] = "the runs disagree: " + ", then ".join(map(_said, results))
        elif first.outcome.name not in ExpectedOutcome.__members__:
            apart[key] = f"{first.outcome}: {one_line(first.message)[:200]}"
        else:
            agreed[key] = first
    missing = {key for run in runs for key in run.missing if key in set(run.parsed.selected)}
    apart |= dict.fromkeys(sorted(missing), "it has no outcome")
    return {k: v for k, v in agreed.items() if k not in apart}, apart


def _said(result: CellResult | None) -> str:
    if result is None:
        return "no outcome"
    layouts = f" in {len(result.layouts)} layout(s)" if result.layouts else ""
    return f"{result.outcome}{layouts}"


def _left_over(manifest: Manifest, run: Run) -> set[CellKey]:
    """The cells that are not green with this manifest."""
    matcher = Matcher(manifest.active({name: str(value) for name, value in run.plan.facts.items()}))
    return {
        key
        for key, result in run.results.items()
        if judged(matcher.expect(key), seen_of(result), date.today()).verdict
        not in (Verdict.OK, Verdict.EXPECTED)
    }
