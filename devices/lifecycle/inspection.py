"""Reports about a manifest: its problems (lint), the expectation of a cell (explain), and the numbers of blocks and
cells (stats)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from devices.cell import CellKey
from devices.errors import suggestion
from devices.lifecycle.evidence import Seen
from devices.lifecycle.text import canonical
from devices.manifest import AXES, Block, Condition, Manifest, place
from devices.verdicts import Judgement, Match, Matcher, conflict_text, pattern_matches

# -- lint -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem that lint found. ``message`` begins with file and line; ``blocks`` are the blocks that have the
    problem."""

    message: str
    blocks: tuple[Block, ...]

    def __str__(self) -> str:
        return self.message


def lint(
    manifest: Manifest,
    cells: Iterable[CellKey] | None,
    facts: Mapping[str, str],
    today: date,
    text: str | None = None,
) -> list[Problem]:
    """Returns the problems of a manifest that was read without error, in the order of the file.

    If ``cells`` (all planned cells) are given, the blocks that apply on a machine with these ``facts`` are checked
    against the cells: lint finds blocks and names that match no cell, and blocks that conflict. Expired blocks are
    always reported.
    If the ``text`` of the manifest is given, its form is checked too. Raises ManifestError if cells are given and a
    block needs a fact that is not among ``facts``.
    """
    problems = [] if cells is None else _against_plan(manifest.active(facts), cells)
    problems += [
        Problem(
            f"{block.where}: the block expired on {block.expires}: fix the cause, or check that it remains and set a new date",
            (block,),
        )
        for block in manifest.blocks
        if block.is_expired(today)
    ]
    if text is not None:
        problems += _form(manifest, text)
    return sorted(problems, key=lambda each: max((block.line for block in each.blocks), default=0))


def _against_plan(here: Manifest, cells: Iterable[CellKey]) -> list[Problem]:
    matcher = Matcher(here)
    matches = {key: matcher.match(key) for key in cells}
    ops = {key.unit for key in matches}
    found: defaultdict[int, list[CellKey]] = defaultdict(list)  # by the line of a matching block
    conflicts: defaultdict[tuple[Block, Block], list[CellKey]] = defaultdict(list)
    for key, match in matches.items():
        for block in match.blocks:
            found[block.line].append(key)
        if match.conflict is not None:
            conflicts[match.conflict].append(key)
    problems = [
        Problem(f"{block.where}: {text}: correct or remove it", (block,))
        for block in here.blocks
        for text in _stale(block, found[block.line], ops)
    ]
    return problems + [
        Problem(conflict_text(pair, keys[0], len(keys)), pair) for pair, keys in conflicts.items()
    ]


def _stale(block: Block, found: Sequence[CellKey], ops: set[str]) -> Iterator[str]:
    """Yields one text if a whole block matches no cell; otherwise a text for each name in the block that matches no
    cell. For unknown ops, the texts suggest similar names."""
    unknown = {
        op: f"unknown op '{op}'{suggestion(op, ops)}"
        for op in block.op
        if not op.endswith("*") and op not in ops
    }
    if not found:
        why = f" ({', '.join(unknown.values())})" if unknown else ""
        yield f"the block matches no planned cell{why}"
        return
    for axis, patterns, names in zip(AXES, block.axes, map(set, zip(*found)), strict=True):
        for pattern in patterns:
            if axis == "op" and pattern in unknown:
                yield f"the block has the {unknown[pattern]}"
            elif not any(pattern_matches(pattern, name) for name in names):
                yield f"the {axis} '{pattern}' of the block matches no planned cell"


def _form(manifest: Manifest, text: str) -> list[Problem]:
    if (wanted := canonical(text, manifest)) == text:
        return []
    got, other = text.splitlines(), wanted.splitlines()
    same = (one == two for one, two in zip(got, other, strict=False))
    line = next((n for n, equal in enumerate(same, 1) if not equal), min(len(got), len(other)) + 1)
    return [
        Problem(
            f"{place(manifest.path, line)}: from this line on, the file is not in canonical form (order of"
            " blocks and keys, sorted names, one blank line between blocks): run `conform manifest lint --fix`",
            tuple(block for block in manifest.blocks if block.line <= line)[-1:],
        )
    ]


# -- explain --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Explanation:
    """The expectation of a cell and the blocks of the manifest that match the cell. ``elsewhere`` are matching blocks
    that do not apply on the current machine, each with the conditions that are not met."""

    key: CellKey
    match: Match
    elsewhere: tuple[tuple[Block, tuple[Condition, ...]], ...]
    facts: Mapping[str, str]


def explain(manifest: Manifest, key: CellKey, facts: Mapping[str, str]) -> Explanation:
    """Returns the explanation of what a manifest expects of one cell. Raises ManifestError if a block needs a fact that
    is missing."""
    here = manifest.active(facts)
    elsewhere = [
        (block, tuple(each for each in block.when if not each.holds(facts)))
        for block in here.inactive
        if None not in _matched_by(block, key)
    ]
    return Explanation(key, Matcher(here).match(key), tuple(elsewhere), facts)


def _rank(pattern: str) -> tuple[bool, int]:
    """Returns a sort key for a pattern. The key of a more specific pattern is larger."""
    return (not pattern.endswith("*"), len(pattern))


def _matched_by(block: Block, key: CellKey) -> list[str | None]:
    """Returns, for each of clause, op, dtype and variant, the most specific of the block's patterns that match the cell;
    None if none matches."""
    return [
        max((each for each in patterns if pattern_matches(each, name)), key=_rank, default=None)
        for patterns, name in zip(block.axes, key, strict=True)
    ]


def _more_specific(one: Block, other: Block, key: CellKey) -> list[str]:
    """Returns the names of the keys (clause, op, dtype, variant) in which the block ``one`` matches the cell more
    specifically than the block ``other``; an empty list if ``one`` is less specific in any key. Both blocks must match
    the cell."""
    ranks = [[_rank(found or "") for found in _matched_by(each, key)] for each in (one, other)]
    if any(a < b for a, b in zip(*ranks, strict=True)):
        return []
    return [axis for axis, a, b in zip(AXES, *ranks, strict=True) if a > b]


def explanation_text(
    explained: Explanation, seen: Sequence[tuple[str, Seen, Judgement]] = ()
) -> list[str]:
    """Returns the lines of an explanation. ``seen`` has, for each run, its name, the observation of the cell, and the
    verdict on it."""
    key, match = explained.key, explained.match
    lines = [str(key)]
    if match.conflict is not None:
        lines.append(f"conflict: {conflict_text(match.conflict, key)}")
    elif (expectation := match.expectation) is None:
        lines.append("expected: pass (no block of the manifest applies here)")
    else:
        for part in expectation.parts:
            where = "" if part.layouts is None else f" in {', '.join(sorted(part.layouts))}"
            about = "expected" if part is expectation else "expected of the other checks"
            lines.append(f"{about}: '{part.outcome}'{where}")
        deciding = [block for part in expectation.parts for block in part.deciding]
        for block in deciding:
            lines += _block("decides", block, key)
        # The layouts and exceptions of less specific blocks count too.
        for part in expectation.parts:
            for block in part.blocks[len(part.deciding) :]:
                lines += _block("agrees with the deciding block, but is less specific", block, key)
        for block in expectation.overridden:
            by = next(each for each in deciding if _more_specific(each, block, key))
            lines += _block(f"overridden by {by.where}", block, key, by)
    for block, false in explained.elsewhere:
        lines += _block("does not apply on this machine", block, key)
        lines += [
            f"    needs {each.fact} {each.wanted!r}; found {explained.facts.get(each.fact)!r}"
            for each in false
        ]
    for name, saw, judgement in seen:
        lines.append(f"{name}: {saw}: {judgement.verdict}")
        if judgement.why:
            lines.append(f"    {judgement.why}")
    return lines


def _block(part: str, block: Block, key: CellKey, by: Block | None = None) -> list[str]:
    """Returns the lines that describe a block: its role, the patterns that match, and its reason. ``by`` is the block
    that overrides it."""
    lines = [f"{part}: {block.where}, '{block.outcome}'"]
    if block.layouts:
        lines[0] += f" in {', '.join(sorted(block.layouts))}"
    if block.raises:
        lines[0] += f" with {block.raises}"
    matched = dict(zip(AXES, _matched_by(block, key), strict=True))
    if block.variant == ("*",) and not key.variant:
        del matched["variant"]  # few cells have one
    lines.append(
        "    matched by " + ", ".join(f"{axis} '{each}'" for axis, each in matched.items())
    )
    if by is not None:
        lines.append("    less specific in " + " and ".join(_more_specific(by, block, key)))
    kind = f"{block.kind}: " if block.kind else ""
    lines.append(f"    {kind}{' '.join(block.reason.split())}")
    more = [block.issue] if block.issue else []
    more += [f"expires {block.expires}"] if block.expires else []
    if block.min_pass_rate is not None:
        more.append(f"at least {block.min_pass_rate:g} of the runs must pass")
    return [*lines, f"    {'; '.join(more)}"] if more else lines


# -- stats ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Inactive:
    """A block of the manifest that does not apply on the current machine, with the conditions that are not met."""

    where: str
    when: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts of the blocks of a manifest. A block counts once in each clause family that it names.

    ``covered`` and ``planned`` count cells; they are None if no plan is given.
    """

    blocks: int
    by_kind: dict[str, int]
    by_outcome: dict[str, int]
    families: dict[str, int]
    expired: tuple[str, ...]
    expiring: tuple[str, ...]
    without_issue: tuple[str, ...]
    inactive: tuple[Inactive, ...]
    covered: int | None
    covered_by_family: dict[str, int]
    planned: int | None


def stats(
    manifest: Manifest,
    facts: Mapping[str, str],
    today: date,
    *,
    soon: timedelta = timedelta(days=60),
    cells: Iterable[CellKey] | None = None,
) -> Stats:
    """Returns the counts of a manifest's blocks. Raises ManifestError if a block needs a fact that is missing."""
    here, blocks = manifest.active(facts), manifest.blocks
    matcher, keys = Matcher(here), list(cells or ())
    covered = Counter(_family(key.clause) for key in keys if matcher.match(key).blocks)
    expired = [block for block in blocks if block.is_expired(today)]
    expiring = [each for each in blocks if each.is_expired(today + soon) and each not in expired]

    def false(block: Block) -> tuple[str, ...]:
        return tuple(
            f"needs {each.fact} {each.wanted!r}, found {facts[each.fact]!r}"
            for each in block.when
            if not each.holds(facts)
        )

    return Stats(
        blocks=len(blocks),
        by_kind=_counted(str(block.kind or "none given") for block in blocks),
        by_outcome=_counted(str(block.outcome) for block in blocks),
        families=_counted(name for each in blocks for name in set(map(_family, each.clause))),
        expired=tuple(f"{block.where} ({block.expires})" for block in expired),
        expiring=tuple(f"{block.where} ({block.expires})" for block in expiring),
        without_issue=tuple(block.where for block in blocks if block.issue is None),
        inactive=tuple(Inactive(block.where, false(block)) for block in here.inactive),
        covered=None if cells is None else covered.total(),
        covered_by_family=dict(sorted(covered.items())),
        planned=None if cells is None else len(keys),
    )


def _family(clause: str) -> str:
    return clause.partition(".")[0]


def _counted(names: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(names).items()))


def stats_text(counted: Stats, *, most: int = 10) -> list[str]:
    """Returns the lines that show the counts. Each list of blocks shows at most ``most`` entries."""
    blocks = f"{counted.blocks:,} block{'' if counted.blocks == 1 else 's'}"
    if counted.covered is not None:
        blocks = f"{blocks}, which match {counted.covered:,} of {counted.planned:,} planned cells"
    lines = [blocks]
    for title, numbers in (
        ("by kind", counted.by_kind),
        ("by outcome", counted.by_outcome),
        ("by clause family", counted.families),
        ("cells by clause family", counted.covered_by_family),
    ):
        if numbers:
            listed = ", ".join(f"{name} {number:,}" for name, number in numbers.items())
            lines.append(f"{title}: {listed}")
    inactive = tuple(f"{each.where}: {'; '.join(each.when)}" for each in counted.inactive)
    for title, places in (
        ("expired", counted.expired),
        ("expiring soon", counted.expiring),
        ("without an issue", counted.without_issue),
        ("not active here", inactive),
    ):
        lines.append(f"{title}: {len(places)}")
        lines += [f"    {place}" for place in places[:most]]
        if len(places) > most:
            lines.append(f"    and {len(places) - most} more")
    return lines
