"""Narrows a block of a manifest to the cells and layouts that still fail. The result never covers a cell or layout that
the block did not cover.

A block describes a product: all combinations of its clauses, ops, dtypes and variants. A product may contain
combinations that no plan has, but no cell that the block must not match.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from devices.cell import CellKey
from devices.manifest import Block
from devices.verdicts import any_matches, pattern_matches


@dataclass(frozen=True, slots=True)
class Box:
    """A product of clauses, ops, dtypes and variants: the cells of all combinations."""

    clause: frozenset[str]
    op: frozenset[str]
    dtype: frozenset[str]
    variant: frozenset[str]

    def joined(self, other: Box) -> Box:
        """Returns the smallest product that contains both products."""
        return Box(
            clause=self.clause | other.clause,
            op=self.op | other.op,
            dtype=self.dtype | other.dtype,
            variant=self.variant | other.variant,
        )

    def contains(self, cell: CellKey) -> bool:
        """Returns True if the product contains a cell."""
        return (
            cell.clause in self.clause
            and cell.unit in self.op
            and cell.dtype in self.dtype
            and cell.variant in self.variant
        )


class Forbidden:
    """Cells that no product may contain, because the narrowed block must not match them."""

    def __init__(self, cells: Iterable[CellKey]) -> None:
        self._by_op: dict[str, list[CellKey]] = {}
        for cell in cells:
            self._by_op.setdefault(cell.unit, []).append(cell)

    def allow(self, box: Box) -> bool:
        """Returns True if a product contains none of the forbidden cells."""
        return not any(box.contains(cell) for op in box.op for cell in self._by_op.get(op, ()))


def decompose(
    cells: Collection[CellKey], forbidden: Forbidden, *, mix_clauses: bool = True
) -> list[Box]:
    """Returns a small number of products, in a fixed order, that contain all ``cells`` and no forbidden cell.

    If ``mix_clauses`` is false, all ops of a product have the same clauses.
    """
    if not cells:
        return []
    boxes: list[Box] = []
    for row in _rows(cells, forbidden):
        for index, box in enumerate(boxes):
            if not mix_clauses and box.clause != row.clause:
                continue
            joined = box.joined(row)
            if forbidden.allow(joined):
                boxes[index] = joined
                break
        else:
            boxes.append(row)
    return boxes


def _rows(cells: Iterable[CellKey], forbidden: Forbidden) -> list[Box]:
    """Returns one product for each op and variant if that product contains no forbidden cell. Otherwise returns several
    products for the op and variant, one for each set of dtypes that some of the clauses have."""
    dtypes_of: dict[tuple[str, str], dict[str, set[str]]] = {}
    for cell in cells:
        by_clause = dtypes_of.setdefault((cell.unit, cell.variant), {})
        by_clause.setdefault(cell.clause, set()).add(cell.dtype)
    rows = []
    for (op, variant), clauses in dtypes_of.items():
        ops, variants = frozenset({op}), frozenset({variant})
        whole = Box(frozenset(clauses), ops, frozenset().union(*clauses.values()), variants)
        if forbidden.allow(whole):
            rows.append(whole)
            continue
        shared: dict[frozenset[str], set[str]] = {}
        for clause, dtypes in clauses.items():
            shared.setdefault(frozenset(dtypes), set()).add(clause)
        rows += [Box(frozenset(names), ops, dtypes, variants) for dtypes, names in shared.items()]
    # Similar products are neighbours and the largest come first, so that others can join them.
    return sorted(
        rows,
        key=lambda row: (
            -len(row.dtype) * len(row.clause),
            *map(sorted, (row.dtype, row.clause, row.op, row.variant)),
        ),
    )


@dataclass(frozen=True, slots=True)
class Bounds:
    """For one cell, the layouts that the block must still list after it is narrowed (``must``), and the layouts that it
    may list (``may``)."""

    must: frozenset[str]
    may: frozenset[str]


def of_cases(cells: Collection[CellKey]) -> bool:
    """Returns True if the given cells belong to cases, which have no dtype."""
    return bool(cells) and not any(key.dtype for key in cells)


def narrowed(
    block: Block,
    covered: Collection[CellKey],
    gone: Collection[CellKey],
    bounds: Mapping[CellKey, Bounds],
    overridden: Callable[[CellKey], bool],
    unseen_dtypes: Collection[str],
    strangers: Collection[str],
) -> list[Block]:
    """Returns the narrower blocks that replace a block; an empty list if the block is to be removed.

    ``covered`` are the planned cells that the block matches, ``gone`` the cells that the block should no longer match.
    ``overridden`` returns True for a cell for which another block overrides this block. ``unseen_dtypes`` are the
    dtypes that no run planned; the block keeps them. ``strangers`` are the ops that the manifest names and no run
    planned.
    """
    leaving = set(gone)
    cells = {key: bounds.get(key) for key in covered if key not in leaving}
    unseen = [name for name in sorted(unseen_dtypes) if any_matches(block.dtype, name)]
    clauses = list(dict.fromkeys(key.clause for key in covered))
    variants = list(dict.fromkeys(key.variant for key in covered))
    if unseen or of_cases(covered):
        seen = dict.fromkeys(key._replace(dtype="") for key in covered)
        cells.update({key._replace(dtype=dtype): None for key in seen for dtype in unseen})
        named = [op for op in strangers if any_matches(block.op, op)]
        both = (*unseen, *sorted({key.dtype for key in covered}))
        cells |= dict.fromkeys(map(CellKey._make, product(clauses, named, both, variants)))
    forbidden = sorted(leaving)
    pieces = _pieces(block, cells, forbidden)
    lost = {key for key in cells if overridden(key)}
    if lost and any(_is_more_exact(block, piece) for piece in pieces):
        # A name in place of a prefix would be as specific as the block that decides about these cells.
        rest = {key: bound for key, bound in cells.items() if key not in lost}
        pieces = _pieces(block, rest, [*forbidden, *sorted(lost)])
    if not unseen:
        return pieces
    for prefix in block.op:
        if prefix.endswith("*"):
            # Dtypes by name would be as specific as blocks that decide about single ops of the prefix.
            known = (prefix, *strangers, *(key.unit for key in covered))
            within = {op for op in known if pattern_matches(prefix, op)}
            free = {
                name
                for name in unseen
                if not any(
                    overridden(CellKey._make(names))
                    for names in product(clauses, within, [name], variants)
                )
            }
            pieces = _with_prefix(block, pieces, prefix, clauses, free)
    return pieces


def _with_prefix(
    block: Block, pieces: list[Block], prefix: str, clauses: Sequence[str], dtypes: set[str]
) -> list[Block]:
    """Returns the narrower blocks. If necessary, they are extended, so that for the given ``dtypes``, which no run
    planned, they still match all ops with a prefix of the original block."""
    lost = [
        clause
        for clause in clauses
        if dtypes and not any(_keeps(each, block, prefix, clause, dtypes) for each in pieces)
    ]
    if not lost:
        return pieces
    names = block.clause if len(lost) == len(clauses) else tuple(sorted(lost))
    for index, piece in enumerate(pieces):
        same = piece.layouts == block.layouts and piece.variant == block.variant
        if same and (piece.clause, set(piece.dtype)) == (names, dtypes):
            rest = tuple(op for op in piece.op if not pattern_matches(prefix, op))
            joined = replace(piece, op=(*rest, prefix))
            return [*pieces[:index], joined, *pieces[index + 1 :]]
    return [*pieces, replace(block, clause=names, op=(prefix,), dtype=tuple(sorted(dtypes)))]


def _keeps(piece: Block, block: Block, prefix: str, clause: str, dtypes: Collection[str]) -> bool:
    """Returns True if a narrower block (``piece``) has the same effect as the original block for an op prefix, a
    clause and the given dtypes."""
    return (
        prefix in piece.op
        and piece.layouts == block.layouts
        and piece.variant == block.variant
        and any_matches(piece.clause, clause)
        and all(any_matches(piece.dtype, name) for name in dtypes)
    )


def _pieces(
    block: Block, cells: Mapping[CellKey, Bounds | None], forbidden: Sequence[CellKey]
) -> list[Block]:
    pieces: list[Block] = []
    known = Box(*(frozenset(names) for names in zip(*cells, *forbidden, strict=True)))
    for layouts, members in _by_layouts(block, cells):
        others = [key for key, bound in cells.items() if not _allows(block, bound, layouts)]
        outside = Forbidden([*forbidden, *others])
        for box in decompose(members, outside):
            pieces.append(_piece(block, box, layouts, known, outside, first=not pieces))
    return pieces


def _allows(block: Block, bound: Bounds | None, layouts: frozenset[str] | None) -> bool:
    """Returns True if a block may list the given layouts for a cell."""
    if layouts is None or block.layouts is None:
        return True
    return layouts <= (block.layouts if bound is None else bound.may)


def _by_layouts(
    block: Block, cells: Mapping[CellKey, Bounds | None]
) -> list[tuple[frozenset[str] | None, list[CellKey]]]:
    """Returns groups of cells that can share a list of layouts, each with the longest list that fits all cells of the
    group."""
    if (whole := block.layouts) is None:
        return [(None, list(cells))] if cells else []
    groups: list[tuple[Bounds, list[CellKey]]] = []
    for key, given in cells.items():
        bound = given or Bounds(whole, whole)  # the cell was not run: its layouts stay
        for index, (held, members) in enumerate(groups):
            must, may = held.must | bound.must, held.may & bound.may
            if may and must <= may:
                groups[index] = (Bounds(must, may), members)
                members.append(key)
                break
        else:
            groups.append((bound, [key]))
    return [(held.may, members) for held, members in groups]


def _piece(
    block: Block,
    box: Box,
    layouts: frozenset[str] | None,
    known: Box,
    outside: Forbidden,
    *,
    first: bool,
) -> Block:
    """Returns a copy of a block that covers a product, with the block's own patterns if possible.

    A prefix is kept if all ``known`` names that it matches can be added to the product without a forbidden cell;
    otherwise the names are written out. A pattern that matches no known name is kept only in the ``first`` copy.
    """
    patterns: dict[str, tuple[str, ...]] = {}
    for axis in ("op", "dtype", "variant", "clause"):
        names: frozenset[str] = getattr(box, axis)
        kept: list[str] = []
        for pattern in getattr(block, axis):
            matched = {each for each in getattr(known, axis) if pattern_matches(pattern, each)}
            if not pattern.endswith("*"):
                if pattern in names or (not matched and first):
                    kept.append(pattern)
                continue
            grown = replace(box, **{axis: getattr(box, axis) | matched})
            if (matched or first) and outside.allow(grown):
                kept.append(pattern)
                box = grown
        kept += [name for name in sorted(names) if not any_matches(kept, name)]
        patterns[axis] = tuple(kept)
    return replace(
        block,
        clause=patterns["clause"],
        op=patterns["op"],
        dtype=patterns["dtype"],
        variant=patterns["variant"],
        layouts=layouts,
    )


def _is_more_exact(block: Block, piece: Block) -> bool:
    """Returns True if a narrower block has exact names in place of a prefix of the original block."""
    both = zip(piece.axes, block.axes, strict=True)
    return any(set(now) - set(before) for now, before in both)
