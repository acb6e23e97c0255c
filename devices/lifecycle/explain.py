"""Why a cell is expected to do what the manifest says: the blocks that decided, lost, or do not hold here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from devices.block import Block
from devices.cell import CellKey
from devices.lifecycle.evidence import Seen
from devices.manifest import Manifest
from devices.matching import Match, Matcher, conflict_text, pattern_matches
from devices.verdicts import Judgement
from devices.when import Condition


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A block that would match, and those of its conditions that are false here."""

    block: Block
    false: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """All blocks that speak of a cell, by the part that they have in what is expected of it."""

    key: CellKey
    match: Match
    elsewhere: tuple[Elsewhere, ...]
    facts: Mapping[str, str]

    @property
    def deciding(self) -> tuple[Block, ...]:
        """Those that nothing overrides."""
        return self.match.expectation.deciding if self.match.expectation else ()

    @property
    def agreeing(self) -> tuple[Block, ...]:
        """Less exact ones that expect the same outcome: their layouts and exceptions count too."""
        if self.match.expectation is None:
            return ()
        return self.match.expectation.blocks[len(self.deciding) :]

    @property
    def overridden(self) -> tuple[Block, ...]:
        """Those that expect another outcome and lose."""
        return self.match.expectation.overridden if self.match.expectation else ()


def explain(manifest: Manifest, key: CellKey, facts: Mapping[str, str]) -> Explanation:
    """What a manifest says of one cell. Raises ManifestError where a fact is not known here."""
    here = manifest.active(facts)
    elsewhere = [
        Elsewhere(block, tuple(each for each in block.when if not each.holds(facts)))
        for block in here.inactive
        if _matches(block, key)
    ]
    return Explanation(key, Matcher(here).match(key), tuple(elsewhere), facts)


def _matches(block: Block, key: CellKey) -> bool:
    return all(
        any(pattern_matches(pattern, name) for pattern in patterns)
        for patterns, name in zip((block.clause, block.op, block.dtype), key, strict=True)
    )


def text(explained: Explanation, seen: Sequence[tuple[str, Seen, Judgement]] = ()) -> list[str]:
    """The explanation in lines; ``seen`` holds runs by name, what they saw and the verdict on it."""
    lines = [str(explained.key)]
    match = explained.match
    if match.conflict is not None:
        lines.append(f"contradiction: {conflict_text(match.conflict, explained.key)}")
    elif match.expectation is None:
        lines.append("expected: to pass; no block that holds here matches it")
    else:
        expectation = match.expectation
        where = ""
        if expectation.layouts is not None:
            where = f" in {', '.join(sorted(expectation.layouts))}"
        lines.append(f"expected: '{expectation.outcome}'{where}")
    for block in explained.deciding:
        lines += _block("decides", block, explained.key)
    for block in explained.agreeing:
        lines += _block("agrees, less exact", block, explained.key)
    for block in explained.overridden:
        by = next(each for each in explained.deciding if _overrides(each, block, explained.key))
        lines += _block(f"overridden by {by.where}", block, explained.key, why=by)
    for each in explained.elsewhere:
        lines += _block("does not hold here", each.block, explained.key)
        lines += [
            f"    when {condition.fact} is {condition.wanted!r}; here it is"
            f" {explained.facts.get(condition.fact)!r}"
            for condition in each.false
        ]
    for name, saw, judgement in seen:
        lines.append(f"{name}: {saw}: {judgement.verdict}")
        if judgement.why:
            lines.append(f"    {judgement.why}")
    return lines


def _block(part: str, block: Block, key: CellKey, why: Block | None = None) -> list[str]:
    lines = [f"{part}: {block.where}, '{block.outcome}'"]
    if block.layouts:
        lines[0] += f" in {', '.join(sorted(block.layouts))}"
    if block.raises:
        lines[0] += f" with {block.raises}"
    lines.append(f"    matched by {_by(block, key)}")
    if why is not None:
        axes = [
            axis
            for axis, one, other in zip(
                ("clause", "op", "dtype"), exactness(why, key), exactness(block, key), strict=True
            )
            if one > other
        ]
        lines.append(f"    less exact in {' and '.join(axes)}")
    kind = f"{block.kind}: " if block.kind else ""
    lines.append(f"    {kind}{' '.join(block.reason.split())}")
    more = [block.issue] if block.issue else []
    more += [f"expires {block.expires}"] if block.expires else []
    if block.min_pass_rate is not None:
        more.append(f"must pass in {block.min_pass_rate:g} of its runs")
    return [*lines, f"    {'; '.join(more)}"] if more else lines


def _by(block: Block, key: CellKey) -> str:
    """The pattern of each axis that matches most exactly."""
    parts = []
    for axis, patterns, name in zip(
        ("clause", "op", "dtype"), (block.clause, block.op, block.dtype), key, strict=True
    ):
        matching = [pattern for pattern in patterns if pattern_matches(pattern, name)]
        parts.append(f"{axis} '{max(matching, key=_rank)}'")
    return ", ".join(parts)


def exactness(block: Block, key: CellKey) -> tuple[tuple[bool, int], ...]:
    """How exactly a block that matches a cell does, on each axis; more is more exact."""
    return tuple(
        max(_rank(pattern) for pattern in patterns if pattern_matches(pattern, name))
        for patterns, name in zip((block.clause, block.op, block.dtype), key, strict=True)
    )


def _rank(pattern: str) -> tuple[bool, int]:
    return (not pattern.endswith("*"), len(pattern))


def _overrides(one: Block, other: Block, key: CellKey) -> bool:
    ranks = list(zip(exactness(one, key), exactness(other, key), strict=True))
    return all(a >= b for a, b in ranks) and any(a > b for a, b in ranks)
