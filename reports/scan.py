"""A family's JUnit file read for its statuses alone, an order of magnitude faster than in full.

What the writer makes is one canonical text: a testcase per planned cell, in plan order. Such a file
is read by position, a block at a time, with no object for a plain pass. Whatever differs from that
text in a single byte is left to ``reports.junit_read``, which reads every form that is allowed and
says what is wrong with the others. So nothing is accepted here that is refused there: a document
type, an entity or an unknown element is never canonical.
"""

from __future__ import annotations

import hashlib
import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final
from xml.sax.saxutils import quoteattr

import msgspec

from devices.cell import CellKey, Outcome, Verdict
from reports.junit import MISSING, PLAN_DIGEST, Counts, clean, element_of
from reports.junit_read import details_reader, layout_sets, read_suite
from reports.model import CellResult, problem_with
from reports.plan import Plan, RunError, case_name

_BLOCK: Final = 8 << 20

# A suite's head is its properties; one longer than this is not canonical.
_LONGEST_HEAD: Final = 32 << 20

_HEADER: Final = (
    rb' tests="(\d+)" failures="(\d+)" errors="(\d+)"(?: skipped="(\d+)")? time="[\d.]+"'
)
_VALUE: Final = rb"""(?:"([^"<>\r\n\t]*)"|'([^'<>\r\n\t]*)')"""
_OPENING: Final = re.compile(
    rb'<\?xml version="1\.0" encoding="utf-8"\?>\n<testsuites name="torch-conformance"'
    + _HEADER
    + rb">\n<testsuite name="
    + _VALUE
    + _HEADER
    + rb" timestamp="
    + _VALUE
    + rb"(?: hostname="
    + _VALUE
    + rb")?>\n<properties>\n"
)
_PROPERTY: Final = re.compile(rb"<property name=" + _VALUE + rb" value=" + _VALUE + rb"/>\n")
_PROPERTIES_END: Final = b"</properties>\n"
_CASE_END: Final = b"</testcase>\n"
_CLOSING: Final = b"</testsuite>\n</testsuites>\n"
_PASS: Final = re.compile(
    rb' time="(\d+\.\d{6})"><system-out>conform (\{[^<>&\r\n]*\})</system-out></testcase>\n'
)
_OTHER: Final = re.compile(
    rb' time="(\d+\.\d{6})">(?:<(failure|error|skipped) type="([a-z-]+)" message='
    + _VALUE
    + rb">([^<>\r]*)</\2>)?<system-out>([^<>\r]*)</system-out></testcase>\n"
)
_MISSING: Final = (
    b'><error type="missing" message="planned and selected, and has no outcome"/></testcase>\n'
)
_REFERENCE: Final = re.compile("&([^;&]*);?")
_REFERENCES: Final = {
    "amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'", "#10": "\n", "#13": "\r", "#9": "\t",
}  # fmt: skip

# Bytes that XML 1.0 cannot hold, and the carriage return, which a parser would change.
_ILLEGAL: Final = bytes(set(range(0x20)) - {0x09, 0x0A})
_NONCHARACTERS: Final = (b"\xef\xbf\xbe", b"\xef\xbf\xbf")


class _NotCanonical(Exception):
    """The text is not what the writer makes: the full reader has the word."""


@dataclass(slots=True)
class Scanned:
    """A family's results by position in ``cells``, those planned for it.

    ``told`` holds every result that is not a plain pass (see ``is_plain``); ``missing`` the
    positions that have no result. A plain pass is known by its counts alone.
    """

    cells: Sequence[CellKey]
    properties: dict[str, str] = field(default_factory=dict)
    told: dict[int, CellResult] = field(default_factory=dict)
    missing: list[int] = field(default_factory=list)
    checks: array[int] = field(default_factory=lambda: array("Q"))
    samples: array[int] = field(default_factory=lambda: array("Q"))
    results: dict[CellKey, CellResult] | None = None  # every result, where they are asked for

    def add(self, result: CellResult | None) -> None:
        """Take the next cell's result."""
        position = len(self.checks)
        if result is not None and self.results is not None:
            self.results[self.cells[position]] = result
        if result is None:
            self.missing.append(position)
        elif not is_plain(result):
            self.told[position] = result
        self.checks.append(0 if result is None else max(result.checks, 0))
        self.samples.append(0 if result is None else max(result.samples, 0))


def is_plain(result: CellResult) -> bool:
    """A pass that nothing more is to be told of: verdict ok, and evidence (``problem_with``)."""
    return (
        result.outcome is Outcome.PASS
        and result.verdict is Verdict.OK
        and problem_with(result) is None
    )


class _Pass(msgspec.Struct, forbid_unknown_fields=True):
    """The details of a plain pass. Any other field is for the full reader."""

    checks: int
    samples: int = 0
    ran: int = -1
    worst_error: float | str | None = None
    seconds: float | None = None
    worker: str = ""


_decode_pass = msgspec.json.Decoder(_Pass).decode


def scan_suite(
    path: Path, family: str, cells: Sequence[CellKey], plan: Plan, sha256: str, bound: str
) -> Scanned:
    """Read the file of one family; ``cells`` are those planned for it, in plan order.

    ``bound`` is the digest of the plan's document. Raises RunError as ``read_suite`` does.
    """
    try:
        scanned = _scan(path, family, cells, plan, sha256)
    except (_NotCanonical, OSError):
        scanned = _in_full(path, family, cells, plan, sha256)
    if scanned.properties.get(PLAN_DIGEST) != bound:
        raise RunError(f"{path}: belongs to another plan than {path.parent / 'plan.json'}")
    return scanned


def results_of(
    path: Path, family: str, cells: Sequence[CellKey], plan: Plan, sha256: str
) -> tuple[dict[str, str], dict[CellKey, CellResult | None]]:
    """The properties and every result of a family's file, as ``read_suite`` gives them. Raises RunError as it
    does."""
    try:
        scanned = _scan(path, family, cells, plan, sha256, keep=True)
    except (_NotCanonical, OSError):
        suite = read_suite(path, family, plan, sha256)
        return suite.properties, suite.results
    found: dict[CellKey, CellResult | None] = dict(scanned.results or {})
    found.update({scanned.cells[position]: None for position in scanned.missing})
    return scanned.properties, found


def _in_full(path: Path, family: str, cells: Sequence[CellKey], plan: Plan, sha256: str) -> Scanned:
    suite = read_suite(path, family, plan, sha256)
    scanned = Scanned(cells, suite.properties)
    for cell in cells:
        if cell not in suite.results:
            raise RunError(f"{path}: lacks cells of the plan, {cell} first")
        scanned.add(suite.results[cell])
    return scanned


def _scan(
    path: Path,
    family: str,
    cells: Sequence[CellKey],
    plan: Plan,
    sha256: str,
    *,
    keep: bool = False,
) -> Scanned:
    summed = hashlib.sha256()
    with path.open("rb") as stream:
        blocks = _blocks(stream, summed)
        data = next(blocks)
        header, suite_header, scanned, start = _head(data, family, cells)
        scanned.results = {} if keep else None
        counts = _cases(data, start, blocks, scanned, path, family, plan)
    if header != suite_header[:3] or suite_header != (
        counts.tests, counts.failures, counts.errors, counts.skipped,
    ):  # fmt: skip
        raise _NotCanonical
    if summed.hexdigest() != sha256:
        raise RunError(f"{path}: changed since the run wrote it (SHA-256 differs from plan.json)")
    return scanned


def _blocks(stream: BinaryIO, summed: hashlib._Hash) -> Iterator[bytes]:
    """The file in blocks of whole testcases, the head with the first; each checked as text."""
    held = b""
    head = True
    while True:
        block = stream.read(_BLOCK)
        summed.update(block)
        data = held + block
        if head and _PROPERTIES_END not in data:
            if not block or len(data) > _LONGEST_HEAD:
                raise _NotCanonical
            held = data
            continue
        head = False
        cut = len(data) if not block else data.rfind(_CASE_END) + len(_CASE_END)
        if block and cut < len(_CASE_END):  # no testcase ends here
            if len(data) > _LONGEST_HEAD:
                raise _NotCanonical
            held = data
            continue
        data, held = data[:cut], data[cut:]
        _check_text(data)
        yield data
        if not block:
            return


def _check_text(data: bytes) -> None:
    """Refuse what is not UTF-8, and what XML cannot hold."""
    if len(data.translate(None, _ILLEGAL)) != len(data):
        raise _NotCanonical
    if not data.isascii():
        try:
            data.decode("utf-8")
        except UnicodeDecodeError:
            raise _NotCanonical from None
        if any(character in data for character in _NONCHARACTERS):
            raise _NotCanonical


def _head(
    data: bytes, family: str, cells: Sequence[CellKey]
) -> tuple[tuple[int, ...], tuple[int, ...], Scanned, int]:
    opening = _OPENING.match(data)
    if opening is None or opening[4] is not None or opening[10] is None:
        raise _NotCanonical
    if _text(opening[5] if opening[5] is not None else opening[6]) != family:
        raise _NotCanonical
    scanned = Scanned(cells)
    position = opening.end()
    while (found := _PROPERTY.match(data, position)) is not None:
        name, value = (
            _text(found[one] if found[one] is not None else found[one + 1]) for one in (1, 3)
        )
        if name in scanned.properties:
            raise _NotCanonical
        scanned.properties[name] = value
        position = found.end()
    if not data.startswith(_PROPERTIES_END, position):
        raise _NotCanonical
    whole = tuple(int(opening[group]) for group in (1, 2, 3))
    suite = tuple(int(opening[group]) for group in (7, 8, 9, 10))
    return whole, suite, scanned, position + len(_PROPERTIES_END)


def _cases(
    data: bytes,
    position: int,
    blocks: Iterator[bytes],
    scanned: Scanned,
    path: Path,
    family: str,
    plan: Plan,
) -> Counts:
    """Every testcase, in plan order, up to the end of the file."""
    counts = Counts()
    sets = layout_sets(scanned.properties, path)
    read = details_reader(path, family, plan, sets)
    passes: dict[bytes, _Pass | None] = {}
    kept = scanned.results
    checks, samples = scanned.checks.append, scanned.samples.append
    match_pass = _PASS.match
    end = len(data)
    for index, (cell, prefix) in enumerate(zip(scanned.cells, _prefixes(scanned.cells))):
        if position >= end:
            data, position = next(blocks, b""), 0
            end = len(data)
        if not data.startswith(prefix, position):
            raise _NotCanonical
        position += len(prefix)
        found = match_pass(data, position)
        if found is not None:
            wire = found[2]
            known = passes[wire] if wire in passes else _plain(wire, len(sets), passes)
            if known is not None:
                checks(known.checks)
                samples(known.samples)
                if kept is not None:
                    kept[cell] = _passed(cell, known, found[1], sets)
                position = found.end()
                continue
        position = _told(data, position, cell, index, scanned, counts, read)
    counts.tests = len(scanned.cells)
    if data[position:] + b"".join(blocks) != _CLOSING:
        raise _NotCanonical
    return counts


def _prefixes(cells: Sequence[CellKey]) -> Iterator[bytes]:
    """How each testcase begins: its class name and its name."""
    names: dict[tuple[str, str], bytes] = {}
    last, opened = None, b""
    for cell in cells:
        clause, op, dtype = cell
        if clause != last:
            last, opened = clause, f"<testcase classname={quoteattr(clean(clause))}".encode()
        name = names.get((op, dtype))
        if name is None:
            name = names[op, dtype] = f" name={quoteattr(clean(case_name(cell)))}".encode()
        yield opened + name


def _plain(wire: bytes, sets: int, passes: dict[bytes, _Pass | None]) -> _Pass | None:
    """The details of a plain pass, kept in ``passes``; None for anything that the full reader must see."""
    told: _Pass | None
    try:
        told = _decode_pass(wire)
    except msgspec.DecodeError:
        told = None
    if told is not None:
        sound = 0 < told.checks < 2**63 and 0 <= told.samples < 2**63 and -1 <= told.ran < sets
        sound = sound and not isinstance(told.worst_error, str)  # infinities go as text
        if not sound or (told.seconds is not None and not told.seconds >= 0):
            told = None
    passes[wire] = told
    return told


def _passed(cell: CellKey, told: _Pass, time: bytes, sets: Sequence[tuple[str, ...]]) -> CellResult:
    return CellResult(
        cell,
        Outcome.PASS,
        Verdict.OK,
        "",
        told.checks,
        told.samples,
        (),
        sets[told.ran] if told.ran >= 0 else (),
        None if told.worst_error is None else float(told.worst_error),
        None,
        "",
        None,
        float(time) if told.seconds is None else told.seconds,
        told.worker,
    )


def _told(
    data: bytes,
    position: int,
    cell: CellKey,
    index: int,
    scanned: Scanned,
    counts: Counts,
    read: Callable[[CellKey, str, str], CellResult],
) -> int:
    """A testcase that is no plain pass. Returns where it ends."""
    if data.startswith(_MISSING, position):
        scanned.add(None)
        counts.add(MISSING[0])
        return position + len(_MISSING)
    found = _OTHER.match(data, position)
    if found is None:
        raise _NotCanonical
    if found[2] is not None:
        for shown in (found[4] if found[4] is not None else found[5], found[6]):
            _text(shown)
    result = read(cell, found[1].decode(), _text(found[7]))
    element = element_of(result)
    came = None if found[2] is None else (found[2].decode(), found[3].decode())
    if element != came:
        raise _NotCanonical  # the full reader says why
    counts.add(None if element is None else element[0])
    scanned.add(result)
    return found.end()


def _text(raw: bytes) -> str:
    """Text between tags or quotes. Only the writer's own references are known."""
    text = raw.decode("utf-8")
    if "&" not in text:
        return text

    def known(reference: re.Match[str]) -> str:
        found = _REFERENCES.get(reference[1])
        if found is None or not reference[0].endswith(";"):
            raise _NotCanonical
        return found

    return _REFERENCE.sub(known, text)
