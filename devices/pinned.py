"""Pinned examples: calls and programs with which a device once failed, stored in ``pinned.jsonl`` in the device's
folder.

The file has one JSON object in each line, sorted by cell and id, so that branches that pin different examples can be
merged. Every plan of the device includes the pinned examples. A line of format 1 has the fields
``call`` and ``layouts``, the layouts of the call's tensors; a line of format 2 has the field ``program``, a program of a case
that runs random programs. The meaning of calls and programs is defined in
``conformance/search/explore``; here they are plain data.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from devices.cell import CellKey
from devices.errors import ConformError
from devices.files import explained, read_regular, write_whole

FILE: Final = "pinned.jsonl"
CALL, PROGRAM = 1, 2  # formats of lines

#: The names of pinned examples, which take the place of a layout: ``pinned:1f0c9a2b``.
PREFIX: Final = "pinned:"


class PinnedError(ConformError):
    """The error for a ``pinned.jsonl`` that cannot be read or written. The text of the error names the file and line,
    and says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned:
    """A pinned example, which is a call or a program. For a program, ``dtype`` is empty and ``op`` is the name of a
    case.

    ``kind`` is the kind of the failure for which the example was pinned (``values``, ``strides``, …). For a call,
    ``program`` is empty; for a program, ``call`` and ``layouts`` are empty.
    """

    clause: str
    op: str
    dtype: str
    call: dict[str, Any] = field(default_factory=dict)
    layouts: dict[str, str] = field(default_factory=dict)  # of ``first``, ``rest`` and ``target``
    program: tuple[Any, ...] = ()  # numbers, strings and lists of them
    kind: str
    reason: str
    date: str  # ISO 8601, the day on which it was pinned

    @property
    def cell(self) -> CellKey:
        return CellKey(self.clause, self.op, self.dtype)

    @property
    def format(self) -> int:
        """The number of the format in which the example is written."""
        return CALL if self.dtype else PROGRAM

    @property
    def id(self) -> str:
        """Eight hexadecimal digits of a hash over the cell and the pinned content. Equal examples have equal ids."""
        held = [self.call, self.layouts] if self.format == CALL else [list(self.program)]
        parts = [self.clause, self.op, self.dtype, *held]
        text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()

    @property
    def layout(self) -> str:
        """The name of the example. Reports and manifests use it where they name a layout."""
        return PREFIX + self.id


_Text = Annotated[str, msgspec.Meta(pattern=r"\S")]


class _Line(msgspec.Struct, kw_only=True, tag_field="format", forbid_unknown_fields=True):
    """The fields that the lines of both formats of ``pinned.jsonl`` have."""

    id: str
    clause: _Text
    op: _Text
    kind: _Text
    reason: _Text
    date: date


class _CallLine(_Line, kw_only=True, tag=CALL):
    dtype: _Text
    call: dict[str, Any]
    layouts: dict[str, str]


class _ProgramLine(_Line, kw_only=True, tag=PROGRAM):
    dtype: Annotated[str, msgspec.Meta(max_length=0)]
    program: Annotated[tuple[Any, ...], msgspec.Meta(min_length=1)]


_LINES: Final[msgspec.json.Decoder[_CallLine | _ProgramLine]] = msgspec.json.Decoder(
    _CallLine | _ProgramLine
)


def by_item(pins: Iterable[Pinned]) -> dict[tuple[str, str], tuple[Pinned, ...]]:
    """Returns the pinned examples by op and dtype. Programs are stored under the name of their case and an empty
    dtype."""
    found: dict[tuple[str, str], tuple[Pinned, ...]] = {}
    for pin in pins:
        found[pin.op, pin.dtype] = (*found.get((pin.op, pin.dtype), ()), pin)
    return found


def read_pinned(folder: Path | None) -> tuple[Pinned, ...]:
    """Returns the pinned examples in a device's folder; an empty tuple if the folder has no such file. Raises
    PinnedError."""
    if folder is None or not (path := folder / FILE).exists():
        return ()
    try:
        lines = read_regular(path).decode("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PinnedError(f"{path}: cannot be read: {error}") from None
    read = [
        _read_line(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip()
    ]
    return ordered({pinned.id: pinned for pinned in read}.values())


def _read_line(line: str, place: str) -> Pinned:
    advice = "correct the line or remove it (`conform pin RUN` writes the file)"
    try:
        read = _LINES.decode(line)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise PinnedError(f"{place}: not a pinned example: {error}; {advice}") from None
    held = msgspec.structs.asdict(read) | {"date": read.date.isoformat()}
    given, pinned = held.pop("id"), Pinned(**held)
    if given != pinned.id:
        raise PinnedError(
            f"{place}: the line has the id {given!r}, but its content gives the id {pinned.id!r}; {advice}"
        )
    return pinned


def ordered(pinned: Iterable[Pinned]) -> tuple[Pinned, ...]:
    """Returns the pinned examples sorted by cell, then by id."""
    return tuple(sorted(pinned, key=lambda p: (p.cell, p.id)))


def add_pinned(folder: Path, new: Iterable[Pinned]) -> tuple[Pinned, ...]:
    """Adds examples to the file in a device's folder. Returns the examples that the file did not contain yet. Raises
    PinnedError."""
    before = {p.id: p for p in read_pinned(folder)}
    fresh = {p.id: p for p in new if p.id not in before}
    path = folder / FILE
    text = "".join(line_of(p) + "\n" for p in ordered([*before.values(), *fresh.values()]))
    with explained(PinnedError, path, "cannot be written"):
        if not folder.is_dir():
            raise FileNotFoundError("the folder does not exist")
        write_whole(path, text)
    return ordered(fresh.values())


def line_of(pinned: Pinned) -> str:
    """Returns the line of ``pinned.jsonl`` for a pinned example."""
    other = {"program"} if pinned.format == CALL else {"call", "layouts"}
    held = {name: value for name, value in asdict(pinned).items() if name not in other}
    line = {"id": pinned.id, **held, "format": pinned.format}
    return json.dumps(line, separators=(", ", ": "))


def digest(pinned: Iterable[Pinned]) -> str:
    """Returns the text that stands for pinned examples in the input of a plan's hash: a hash of their ids (16
    hexadecimal digits), or ``none`` if there are no pinned examples."""
    ids = " ".join(sorted(p.id for p in pinned))
    return hashlib.blake2b(ids.encode(), digest_size=8).hexdigest() if ids else "none"
