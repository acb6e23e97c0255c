"""New blocks for failures that no block expects: exact names, and no cell that did not fail so."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date

from devices.block import Block, ExpectedOutcome, Kind
from devices.cell import CellKey
from devices.lifecycle.boxes import Forbidden, decompose
from devices.lifecycle.evidence import ADDABLE, Seen


@dataclass(frozen=True, slots=True)
class Cause:
    """What the person who records failures says of them."""

    reason: str
    kind: Kind | None = None
    issue: str | None = None
    expires: date | None = None


def new_blocks(
    cause: Cause,
    cells: Mapping[CellKey, Seen],
    listed: Mapping[CellKey, frozenset[str]],
    planned: Collection[CellKey],
) -> list[Block]:
    """Blocks that expect ``cells`` to be just as they were seen, and speak of no other planned cell.

    ``listed`` are layouts that blocks which stay list for a cell already.
    """
    groups: dict[tuple[ExpectedOutcome, str | None], list[CellKey]] = {}
    for key, seen in cells.items():
        group = (ADDABLE[seen.observed.outcome], _raises(seen))
        groups.setdefault(group, []).append(key)
    blocks = []
    for (outcome, raises), keys in groups.items():
        needed = {key: cells[key].observed.layouts - listed.get(key, frozenset()) for key in keys}
        for layouts, members in _shared(needed, cells):
            among = set(members)
            forbidden = Forbidden(key for key in planned if key not in among)
            for box in decompose(members, forbidden, mix_clauses=False):
                blocks.append(
                    Block(
                        line=0,
                        clause=tuple(sorted(box.clauses)),
                        op=tuple(sorted(box.ops)),
                        # A case has no dtype, and a block says nothing of it then.
                        dtype=("*",) if box.dtypes == {""} else tuple(sorted(box.dtypes)),
                        layouts=layouts or None,
                        outcome=outcome,
                        raises=raises,
                        kind=cause.kind,
                        reason=cause.reason,
                        issue=cause.issue,
                        expires=cause.expires,
                    )
                )
    return blocks


def _raises(seen: Seen) -> str | None:
    """The exception type, where it is a name that a manifest can hold."""
    name = seen.observed.raises
    return name if name is not None and name.isidentifier() else None


def _shared(
    needed: Mapping[CellKey, frozenset[str]], cells: Mapping[CellKey, Seen]
) -> Iterable[tuple[frozenset[str], Sequence[CellKey]]]:
    """Cells that fail in the same layouts; of one op, apart from those that a dtype did not run."""
    exact: dict[frozenset[str], list[CellKey]] = {}
    for key, layouts in needed.items():
        exact.setdefault(layouts, []).append(key)
    groups: list[tuple[frozenset[str], list[CellKey]]] = []
    for layouts in sorted(exact, key=lambda each: (-len(each), sorted(each))):
        members = exact[layouts]
        for more, others in groups:
            # A group without layouts takes any: nothing may join it, and it may join none.
            ops = {key.op for key in others}
            if layouts and layouts <= more:
                joining = [key for key in members if key.op in ops and not cells[key].passed & more]
                others += joining
                members = [key for key in members if key not in joining]
        if members:
            groups.append((layouts, members))
    return groups
