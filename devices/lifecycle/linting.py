"""Lint: what is wrong with a manifest that can be read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date

from devices._text import suggestion
from devices.block import Block, place
from devices.cell import CellKey
from devices.lifecycle.canonical import canonical
from devices.manifest import Manifest
from devices.matching import Match, Matcher, conflict_text, pattern_matches


@dataclass(frozen=True, slots=True)
class Problem:
    """A fault that lint finds: ``message`` begins with its place; ``blocks`` are those at fault."""

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
    """The faults of a manifest that was read without error, in the file's order.

    Blocks and names that match none of ``cells`` (the plan's) and blocks that conflict are looked
    for among those that hold with ``facts``, where cells are given; expired ones everywhere. With
    ``text``, what the manifest was read from, its form is looked at too. Raises ManifestError where
    cells are given and a block depends on a fact that is not among ``facts``.
    """
    problems = [] if cells is None else _against_plan(manifest.active(facts), cells)
    problems += [
        Problem(
            f"{block.where}: the block expired on {block.expires}: solve its cause, or look at it"
            " again and set a new date",
            (block,),
        )
        for block in manifest.blocks
        if block.is_expired(today)
    ]
    if text is not None:
        problems += _form(manifest, text)
    return sorted(problems, key=lambda each: max((block.line for block in each.blocks), default=0))


def _against_plan(here: Manifest, cells: Iterable[CellKey]) -> list[Problem]:
    met = _Met(Matcher(here))
    for key in cells:
        met.add(key)
    problems = []
    names = met.names()
    for block in here.blocks:
        found = names.get(block.line)
        if found is None:
            problems.append(Problem(met.stale(block), (block,)))
        else:
            problems += [Problem(text, (block,)) for text in met.stale_names(block, found)]
    problems += [
        Problem(conflict_text(each.conflict, each.first, each.cells), each.conflict)
        for each in met.conflicts.values()
    ]
    return problems


@dataclass(slots=True)
class _Conflict:
    """A conflict, the first cell on which it was met, and on how many it was."""

    conflict: tuple[Block, Block]
    first: CellKey
    cells: int = 0


@dataclass(slots=True)
class _Names:
    """The names of the cells that a block matches, by axis."""

    clause: set[str] = field(default_factory=set)
    op: set[str] = field(default_factory=set)
    dtype: set[str] = field(default_factory=set)

    def add(self, key: CellKey) -> None:
        self.clause.add(key.clause)
        self.op.add(key.op)
        self.dtype.add(key.dtype)

    def update(self, other: _Names) -> None:
        self.clause |= other.clause
        self.op |= other.op
        self.dtype |= other.dtype


@dataclass(slots=True)
class _Met:
    """What the blocks met among the planned cells. Cells that the same blocks match share a Match."""

    matcher: Matcher
    matches: dict[int, tuple[Match, _Names]] = field(default_factory=dict)
    conflicts: dict[tuple[int, int], _Conflict] = field(default_factory=dict)
    ops: set[str] = field(default_factory=set)

    def add(self, key: CellKey) -> None:
        self.ops.add(key.op)
        match = self.matcher.match(key)
        if not match.blocks:
            return
        self.matches.setdefault(id(match), (match, _Names()))[1].add(key)
        if match.conflict is not None:
            pair = (match.conflict[0].line, match.conflict[1].line)
            self.conflicts.setdefault(pair, _Conflict(match.conflict, key)).cells += 1

    def names(self) -> dict[int, _Names]:
        """The names that each block matched, by the block's line."""
        found: dict[int, _Names] = {}
        for match, names in self.matches.values():
            for block in match.blocks:
                found.setdefault(block.line, _Names()).update(names)
        return found

    def stale(self, block: Block) -> str:
        """A block that matches nothing, and what may be meant instead of the ops it names."""
        unknown = [op for op in block.op if self._is_unknown(op)]
        why = f" ({', '.join(self._unknown(op) for op in unknown)})" if unknown else ""
        return f"{block.where}: the block matches no planned cell{why}: correct it, or remove it"

    def stale_names(self, block: Block, found: _Names) -> Iterable[str]:
        """Names of a block that add nothing to the cells it matches."""
        for axis, patterns, names in (
            ("clause", block.clause, found.clause),
            ("op", block.op, found.op),
            ("dtype", block.dtype, found.dtype),
        ):
            for pattern in patterns:
                if any(pattern_matches(pattern, name) for name in names):
                    continue
                what = f"the {axis} '{pattern}' of the block matches no planned cell"
                if axis == "op" and self._is_unknown(pattern):
                    what = f"the block names an {self._unknown(pattern)}"
                yield f"{block.where}: {what}: correct it, or take it out"

    def _is_unknown(self, op: str) -> bool:
        return not op.endswith("*") and op not in self.ops

    def _unknown(self, op: str) -> str:
        return f"unknown op '{op}'{suggestion(op, self.ops)}"


def _form(manifest: Manifest, text: str) -> list[Problem]:
    wanted = canonical(text, manifest)
    if wanted == text:
        return []
    line = _first_difference(text.splitlines(), wanted.splitlines())
    return [
        Problem(
            f"{place(manifest.path, line)}: from here on the file is not in canonical form (order of"
            " blocks and keys, sorted names, one blank line between blocks): run `conform manifest"
            " lint --fix`",
            tuple(block for block in manifest.blocks if block.line <= line)[-1:],
        )
    ]


def _first_difference(got: Sequence[str], wanted: Sequence[str]) -> int:
    for number, (one, other) in enumerate(zip(got, wanted, strict=False), 1):
        if one != other:
            return number
    return min(len(got), len(wanted)) + 1
