"""The manifest of a device, as the other packages use it: read, match, judge, lint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date

from devices.block import Block, ExpectedOutcome, Kind
from devices.cell import CellKey
from devices.manifest import Manifest, ManifestError
from devices.matching import Expectation, ManifestConflict, Match, Matcher, conflict_text
from devices.verdicts import Judgement, judge
from devices.when import Condition, public_version

__all__ = [
    "Block",
    "Condition",
    "Expectation",
    "ExpectedOutcome",
    "Judgement",
    "Kind",
    "Manifest",
    "ManifestConflict",
    "ManifestError",
    "Match",
    "Matcher",
    "Problem",
    "judge",
    "lint",
    "public_version",
]


@dataclass(frozen=True, slots=True)
class Problem:
    """A fault that lint finds: ``message`` begins with its place; ``blocks`` are those at fault."""

    message: str
    blocks: tuple[Block, ...]

    def __str__(self) -> str:
        return self.message


def lint(
    manifest: Manifest, cells: Iterable[CellKey], facts: Mapping[str, str], today: date
) -> list[Problem]:
    """The faults of a manifest that was read without error, in the file's order.

    Blocks that match none of ``cells`` (the plan's) and blocks that conflict are looked for among
    those that hold with ``facts``; expired ones everywhere. Raises ManifestError where a block
    depends on a fact that is not among ``facts``.
    """
    here = manifest.active(facts)
    matcher = Matcher(here)
    matches: dict[int, Match] = {}  # by identity: cells share the result of their match
    conflicts: dict[tuple[int, int], _Seen] = {}
    for key in cells:
        match = matcher.match(key)
        matches[id(match)] = match
        if match.conflict is not None:
            pair = (match.conflict[0].line, match.conflict[1].line)
            conflicts.setdefault(pair, _Seen(match.conflict, key)).cells += 1
    matched = {block.line for match in matches.values() for block in match.blocks}
    problems = [
        Problem(
            f"{block.where}: the block matches no planned cell: correct it, or remove it",
            (block,),
        )
        for block in here.blocks
        if block.line not in matched
    ]
    problems += [
        Problem(
            f"{block.where}: the block expired on {block.expires}: solve its cause, or look at it"
            " again and set a new date",
            (block,),
        )
        for block in (*here.blocks, *here.inactive)
        if block.is_expired(today)
    ]
    problems += [
        Problem(conflict_text(each.conflict, each.first, each.cells), each.conflict)
        for each in conflicts.values()
    ]
    return sorted(problems, key=lambda problem: max(block.line for block in problem.blocks))


@dataclass(slots=True)
class _Seen:
    """A conflict, the first cell on which it was met, and on how many it was."""

    conflict: tuple[Block, Block]
    first: CellKey
    cells: int = 0
