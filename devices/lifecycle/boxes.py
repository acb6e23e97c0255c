"""Sets of cells as products of clauses, ops and dtypes, which is what a block can say.

A product may hold combinations that no plan has; it must not hold a forbidden cell.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from devices.cell import CellKey
from devices.matching import pattern_matches


@dataclass(frozen=True, slots=True)
class Box:
    """A product of names."""

    clauses: frozenset[str]
    ops: frozenset[str]
    dtypes: frozenset[str]

    def joined(self, other: Box) -> Box:
        """The smallest box that holds both."""
        return Box(self.clauses | other.clauses, self.ops | other.ops, self.dtypes | other.dtypes)


class Forbidden:
    """Cells that no box may hold."""

    def __init__(self, cells: Iterable[CellKey]) -> None:
        self._by_op: dict[str, list[tuple[str, str]]] = {}
        for clause, op, dtype in cells:
            self._by_op.setdefault(op, []).append((clause, dtype))

    def allow(self, box: Box) -> bool:
        """Whether a box holds none of them."""
        return not any(
            clause in box.clauses and dtype in box.dtypes
            for op in box.ops
            for clause, dtype in self._by_op.get(op, ())
        )


def decompose(
    cells: Collection[CellKey], forbidden: Forbidden, *, mix_clauses: bool = True
) -> list[Box]:
    """Boxes that hold all of ``cells`` and nothing forbidden; few, and in a fixed order.

    Without ``mix_clauses`` each box has ops that share their clauses.
    """
    if not cells:
        return []
    boxes: list[Box] = []
    for row in _rows(cells, forbidden):
        for index, box in enumerate(boxes):
            if not mix_clauses and box.clauses != row.clauses:
                continue
            joined = box.joined(row)
            if forbidden.allow(joined):
                boxes[index] = joined
                break
        else:
            boxes.append(row)
    return boxes


def _rows(cells: Iterable[CellKey], forbidden: Forbidden) -> list[Box]:
    """One box an op where that is possible, else one for each set of dtypes that clauses share."""
    by_op: dict[str, dict[str, set[str]]] = {}
    for clause, op, dtype in cells:
        by_op.setdefault(op, {}).setdefault(clause, set()).add(dtype)
    rows = []
    for op, clauses in by_op.items():
        ops = frozenset({op})
        whole = Box(frozenset(clauses), ops, frozenset().union(*clauses.values()))
        if forbidden.allow(whole):
            rows.append(whole)
            continue
        shared: dict[frozenset[str], set[str]] = {}
        for clause, dtypes in clauses.items():
            shared.setdefault(frozenset(dtypes), set()).add(clause)
        rows += [Box(frozenset(names), ops, dtypes) for dtypes, names in shared.items()]
    # Boxes that are alike stand together, the largest first: they are what others can join.
    rows.sort(
        key=lambda row: (
            -len(row.dtypes) * len(row.clauses),
            sorted(row.dtypes),
            sorted(row.clauses),
            sorted(row.ops),
        )
    )
    return rows


def patterns_for(
    names: frozenset[str],
    patterns: Sequence[str],
    known: Collection[str],
    allowed: Callable[[frozenset[str]], bool],
    *,
    keep_unmatched: bool,
) -> tuple[list[str], frozenset[str]]:
    """Patterns that say ``names``, as much as possible in a block's own, and the names they match.

    A prefix stays where ``allowed`` takes all of the ``known`` names that it matches; otherwise the
    names themselves are written. An exact name that no plan knows stays where ``keep_unmatched``.
    """
    kept: list[str] = []
    said = names
    for pattern in patterns:
        matched = frozenset(name for name in known if pattern_matches(pattern, name))
        if not pattern.endswith("*"):
            if pattern in names or (not matched and keep_unmatched):
                kept.append(pattern)
        elif (matched or keep_unmatched) and allowed(said | matched):
            kept.append(pattern)
            said |= matched
    kept += [
        name
        for name in sorted(names)
        if not any(pattern_matches(pattern, name) for pattern in kept)
    ]
    return kept, said
