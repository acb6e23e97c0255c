"""The beginning of a device: a descriptor from what it answers, a manifest from what it fails."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from conformance import drafting
from conformance.asking import Question, Reply, ask
from conformance.contract import load
from devices.cell import CellKey, Observed, Verdict
from devices.errors import ConformError
from devices.expectations import Manifest, Matcher, judge
from devices.registry import load_file
from reports.gate import ExitCode
from reports.model import CellResult, Run, by_declaration
from reports.run import load_run

Tell = Callable[[str], object]

_DEVICE = re.compile(r"([a-z][a-z0-9_]*)(?::\d+)?")
_MODULE = re.compile(r"([A-Za-z_][\w.]*)(?::([A-Za-z_]\w*))?")


class CannotBegin(ConformError):
    """The device cannot be described: what was asked for is wrong, or it does not answer."""


@dataclass(frozen=True, slots=True)
class Start:
    """What the user asks for."""

    name: str
    device_string: str
    module: str | None
    output: Path | None
    runs: int
    ops: str | None
    workers: int

    @property
    def folder(self) -> Path:
        return self.output if self.output is not None else Path(self.name)

    def question(self) -> Question:
        """Whom to ask. Raises CannotBegin."""
        device = _DEVICE.fullmatch(self.device_string)
        if device is None:
            raise CannotBegin(
                f"--device-string {self.device_string!r}: expected what torch calls a device, such as "
                "'npu' or 'lazy:0'"
            )
        module = _MODULE.fullmatch(self.module or "none")
        if module is None:
            raise CannotBegin(
                f"--module {self.module!r}: expected a module, such as 'torch_npu', or a module and a "
                "function to call, such as 'torch._lazy.ts_backend:init'"
            )
        named, function = module.groups() if self.module else ("", "")
        return Question(torch_type=device[1], module=named, init=function or "")


def begin(start: Start, tell: Tell) -> int:
    """Write the folder. Returns the exit code; raises CannotBegin with one clear message."""
    question = start.question()
    _check_name(start.name)
    folder = start.folder
    if folder.exists() and any(folder.iterdir()):
        raise CannotBegin(f"{folder} is not empty: give another folder with -o, or remove it")
    tell(f"asking {start.device_string} for what it has")
    reply = ask(question)
    if reply.error:
        raise CannotBegin(
            f"{start.device_string} cannot be described: {_without_name(reply.error)}"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "__init__.py").write_text(f'"""The device {start.name}."""\n', encoding="utf-8")
        text = drafting.descriptor(start.name, question, reply)
        (folder / "descriptor.py").write_text(text, encoding="utf-8")
    except OSError as error:
        raise CannotBegin(f"{folder} cannot be written: {error.strerror or error}") from None
    load_file(folder)  # what was written can be read
    tell(f"wrote {folder / 'descriptor.py'}: {_summary(reply)}")
    runs = [_run(start, number, tell) for number in range(1, start.runs + 1)]
    return _write_manifest(start, runs, tell)


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9_-]*", name):
        raise CannotBegin(
            f"a device's name must be lower-case letters, digits, '-' and '_', got {name!r}"
        )


def _without_name(error: str) -> str:
    """The message without the name that the device had while it was asked."""
    return error.replace("device 'undescribed': ", "").replace("device 'undescribed' ", "it ")


def _summary(reply: Reply) -> str:
    has = sorted(name for name, answer in reply.capabilities.items() if answer)
    return f"{len(reply.dtypes)} dtypes; capabilities that answered: {', '.join(has) or 'none'}"


def _run(start: Start, number: int, tell: Tell) -> Run:
    """Plan quick without expectations, in a process of its own; every crash costs a worker, not us."""
    results = Path("conform-results").absolute() / f"{start.name}-init-{number}"
    log = results.parent / f"{results.name}.log"
    results.parent.mkdir(parents=True, exist_ok=True)
    tell(f"run {number} of {start.runs}: plan quick, {start.workers} worker(s); log: {log}")
    command = [
        *(sys.executable, "-m", "conformance.cli", "run", "-q", "--tb=no", "--no-header"),
        *("-n", str(start.workers), "--plan=quick", "--expectations=none"),
        *(f"--descriptor={start.folder.absolute()}", f"--results={results}"),
        *((f"--ops={start.ops}",) if start.ops else ()),
    ]
    began = time.monotonic()
    with log.open("wb") as stream:
        done = subprocess.run(command, stdout=stream, stderr=subprocess.STDOUT, check=False)
    if done.returncode not in (ExitCode.GREEN, ExitCode.REGRESSION, ExitCode.INCOMPLETE):
        said = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        raise CannotBegin(
            f"run {number} ended with exit {done.returncode}, before it could say anything of the "
            f"device: {said[-1] if said else 'no message'} (log: {log}; {start.folder} has the "
            "descriptor, no manifest)"
        )
    if not (results / "plan.json").is_file():
        raise CannotBegin(f"run {number} wrote no results; its last words are in {log}")
    run = load_run(results)
    failing = sum(_fails(result) for result in run.results.values())
    tell(
        f"  {time.monotonic() - began:.0f} s: {len(run.results):,} cells, {failing:,} fail, "
        f"{sum(map(by_declaration, run.results.values())):,} unsupported by declaration"
    )
    return run


def _fails(result: CellResult) -> bool:
    return result.verdict is Verdict.REGRESSION


def _write_manifest(start: Start, runs: list[Run], tell: Tell) -> int:
    agreed, apart = agreement(runs)
    path = start.folder / "expected.toml"
    text = drafting.manifest(start.name, agreed.values(), apart, len(runs), date.today())
    path.write_text(text, encoding="utf-8")
    known = {layout for run in runs for result in run.results.values() for layout in result.layouts}
    manifest = Manifest.load(path, known_clauses=set(load().clauses), known_layouts=known)
    left = _left_over(manifest, runs[0]) - set(apart)
    if left:  # the draft must describe the run that it was made from
        raise CannotBegin(f"{path} does not describe {min(left)}, which failed: please report this")
    blocks = text.count("[[expect]]")
    tell(f"wrote {path}: {blocks} block(s) for {len(agreed)} cell(s), each to be triaged")
    if apart:
        tell(
            f"{len(apart)} cell(s) are in no block: their runs disagree, or nothing could be checked; "
            "they are named at the end of the manifest"
        )
    tell(
        f"next: replace each 'triage:' by its cause, then `conform run -n auto --descriptor={start.folder}`"
    )
    return ExitCode.GREEN.value


def agreement(
    runs: list[Run],
) -> tuple[dict[CellKey, CellResult], dict[CellKey, str]]:
    """The failing cells on which all runs agree, and why the other failing ones are left out."""
    agreed: dict[CellKey, CellResult] = {}
    apart: dict[CellKey, str] = {}
    failing = dict.fromkeys(k for run in runs for k, r in run.results.items() if _fails(r))
    for key in failing:
        results = [run.results.get(key) for run in runs]
        seen = [_signature(result) for result in results]
        first = results[0]
        if any(one != seen[0] for one in seen) or first is None:
            apart[key] = "the runs disagree: " + ", then ".join(_said(each) for each in results)
        elif first.outcome not in drafting.EXPECTABLE:
            apart[key] = f"{first.outcome}: {' '.join(first.message.split())[:200]}"
        else:
            agreed[key] = first
    missing = {key for run in runs for key in run.missing if key in set(run.parsed.selected)}
    apart |= dict.fromkeys(sorted(missing), "it has no outcome")
    return {k: v for k, v in agreed.items() if k not in apart}, apart


def _signature(result: CellResult | None) -> object:
    return None if result is None else (result.outcome, result.layouts, result.raises)


def _said(result: CellResult | None) -> str:
    if result is None:
        return "no outcome"
    layouts = f" in {len(result.layouts)} layout(s)" if result.layouts else ""
    return f"{result.outcome}{layouts}"


def _left_over(manifest: Manifest, run: Run) -> set[CellKey]:
    """The cells that the manifest does not make green."""
    facts = {name: str(value) for name, value in run.parsed.document.facts.items()}
    matcher = Matcher(manifest.active(facts))
    return {
        key
        for key, result in run.results.items()
        if judge(matcher.expect(key), _observed(result), ran=frozenset(result.ran_layouts)).verdict
        not in (Verdict.OK, Verdict.EXPECTED)
    }


def _observed(result: CellResult) -> Observed:
    return Observed(
        result.outcome,
        frozenset(result.layouts),
        result.raises,
        result.message,
        by_declaration(result),
    )
