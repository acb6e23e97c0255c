"""A run as the reports see it: cells' results, and the provenance of the whole."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from devices.cell import CellKey, Outcome, Verdict
from reports.plan import Plan, RunError, read_plan

# What the manifest can make of each outcome. Any other pair is not evidence: it was edited, or
# the harness that wrote it is at fault.
VERDICTS: Mapping[Outcome, frozenset[Verdict]] = {
    Outcome.PASS: frozenset({Verdict.OK, Verdict.IMPROVEMENT, Verdict.FLAKY}),
    Outcome.FAIL: frozenset(
        {Verdict.EXPECTED, Verdict.REGRESSION, Verdict.IMPROVEMENT, Verdict.FLAKY}
    ),
    Outcome.ERROR: frozenset({Verdict.REGRESSION}),
    Outcome.UNSUPPORTED: frozenset(
        {Verdict.OK, Verdict.EXPECTED, Verdict.REGRESSION, Verdict.IMPROVEMENT}
    ),
    Outcome.AMBIGUOUS: frozenset({Verdict.OK, Verdict.REGRESSION}),
    Outcome.CRASH: frozenset({Verdict.EXPECTED, Verdict.REGRESSION, Verdict.IMPROVEMENT}),
    Outcome.HANG: frozenset({Verdict.EXPECTED, Verdict.REGRESSION, Verdict.IMPROVEMENT}),
    Outcome.NOT_RUN: frozenset({Verdict.MISSING}),
}


@dataclass(frozen=True, slots=True)
class ExampleTensor:
    """One tensor of a minimised example. ``values`` is Python source, cut where it is long."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    values: str = ""

    def __str__(self) -> str:
        where = f", storage offset {self.offset}" if self.offset else ""
        values = f" = {self.values}" if self.values else ""
        return f"{self.dtype} of shape {self.shape}, strides {self.stride}{where}{values}"


@dataclass(frozen=True, slots=True)
class Example:
    """The smallest failing call that was found for a cell: fewest dimensions, smallest sizes, simplest
    layout, arguments and values.

    ``call`` names the tensors ``t[0]``, ``t[1]``, …; a directed check makes its own, and none are listed.
    ``tried`` counts the calls of the search; ``whole`` is False where its budget ended it.
    """

    call: str
    layout: str
    message: str
    tensors: tuple[ExampleTensor, ...] = ()
    tried: int = 0
    whole: bool = True

    @property
    def complexity(self) -> tuple[int, int, int]:
        """Dimensions, then elements, then the length of the layout's name."""
        dims = sum(len(t.shape) for t in self.tensors)
        return (dims, sum(math.prod(t.shape) for t in self.tensors), len(self.layout))

    def lines(self) -> list[str]:
        """The example for people."""
        ended = "" if self.whole else " (the search ran out of its budget)"
        found = [f"smallest failing example, layout {self.layout}{ended}: {self.call}"]
        found += [f"    t[{number}]: {tensor}" for number, tensor in enumerate(self.tensors)]
        return [*found, f"    {self.message}"]


@dataclass(frozen=True, slots=True)
class CellResult:
    """What became of one cell.

    ``why`` is the expectation's reason or the judgement's text. ``checks`` counts executed
    comparisons, ``samples`` the inputs they were made on. ``layouts`` are the ids of the layouts
    that failed, sorted; ``ran_layouts`` those that ran. ``worst_error`` is the largest absolute
    difference seen, None where nothing was compared by value. ``repro`` is a path relative to the
    results folder. ``seconds`` is wall time; kept to the microsecond it costs no space of its own.
    ``example`` is the minimised failure, where the failure was minimised.
    """

    key: CellKey
    outcome: Outcome
    verdict: Verdict
    why: str = ""
    checks: int = 0
    samples: int = 0
    layouts: tuple[str, ...] = ()
    ran_layouts: tuple[str, ...] = ()
    worst_error: float | None = None
    raises: str | None = None
    message: str = ""
    repro: str | None = None
    seconds: float = 0.0
    worker: str = ""
    example: Example | None = None


def by_declaration(result: CellResult) -> bool:
    """Whether nothing was tried, because the descriptor does not declare what the clause requires.

    No other unsupported cell can be ``ok``; a run that says so of a clause whose capabilities are
    all declared is refused (see ``Run``).
    """
    return result.outcome is Outcome.UNSUPPORTED and result.verdict is Verdict.OK


def problem_with(result: CellResult) -> str | None:
    """What makes a result no evidence: a verdict or a count that contradicts its outcome."""
    # Most results are of these two, and looking an enum up takes as long as all the rest.
    ordinary = result.outcome is Outcome.PASS and result.verdict is Verdict.OK
    if not ordinary and result.verdict not in VERDICTS[result.outcome]:
        return f"outcome {result.outcome} cannot have the verdict {result.verdict}"
    if result.outcome is Outcome.PASS:
        if result.checks < 1:
            return "passed without a single executed check"
        if result.layouts:
            return f"passed with failing layouts ({', '.join(result.layouts[:3])})"
    if result.checks < 0 or result.samples < 0 or not result.seconds >= 0:
        return "has a negative count or time"
    if result.repro is not None and not _inside(result.repro):
        return f"has a repro outside the results folder ({result.repro!r})"
    return None


def _inside(path: str) -> bool:
    """Whether a relative path stays in its folder, on POSIX and on Windows."""
    parts = PurePosixPath(path.replace("\\", "/"))
    return (
        bool(path)
        and path.isprintable()
        and not parts.is_absolute()
        and ".." not in parts.parts
        and ":" not in path
    )


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a run comes from. ``start`` is ISO 8601; text that does not apply is empty.

    ``shard`` is ``I/N`` or empty, ``expectations`` the manifest's path or ``none``,
    ``reference_cache`` one of ``cold``, ``warm``, ``off``.
    """

    plan_hash: str
    suite_version: str
    suite_commit: str
    torch: str
    driver: str
    device_name: str
    device_uuid: str
    os: str
    arch: str
    python: str
    seed: int
    manifest_hash: str
    start: str
    host: str
    shard: str
    device: str
    plan: str
    partial: bool
    expectations: str
    reference_cache: str


@dataclass(frozen=True, slots=True)
class Run:
    """A run: its plan's document, its provenance, and a result for each cell that has one.

    ``parsed`` is the checked plan. Raises RunError where the document is malformed, the
    provenance belongs to another plan, a result is for a cell that was not planned, or claims to be
    unsupported by declaration where the plan's capabilities are all declared.
    """

    folder: Path
    plan: dict[str, Any]
    provenance: Provenance
    results: dict[CellKey, CellResult]
    parsed: Plan = field(init=False, repr=False, compare=False)
    given: InitVar[Plan | None] = None

    def __post_init__(self, given: Plan | None) -> None:
        plan = read_plan(self.plan) if given is None else given
        object.__setattr__(self, "parsed", plan)
        check_provenance(plan, self.provenance, "the run")
        if not self.results.keys() <= plan.known:
            stranger = min(self.results.keys() - plan.known)
            raise RunError(f"the run holds a result for {stranger}, which was not planned")
        for result in self.results.values():
            if result.outcome is not Outcome.UNSUPPORTED or not by_declaration(result):
                continue
            key = result.key
            if not (plan.undeclared(key.clause) or plan.untried(key)):
                raise RunError(
                    f"{key} claims to be unsupported by declaration, and the plan declares "
                    "everything that its clause requires"
                )

    @property
    def missing(self) -> tuple[CellKey, ...]:
        """Planned cells without an outcome, in plan order."""
        return tuple(
            cell
            for cell in self.parsed.cells
            if cell not in self.results or self.results[cell].outcome is Outcome.NOT_RUN
        )


def check_provenance(plan: Plan, provenance: Provenance, source: str) -> None:
    """Raise RunError where the provenance is that of another plan."""
    document = plan.document
    for name, planned, given in (
        ("hash", document.hash, provenance.plan_hash),
        ("device", document.device, provenance.device),
        ("plan", document.plan, provenance.plan),
        ("partial", document.partial, provenance.partial),
    ):
        if planned != given:
            raise RunError(
                f"{source}: its plan has {name} {planned!r} and its provenance {given!r}: "
                "they are not of the same run"
            )
