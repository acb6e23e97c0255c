"""Reads the list of cells that must pass on a device, ``must_pass.toml``.

A young backend gates a list of its own: the cells that it has promised. All other cells run and are reported, and do not
turn the gate red.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from devices.cell import CellKey
from devices.errors import ConformError, listing, suggestion
from devices.files import explained, read_regular, tomllib
from devices.manifest import AXES, Block, BlockError, ExpectedOutcome, Known, Manifest, read_axes
from devices.verdicts import Matcher

_KEYS: Final = (*AXES, "reason")


class MustPassError(ConformError):
    """The error for a list that cannot be read, or that names cells which no plan has. The text of the error gives file
    and entry."""


@dataclass(frozen=True, slots=True)
class MustPass:
    """The entries of a list. Each has the patterns of cells, as a block of a manifest has."""

    path: Path
    entries: tuple[Block, ...]

    def cells(self, planned: Sequence[CellKey]) -> frozenset[CellKey]:
        """Returns the planned cells that the list names. Raises MustPassError if an entry names none: a misspelled list
        would otherwise let every failure pass."""
        matcher = Matcher(Manifest(self.entries))
        listed: set[CellKey] = set()
        used: set[int] = set()
        for cell in planned:
            if blocks := matcher.match(cell).blocks:
                listed.add(cell)
                used.update(block.line for block in blocks)
        for entry in self.entries:
            if entry.line not in used:
                unknown = [op for op in entry.op if not op.endswith("*")]
                ops = {cell.unit for cell in planned}
                near = "".join(suggestion(op, ops) for op in unknown if op not in ops)
                raise MustPassError(
                    f"{self.path}: entry {entry.line} matches no planned cell{near}; correct it, or judge a run of a "
                    "larger plan"
                )
        return frozenset(listed)


def read_must_pass(path: Path, known: Known) -> MustPass:
    """Reads a list. ``known`` may have the existing clauses (``clause``). Raises MustPassError."""
    with explained(MustPassError, path, "cannot be read"):
        raw = read_regular(path)
    try:
        document = tomllib.loads(raw.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise MustPassError(f"{path}: expected TOML: {error}") from None
    tables = document.get("must_pass")
    if set(document) != {"must_pass"} or not isinstance(tables, list) or not tables:
        raise MustPassError(
            f"{path}: expected one or more [[must_pass]] tables, found the keys {listing(document)}"
        )
    entries = [_entry(table, number, path, known) for number, table in enumerate(tables, 1)]
    return MustPass(path, tuple(entries))


def _entry(table: object, number: int, path: Path, known: Known) -> Block:
    where = f"{path}: entry {number}"
    if not isinstance(table, dict):
        raise MustPassError(f"{where}: expected a table, with a clause")
    if unknown := sorted(set(table) - set(_KEYS)):
        near = suggestion(unknown[0], _KEYS)
        raise MustPassError(f"{where}: unknown key '{unknown[0]}'{near} (known: {listing(_KEYS)})")
    if "clause" not in table:
        raise MustPassError(
            f"{where}: the key 'clause' is missing, such as clause = \"layout.values\""
        )
    reason = table.get("reason", "must pass")
    if not isinstance(reason, str):
        raise MustPassError(f"{where}: 'reason' must be a string")
    try:
        axes = read_axes(table, known)
    except BlockError as error:
        raise MustPassError(f"{where}: {error}") from None
    return Block(line=number, path=path, outcome=ExpectedOutcome.FAIL, reason=reason, **axes)


def promised(path: Path, known: Collection[str], planned: Sequence[CellKey]) -> frozenset[CellKey]:
    """Returns the planned cells that the list in a file names. ``known`` are the ids of all clauses."""
    return read_must_pass(path, {"clause": known}).cells(planned)
