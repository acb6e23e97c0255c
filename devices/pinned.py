"""Pinned examples: calls and programs on which a device once deviated, kept in ``pinned.jsonl`` of its folder.

One JSON object a line, sorted by cell and id, so that two branches that pin different examples merge. Every
plan of the device includes them. A line of format 1 holds a ``call`` in ``layouts``, one of format 2 a
``program`` of a case that draws them. What these mean is the suite's business
(``conformance/explore/encoding.py``, ``conformance/explore/programs.py``); here they are plain data.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, Final

from devices.cell import CellKey
from devices.errors import ConformError

FILE: Final = "pinned.jsonl"
CALL, PROGRAM = 1, 2  # formats of lines
_COMMON: Final = frozenset({"clause", "op", "dtype", "kind", "reason", "date", "format"})
_FIELDS: Final = {CALL: _COMMON | {"call", "layouts"}, PROGRAM: _COMMON | {"program"}}

#: How a pinned example is named where layouts are: ``pinned:1f0c9a2b``.
PREFIX: Final = "pinned:"


class PinnedError(ConformError):
    """A ``pinned.jsonl`` that cannot be read. The text names file and line, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned:
    """One pinned example: a call, or a program where ``dtype`` is empty and ``op`` the name of a case.

    ``kind`` is how it failed when it was found (``values``, ``strides``, …). Fields of the other sort
    are empty.
    """

    clause: str
    op: str
    dtype: str
    call: dict[str, Any] = field(default_factory=dict)
    layouts: dict[str, str] = field(default_factory=dict)  # of ``first``, ``rest`` and ``target``
    program: tuple[Any, ...] = ()  # numbers, texts and lists of them
    kind: str
    reason: str
    date: str  # ISO 8601, the day on which it was pinned

    @property
    def cell(self) -> CellKey:
        return CellKey(self.clause, self.op, self.dtype)

    @property
    def format(self) -> int:
        """The format of its line."""
        return CALL if self.dtype else PROGRAM

    @property
    def id(self) -> str:
        """Eight hex digits over the cell and what is pinned: equal examples have one id."""
        held = [self.call, self.layouts] if self.format == CALL else [list(self.program)]
        parts = [self.clause, self.op, self.dtype, *held]
        text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()

    @property
    def layout(self) -> str:
        """Its name among the layouts of a report or a manifest."""
        return PREFIX + self.id


def read_pinned(folder: Path | None) -> tuple[Pinned, ...]:
    """The pinned examples of a device folder, none where it has no file. Raises PinnedError."""
    if folder is None or not (path := folder / FILE).exists():
        return ()
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PinnedError(f"{path}: cannot be read: {error}") from None
    found: dict[str, Pinned] = {}
    for number, line in enumerate(lines, 1):
        if line.strip():
            pinned = _read(line, f"{path}:{number}")
            found[pinned.id] = pinned
    return ordered(found.values())


def _read(line: str, place: str) -> Pinned:
    advice = "mend the line or remove it (`conform pin RUN` writes the file)"
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise PinnedError(f"{place}: not JSON: {error}; {advice}") from None
    if not isinstance(data, dict):
        raise PinnedError(f"{place}: expected a JSON object, got {type(data).__name__}; {advice}")
    if (form := data.pop("format", None)) not in (CALL, PROGRAM):
        raise PinnedError(
            f"{place}: expected format {CALL} or {PROGRAM}, got {form!r}: it was written by "
            f"another version of the suite; {advice}"
        )
    given = data.pop("id", None)
    if odd := ", ".join(sorted(set(data) ^ (_FIELDS[form] - {"format"}))):
        raise PinnedError(f"{place}: missing or unknown: {odd}; {advice}")
    texts = ["clause", "op", "kind", "reason", "date", *(["dtype"] if form == CALL else [])]
    if bad := [n for n in texts if not isinstance(data[n], str) or not data[n].strip()]:
        raise PinnedError(f"{place}: {', '.join(bad)}: expected a text that is not blank; {advice}")
    if form == PROGRAM:
        if data["dtype"] != "" or not isinstance(data["program"], list) or not data["program"]:
            raise PinnedError(
                f"{place}: expected 'program' as a list that is not empty, and 'dtype' as \"\"; {advice}"
            )
        data["program"] = tuple(data["program"])
    elif (
        not isinstance(data["call"], dict)
        or not isinstance(layouts := data["layouts"], dict)
        or not all(isinstance(v, str) for v in layouts.values())
    ):
        raise PinnedError(f"{place}: expected 'call' and 'layouts' as objects; {advice}")
    try:
        date.fromisoformat(data["date"])
    except ValueError:
        raise PinnedError(
            f"{place}: date {data['date']!r}: expected a day such as 2026-01-31; {advice}"
        ) from None
    pinned = Pinned(**data)
    if given != pinned.id:
        raise PinnedError(f"{place}: id {given!r}: its content has {pinned.id!r}; {advice}")
    return pinned


def ordered(pinned: Iterable[Pinned]) -> tuple[Pinned, ...]:
    """By cell, then by id."""
    return tuple(sorted(pinned, key=lambda p: (p.cell, p.id)))


def add_pinned(folder: Path, new: Iterable[Pinned]) -> tuple[Pinned, ...]:
    """Add examples to a device folder's file; returns those that were not there. Raises PinnedError."""
    before = {p.id: p for p in read_pinned(folder)}
    fresh = {p.id: p for p in new if p.id not in before}
    path = folder / FILE
    text = "".join(line_of(p) + "\n" for p in ordered([*before.values(), *fresh.values()]))
    temporary = path.with_name(f".{FILE}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise PinnedError(f"{path}: cannot be written: {error.strerror or error}") from None
    return ordered(fresh.values())


def line_of(pinned: Pinned) -> str:
    """The example as its line of the file."""
    held = {**asdict(pinned), "format": pinned.format}
    kept = {name: value for name, value in held.items() if name in _FIELDS[pinned.format]}
    return json.dumps({"id": pinned.id, **kept}, separators=(", ", ": "))


def digest(pinned: Iterable[Pinned]) -> str:
    """What a plan's hash says of its pinned examples: ``none``, or 16 hex digits over their ids."""
    ids = sorted(p.id for p in pinned)
    if not ids:
        return "none"
    return hashlib.blake2b(" ".join(ids).encode(), digest_size=8).hexdigest()
