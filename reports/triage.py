"""Computes why a run is not green: a change in PyTorch, a change in the backend, the machine, or chance.

The verdict is computed from the runs alone: from what fails now, from an earlier run (the baseline), from a second run of
the same software (the retry), and from the versions that these runs state. It has the form of the input
``triage-verdict`` of the callback action of PyTorch's Cross-Repository CI Relay (schema version 1).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from devices.cell import CellKey, Outcome, Verdict
from devices.failure import Word
from reports.advice import sentence
from reports.causes import Cause, causes_of
from reports.failures import causes_in
from reports.gate import Against, ExitCode, GateResult, number
from reports.junit import clean, headline, one_line
from reports.model import CellResult, Run, RunError

SCHEMA_VERSION: Final = 1
#: The relay drops a verdict of more than 16 KiB, whose JSON it writes with spaces.
LIMIT: Final = 14 * 1024
#: Longer texts are cut by the relay. The lengths are in characters.
_LONGEST_SUMMARY: Final = 1000
_LONGEST_REASON: Final = 300
_LONGEST_NAME: Final = 200
_LONGEST_EXCERPT: Final = 1000
_MOST_EVIDENCE: Final = 10

#: The facts that tell two versions of a backend apart.
_BACKEND: Final = ("backend", "driver", "runtime")


class Category(Word):
    """The part that is to blame for a run that is not green."""

    UPSTREAM = "upstream"  # a change in PyTorch
    BACKEND = "backend"
    INFRA = "infra"  # the machine, the installation, an interruption, the suite itself
    FLAKE = "flake"  # did not happen again
    UNKNOWN = "unknown"


class Confidence(Word):
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


@dataclass(frozen=True, slots=True)
class Upstream:
    """The change of PyTorch that a job tests: the number of a pull request, and a commit. 0 and an empty text stand for
    unknown."""

    pr: int = 0
    commit: str = ""

    def __str__(self) -> str:
        if self.pr:
            return f"pytorch/pytorch#{self.pr}"
        return f"pytorch/pytorch@{self.commit[:12]}" if self.commit else "a change in PyTorch"


class SuspectedUpstream(msgspec.Struct, frozen=True, omit_defaults=True):
    """The change of PyTorch that is to blame. At least one of ``pr`` and ``commit`` is set."""

    pr: int | None = None
    commit: str | None = None
    reason: str | None = None


class EvidenceItem(msgspec.Struct, frozen=True, omit_defaults=True):
    """One cause of failures: the job that found it, a cell, the address of the log, and the failure of the cell."""

    job: str | None = None
    test: str | None = None
    log_url: str | None = None
    excerpt: str | None = None


class Analyzer(msgspec.Struct, frozen=True):
    """The program that computed a verdict, and its version."""

    name: str
    version: str


class TriageVerdict(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The object that is sent as ``triage-verdict``. ``reproduced_on_retry`` is absent if there was no retry.
    ``analyzed_at`` is in ISO 8601."""

    schema_version: int
    category: Category
    confidence: Confidence
    summary: str
    suspected_upstream: SuspectedUpstream | None = None
    evidence: tuple[EvidenceItem, ...] = ()
    reproduced_on_retry: bool | None = None
    analyzer: Analyzer | None = None
    analyzed_at: str | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """The job in which a run was made: the name of the job, the address of its log and artifacts, the change of PyTorch
    under test, the program that computes the verdict, and the time."""

    name: str = ""
    url: str = ""
    upstream: Upstream = Upstream()
    analyzer: Analyzer | None = None
    time: str = ""


@dataclass(frozen=True, slots=True)
class _Blame:
    category: Category
    confidence: Confidence
    why: str


class NoRetry(RunError):
    """The error for a run that cannot be the retry of another run. The text of the error says why."""


def triage(
    judged: GateResult, job: Job, baseline: Run | None = None, retry: Run | None = None
) -> TriageVerdict | None:
    """Returns why a judged run is not green; None for a green run.

    ``baseline`` is an earlier complete run of the same device and plan; what changed since then is suspected. ``retry``
    is a second run of the failing cells with the same software, in which failures that happen by chance do not happen
    again; it may be partial, and says nothing about cells that it did not run. Raises NoBaseline and NoRetry if one of the two belongs to another device, or the retry to
    other software.
    """
    if judged.green:
        return None
    again, happened = _in_retry(judged.run, judged.new, retry)
    new = list(judged.new)
    inherited: frozenset[CellKey] = frozenset()
    if baseline is not None:
        inherited = Against.of(judged.run, baseline).inherited
    if again is not None:
        new = [result for result in new if result.key in again]
    fresh = [result for result in new if result.key not in inherited]
    blame = _blame(judged, job.upstream, baseline, new, fresh, happened)
    wanted = fresh or new or list(judged.new)
    causes = causes_of(judged.run, wanted) or causes_in(judged)
    suspected = None
    if blame.category is Category.UPSTREAM and (job.upstream.pr or job.upstream.commit):
        reason = clean(sentence(causes[0])) if causes else blame.why
        suspected = SuspectedUpstream(
            job.upstream.pr or None, job.upstream.commit or None, _cut(reason, _LONGEST_REASON)
        )
    verdict = TriageVerdict(
        schema_version=SCHEMA_VERSION,
        category=blame.category,
        confidence=blame.confidence,
        summary=_cut(_summary(blame, causes), _LONGEST_SUMMARY),
        suspected_upstream=suspected,
        reproduced_on_retry=happened,
        analyzer=job.analyzer,
        analyzed_at=job.time or None,
    )
    return _with_evidence(verdict, causes, job)


def triage_interrupted(why: str, job: Job) -> TriageVerdict:
    """Returns the verdict on a run that ended before it could write its record. ``why`` says how far it got."""
    return TriageVerdict(
        schema_version=SCHEMA_VERSION,
        category=Category.INFRA,
        confidence=Confidence.MEDIUM,
        summary=_cut(one_line(why), _LONGEST_SUMMARY),
        evidence=(_item(job, excerpt=why),),
        analyzer=job.analyzer,
        analyzed_at=job.time or None,
    )


# -- the blame


def _blame(
    judged: GateResult,
    upstream: Upstream,
    baseline: Run | None,
    new: list[CellResult],
    fresh: list[CellResult],
    happened: bool | None,
) -> _Blame:
    """Returns who is to blame. ``new`` are the unexpected results that the retry does not show to be random, ``fresh``
    those of them that the baseline does not have. ``happened`` says whether any happened again in the retry; it is None
    if no retry ran them."""
    if judged.exit_code is ExitCode.INFRASTRUCTURE:
        return _Blame(Category.INFRA, Confidence.HIGH, judged.obstacles[0])
    if judged.obstacles:
        return _Blame(Category.INFRA, Confidence.MEDIUM, judged.obstacles[0])
    if happened is False and not new:
        count = number(len(judged.new), "unexpected result")
        return _Blame(Category.FLAKE, Confidence.HIGH, f"{count} did not happen again in the retry")
    if all(result.outcome is Outcome.ERROR for result in new):
        why = "the checks themselves could not be made, which is a fault of torch-conformance"
        return _Blame(Category.INFRA, Confidence.MEDIUM, why)
    if baseline is None:
        why = "there is no earlier run to compare with, so the change that caused it is not known"
        return _Blame(Category.UNKNOWN, Confidence.LOW, why)
    if not fresh:
        why = f"the run of {baseline.provenance.start} fails in the same cells, so {upstream} is not the cause"
        return _Blame(Category.BACKEND, Confidence.HIGH, why)
    return _since(judged.run, baseline, upstream, happened)


def _since(run: Run, baseline: Run, upstream: Upstream, happened: bool | None) -> _Blame:
    """Returns who is to blame for failures that the baseline does not have, from what changed since the baseline."""
    mine, its = run.provenance, baseline.provenance
    since = f"since the run of {its.start}"
    sure = Confidence.HIGH if happened else Confidence.MEDIUM
    suite = (mine.suite_version, mine.suite_commit) != (its.suite_version, its.suite_commit)
    if suite:
        why = f"torch-conformance changed {since}, so the checks may be new"
        return _Blame(Category.UNKNOWN, Confidence.LOW, why)
    # A job that tests a change of PyTorch may build it under the version number of the baseline.
    torch = mine.torch != its.torch or bool(upstream.pr)
    changed = _changes_of_backend(run, baseline)
    if torch and changed:
        why = f"both torch ({its.torch} to {mine.torch}) and the backend ({', '.join(changed)}) changed {since}"
        return _Blame(Category.UNKNOWN, Confidence.LOW, why)
    if torch:
        new = f"{upstream}, torch {mine.torch}" if upstream.pr or upstream.commit else mine.torch
        why = f"torch changed {since} (from {its.torch} to {new})"
        if not _states_backend(run):
            why += "; the run does not state the version of the backend"
            return _Blame(Category.UPSTREAM, Confidence.LOW, why)
        return _Blame(Category.UPSTREAM, sure, f"{why}; the backend did not change")
    if changed:
        why = f"the backend changed {since} ({', '.join(changed)}), and torch did not"
        return _Blame(Category.BACKEND, sure, why)
    machine = [
        name
        for name in ("device_name", "os", "arch", "python", "host")
        if getattr(mine, name) != getattr(its, name)
    ]
    if machine:
        what = ", ".join(
            f"{name} {getattr(its, name)} to {getattr(mine, name)}"
            for name in machine
            if name != "host"  # not for the public
        )
        why = f"only the machine changed {since}{f' ({what})' if what else ''}"
        return _Blame(Category.INFRA, Confidence.LOW, why)
    if not happened:
        why = f"nothing changed {since}, so the failures may be random; no retry ran them"
        return _Blame(Category.FLAKE, Confidence.LOW, why)
    why = f"no stated version changed {since}, and the failures happened again in the retry"
    return _Blame(Category.UNKNOWN, Confidence.LOW, why)


def _changes_of_backend(run: Run, baseline: Run) -> list[str]:
    """Returns the differences between the backends of two runs as texts, such as ``driver 1.2 to 1.3``."""
    mine, its = run.plan.facts, baseline.plan.facts
    pairs = [(name, its.get(name), mine.get(name)) for name in _BACKEND]
    return [f"{name} {old or 'none'} to {new or 'none'}" for name, old, new in pairs if old != new]


def _states_backend(run: Run) -> bool:
    return any(run.plan.facts.get(name) for name in _BACKEND)


def _in_retry(
    run: Run, new: Iterable[CellResult], retry: Run | None
) -> tuple[frozenset[CellKey] | None, bool | None]:
    """Returns the cells among ``new`` that the retry does not show to be random, and whether any of them failed again in
    the retry. Both are None if there was no retry, or if the retry did not run any of the cells. Raises NoRetry."""
    if retry is None:
        return None, None
    for name in ("device", "plan", "torch", "suite_version"):
        here, there = getattr(run.provenance, name), getattr(retry.provenance, name)
        if here != there:
            raise NoRetry(
                f"--retry {retry.folder}: the {name} of the retry is {there!r}, and that of RUN is {here!r}"
            )
    results = {result.key: retry.results.get(result.key) for result in new}
    ran = {cell for cell, each in results.items() if each and each.outcome is not Outcome.NOT_RUN}
    if not ran:
        return None, None
    same = {
        result.key
        for result in new
        if (other := results[result.key]) is not None
        and (result.outcome, result.verdict) == (other.outcome, other.verdict)
    }
    return frozenset(same | (results.keys() - ran)), bool(same)


# -- the texts


def _summary(blame: _Blame, causes: tuple[Cause, ...]) -> str:
    gating = [cause for cause in causes if cause.gates]
    if not gating:
        return one_line(blame.why)
    cells = sum(len(cause.results) for cause in gating)
    regressions = any(cause.verdict is Verdict.REGRESSION for cause in gating)
    what = number(
        cells,
        "cell fails" if regressions else "cell does better than listed",
        "cells fail" if regressions else "cells do better than listed",
    )
    return one_line(f"{what} ({number(len(gating), 'cause')}): {sentence(gating[0])}. {blame.why}")


def _with_evidence(verdict: TriageVerdict, causes: tuple[Cause, ...], job: Job) -> TriageVerdict:
    """Returns the verdict with as many causes as evidence as its size allows."""
    items = [_item(job, each.example) for each in causes if each.gates] or [_item(job)]
    items = [item for item in items if item != EvidenceItem()]
    for count in range(min(len(items), _MOST_EVIDENCE), -1, -1):
        whole = msgspec.structs.replace(verdict, evidence=tuple(items[:count]))
        if len(msgspec.json.encode(whole)) <= LIMIT and _is_short(whole):
            return whole
    return verdict


def _is_short(verdict: TriageVerdict) -> bool:
    """Returns True if a verdict fits even if all its characters are written as ASCII escapes."""
    text = msgspec.json.encode(verdict).decode()
    return sum(1 if char.isascii() else 6 * (1 + (ord(char) > 0xFFFF)) for char in text) <= LIMIT


def _item(job: Job, result: CellResult | None = None, excerpt: str = "") -> EvidenceItem:
    said = excerpt if result is None else f"{result.outcome}: {headline(result)}"
    return EvidenceItem(
        _cut(job.name, _LONGEST_NAME) or None,
        None if result is None else _cut(str(result.key), _LONGEST_NAME),
        job.url or None,
        _cut(one_line(said), _LONGEST_EXCERPT) or None,
    )


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
