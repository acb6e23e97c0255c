"""Functions that find the blocks of a manifest that match a cell, and determine the verdict on the observation of the
cell.

Patterns are compared for each of the keys clause, op, dtype and variant. An exact name is more specific than a prefix,
and a longer prefix is more specific than a shorter one; in a list, the most specific pattern that matches counts. A
block is overridden by another block that is at least as specific in all four keys and more specific in at least one.
The blocks that are not overridden decide what is expected of the cell. If these blocks expect different outcomes, they
conflict. A block that expects a crash or a hang is about the end of the process; a block that expects a failure is about
the other checks of the cell, and about the whole cell if it does not end its process. Two such blocks neither override
each other nor conflict.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from itertools import combinations
from operator import ge
from typing import Final

from devices.cell import CellKey, Observed, Outcome, Verdict
from devices.manifest import Block, ExpectedOutcome, Manifest, ManifestError


class ManifestConflict(ManifestError):
    """The error for a conflict in a manifest: two blocks expect different outcomes of one cell, and neither block
    overrides the other. A block for the end of the process (``crash`` or ``hang``) and a block for the other checks of
    the cell (``fail``, ``unsupported`` or ``blocked``) do not conflict."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """The outcome that a manifest expects of a cell.

    ``layouts`` is the union of the layouts of all ``blocks``; None if one of the blocks allows any layout. Each
    block stands for a separate cause, so a failure is expected if one of the blocks describes it. ``rest`` is the
    expectation of the other checks of a cell that is expected to end its process, or None if they are expected to
    pass.
    """

    outcome: ExpectedOutcome
    layouts: frozenset[str] | None
    deciding: tuple[Block, ...]  # the blocks that are not overridden
    blocks: tuple[Block, ...]  # all that match and expect this outcome, the deciding ones first
    overridden: tuple[Block, ...] = ()  # that match, and that a deciding block overrides
    rest: Expectation | None = None

    @property
    def parts(self) -> tuple[Expectation, ...]:
        """This expectation, and the expectation of the other checks if there is one."""
        return (self,) if self.rest is None else (self, self.rest)

    @property
    def min_pass_rate(self) -> float | None:
        """The share of runs in which a flaky cell must pass: the largest share that one of the expectation's blocks
        demands; None if no block demands a share."""
        rates = [each.min_pass_rate for each in self.deciding if each.min_pass_rate is not None]
        return max(rates, default=None)

    def is_expired(self, today: date) -> bool:
        """Returns True if every block of the expectation has expired."""
        return all(block.is_expired(today) for block in self.deciding)


@dataclass(frozen=True, slots=True)
class Match:
    """All blocks that match a cell, and either the expectation that follows from them or the two blocks that
    conflict."""

    blocks: tuple[Block, ...] = ()
    expectation: Expectation | None = None
    conflict: tuple[Block, Block] | None = None


_NOTHING: Final = Match()


class Matcher:
    """Looks up the expectation of each cell in the blocks of a manifest.

    ``manifest`` should be the active manifest (``Manifest.active``), because the matcher does not evaluate conditions.
    Cells that the same blocks match with the same specificity share one result.
    """

    def __init__(self, manifest: Manifest) -> None:
        blocks = self._blocks = manifest.blocks
        self._clauses = _Axis(block.clause for block in blocks)
        self._ops = _Axis(block.op for block in blocks)
        self._dtypes = _Axis(block.dtype for block in blocks)
        self._variants = _Axis(block.variant for block in blocks)
        self._results: dict[frozenset[tuple[int, ...]], Match] = {}

    def expect(self, key: CellKey) -> Expectation | None:
        """Returns the expectation of a cell; None if no block matches the cell. Raises ManifestConflict."""
        match = self.match(key)
        if match.conflict is not None:
            raise ManifestConflict(conflict_text(match.conflict, key))
        return match.expectation

    def match(self, key: CellKey) -> Match:
        """Returns all blocks that match a cell. If two of them conflict, the result names these two; no error is
        raised."""
        clauses, ops, dtypes = (
            self._clauses[key.clause],
            self._ops[key.unit],
            self._dtypes[key.dtype],
        )
        matching = ops.keys() & clauses.keys() & dtypes.keys()
        if not matching:
            return _NOTHING
        variants = self._variants[key.variant]
        ranks = frozenset(
            (index, clauses[index], ops[index], dtypes[index], variants[index])
            for index in matching & variants.keys()
        )
        if not ranks:
            return _NOTHING
        if ranks not in self._results:
            self._results[ranks] = self._resolve(ranks)
        return self._results[ranks]

    def _resolve(self, ranks: frozenset[tuple[int, ...]]) -> Match:
        """Returns the match for a set of blocks that match a cell. Each block is given by its index and by four
        numbers that say how specifically it matches clause, op, dtype and variant."""
        blocks = {index: self._blocks[index] for index, *_ in sorted(ranks)}
        deciding = {
            index
            for index, *own in ranks
            # A block decides unless another is as specific on every axis and more specific on one.
            if not any(
                other != own
                and all(map(ge, other, own))
                and _same_part(blocks[index].outcome, blocks[by].outcome)
                for by, *other in ranks
            )
        }
        decide = tuple(block for index, block in blocks.items() if index in deciding)
        others = [block for index, block in blocks.items() if index not in deciding]
        every = tuple(blocks.values())
        for pair in combinations(decide, 2):
            if pair[0].outcome is not pair[1].outcome and _same_part(*(p.outcome for p in pair)):
                return Match(every, None, pair)
        found: Expectation | None = None
        # The other checks first, so that the end of the process has them as its ``rest``.
        for outcome in sorted({block.outcome for block in decide}, key=ENDS.__contains__):
            own = [block for block in decide if block.outcome is outcome]
            agreeing = (*own, *(each for each in others if each.outcome is outcome))
            listed = [block.layouts for block in agreeing if block.layouts is not None]
            layouts = frozenset().union(*listed) if len(listed) == len(agreeing) else None
            found = Expectation(outcome, layouts, tuple(own), agreeing, (), found)
        assert found is not None
        counted = [block for part in found.parts for block in part.blocks]
        overridden = tuple(each for each in others if each not in counted)
        return Match(every, replace(found, overridden=overridden))


#: The outcomes of a block that is about the end of the process, and of one that may be about the other checks.
ENDS: Final = frozenset({ExpectedOutcome.CRASH, ExpectedOutcome.HANG})
RESTS: Final = frozenset(
    {ExpectedOutcome.FAIL, ExpectedOutcome.UNSUPPORTED, ExpectedOutcome.BLOCKED}
)


def _same_part(one: ExpectedOutcome, other: ExpectedOutcome) -> bool:
    """Returns True if blocks with these outcomes are about the same part of a cell. A flaky block is about the end of
    the process, too, because it allows no crash."""
    return not (one in ENDS and other in RESTS) and not (one in RESTS and other in ENDS)


def any_matches(patterns: Iterable[str], name: str) -> bool:
    """Returns True if one of a block's patterns matches the name."""
    return any(pattern_matches(pattern, name) for pattern in patterns)


def pattern_matches(pattern: str, name: str) -> bool:
    """Returns True if a block's pattern (an exact name, or a prefix and ``*``) matches the name."""
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def conflict_text(conflict: tuple[Block, Block], key: CellKey, cells: int = 1) -> str:
    """Returns a message that states a conflict and how to resolve it. ``cells`` is the number of cells that have the
    conflict."""
    one, other = conflict
    more = f" (and {cells - 1} more {'cell' if cells == 2 else 'cells'})" if cells > 1 else ""
    return (
        f"{other.where}: this block expects '{other.outcome}' of {key}{more}, but the block at {one.where} expects"
        f" '{one.outcome}', and neither is more specific: narrow one of the blocks, or add a block for these cells only"
    )


_EXACT: Final = sys.maxsize  # more specific than any prefix


class _Axis(dict[str, dict[int, int]]):
    """The patterns of all blocks for one of the keys clause, op, dtype and variant.

    ``axis[name]`` maps the index of each block that matches the name to a number that says how specific the match is:
    the length of the longest prefix, or ``_EXACT``.
    """

    def __init__(self, patterns: Iterable[Sequence[str]]) -> None:
        super().__init__()
        self._blocks: dict[str, list[int]] = {}  # by pattern
        for index, names in enumerate(patterns):
            for name in names:
                self._blocks.setdefault(name, []).append(index)
        lengths = {len(name) - 1 for name in self._blocks if name.endswith("*")}
        self._lengths = sorted(lengths)  # of prefixes

    def __missing__(self, name: str) -> dict[int, int]:
        found = self[name] = {}
        for length in self._lengths:
            if length <= len(name):
                found.update(dict.fromkeys(self._blocks.get(f"{name[:length]}*", ()), length))
        found.update(dict.fromkeys(self._blocks.get(name, ()), _EXACT))
        return found


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict with the reason as a text for people (may be empty) and the blocks of the manifest that led to the
    verdict."""

    verdict: Verdict
    why: str = ""
    blocks: tuple[Block, ...] = ()


_MISSING: Final = Judgement(Verdict.MISSING, "planned, but not run: the run is incomplete")
_RECORD: Final = "`conform manifest update RUN` narrows or removes the block"


def judge_cell(
    expectation: Expectation | None,
    observed: Observed,
    *,
    ran: frozenset[str] | None = None,
    expired: bool = False,
) -> Judgement:
    """Returns the verdict on a cell, which depends on the exact outcome. Failures that are not expected are
    regressions; expected failures that do not occur are improvements.

    ``ran`` are the layouts that were run; an expected layout among them that did not fail is an improvement. If ``ran``
    is None, no layout counts as passed. ``expired`` is True if the last day of the expectation has passed; a flaky
    block then has no effect, and other blocks still apply (``conform manifest lint`` reports them).

    ============  ==========  ===========  ===========  ===========  ===========  ===========  ==========
    observed      no block    fail         crash        hang         unsupported  blocked      flaky
    ============  ==========  ===========  ===========  ===========  ===========  ===========  ==========
    pass          ok          improvement  improvement  improvement  improvement  improvement  flaky
    fail          regression  expected*    improvement  regression   regression   regression   flaky*
    unsupported   regression  regression   regression   regression   expected*    regression   regression
    blocked       regression  regression   regression   regression   regression   expected*    regression
    crash         regression  regression   expected*    regression   regression   regression   regression
    hang          regression  regression   regression   expected*    regression   regression   regression
    ambiguous     ok          regression   regression   regression   regression   regression   regression
    error         regression  regression   regression   regression   regression   regression   regression
    not-run       missing     missing      missing      missing      missing      missing      missing
    ============  ==========  ===========  ===========  ===========  ===========  ===========  ==========

    A verdict with ``*`` becomes a regression if a layout failed that is not listed, if layouts are listed and none
    failed, or if no block describes the observed exception. It becomes an improvement (not for flaky) if a listed
    layout passed. An expired flaky expectation counts as no block.

    If a cell ended its process and other checks of the cell are known (``observed.rest``), the table is read twice: for
    the end of the process with the blocks that expect a crash or a hang, and for the other checks with the blocks that
    expect a failure. The cell is a regression if one of the two is, otherwise an improvement if one of the two is. See
    ``judge_parts``. If both sorts of blocks match and the cell does not end its process, the other checks decide, and
    the cell is an improvement even if these are as expected.

    A cell that is unsupported by declaration is ``ok`` if no block matches it; it is counted separately, never as a
    pass. If a block matches it, it is an ``improvement``, whatever the block expects: the block must be removed,
    because the descriptor already states that the device does not support the cell.
    """
    outcome = observed.outcome
    if outcome is Outcome.NOT_RUN:
        return _MISSING
    if observed.rest is not None:
        return _joined(*judge_parts(expectation, observed, ran=ran, expired=expired))
    if expectation is None:
        return _without_block(observed)
    if expectation.rest is not None and not observed.is_end:
        rest = judge_cell(expectation.rest, observed, ran=ran, expired=expired)
        if rest.verdict is not Verdict.EXPECTED:
            return rest
        why = f"the process no longer ends, expected {_expected(expectation)}: {_RECORD}"
        return Judgement(Verdict.IMPROVEMENT, f"{why}; {rest.why}", expectation.blocks)

    def judgement_of(verdict: Verdict, why: str) -> Judgement:
        return Judgement(verdict, why, expectation.blocks)

    expected = f"expected {_expected(expectation)}"
    if outcome is Outcome.UNSUPPORTED and observed.declared:
        return judgement_of(
            Verdict.IMPROVEMENT, f"unsupported by declaration, {expected}: {_RECORD}"
        )
    if outcome is Outcome.ERROR:
        why = f"the check could not be made{_details(observed)}; a manifest cannot list such a cell"
        return judgement_of(Verdict.REGRESSION, why)
    flaky = expectation.outcome is ExpectedOutcome.FLAKY
    if flaky and expired:
        plain = _without_block(observed)
        over = f"the block that allowed the cell to be flaky has expired ({_places(expectation.blocks)})"
        return judgement_of(plain.verdict, f"{plain.why or 'passes'}; {over}")
    if outcome is Outcome.PASS:
        if flaky:
            return judgement_of(Verdict.FLAKY, f"{outcome}, {expected}")
        return judgement_of(Verdict.IMPROVEMENT, f"passes, {expected}: {_RECORD}")
    if expectation.outcome is ExpectedOutcome.CRASH and outcome is Outcome.FAIL:
        how = "`conform manifest update --reason TEXT RUN RUN` records the failure instead"
        return judgement_of(Verdict.IMPROVEMENT, f"fails, but no longer crashes; {expected}: {how}")
    if outcome.value != ("fail" if flaky else expectation.outcome.value):
        return judgement_of(Verdict.REGRESSION, f"{outcome}{_details(observed)}, {expected}")
    if differs := _differs(expectation, observed):
        return judgement_of(Verdict.REGRESSION, differs)
    if flaky:
        return judgement_of(Verdict.FLAKY, f"{outcome}, {expected}")
    if passed := (expectation.layouts or frozenset()) & (ran or frozenset()) - observed.layouts:
        blocks = tuple(block for block in expectation.blocks if (block.layouts or set()) & passed)
        why = f"the layouts {_names(passed)} pass, but are listed at {_places(blocks)}: {_RECORD}"
        return Judgement(Verdict.IMPROVEMENT, why, blocks)
    return judgement_of(Verdict.EXPECTED, expected)


def judge_parts(
    expectation: Expectation | None,
    observed: Observed,
    *,
    ran: frozenset[str] | None = None,
    expired: bool = False,
) -> tuple[Judgement, Judgement]:
    """Returns the verdict on the end of a cell's process alone, and the verdict on the other checks of the cell alone,
    which must be known. A block that expects a crash or a hang allows no failure of the other checks."""
    assert observed.rest is not None
    end = judge_cell(expectation, replace(observed, rest=None), expired=expired)
    ends = expectation is not None and expectation.outcome in ENDS
    rest = expectation.rest if expectation is not None and ends else expectation
    if rest is None or rest.outcome not in RESTS:
        return end, _without_block(observed.rest)
    return end, judge_cell(rest, observed.rest, ran=ran, expired=expired)


def _joined(end: Judgement, rest: Judgement) -> Judgement:
    """Returns the verdict on a cell that ended its process, from the verdicts on its end and on its other checks."""
    blocks = (*end.blocks, *(block for block in rest.blocks if block not in end.blocks))
    for verdict in (Verdict.REGRESSION, Verdict.IMPROVEMENT):
        told = [
            text
            for each, text in ((end, end.why), (rest, f"the other checks: {rest.why}"))
            if each.verdict is verdict
        ]
        if told:
            decide = blocks if verdict is Verdict.REGRESSION else rest.blocks or blocks
            return Judgement(verdict, "; ".join(told), decide)
    return Judgement(end.verdict, end.why, blocks)


def _without_block(observed: Observed) -> Judgement:
    if observed.outcome is Outcome.PASS:
        return Judgement(Verdict.OK)
    if observed.outcome is Outcome.AMBIGUOUS:
        return Judgement(Verdict.OK, "the references disagree, so the cell is not counted")
    if observed.outcome is Outcome.UNSUPPORTED and observed.declared:
        return Judgement(Verdict.OK, "unsupported by declaration; does not count as a pass")
    why = f"{observed.outcome}{_details(observed)}; the manifest does not list this outcome"
    return Judgement(Verdict.REGRESSION, why)


def judge_flaky(
    expectation: Expectation, seen: Sequence[Observed], *, expired: bool = False
) -> Judgement:
    """Returns the verdict on a flaky cell from several runs: first each run is judged alone, then the share of runs
    that passed.

    A single run shows no share, so a cell with only one run is judged by ``judge_cell``. Runs without an outcome are
    not counted.
    """
    for each in seen:
        if (alone := judge_cell(expectation, each, expired=expired)).verdict is Verdict.REGRESSION:
            return alone
    made = [each for each in seen if each.outcome is not Outcome.NOT_RUN]
    floor = expectation.min_pass_rate
    if len(made) < 2 or floor is None or expired:
        return judge_cell(expectation, (made or seen)[0], expired=expired)
    passed = sum(each.outcome is Outcome.PASS for each in made)
    share = f"passes in {passed} of {len(made)} runs"
    if passed / len(made) < floor:
        why = f"{share}; expected a pass rate of at least {floor:g} ({_places(expectation.blocks)})"
        return Judgement(Verdict.REGRESSION, why, expectation.blocks)
    why = f"{share}, expected {_expected(expectation)}"
    return Judgement(Verdict.FLAKY, why, expectation.blocks)


def _differs(expectation: Expectation, observed: Observed) -> str:
    """Returns a text that says how a cell with the expected outcome differs from the blocks' description; an empty text
    if it does not differ."""
    outcome, places = observed.outcome, _places(expectation.blocks)
    if expectation.layouts is not None:
        if outside := observed.layouts - expectation.layouts:
            names = _names(outside)
            return (
                f"the layouts {names} have the outcome '{outcome}', but are not listed at {places}"
            )
        # The layout of a crash or a hang may be unknown; a failure has one.
        if outcome is Outcome.FAIL and not observed.layouts:
            names = _names(expectation.layouts)
            return f"the cell failed{_details(observed)}, but in no layout; expected a failure in the layouts {names} ({places})"
    if not any(describes(block, observed) for block in expectation.blocks):
        wanted = " or ".join(dict.fromkeys(map(_exception, expectation.blocks)))
        return f"{outcome}{_details(observed)}; expected {wanted} ({places})"
    return ""


def describes(block: Block, observed: Observed) -> bool:
    """Returns True if a block describes the observed exception by its type and its text."""
    if block.raises is not None and block.raises != observed.raises:
        return False
    said = observed.message if observed.said is None else observed.said
    return block.match is None or block.match.search(said) is not None


def _exception(block: Block) -> str:
    parts = [block.raises] if block.raises else []
    if block.match:
        parts.append(f"a message that matches {block.match.pattern!r}")
    return " and ".join(parts)


def _details(observed: Observed) -> str:
    """Returns the exception and the first line of the message in the form " (RuntimeError: …)"."""
    text = ": ".join(part for part in (observed.raises, observed.headline) if part)
    return f" ({text})" if text else ""


def _expected(expectation: Expectation) -> str:
    return f"'{expectation.outcome}' ({_places(expectation.blocks)})"


def _names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def _places(blocks: Iterable[Block]) -> str:
    return ", ".join(block.where for block in blocks)
