"""The main function of the process that judges a kernel: it plans the kernel's calls and compares the results. The
kernel's code never runs in this process."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import torch

from conformance.checks.cells import NO_CHECK, CellRecord, Failed, Recorder
from conformance.checks.ops.context import OpContext, run_checks
from conformance.kernels.calls_file import (
    ANSWERS,
    CALLS,
    FINDINGS,
    LOADED,
    MEMORY,
    NOT_RUN,
    REFUSAL,
    REQUEST,
    ROUNDS,
    VERDICT,
    Loaded,
    PlannedCall,
    Refusal,
    answers_in,
    read,
    write,
)
from conformance.kernels.checks import checks_of, clauses_of
from conformance.kernels.delegation import op_of_reference, replaced_ops
from conformance.kernels.exchange import Exchange, Given
from conformance.kernels.judgement import CheckResult, Fault, Judgement, Speed, Verdict
from conformance.kernels.observation import REFERENCE, SWITCHED_OFF
from conformance.kernels.process_state import RANDOM_STATE
from conformance.kernels.reference_calls import LeftOut, Trials
from conformance.kernels.request import Request
from conformance.kernels.subjects import KernelSubject, base_of, samples_for
from devices.cell import Outcome
from devices.errors import ConformError, suggestion
from devices.failure import Failure, Kind
from devices.registry import find
from opinfo.device import Device, limit_threads
from opinfo.exceptions import exceptions
from opinfo.guarded import identity
from opinfo.reference import ReferenceCache, StrideReference
from opinfo.samples import Sample, probe
from opinfo.subject import Subject

_DOUBLE = frozenset({"float64", "complex128"})

#: The part of a kernel's calls in which it must compute its results itself, at least.
_OWN_WORK = 0.05

#: The checks that belong to the kernel as a whole.
DELEGATES, RESULT = "kernel.delegates", "kernel.plain_result"
KEPT, STATE = "kernel.result_kept", "kernel.process_state"
LOAD, OPCHECK, TIMED = "kernel.load", "kernel.opcheck", "kernel.timed_result"
ANSWERS_GIVEN = "kernel.answers"


def main(folder: str, number: str, careful: str = "") -> None:
    """Makes the checks of the request in a folder, with the kernel's answers from the rounds before ``number``. If the
    checks make calls that have no answer yet, writes these calls as round ``number``; otherwise writes the judgement.
    If the request cannot be judged, writes the reason. If ``careful`` is not empty, each call of the reference is made in
    a fork first, because a call ended this process before."""
    limit_threads()
    path = Path(folder)
    tempfile.tempdir = folder  # the supervisor removes it
    request = msgspec.json.decode((path / REQUEST).read_bytes(), type=Request)
    judge = Judge(request, path, int(number), bool(careful))
    try:
        found = judge.run()
    except ConformError as error:
        write(path / REFUSAL, Refusal(str(error), error.exit_code))
        return
    if found is not None:
        write(path / VERDICT, found)


def round_folder(folder: Path, number: int) -> Path:
    """Returns the folder of a round, which contains the calls, their memory and the answers."""
    return folder / f"round-{number}"


class Judge:
    """Makes the checks of one kernel and collects its faults."""

    def __init__(self, request: Request, folder: Path, number: int, careful: bool = False) -> None:
        self.request, self.folder, self.number = request, folder, number
        self.left_out = LeftOut(in_double=not _DOUBLE.isdisjoint(request.dtypes))
        self.trials = Trials(self.left_out, request.seconds) if careful else None
        self.faults: list[Fault] = []
        self.results: list[CheckResult] = []
        self.notes: list[str] = []
        self.unchecked: list[tuple[Outcome, str]] = []  # the notes of checks that were not made
        self.rounds = [round_folder(folder, each) for each in range(number)]
        self.loaded = [self._report(r / LOADED) for r in self.rounds if (r / LOADED).exists()]
        self.calls = 0
        self.silent = False  # no call has an answer

    def _report(self, path: Path) -> Loaded:
        try:
            found: Loaded = read(path, Loaded)
        except ConformError as error:
            self.faults.append(Fault(STATE, f"the kernel damaged a file of its process: {error}"))
            return Loaded()
        return found

    def run(self) -> Judgement | None:
        request = self.request
        if any(each.error for each in self.loaded[:1]) and not (self.rounds[0] / ANSWERS).exists():
            return self._not_loaded(self.loaded[0].error)
        check_dtypes(request.dtypes)
        findings = self.folder / FINDINGS
        if self.trials is not None:
            self.trials.load(findings)
        base = base_of(request, self.left_out, self.trials)
        descriptor = find(request.device, request.descriptor)
        exchange = Exchange(
            base.reference, descriptor.torch_type, bool(request.target), self.number >= ROUNDS
        )
        called = self._learn(exchange)
        device = Device(
            replace(descriptor, to_device=exchange.marks.to_device, from_device=identity),
            torch.device("cpu"),
            exchange.marks.to_device,
            identity,
        )
        samples = {dtype: samples_for(base, request, dtype, findings) for dtype in request.dtypes}
        records = [
            (dtype, record)
            for dtype, chosen in samples.items()
            for record in self._checked(base, exchange, device, dtype, chosen)
        ]
        self.left_out.keep(findings)
        self.notes += self.left_out.notes
        if self.trials is not None:
            self.trials.save(findings)
        if exchange.planned:
            folder = round_folder(self.folder, self.number)
            folder.mkdir()
            exchange.save(folder)
            return None
        self.calls = exchange.made
        self.silent = len(exchange.unanswered) >= exchange.made
        for dtype, record in records:
            self._take(dtype, record)
        self._whole(exchange, base, [each for some in samples.values() for each in some], called)
        return self._verdict()

    def _not_loaded(self, error: str) -> Judgement:
        self.faults.append(Fault(LOAD, error))
        return self.judgement(Verdict.WRONG)

    def _learn(self, exchange: Exchange) -> list[tuple[str, ...]]:
        called = []
        for each in self.rounds:
            calls = read(each / CALLS, list[PlannedCall])
            given = (
                Given(answer, blobs, calls[answer.call], each / MEMORY)
                for answer, blobs in answers_in(each / ANSWERS)
                if 0 <= answer.call < len(calls)
            )
            called += exchange.learn(calls, given)
        return called

    def _checked(
        self,
        base: Subject,
        exchange: Exchange,
        device: Device,
        dtype: str,
        samples: list[Sample],
    ) -> list[CellRecord]:
        known, subject = exceptions(), KernelSubject(base, exchange, self.request)
        traits = probe(subject, dtype, samples, known)
        checks = checks_of(self.request, base, exchange.marks)
        clauses = list(clauses_of(checks, traits, known, subject.names))
        recorder = Recorder(subject.id, dtype, clauses)
        build = str(torch.__version__)
        cache = ReferenceCache(self.folder / FINDINGS, build, "cpu", dtype)
        strides = StrideReference("cpu", cache)
        context = OpContext(subject, dtype, traits, samples, device, strides, recorder, known)
        run_checks(context, checks)
        cache.save()
        return list(recorder.cells.values())

    # -- faults of checks

    def _take(self, dtype: str, record: CellRecord) -> None:
        made = [each for each in record.failures if each.failure.raises != "NotMade"]
        if record.failures and not made:
            record.blocked.append((ANSWERS_GIVEN, f"{record.failed} calls have no answer"))
        record.failures = made
        found = record.to_outcome()
        outcome, note = found.outcome, found.note
        if outcome is Outcome.UNSUPPORTED and record.checks > len(record.unsupported) > 0:
            outcome = Outcome.PASS
            note = f"{len(record.unsupported)} calls were refused: {record.unsupported[0][1]}"
            if note not in self.notes:
                self.notes.append(note)
        elif outcome is Outcome.ERROR and found.checks == 0 and note == NO_CHECK:
            outcome, note = Outcome.UNSUPPORTED, "none of the samples allows this check"
        if (
            outcome is Outcome.PASS and self.silent
        ):  # unchanged inputs of calls that were not made, for example
            outcome, note = Outcome.BLOCKED, f"blocked by {ANSWERS_GIVEN}: no call has an answer"
        if outcome not in (Outcome.PASS, Outcome.FAIL):
            self.unchecked.append((outcome, f"not checked: {record.key.clause}[{dtype}]: {note}"))
        self.results.append(CheckResult(record.key.clause, dtype, outcome, record.checks, note))
        shown = record.smallest
        if outcome is not Outcome.FAIL or shown is None:
            return
        failure = _ended(found.failure or shown.failure)
        script, note = self._script(shown, failure)
        message = f"[{failure.layout}] {failure.message}" if failure.layout else failure.message
        fault = Fault(
            record.key.clause,
            f"{message}{note}",
            dtype,
            failure,
            max(record.failed, 1),
            max(record.checks, 1),
            script,
        )
        self.faults.append(fault)

    def _script(self, shown: Failed, failure: Failure) -> tuple[str, str]:
        """Returns the repro script of a failure and an empty string; or an empty string and, if the script could not be
        written, the reason."""
        if shown.repro is None:
            return "", ""
        try:
            if failure.kind is Kind.ENDED:
                made: Any = shown.repro
                text = made.until_it_ends(self.request.seconds, judged=True, failure=failure)
            else:
                text = shown.repro(failure)
        except Exception as error:  # no verdict is lost for a script that cannot be written
            return "", f" (no repro script: {error})"
        device = find(self.request.device, self.request.descriptor).torch_type
        return text.replace("DEVICE = 'cpu'", f"DEVICE = {device!r}", 1), ""

    # -- faults of the kernel as a whole

    def _answers(self, exchange: Exchange) -> None:
        """Adds a fault if the kernel did not answer calls that the reference answers. It does not matter which checks made
        the calls."""
        lacking = exchange.unanswered
        if not lacking:
            return
        shown = min(lacking, key=lambda each: (not each.made, each.size))
        message = (
            f"expected a result from each of {self.calls} calls, found none from {len(lacking)}; "
            f"the smallest: {shown.why}, for ({shown.call})"
        )
        self.faults.append(Fault(ANSWERS_GIVEN, message, failed=len(lacking), checks=self.calls))

    def _whole(
        self,
        exchange: Exchange,
        base: Subject,
        samples: list[Sample],
        called: list[tuple[str, ...]],
    ) -> None:
        if exchange.not_plain:
            kinds = ", ".join(exchange.not_plain)
            message = f"expected plain torch.Tensor objects on {exchange.torch_type}, found {kinds}"
            self.faults.insert(0, Fault(RESULT, message))
        self._answers(exchange)
        if exchange.late:
            message = "the result of a call changed during a later call"
            self.faults.append(Fault(KEPT, message, failed=exchange.late, checks=self.calls))
        if (wrong := exchange.timed_differently()) and not draws(base, samples):
            message = f"a call whose time is measured returns another result: {wrong[0]}"
            self.faults.append(Fault(TIMED, message, failed=len(wrong), checks=len(exchange.timed)))
        for name in dict.fromkeys(n for each in self.loaded for n in each.replaced):
            if name != RANDOM_STATE or not draws(base, samples):
                self.faults.append(Fault(STATE, f"the kernel replaced or changed {name}"))
        for name, result in {n: r for each in self.loaded for n, r in each.opcheck.items()}.items():
            if result == NOT_RUN:
                self.unchecked.append((Outcome.BLOCKED, f"not checked: {OPCHECK}: {result}"))
            elif result != "SUCCESS":
                self.faults.append(Fault(OPCHECK, f"{name}: {result}"))
        for each in self.loaded:
            if each.error:
                self.faults.append(Fault(ANSWERS_GIVEN, each.error))
            if each.untimed:
                self.notes.append(f"no times were measured: {each.untimed}")
        self._delegates(base, samples, called)

    def _delegates(
        self, base: Subject, samples: list[Sample], called: list[tuple[str, ...]]
    ) -> None:
        """Adds a fault if the kernel computes almost nothing itself, because nearly every call calls the op that the kernel
        replaces, or its reference. Adds a note if some calls do. ``called`` has the names of the ops that each call
        called."""
        if any(SWITCHED_OFF in each for each in called):
            self.faults.append(Fault(STATE, "the kernel switched off the record of its calls"))
        if self.request.form not in ("function", "kernelbench"):
            return  # the dispatcher calls a registered kernel as the op itself
        own = replaced_ops(base, samples) if self.request.target else frozenset()
        calling = [{name for name in names if name == REFERENCE or name in own} for names in called]
        op = None if self.request.target else op_of_reference(base, samples)
        if op is not None:
            for some, names in zip(calling, called):
                some |= {op.name} if op.does_all(names) else set()
        used = sorted({each for names in calling for each in names})
        name = self.request.replaces if used == [REFERENCE] else ", ".join(used)
        count, made = sum(map(bool, calling)), len(calling)
        if used and count >= (1 - _OWN_WORK) * made:
            message = f"the kernel does not compute its result itself: it calls {name} in {_share(count, made)}"
            self.faults.append(Fault(DELEGATES, message, failed=count, checks=made))
        elif used:
            self.notes.append(f"the kernel calls {name} in {_share(count, made)}")
        elif op is not None and (count := sum(op.name in names for names in called)):
            name = f"{op.name}, the only op of its reference,"
            self.notes.append(f"the kernel calls {name} in {_share(count, made)}")

    # -- the verdict

    def _verdict(self) -> Judgement:
        # What else a wrong result kept from being checked is in the results, and would hide the faults in a report.
        hidden = {Outcome.BLOCKED} if self.faults else set()
        self.notes += [note for outcome, note in self.unchecked if outcome not in hidden]
        if self.faults:
            return self.judgement(Verdict.WRONG)
        values = [r for r in self.results if r.check in ("layout.values", "layout.expanded_read")]
        passed = [each for each in values if each.outcome is Outcome.PASS]
        if not passed or len({each.dtype for each in passed}) < len(self.request.dtypes):
            lacking = next((each for each in values if each.outcome is not Outcome.PASS), None)
            why = f"{lacking.check}[{lacking.dtype}]: {lacking.note}" if lacking else "no check"
            return self.judgement(Verdict.NOT_JUDGED, why=why)
        # A check that could not be made to its end, other than because the kernel refuses calls, is not a passed check.
        broken = (r for r in self.results if r.outcome in (Outcome.BLOCKED, Outcome.ERROR))
        if (first := next(broken, None)) is not None:
            why = f"{first.check}[{first.dtype}]: {first.note}"
            return self.judgement(Verdict.NOT_JUDGED, why=why)
        return self.judgement(Verdict.RIGHT, speed=self._speed())

    def _speed(self) -> Speed | None:
        timed = next((each for each in self.loaded if each.kernel_us and each.replaced_us), None)
        if timed is None:
            return None
        return Speed(timed.kernel_us, timed.replaced_us, timed.timed)

    def judgement(
        self, verdict: Verdict, *, why: str = "", speed: Speed | None = None
    ) -> Judgement:
        return Judgement(
            self.request.name or self.request.kernel.name,
            self.request.replaces,
            self.request.device,
            verdict,
            tuple(self.faults),
            tuple(self.results),
            tuple(self.notes),
            why,
            self.calls,
            speed,
        )


class UnknownDtype(ConformError):
    """The error for a name that is none of torch's dtypes."""

    exit_code = 4


def check_dtypes(names: Sequence[str]) -> None:
    """Raises UnknownDtype unless there are names, and all are names of dtypes."""
    known = {name for name, value in vars(torch).items() if isinstance(value, torch.dtype)}
    if not names:
        raise UnknownDtype("expected at least one dtype, such as float32, found none")
    for each in names:
        if each not in known:
            raise UnknownDtype(
                f"'{each}': expected the name of a dtype of torch, such as float32{suggestion(each, known)}"
            )


def _share(count: int, made: int) -> str:
    return f"{count:,} of {made:,} calls with contiguous tensors"


def _ended(failure: Failure) -> Failure:
    """Returns a failure with the reason of the process's end in place of the exception, if the call ended the kernel's
    process; any other failure is returned unchanged."""
    if failure.raises != "CallEnded":
        return failure
    return msgspec.structs.replace(
        failure,
        kind=Kind.ENDED,
        expected="the call to return",
        found=failure.said or "",
        detail="",
        raises=None,
        said=None,
    )


def draws(base: Subject, samples: list[Sample]) -> bool:
    """Returns True if the reference draws from torch's random generator for one of the samples."""
    before = torch.get_rng_state()
    for sample in samples:
        args, kwargs = sample.call.bind([each.clone() for each in sample.tensors])
        with torch.no_grad():
            base.reference(*args, **dict(kwargs))
        if not torch.equal(torch.get_rng_state(), before):
            return True
    return False
