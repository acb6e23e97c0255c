"""The plan of a run as its ``plan.json`` holds it: checked, and unfolded into cells.

The document is written by the suite and read here without it. Whatever does not have the form
below is a ``RunError`` that names the place.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from sys import intern
from typing import Any

import msgspec

from devices.cell import CellKey
from devices.errors import ConformError

FORMAT = 1

# Keys that the writer adds beside the document, and the reader takes off again.
ADDED = ("provenance", "files")

# A family names a file (``junit-<family>.xml``), so it must be harmless as a file name.
_FAMILY = re.compile(r"[a-z][a-z0-9_]*")

# Clauses that are written down and not checked yet; they have no cells and are never counted.
PLANNED = "planned"

Folded = list[tuple[str, dict[str, list[str]]]]


class RunError(ConformError):
    """A run that cannot be read or written: damaged, edited, or not a run at all.

    Exits 4: the input is unusable. A readable run that lacks outcomes is no error; the gate
    answers it with 2.
    """


class Clause(msgspec.Struct, frozen=True):
    """What the reports need of a clause; the contract's snapshot holds more."""

    id: str
    family: str
    status: str
    provisional: bool = False  # reported, and not gating, for one minor version
    statement: str = ""
    requires: tuple[str, ...] = ()  # capabilities
    level: int = 4  # of conformance; without one, the last


class Capability(msgspec.Struct, frozen=True):
    """A capability's declared and probed state; ``probed`` is None where nothing was asked."""

    declared: bool
    probed: bool | None = None


class Exclusion(msgspec.Struct, frozen=True):
    """Ops that a clause leaves out, and why."""

    clause: str
    ops: list[str]
    reason: str


class StatedLevel(msgspec.Struct, frozen=True):
    """A level of conformance: how many cells its list has (``listed``, in that version of it), and which
    planned cells are among them, as (first, length) in plan order. The rest count against the device."""

    level: int
    title: str
    version: str
    listed: int
    planned: list[tuple[int, int]]


class Document(msgspec.Struct, frozen=True):
    """``plan.json``, less what the writer adds."""

    format: int
    hash: str
    device: str
    plan: str
    torch: str
    suite: str
    partial: bool
    selection: dict[str, Any]
    clauses: list[Clause]
    capabilities: dict[str, Capability]
    facts: dict[str, str | int | float | bool | None]
    layouts_version: int | str
    exclusions: list[Exclusion]
    cells: Folded
    selected: Folded | None = None
    levels: list[StatedLevel] = []
    untried: dict[str, dict[str, str]] = {}  # by clause and case or op: not there, or undeclared


@dataclass(frozen=True, slots=True)
class Plan:
    """A checked plan: the document, its clauses by id, and its cells in plan order.

    ``names`` finds a cell by its JUnit names (class name, name). ``selected`` are the cells that
    this run was to run: all of them, unless it was partial or a shard.
    """

    document: Document
    clauses: dict[str, Clause]
    cells: tuple[CellKey, ...]
    selected: tuple[CellKey, ...]
    names: dict[tuple[str, str], CellKey]
    known: frozenset[CellKey]  # the cells, to be asked for one

    def undeclared(self, clause: str) -> tuple[str, ...]:
        """The capabilities that a clause requires and the device does not declare."""
        known = self.document.capabilities
        return tuple(
            name
            for name in self.clauses[clause].requires
            if name not in known or not known[name].declared
        )

    def untried(self, cell: CellKey) -> str:
        """Why a case was not tried on this machine, empty where it was to be."""
        return self.document.untried.get(cell.clause, {}).get(cell.op, "")

    def family(self, cell: CellKey) -> str:
        return self.clauses[cell.clause].family

    @property
    def families(self) -> tuple[str, ...]:
        """The families that have planned cells, in plan order."""
        return tuple(
            dict.fromkeys(self.clauses[clause].family for clause, _ in self.document.cells)
        )


def case_name(cell: CellKey) -> str:
    """The name of the cell's testcase: ``op[dtype]``, or the case's name alone."""
    return f"{cell.op}[{cell.dtype}]" if cell.dtype else cell.op


def fold(cells: Iterable[CellKey]) -> Folded:
    """Cells as the document holds them: one entry a clause, one list of dtypes an op."""
    folded: dict[str, dict[str, list[str]]] = {}
    for clause, op, dtype in cells:
        folded.setdefault(clause, {}).setdefault(op, []).append(dtype)
    return list(folded.items())


def read_plan(
    document: Mapping[str, Any], source: str = "the plan", like: Plan | None = None
) -> Plan:
    """Check a plan document. Raises RunError, whose text begins with ``source``.

    Where ``like`` has the same clauses and cells, its unfolded cells are shared.
    """
    version = document.get("format")
    if version != FORMAT:
        raise RunError(
            f"{source}: expected a plan of format {FORMAT}, got {version!r}: "
            "it was written by another version of the suite, or is not a plan"
        )
    try:
        parsed = msgspec.convert(document, Document)
    except msgspec.ValidationError as error:
        raise RunError(f"{source}: not a plan: {error}") from None
    clauses = _clauses(parsed, source)
    names: dict[tuple[str, str], CellKey] = {}
    if like is not None and like.document.cells == parsed.cells and like.clauses == clauses:
        cells, names, known = like.cells, like.names, like.known
    else:
        cells = _unfold(parsed.cells, "cells", clauses, names, source)
        known = frozenset(cells)
    selected = cells
    if parsed.selected is not None:
        selected = _unfold(parsed.selected, "selected", clauses, None, source)
        strangers = set(selected) - known
        if strangers:
            raise RunError(
                f"{source}: {len(strangers)} selected cells are not planned, {min(strangers)} first"
            )
    elif parsed.partial:
        raise RunError(f"{source}: a partial run must say which cells were selected")
    for level in parsed.levels:
        _check_level(level, len(cells), source)
    return Plan(parsed, clauses, cells, selected, names, known)


def _check_level(level: StatedLevel, cells: int, source: str) -> None:
    end = 0
    for first, length in level.planned:
        if first < end or length < 1:
            raise RunError(f"{source}: level {level.level} has its cells out of order, at {first}")
        end = first + length
    planned = sum(length for _, length in level.planned)
    if end > cells or planned > level.listed:
        raise RunError(
            f"{source}: level {level.level} lists {level.listed:,} cells and claims {planned:,}, up to "
            f"the {end:,}th of {cells:,} planned"
        )


def _clauses(document: Document, source: str) -> dict[str, Clause]:
    clauses: dict[str, Clause] = {}
    for clause in document.clauses:
        if clause.id in clauses:
            raise RunError(f"{source}: clause {clause.id!r} is listed twice")
        if not _FAMILY.fullmatch(clause.family):
            raise RunError(
                f"{source}: clause {clause.id!r} is of family {clause.family!r}; expected "
                "lower-case letters, digits and underscores"
            )
        clauses[clause.id] = clause
    return clauses


def _unfold(
    folded: Folded,
    part: str,
    clauses: Mapping[str, Clause],
    names: dict[tuple[str, str], CellKey] | None,
    source: str,
) -> tuple[CellKey, ...]:
    """The cells of a part of the document, each once; ``names`` is filled with them by clause and name."""
    cells: list[CellKey] = []
    for name, ops in folded:
        clause = clauses.get(name)
        if clause is None:
            raise RunError(f"{source}: {part} name the clause {name!r}, which is not in clauses")
        if clause.status == PLANNED:
            raise RunError(f"{source}: {part} name the clause {name!r}, which is not checked yet")
        name = intern(name)  # equal names are one object: a million keys are compared by identity
        for op, dtypes in ops.items():
            if not op or not op.isprintable():
                raise RunError(f"{source}: {part} of {name!r} have the unprintable op {op!r}")
            op = intern(op)
            for dtype in dtypes:
                if not dtype.isprintable():
                    raise RunError(f"{source}: {part} of {name!r} have the dtype {dtype!r}")
                cell = CellKey(name, op, intern(dtype))
                cells.append(cell)
                if names is not None:
                    names[name, case_name(cell)] = cell
    if len(set(cells) if names is None else names) != len(cells):
        seen: set[tuple[str, str]] = set()
        for cell in cells:
            if (cell.clause, case_name(cell)) in seen:
                raise RunError(f"{source}: {part} hold {cell} twice")
            seen.add((cell.clause, case_name(cell)))
    return tuple(cells)


def digest(document: Mapping[str, Any]) -> str:
    """SHA-256 of the document, the order of its entries included; binds the JUnit files to it."""
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def parse_document(text: bytes, source: str) -> dict[str, Any]:
    """Read JSON that must be one object, without repeated keys. Raises RunError."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise RunError(f"{source}: an object holds the same key twice")
        return found

    def number(name: str) -> Any:
        raise RunError(f"{source}: {name} is no JSON number")

    try:
        document = json.loads(text, object_pairs_hook=unique, parse_constant=number)
    except RecursionError:
        raise RunError(f"{source}: nested too deeply") from None
    except ValueError as error:  # JSONDecodeError and UnicodeDecodeError
        raise RunError(f"{source}: not JSON (truncated?): {error}") from None
    if not isinstance(document, dict):
        raise RunError(f"{source}: expected a JSON object, got {type(document).__name__}")
    return document
