"""Updates a manifest from runs.

Cells that pass in every run are removed from their blocks, except from blocks with the outcome ``flaky``. New failures
are added only with a reason, and only from two runs that agree. Cells on which the runs disagree are reported
and not changed; cells that no run ran are not changed either.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from types import MappingProxyType
from typing import Final

from devices.cell import CellKey, Outcome, Verdict
from devices.descriptor import DTYPES
from devices.errors import ConformError
from devices.lifecycle.evidence import (
    Evidence,
    EvidenceError,
    Findings,
    JudgedCell,
    Left,
    Seen,
    comparable,
    judge_observation,
    weigh,
)
from devices.lifecycle.narrow import Bounds, Box, Forbidden, decompose, narrowed, of_cases
from devices.lifecycle.text import Editing
from devices.manifest import AXES, Block, CauseKind, ExpectedOutcome, Manifest
from devices.verdicts import (
    ENDS,
    Expectation,
    Match,
    Matcher,
    any_matches,
    conflict_text,
    describes,
    judge_cell,
    judge_parts,
)

_ADDABLE: Final = {each.value for each in ExpectedOutcome} & {each.value for each in Outcome}
"""The outcomes that a block can expect. The outcome ``error`` is not among them."""


@dataclass(frozen=True, slots=True)
class Cause:
    """The cause that a person states for the failures that are added to the manifest."""

    reason: str
    kind: CauseKind | None = None
    issue: str | None = None
    expires: date | None = None


def new_blocks(
    cause: Cause,
    cells: Mapping[CellKey, Seen],
    listed: Mapping[CellKey, frozenset[str]],
    planned: Collection[CellKey],
    drafts: Mapping[CellKey, str] = MappingProxyType({}),
) -> list[Block]:
    """Returns blocks with exact names that expect the observed outcomes of ``cells`` and match no other planned cell.

    ``listed`` has the layouts that remaining blocks already list for a cell. ``drafts`` has, for some
    cells, the reason to write into their blocks; the blocks of other cells get the reason of ``cause``.
    """
    groups: dict[tuple[ExpectedOutcome, str | None, str, bool], list[CellKey]] = {}
    for key, seen in cells.items():
        raised = seen.observed.raises
        # A manifest cannot contain names that are not identifiers.
        raises = raised if raised is not None and raised.isidentifier() else None
        group = (
            ExpectedOutcome(seen.observed.outcome.value),
            raises,
            drafts.get(key, cause.reason),
            not key.dtype,  # cases have no dtype, so they need blocks of their own
        )
        groups.setdefault(group, []).append(key)
    blocks, variants = [], frozenset(key.variant for key in planned)
    for (outcome, raises, reason, _), keys in groups.items():
        needed = {key: cells[key].observed.layouts - listed.get(key, frozenset()) for key in keys}
        for layouts, members in _shared(needed, cells):
            among = set(members)
            forbidden = Forbidden(key for key in planned if key not in among)
            for box in decompose(members, forbidden, mix_clauses=False):
                blocks.append(
                    Block(
                        line=0,
                        clause=tuple(sorted(box.clause)),
                        op=tuple(sorted(box.op)),
                        # Cases have no dtype.
                        dtype=("*",) if box.dtype == {""} else tuple(sorted(box.dtype)),
                        variant=_variants_of(box, forbidden, variants),
                        layouts=layouts or None,
                        outcome=outcome,
                        raises=raises,
                        **{**asdict(cause), "reason": reason},
                    )
                )
    return blocks


def _variants_of(box: Box, forbidden: Forbidden, planned: frozenset[str]) -> tuple[str, ...]:
    """Returns the variants that a new block names. If no cell of the block has a variant, the block matches every
    variant, unless it would then match a forbidden cell that has one of the ``planned`` variants."""
    if box.variant == {""} and forbidden.allow(replace(box, variant=planned)):
        return ("*",)
    return tuple(sorted(box.variant))


def _shared(
    needed: Mapping[CellKey, frozenset[str]], cells: Mapping[CellKey, Seen]
) -> Iterable[tuple[frozenset[str], Sequence[CellKey]]]:
    """Returns groups of cells that fail in the same layouts. A cell of an op in a group also joins the group if all
    its failing layouts are layouts of the group and it passed in no layout of the group."""
    exact: dict[frozenset[str], list[CellKey]] = {}
    for key, layouts in needed.items():
        exact.setdefault(layouts, []).append(key)
    groups: list[tuple[frozenset[str], list[CellKey]]] = []
    for layouts in sorted(exact, key=lambda each: (-len(each), sorted(each))):
        members = exact[layouts]
        for more, others in groups:
            # A group without layouts allows any layout, so it cannot be joined with another group.
            ops = {key.unit for key in others}
            if layouts and layouts <= more:
                joining = [
                    key for key in members if key.unit in ops and not cells[key].passed & more
                ]
                others += joining
                members = [key for key in members if key not in joining]
        if members:
            groups.append((layouts, members))
    return groups


class UpdateError(ConformError):
    """The error for a bug of the suite: an update would change a part of the manifest that it must not change. Nothing
    is written."""

    exit_code = 3


@dataclass(frozen=True, slots=True)
class Update:
    """The result of an update: the new text of the manifest, the changed blocks, and the cells that were not
    changed."""

    text: str
    removed: tuple[Block, ...] = ()
    narrowed: tuple[Block, ...] = ()
    added: tuple[Block, ...] = ()
    disagreeing: tuple[Left, ...] = ()
    unrecorded: tuple[Left, ...] = ()
    floors: tuple[Left, ...] = ()
    unseen: tuple[str, ...] = ()  # dtypes that no run planned and changed blocks still cover


def update(
    text: str,
    manifest: Manifest,
    runs: Sequence[Evidence],
    today: date,
    *,
    cause: Cause | None = None,
    drafts: Mapping[CellKey, str] = MappingProxyType({}),
    wanted: Callable[[CellKey], bool] = lambda key: True,
    dtypes: Collection[str] = DTYPES,
) -> Update:
    """Updates a manifest from runs and returns the result. ``manifest`` was read from ``text``.

    If ``cause`` is given, failures that no block expects are added; ``drafts`` has, for some cells, the reason to
    write into their new blocks, in place of the reason of ``cause``. ``wanted`` selects cells; ``dtypes`` are all
    dtypes of the device. Raises EvidenceError if the runs cannot be compared, and ManifestError if the manifest cannot
    be applied to them.
    """
    comparable(manifest, runs)
    if cause is not None:
        _two_for_one_plan(runs)
    active = manifest.active(runs[0].facts)
    found = weigh(active, runs, today, wanted)
    additions, left = _to_add(found, recording=cause is not None)
    editing = Editing(text, manifest)
    moving = {case.key: case for case in found.improved} | additions
    work = _Work(editing, active, Matcher(active), found, additions, moving)
    work.narrow(dtypes)
    if cause is not None and additions:
        work.add(cause, drafts, runs[0].facts, today)
    if editing.changed:
        work.verify(runs, today)
    return Update(
        text=editing.text() if editing.changed else text,
        removed=tuple(editing.removed),
        narrowed=tuple(editing.narrowed),
        added=tuple(editing.added),
        disagreeing=tuple(found.disagreeing),
        unrecorded=tuple(left),
        floors=tuple(found.floors),
        unseen=tuple(sorted(work.unseen)),
    )


def _two_for_one_plan(runs: Sequence[Evidence]) -> None:
    if len(runs) < 2:
        raise EvidenceError(
            f"failures are added only from two runs that agree, but only {runs[0].name} was given: run the same plan"
            " again with --results=RUN2, and give both folders"
        )
    for other in runs[1:]:
        if other.plan_hash != runs[0].plan_hash:
            raise EvidenceError(
                f"failures are added only from two runs of one plan, but the plans of {runs[0].name} and {other.name}"
                f" have the hashes {runs[0].plan_hash} and {other.plan_hash}"
            )


def _to_add(found: Findings, *, recording: bool) -> tuple[dict[CellKey, JudgedCell], list[Left]]:
    """Returns the failures to add to the manifest, and the failures that are not added, each with the reason."""
    cases: dict[CellKey, JudgedCell] = {}
    left = []
    # A cell that crashed and now fails is an improvement, but still needs a block for its failure.
    changed = [
        case
        for case in found.improved
        if case.seen.observed.outcome is not Outcome.PASS and not _still_listed(case)
    ]
    for case in [*found.regressed, *changed]:
        if any(part.observed.outcome.value not in _ADDABLE for part in _unlisted(case)):
            left.append(Left(case.key, f"{case.seen}: a manifest cannot list this outcome"))
        elif recording:
            cases[case.key] = case
        else:
            left.append(Left(case.key, case.judgement.why))
    return cases, left


def _unlisted(case: JudgedCell) -> list[Seen]:
    """Returns the parts of a cell's observation (the end of its process, its other checks) that are not as the
    manifest expects."""
    if len(case.seen.parts) == 1:
        return [case.seen]
    observed, ran = case.seen.observed, case.seen.ran
    judged = judge_parts(case.match.expectation, observed, ran=ran)
    parts = zip(case.seen.parts, judged, strict=True)
    return [part for part, each in parts if each.verdict is Verdict.REGRESSION]


def _still_listed(case: JudgedCell) -> bool:
    """Returns True if a cell that is better than expected still ends its process or fails, but only as the manifest
    lists: in fewer layouts, or without the end of the process, or without failures of the other checks."""
    expected, observed = case.match.expectation, case.seen.observed
    if observed.is_end:
        return True
    if observed.outcome is Outcome.PASS:
        return False
    if expected is not None and expected.rest is not None:
        return judge_cell(expected.rest, observed, ran=case.seen.ran).verdict in _LISTED
    return observed.outcome is Outcome.FAIL and _as_in(expected, case.seen)


_LISTED: Final = (Verdict.EXPECTED, Verdict.IMPROVEMENT)


def _as_in(expected: Block | Expectation | None, seen: Seen) -> bool:
    """Returns True if an observation has the expected outcome. Its layouts can be compared with the expected layouts
    only in this case."""
    return expected is not None and expected.outcome.value == seen.observed.outcome.value


@dataclass(slots=True)
class _Work:
    """The manifest and the runs during one update, and the changes that the update makes."""

    editing: Editing
    active: Manifest
    matcher: Matcher  # of the active manifest
    found: Findings
    additions: dict[CellKey, JudgedCell]
    moving: dict[CellKey, JudgedCell]  # the additions, and the cells that are better than expected
    gone: dict[int, set[CellKey]] = field(default_factory=dict)  # by the block's line
    unseen: set[str] = field(default_factory=set)

    def narrow(self, dtypes: Collection[str]) -> None:
        """Removes two sorts of cells from their blocks: cells that are better than expected, and cells whose failures
        are added in new blocks."""
        touched: dict[int, Block] = {}
        for case in self.moving.values():
            for block in case.match.blocks:
                if block.outcome is ExpectedOutcome.FLAKY:
                    continue
                if leaves := self._leaves(case, block):
                    self.gone.setdefault(block.line, set()).add(case.key)
                seen = case.seen.facing(block.outcome)
                if leaves or (_as_in(block, seen) and (block.layouts or set()) & seen.passed):
                    touched[block.line] = block
        planned = self.found.matches
        covered: dict[int, list[CellKey]] = {line: [] for line in touched}
        for key, match in planned.items():
            for block in match.blocks:
                if block.line in touched:
                    covered[block.line].append(key)
        unseen = set(dtypes) - {key.dtype for key in planned}
        named = {op for block in self.active.blocks for op in block.op if not op.endswith("*")}
        strangers = sorted(named - {key.unit for key in planned})
        for line, block in touched.items():
            self._narrow(block, covered[line], unseen, strangers)

    def _leaves(self, case: JudgedCell, block: Block) -> bool:
        """Returns True if a block should no longer match the given cell in any layout."""
        seen = case.seen.facing(block.outcome)
        observed = seen.observed
        if observed.outcome is Outcome.PASS:
            return True
        same = _as_in(block, seen)
        if case.key in self.additions and not (same and describes(block, observed)):
            return True
        if block.outcome in ENDS and not observed.is_end and _still_listed(case):
            return True
        return same and block.layouts is not None and block.layouts <= seen.passed

    def _narrow(
        self,
        block: Block,
        covered: Sequence[CellKey],
        unseen: Collection[str],
        strangers: Collection[str],
    ) -> None:
        def overridden(key: CellKey) -> bool:
            return not _decides(self.matcher.match(key), block)

        if of_cases(covered):  # cases have no dtype
            unseen = ()
        gone = self.gone.get(block.line, set())
        bounds: dict[CellKey, Bounds] = {}
        for key in covered:
            if block.layouts is None or key in gone or overridden(key):
                continue
            case = self.moving.get(key)
            if case is not None and _as_in(block, case.seen.facing(block.outcome)):
                seen = case.seen.facing(block.outcome)
                may = block.layouts - seen.passed
            elif key in self.found.as_expected:
                seen = self.found.as_expected[key].facing(block.outcome)
                may = block.layouts
            else:
                continue
            bounds[key] = Bounds(block.layouts & seen.observed.layouts, may)

        self.unseen |= {dtype for dtype in unseen if any_matches(block.dtype, dtype)}
        pieces = narrowed(block, covered, gone, bounds, overridden, unseen, strangers)
        self.editing.replace(block, [_changes(block, each) for each in pieces])

    def add(
        self, cause: Cause, drafts: Mapping[CellKey, str], facts: Mapping[str, str], today: date
    ) -> None:
        """Adds blocks for failures that no block expects."""
        matcher = Matcher(self.now(facts))
        for end in (True, False):
            cells, listed = self._missing(matcher, today, end=end)
            for block in new_blocks(cause, cells, listed, self.found.matches, drafts):
                self.editing.insert(block)

    def _missing(
        self, matcher: Matcher, today: date, *, end: bool
    ) -> tuple[dict[CellKey, Seen], dict[CellKey, frozenset[str]]]:
        """Returns the observations that no block expects, and the layouts that blocks list for them already. With
        ``end``, the observations are those of cells that ended their process, otherwise all other ones."""
        cells: dict[CellKey, Seen] = {}
        listed: dict[CellKey, frozenset[str]] = {}
        for key, case in self.additions.items():
            expectation = matcher.match(key).expectation
            for seen in case.seen.parts:
                if seen.observed.is_end is not end:
                    continue
                part = _part(expectation, seen)
                if judge_observation(part, seen, today).verdict in (Verdict.EXPECTED, Verdict.OK):
                    continue  # a block expects this part of the observation
                cells[key] = seen
                if part and part.layouts is not None and _as_in(part, seen):
                    listed[key] = part.layouts
        return cells, listed

    def now(self, facts: Mapping[str, str]) -> Manifest:
        """Returns the manifest with the changes so far, reduced to the blocks that apply on a machine with these facts."""
        return Manifest(self.editing.blocks(), (), self.active.path).active(facts)

    def verify(self, runs: Sequence[Evidence], today: date) -> None:
        """Raises UpdateError unless the new manifest gives every cell the verdict that it should have after the
        update."""
        after = Matcher(self.now(runs[0].facts))
        for key, old in self.found.matches.items():
            new = after.match(key)
            if not old.blocks and not new.blocks:
                continue
            if new.conflict is not None:
                raise _fault(key, conflict_text(new.conflict, key))
            if (case := self.moving.get(key)) is not None:
                verdict = judge_observation(new.expectation, case.seen, today).verdict
                wanted = _allowed_verdicts(case, recorded=key in self.additions)
                if verdict not in wanted:
                    raise _fault(key, f"the cell would be judged '{verdict}'")
            elif _expectation_key(old) != _expectation_key(new):
                raise _fault(key, "the expectation of the cell would change")


def _part(expectation: Expectation | None, seen: Seen) -> Expectation | None:
    """Returns the part of an expectation with which an observation must be compared: the expectation of the other
    checks if a crash or hang is expected and the cell did not end its process, otherwise the whole expectation."""
    if expectation is None or expectation.outcome not in ENDS:
        return expectation
    return expectation if seen.observed.is_end else expectation.rest


def _decides(match: Match, block: Block) -> bool:
    """Returns False if a block matches the cell but another block overrides it for this cell; otherwise True."""
    if not any(each is block for each in match.blocks):
        return True  # the block does not match the cell, so nothing overrides it there
    if match.expectation is None:
        return True
    return any(each is block for part in match.expectation.parts for each in part.blocks)


def _allowed_verdicts(case: JudgedCell, *, recorded: bool) -> tuple[Verdict, ...]:
    if recorded or _still_listed(case):
        return (Verdict.EXPECTED,)
    if case.seen.observed.outcome is Outcome.PASS:
        return (Verdict.OK, Verdict.FLAKY)
    return (Verdict.IMPROVEMENT,)  # not changed: recording the failure needs a reason


def _expectation_key(match: Match) -> tuple[object, ...]:
    """Returns the values by which two matches are compared: the expected outcome, layouts, pass rate and exceptions. It
    does not matter which blocks state these values."""
    if match.expectation is None:
        return ()
    return tuple(
        (
            part.outcome,
            part.layouts,
            part.min_pass_rate,
            frozenset((block.raises, block.match) for block in part.blocks),
        )
        for part in match.expectation.parts
    )


def _fault(key: CellKey, what: str) -> UpdateError:
    return UpdateError(
        f"the update would handle {key} wrongly ({what}): nothing was written; please report this"
        " with the manifest and the runs, and edit the manifest by hand"
    )


def _changes(block: Block, piece: Block) -> dict[str, Sequence[str]]:
    """Returns the keys in which a narrower block differs from the original block, each with its new value. All other
    keys stay unchanged."""
    changes: dict[str, Sequence[str]] = {}
    for axis, names, before in zip(AXES, piece.axes, block.axes, strict=True):
        if axis == "dtype" and names == ("",):  # cases have no dtype
            names = ("*",)
        if set(names) != set(before):
            changes[axis] = names
    if piece.layouts != block.layouts and piece.layouts is not None:
        changes["layouts"] = sorted(piece.layouts)
    return changes
