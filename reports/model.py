"""The data of a run: its plan, its provenance, and the result of each cell."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from sys import intern

import msgspec

from devices.cell import CellFacts, CellKey, Outcome, Verdict
from devices.errors import ConformError
from devices.failure import Geometry
from devices.files import explained, stays_inside, write_whole
from devices.lifecycle.evidence import Evidence, Seen

# A family names a file (``junit-<family>.xml``), so it must be harmless as a file name.
_FAMILY = re.compile(r"[a-z][a-z0-9_]*")

# The status of clauses that the suite does not check yet; they have no cells and are never counted.
PLANNED = "planned"

Folded = list[tuple[str, dict[str, list[str]]]]


class RunError(ConformError):
    """The error for a run that cannot be read or written: its record is damaged, was edited, or is not the record of a
    run.

    The command exits with 4. A run that can be read but has cells without an outcome raises no error; the gate exits
    with 2 for such a run.
    """


def write_file(path: Path, content: bytes) -> None:
    """Replaces a file atomically. Raises RunError if the file cannot be written."""
    with explained(RunError, path, "cannot be written"):
        write_whole(path, content)


# -- the plan


class Clause(msgspec.Struct, frozen=True, kw_only=True):
    """A clause of the contract as it was when the run was planned."""

    id: str
    family: str
    statement: str = ""
    source: str = ""
    requires: tuple[str, ...] = ()  # capabilities
    level: int = 4  # the level of conformance
    unit: str = ""
    status: str
    faults: tuple[str, ...] = ()
    since: str = ""
    provisional: bool = False  # for one minor version, failures are reported but do not gate


class Capability(msgspec.Struct, frozen=True):
    """A capability of a device: whether the descriptor declares it, and whether a test found that the device has it.
    ``probed`` is None if the capability was not tested."""

    declared: bool
    probed: bool | None = None


class Exclusion(msgspec.Struct, frozen=True):
    """Ops that a clause leaves out, the reason, and ``cells``, the number of cells that are therefore not in the
    plan."""

    clause: str
    ops: list[str]
    reason: str
    cells: int = 0


class StatedLevel(msgspec.Struct, frozen=True):
    """A level of conformance: the number of cells in its frozen list (``listed``), and the listed cells that the plan
    has, as ranges of the plan's cells (first position, length). Listed cells that are not planned count against the
    device."""

    level: int
    title: str
    version: str
    listed: int
    planned: list[tuple[int, int]]


class PlanDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a run in the form in which the record stores it. ``selected`` has the cells of a partial run or of a
    shard. ``untried`` maps each clause to the cases (or ops) that were not tried on the machine of the run, with the
    reasons."""

    hash: str
    device: str
    plan: str
    torch: str
    suite: str
    partial: bool
    selection: dict[str, str]
    recipe: dict[str, str | int] = {}
    clauses: list[Clause]
    capabilities: dict[str, Capability]
    facts: dict[str, str | int | float | bool | None]
    untried: dict[str, dict[str, str]] = {}
    layouts_version: int | str
    exclusions: list[Exclusion]
    families: dict[str, str] = {}  # by op; failures are grouped by them
    levels: list[StatedLevel] = []
    cells: Folded
    selected: Folded | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """A checked plan: the plan document, its clauses by id, and its cells in plan order.

    ``selected`` has the cells that the run had to run: all planned cells, unless the run was partial or a shard.
    """

    document: PlanDocument
    clauses: dict[str, Clause]
    cells: tuple[CellKey, ...]
    selected: tuple[CellKey, ...]
    known: frozenset[CellKey]  # the cells, for membership tests

    def undeclared(self, clause: str) -> tuple[str, ...]:
        """Returns the capabilities that a clause requires and the descriptor of the device does not declare."""
        declared = {name for name, each in self.document.capabilities.items() if each.declared}
        return tuple(name for name in self.clauses[clause].requires if name not in declared)

    def untried(self, cell: CellKey) -> str:
        """Returns the reason why a case was not tried on the machine of the run; an empty text if the case was
        tried."""
        reasons = self.document.untried.get(cell.clause, {})
        return reasons.get(cell.name) or reasons.get(cell.unit, "")


def fold(cells: Iterable[CellKey]) -> Folded:
    """Returns cells in the form of the plan document: one entry per clause, with a list of dtypes for each op. A dtype has
    ``@variant`` at its end if its cell has a variant."""
    folded: dict[str, dict[str, list[str]]] = {}
    for cell in cells:
        folded.setdefault(cell.clause, {}).setdefault(cell.unit, []).append(cell.kind)
    return list(folded.items())


def checked_plan(
    document: PlanDocument, source: str = "the plan", like: Plan | None = None
) -> Plan:
    """Returns the checked plan of a plan document, with all its cells listed one by one. Raises RunError if the
    document contradicts itself; the text of the error begins with ``source``.

    If the plan ``like`` has the same clauses and cells, the two plans share the cells in memory.
    """
    clauses = _clauses(document, source)
    if like is not None and like.document.cells == document.cells and like.clauses == clauses:
        cells, known = like.cells, like.known
    else:
        cells = _unfold(document.cells, "cells", clauses, source)
        known = frozenset(cells)
    selected = cells
    if document.selected is not None:
        selected = _unfold(document.selected, "selected", clauses, source)
        if strangers := set(selected) - known:
            raise RunError(
                f"{source}: {len(strangers)} selected cells are not planned; the first is {min(strangers)}"
            )
    elif document.partial:
        raise RunError(
            f"{source}: the run is partial, but the list of its selected cells is missing"
        )
    for level in document.levels:
        _check_level(level, len(cells), source)
    return Plan(document, clauses, cells, selected, known)


def _check_level(level: StatedLevel, cells: int, source: str) -> None:
    end = 0
    for first, length in level.planned:
        if first < end or length < 1:
            raise RunError(
                f"{source}: the cells of level {level.level} are out of order at position {first}"
            )
        end = first + length
    planned = sum(length for _, length in level.planned)
    if end > cells or planned > level.listed:
        raise RunError(
            f"{source}: level {level.level} is inconsistent: it lists {level.listed:,} cells, but states that {planned:,} "
            f"cells of the plan belong to it, at positions below {end:,}; the plan has {cells:,} cells"
        )


def _clauses(document: PlanDocument, source: str) -> dict[str, Clause]:
    clauses: dict[str, Clause] = {}
    for clause in document.clauses:
        if clause.id in clauses:
            raise RunError(f"{source}: clause {clause.id!r} is listed twice")
        if not _FAMILY.fullmatch(clause.family):
            raise RunError(
                f"{source}: clause {clause.id!r} is of family {clause.family!r}; expected "
                "lower-case letters, digits and underscores"
            )
        clauses[clause.id] = clause
    return clauses


def _unfold(
    folded: Folded, part: str, clauses: Mapping[str, Clause], source: str
) -> tuple[CellKey, ...]:
    """Returns the cells of one part of a plan document (``cells`` or ``selected``) as a flat list. Raises RunError if
    two cells have the same name in JUnit."""
    cells: list[CellKey] = []
    cases = 0
    for name, ops in folded:
        clause = clauses.get(name)
        if clause is None:
            raise RunError(f"{source}: {part} names the clause {name!r}, which is not in 'clauses'")
        if clause.status == PLANNED:
            raise RunError(f"{source}: {part} names the clause {name!r}, which is not checked yet")
        name = intern(name)  # so that a million keys are compared by identity
        for unit, dtypes in ops.items():
            if not unit or not unit.isprintable():
                raise RunError(f"{source}: {part} of {name!r} has the unprintable op {unit!r}")
            unit = intern(unit)
            for dtype in dtypes:
                if not dtype.isprintable():
                    raise RunError(
                        f"{source}: {part} of {name!r} has the unprintable dtype {dtype!r}"
                    )
                cell = CellKey.of_kind(name, unit, dtype)
                cells.append(cell)
                # The unit may be named as a cell with a dtype or a variant is.
                cases += "@" in unit or (cell.is_case and unit.endswith("]"))
    distinct: set[object] = {str(cell) for cell in cells} if cases else set(cells)
    if len(distinct) != len(cells):
        twice = next(cell for cell, count in Counter(map(str, cells)).items() if count > 1)
        raise RunError(f"{source}: {part} lists {twice} twice")
    return tuple(cells)


# -- the result of a cell

_JUDGED = (Verdict.EXPECTED, Verdict.REGRESSION, Verdict.IMPROVEMENT)

# The verdicts that each outcome can have. Any other pair was edited, or written by a faulty harness; it is no evidence.
VERDICTS: Mapping[Outcome, tuple[Verdict, ...]] = {
    Outcome.PASS: (Verdict.OK, Verdict.IMPROVEMENT, Verdict.FLAKY),
    Outcome.FAIL: (*_JUDGED, Verdict.FLAKY),
    Outcome.ERROR: (Verdict.REGRESSION,),
    Outcome.UNSUPPORTED: (Verdict.OK, *_JUDGED),
    Outcome.AMBIGUOUS: (Verdict.OK, Verdict.REGRESSION),
    Outcome.BLOCKED: _JUDGED,
    Outcome.CRASH: _JUDGED,
    Outcome.HANG: _JUDGED,
    Outcome.NOT_RUN: (Verdict.MISSING,),
}


class ExampleTensor(Geometry, frozen=True):
    """A tensor of a minimised example. ``values`` is a Python expression; a long one is truncated."""

    values: str = ""

    def __str__(self) -> str:
        where = super().__str__()
        return f"{where} = {self.values}" if self.values else where


@dataclass(frozen=True, slots=True)
class Example:
    """The simplest failing call that the search found for a cell: a call with few dimensions, small sizes, and a simple
    layout, arguments and values.

    ``call`` refers to the tensors as ``t[0]``, ``t[1]``, …. A directed check (one with a program of its own) makes its
    tensors itself, and they are not listed. ``tried`` is the number of calls that the search made. ``whole`` is False
    if the search ended early because it had used up its budget of calls or time.
    """

    call: str
    layout: str
    message: str
    tensors: tuple[ExampleTensor, ...] = ()
    tried: int = 0
    whole: bool = True

    @property
    def complexity(self) -> tuple[int, int, int]:
        """The key by which examples are sorted, with the simplest example first: the number of dimensions, the number
        of elements, and the length of the layout's name."""
        dims = sum(len(t.shape) for t in self.tensors)
        return (dims, sum(math.prod(t.shape) for t in self.tensors), len(self.layout))

    def lines(self) -> list[str]:
        """Returns the example as lines of text for a person to read."""
        ended = "" if self.whole else " (the search used up its budget)"
        found = [f"smallest failing example, layout {self.layout}{ended}: {self.call}"]
        found += [f"    t[{number}]: {tensor}" for number, tensor in enumerate(self.tensors)]
        return [*found, f"    {self.message}"]


class CellResult(CellFacts, frozen=True, gc=False):
    """The result of one cell with its verdict, in the form in which the record stores it.

    ``why`` says why the cell has its verdict; for an expected failure it is the reason that the manifest gives.
    ``example`` is the minimised failure, or None if the failure was not minimised.
    """

    key: CellKey
    outcome: Outcome
    verdict: Verdict
    why: str = ""
    example: Example | None = None

    @property
    def passed_without_remark(self) -> bool:
        """True if the cell passed and its result contains no remark. Most results are of this kind."""
        return (
            self.outcome is Outcome.PASS
            and self.verdict is Verdict.OK
            and self.checks > 0
            and self.samples >= 0
            and 0 <= self.seconds < math.inf
            and not (self.why or self.note or self.layouts or self.repro)
        )


def by_declaration(result: CellResult) -> bool:
    """Returns True if a cell was not tried because it needs something that the descriptor does not declare or that the
    machine does not have.

    Such a cell has the verdict ``ok``; a cell that is unsupported for another reason never has it. ``Run`` refuses such
    a result if the plan declares every capability that the clause requires, and states no reason why the case was not
    tried.
    """
    return result.outcome is Outcome.UNSUPPORTED and result.verdict is Verdict.OK


def problem_with(result: CellResult) -> str | None:
    """Returns a text that says how a result contradicts itself, for example by a verdict that its outcome cannot have.
    Returns None if the result is consistent."""
    # Most results are plain passes, and this lookup would take as long as everything below.
    ordinary = result.outcome is Outcome.PASS and result.verdict is Verdict.OK
    if not ordinary and result.verdict not in VERDICTS[result.outcome]:
        return f"the outcome {result.outcome} cannot have the verdict {result.verdict}"
    if result.outcome is Outcome.PASS:
        if result.checks < 1:
            return "the cell passed without a single executed check"
        if result.layouts:
            return f"the cell passed with failing layouts ({', '.join(result.layouts[:3])})"
    if result.checks < 0 or result.samples < 0 or not result.seconds >= 0:
        return "a count or the time is negative"
    for repro in (result.repro, result.rest.repro if result.rest is not None else None):
        if repro is not None and not stays_inside(repro):
            return f"the repro script is outside the results folder ({repro!r})"
    if result.rest is not None and result.outcome not in (Outcome.CRASH, Outcome.HANG):
        return "the result has other checks, but the cell did not end its process"
    return None


# -- the run


@dataclass(frozen=True, slots=True)
class Provenance:
    """The origin of a run: software, machine, options and time. ``start`` is in ISO 8601. A text field that does not
    apply is empty.

    ``shard`` is ``I/N`` or empty, ``expectations`` is the path of the manifest or ``none``, and ``reference_cache`` is
    ``cold``, ``warm`` or ``off``. ``left_behind`` lists the side effects of importing the device's module, such as
    ``sets the default dtype to float64``.
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
    left_behind: str = ""

    @property
    def is_shard(self) -> bool:
        """True if the run is one of several shards, so other shards are needed for a whole run."""
        return self.shard not in ("", "1/1")


@dataclass(frozen=True, slots=True)
class Run:
    """A run: its plan, its provenance, and the results by cell.

    ``parsed`` is the checked plan. Raises RunError if the plan contradicts itself, if the provenance belongs to another
    plan, or if a result is impossible: its cell is not planned, or the result is unsupported by declaration although
    the plan declares everything that its clause requires, and states no reason why the case was not tried.
    """

    folder: Path
    plan: PlanDocument
    provenance: Provenance
    results: dict[CellKey, CellResult]
    parsed: Plan = field(init=False, repr=False, compare=False)
    given: InitVar[Plan | None] = None

    def __post_init__(self, given: Plan | None) -> None:
        plan = checked_plan(self.plan) if given is None else given
        object.__setattr__(self, "parsed", plan)
        check_provenance(plan.document, self.provenance, "the run")
        if not self.results.keys() <= plan.known:
            stranger = min(self.results.keys() - plan.known)
            raise RunError(f"the run has a result for {stranger}, which was not planned")
        for key, result in self.results.items():
            if by_declaration(result) and not (plan.undeclared(key.clause) or plan.untried(key)):
                raise RunError(
                    f"{key} is recorded as unsupported by declaration, but the plan declares "
                    "everything that its clause requires, and states no reason why the case was not tried"
                )

    @property
    def missing(self) -> tuple[CellKey, ...]:
        """The planned cells without an outcome, in plan order."""
        ran = {key for key, each in self.results.items() if each.outcome is not Outcome.NOT_RUN}
        return tuple(cell for cell in self.parsed.cells if cell not in ran)


def check_provenance(plan: PlanDocument, provenance: Provenance, source: str) -> None:
    """Checks that a provenance belongs to a plan. Raises RunError if it belongs to another plan."""
    for name in ("hash", "device", "plan", "partial"):
        planned = getattr(plan, name)
        given = getattr(provenance, "plan_hash" if name == "hash" else name)
        if planned != given:
            raise RunError(
                f"{source}: its plan has the {name} {planned!r} and its provenance {given!r}, so plan and provenance "
                "belong to different runs"
            )


# -- a run as evidence for a manifest


def evidence_of(run: Run, name: str) -> Evidence:
    """Returns the outcomes of a run that count as evidence for a manifest. ``name`` is the path of the run, as
    the user gave it."""
    origin = run.provenance
    return Evidence(
        name=name,
        device=origin.device,
        plan=origin.plan,
        plan_hash=origin.plan_hash,
        torch=origin.torch,
        driver=origin.driver,
        start=origin.start,
        facts={fact: str(value) for fact, value in run.plan.facts.items() if value is not None},
        planned=run.parsed.cells,
        cells={
            key: seen_of(result)
            for key, result in run.results.items()
            if result.outcome is not Outcome.NOT_RUN and problem_with(result) is None
        },
    )


def seen_of(result: CellResult) -> Seen:
    """Returns the observation of one cell in a run, in the form that is needed to update a manifest."""
    observed = result.observed_as(result.outcome, by_declaration(result))
    return Seen(observed, frozenset(result.ran_layouts))
