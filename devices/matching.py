"""Which blocks of a manifest speak of a cell, and what they expect of it together.

On each axis (clause, op, dtype) an exact name is more exact than a prefix, and a longer prefix
than a shorter one; of a list the most exact pattern that matches counts. A block is overridden by
one that is at least as exact on every axis and more so on one. Blocks that nothing overrides
decide; where they expect different outcomes of one cell, that is a conflict.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Final

from devices.block import Block, ExpectedOutcome
from devices.cell import CellKey
from devices.manifest import Manifest, ManifestError


class ManifestConflict(ManifestError):
    """Two blocks expect different outcomes of one cell, and neither overrides the other."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """What the manifest expects of a cell.

    ``layouts`` are those of all ``blocks`` united, None where one of them takes any layout. Each
    block is a cause of its own, so a failure is as expected if one of them describes it.
    """

    outcome: ExpectedOutcome
    layouts: frozenset[str] | None
    deciding: tuple[Block, ...]  # those that nothing overrides
    blocks: tuple[Block, ...]  # all that match and expect this outcome, the deciding ones first
    overridden: tuple[Block, ...] = ()  # that match, and expect another outcome

    @property
    def min_pass_rate(self) -> float | None:
        """The share of its runs that a flaky cell must pass: the strictest of its blocks'."""
        rates = [each.min_pass_rate for each in self.deciding if each.min_pass_rate is not None]
        return max(rates, default=None)

    def is_expired(self, today: date) -> bool:
        """Whether every block that decides is past its last day."""
        return all(block.is_expired(today) for block in self.deciding)


@dataclass(frozen=True, slots=True)
class Match:
    """All blocks that match a cell; what they expect, or the two that contradict each other."""

    blocks: tuple[Block, ...] = ()
    expectation: Expectation | None = None
    conflict: tuple[Block, Block] | None = None


_NOTHING: Final = Match()


class Matcher:
    """Finds what the blocks of a manifest expect of cells.

    ``manifest`` should be the active one (``Manifest.active``): conditions are not asked here.
    Sets of blocks are bits of an int, so that a cell costs three look-ups and two intersections
    however many blocks there are; only what a cell does match is then resolved, and cells that
    the same blocks match share one result.
    """

    def __init__(self, manifest: Manifest) -> None:
        blocks = self._blocks = manifest.blocks
        self._clauses = _Axis(block.clause for block in blocks)
        self._ops = _Axis(block.op for block in blocks)
        self._dtypes = _Axis(block.dtype for block in blocks)
        self._expecting = {
            outcome: sum(1 << i for i, block in enumerate(blocks) if block.outcome is outcome)
            for outcome in ExpectedOutcome
        }
        self._results: dict[tuple[int, int], Match] = {}

    def expect(self, key: CellKey) -> Expectation | None:
        """What is expected of a cell; None where no block matches. Raises ManifestConflict."""
        match = self.match(key)
        if match.conflict is not None:
            raise ManifestConflict(conflict_text(match.conflict, key))
        return match.expectation

    def match(self, key: CellKey) -> Match:
        """All blocks that match a cell, conflicts among them included. Does not raise."""
        clause, op, dtype = key
        clauses, by_clause = self._clauses[clause]
        ops, by_op = self._ops[op]
        dtypes, by_dtype = self._dtypes[dtype]
        matching = clauses & ops & dtypes
        if not matching:
            return _NOTHING
        deciding = matching
        if matching & (matching - 1):  # more than one
            deciding = _deciding(matching, by_clause, by_op, by_dtype)
        found = self._results.get((matching, deciding))
        if found is None:
            found = self._results[matching, deciding] = self._resolve(matching, deciding)
        return found

    def _resolve(self, matching: int, deciding: int) -> Match:
        decide = self._members(deciding)
        first = decide[0]
        for other in decide:
            if other.outcome is not first.outcome:
                return Match(self._members(matching), None, (first, other))
        same = self._expecting[first.outcome]
        blocks = (*decide, *self._members(matching & ~deciding & same))
        listed = [block.layouts for block in blocks if block.layouts is not None]
        layouts = frozenset().union(*listed) if len(listed) == len(blocks) else None
        overridden = self._members(matching & ~same)
        expectation = Expectation(first.outcome, layouts, decide, blocks, overridden)
        return Match(self._members(matching), expectation)

    def _members(self, bits: int) -> tuple[Block, ...]:
        """The blocks of a set, in the manifest's order."""
        digits = bin(bits)[:1:-1]  # from the lowest bit up
        members, index = [], digits.find("1")
        while index >= 0:
            members.append(self._blocks[index])
            index = digits.find("1", index + 1)
        return tuple(members)


def pattern_matches(pattern: str, name: str) -> bool:
    """Whether a pattern of a block (an exact name, or a prefix and ``*``) matches a name."""
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def conflict_text(conflict: tuple[Block, Block], key: CellKey, cells: int = 1) -> str:
    """What a conflict is about, and how to solve it; ``cells`` is how many it is seen on."""
    one, other = conflict
    more = f" and {cells - 1} more" if cells > 1 else ""
    return (
        f"{other.where}: this block expects '{other.outcome}' of {key}{more}, and the one at"
        f" {one.where} expects '{one.outcome}'; neither is the more exact: narrow one of them, or"
        " add a block for just these cells"
    )


def _deciding(
    matching: int, by_clause: tuple[int, ...], by_op: tuple[int, ...], by_dtype: tuple[int, ...]
) -> int:
    """Those of ``matching`` that nothing overrides; each axis splits them, the most exact first."""
    decide = 0
    best: list[tuple[int, int, int]] = []
    for i, of_clause in enumerate(by_clause):
        rest = matching & of_clause
        if not rest:
            continue
        for j, of_op in enumerate(by_op):
            rest_op = rest & of_op
            if not rest_op:
                continue
            for k, of_dtype in enumerate(by_dtype):
                members = rest_op & of_dtype
                # In this order whatever overrides these has come before them.
                if members and not any(a <= i and b <= j and c <= k for a, b, c in best):
                    best.append((i, j, k))
                    decide |= members
    return decide


class _Axis(dict[str, tuple[int, tuple[int, ...]]]):
    """The patterns of all blocks on one axis.

    ``axis[name]`` is the set of blocks that match a name, and the same split by how exactly they
    do, the most exact first.
    """

    __slots__ = ("_exact", "_prefixes")

    def __init__(self, patterns: Iterable[Sequence[str]]) -> None:
        super().__init__()
        self._exact: dict[str, int] = {}
        prefixes: dict[int, dict[str, int]] = {}
        for index, names in enumerate(patterns):
            for name in names:
                if name.endswith("*"):
                    of_length = prefixes.setdefault(len(name) - 1, {})
                    of_length[name[:-1]] = of_length.get(name[:-1], 0) | 1 << index
                else:
                    self._exact[name] = self._exact.get(name, 0) | 1 << index
        self._prefixes = sorted(prefixes.items(), reverse=True)

    def __missing__(self, name: str) -> tuple[int, tuple[int, ...]]:
        found = self._exact.get(name, 0)
        levels = [found]
        for length, of_length in self._prefixes:
            # A block counts where it is most exact.
            level = of_length.get(name[:length], 0) & ~found
            found |= level
            levels.append(level)
        result = self[name] = (found, tuple(level for level in levels if level))
        return result
