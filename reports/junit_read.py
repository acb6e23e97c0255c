"""A run's JUnit files read back, and refused unless every part of them agrees.

The files are evidence, so nothing is skipped or repaired: only the elements that the writer makes
are known, DTDs and entities are refused, header counts must equal the elements, each element must
follow from the result beside it, and every cell must be planned and present once. Read as a
stream.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, NoReturn
from xml.parsers import expat

import msgspec

from devices.cell import CellKey, Outcome, Verdict
from reports.junit import MARK, MISSING, PLAN_DIGEST, RAN_LAYOUTS, Counts, Element, element_of
from reports.model import CellResult, Example, Provenance, problem_with
from reports.plan import Plan, RunError

_CHUNK = 1 << 20

# What may stand in what: each element's children, as nested mappings.
_Grammar = dict[str, Any]
_CASE: _Grammar = {"failure": {}, "error": {}, "skipped": {}, "system-out": {}}
_GRAMMAR: _Grammar = {
    "testsuites": {"testsuite": {"properties": {"property": {}}, "testcase": _CASE}}
}
_VERDICT_TAGS = frozenset({"failure", "error", "skipped"})


class _Wire(msgspec.Struct, forbid_unknown_fields=True):
    """The JSON of a testcase, see ``reports.junit.wire_of``."""

    outcome: Outcome = Outcome.PASS
    verdict: Verdict = Verdict.OK
    why: str = ""
    checks: int = 0
    samples: int = 0
    layouts: tuple[str, ...] = ()
    ran: int | None = None
    worst_error: float | str | None = None
    raises: str | None = None
    message: str = ""
    repro: str | None = None
    seconds: float | str | None = None
    worker: str = ""
    example: Example | None = None


_decode = msgspec.json.Decoder(_Wire).decode


@dataclass(slots=True)
class Suite:
    """What one file held: its suite's properties, and the result of each of its cells.

    The value is None for a cell that was written as missing.
    """

    family: str
    properties: dict[str, str] = field(default_factory=dict)
    results: dict[CellKey, CellResult | None] = field(default_factory=dict)


def read_suite(path: Path, family: str, plan: Plan, sha256: str) -> Suite:
    """Read the file of one family. Raises RunError naming the file and what is wrong with it."""
    reader = _Reader(path, family, plan)
    summed = hashlib.sha256()
    try:
        with path.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                summed.update(chunk)
                reader.feed(chunk, last=False)
        reader.feed(b"", last=True)
    except FileNotFoundError:
        raise RunError(f"{path}: missing, though the plan has cells of {family}") from None
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror or error}") from None
    except expat.ExpatError as error:
        raise RunError(f"{path}: not well-formed XML (truncated?): {error}") from None
    if summed.hexdigest() != sha256:
        raise RunError(f"{path}: changed since the run wrote it (SHA-256 differs from plan.json)")
    return reader.suite


def details_reader(
    path: Path, family: str, plan: Plan, sets: list[tuple[str, ...]]
) -> Callable[[CellKey, str, str], CellResult]:
    """A reader of single testcases: (cell, time, system-out) to a result. It raises RunError.

    ``sets`` are the suite's numbered sets of layouts.
    """
    reader = _Reader(path, family, plan)
    return partial(reader.details, sets)


def layout_sets(properties: Mapping[str, str], source: Path) -> list[tuple[str, ...]]:
    """The suite's numbered sets of layouts. Raises RunError where they are malformed."""
    try:
        return msgspec.json.decode(properties.get(RAN_LAYOUTS, ""), type=list[tuple[str, ...]])
    except msgspec.DecodeError as error:
        raise RunError(f"{source}: property {RAN_LAYOUTS!r} is malformed: {error}") from None


def provenance_of(properties: Mapping[str, str], source: Path) -> Provenance:
    """Read a suite's properties back. Raises RunError where one is missing or malformed."""
    values: dict[str, str | int | bool] = {}
    for known in fields(Provenance):
        text = properties.get(known.name)
        if text is None:
            raise RunError(f"{source}: has no property {known.name!r}")
        if known.type == "bool":
            if text not in ("true", "false"):
                raise RunError(f"{source}: property {known.name!r} is {text!r}, no truth value")
            values[known.name] = text == "true"
        elif known.type == "int":
            try:
                values[known.name] = int(text)
            except ValueError:
                raise RunError(
                    f"{source}: property {known.name!r} is {text!r}, no integer"
                ) from None
        else:
            values[known.name] = text
    return Provenance(**values)  # type: ignore[arg-type]  # each was read by its field's type


class _Reader:
    """The state of one parse. expat calls it for every element."""

    def __init__(self, path: Path, family: str, plan: Plan) -> None:
        self.suite = Suite(family)
        self._path = path
        self._plan = plan
        self._clauses = {clause.id for clause in plan.clauses.values() if clause.family == family}
        self._allowed = [_GRAMMAR]  # a stack: what may stand in each open element
        self._headers: list[dict[str, str]] = []
        self._counts = Counts()
        self._suites = 0
        self._sets: list[tuple[str, ...]] | None = None
        self._cell = CellKey("", "", "")
        self._time: str | None = None
        self._element: Element | None = None
        self._out: list[str] | None = None
        self._details: str | None = None  # the testcase's system-out, once read
        parser = expat.ParserCreate("utf-8")  # whatever the file declares
        parser.buffer_text = True
        parser.buffer_size = 1 << 16
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text
        parser.StartDoctypeDeclHandler = self._doctype
        parser.EntityDeclHandler = self._entity
        self._parser = parser

    def details(
        self, sets: list[tuple[str, ...]], cell: CellKey, time: str, text: str
    ) -> CellResult:
        """The result of one testcase, by the text of its system-out. Raises RunError."""
        self._sets, self._cell, self._time = sets, cell, time
        return self._result(text)

    def feed(self, data: bytes, *, last: bool) -> None:
        self._parser.Parse(data, last)

    def _refuse(self, problem: str) -> NoReturn:
        raise RunError(f"{self._path}:{self._parser.CurrentLineNumber}: {problem}")

    def _doctype(self, *_: object) -> None:
        self._refuse("has a document type declaration, which a run never writes")

    def _entity(self, *_: object) -> None:
        self._refuse("declares an entity, which a run never writes")

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        allowed = self._allowed[-1].get(tag)
        if allowed is None:
            expected = " or ".join(f"<{name}>" for name in self._allowed[-1]) or "text alone"
            self._refuse(f"unexpected element <{tag[:80]}>, expected {expected}")
        self._allowed.append(allowed)
        if tag == "testcase":
            self._open_case(attributes)
        elif tag == "system-out":
            if self._details is not None:
                self._refuse(f"{self._cell} has two <system-out>")
            self._out = []
        elif tag in _VERDICT_TAGS:
            if self._element is not None:
                self._refuse(f"{self._cell} is told twice what became of it")
            self._element = (tag, attributes.get("type", ""))
        elif tag == "property":
            name, value = attributes.get("name"), attributes.get("value")
            if name is None or value is None or name in self.suite.properties:
                self._refuse(f"property {name!r} is incomplete or repeated")
            self.suite.properties[name] = value
        elif tag in ("testsuites", "testsuite"):
            self._headers.append(attributes)
            if tag == "testsuite":
                self._open_suite(attributes)

    def _open_suite(self, attributes: Mapping[str, str]) -> None:
        self._suites += 1
        if self._suites > 1:
            self._refuse("holds a second suite; expected one family a file")
        if attributes.get("name") != self.suite.family:
            self._refuse(f"holds {attributes.get('name')!r}, expected {self.suite.family!r}")

    def _open_case(self, attributes: Mapping[str, str]) -> None:
        names = (attributes.get("classname", ""), attributes.get("name", ""))
        cell = self._plan.names.get(names)
        if cell is None:
            self._refuse(f"the cell {names[0]}::{names[1]} is not in the plan")
        if cell.clause not in self._clauses:
            self._refuse(f"{cell} is not of the family {self.suite.family}")
        if cell in self.suite.results:
            self._refuse(f"{cell} appears twice")
        self._cell, self._time = cell, attributes.get("time")
        self._element = self._details = None

    def _text(self, data: str) -> None:
        if self._out is not None:
            self._out.append(data)

    def _end(self, tag: str) -> None:
        if tag == "testcase":
            self._close_case()
        elif tag == "system-out":
            self._details = "".join(self._out or ())
            self._out = None
        elif tag == "testsuite":
            self._check_header(self._headers.pop(), skipped=True)
        elif tag == "testsuites":
            if self._suites != 1:
                self._refuse("holds no suite")
            self._check_header(self._headers.pop(), skipped=False)
        elif tag == "properties":
            self._sets = self._read_sets()
        self._allowed.pop()

    def _read_sets(self) -> list[tuple[str, ...]]:
        if PLAN_DIGEST not in self.suite.properties:
            self._refuse(f"has no property {PLAN_DIGEST!r}")
        text = self.suite.properties.get(RAN_LAYOUTS)
        try:
            return msgspec.json.decode(text or "", type=list[tuple[str, ...]])
        except msgspec.DecodeError as error:
            self._refuse(f"property {RAN_LAYOUTS!r} is malformed: {error}")

    def _check_header(self, header: Mapping[str, str], *, skipped: bool) -> None:
        for name in ("tests", "failures", "errors") + (("skipped",) if skipped else ()):
            counted = getattr(self._counts, name)
            if header.get(name) != str(counted):
                self._refuse(f"its header says {name}={header.get(name)!r}, it holds {counted}")

    def _close_case(self) -> None:
        text, element = self._details, self._element
        self._counts.add(None if element is None else element[0])
        if text is None:
            if element != MISSING:
                self._refuse(f"{self._cell} has no details (<system-out>)")
            self.suite.results[self._cell] = None
            return
        result = self._result(text)
        follows = element_of(result)
        if follows != element:
            problem = problem_with(result)
            self._refuse(
                f"{self._cell} {problem}"
                if problem is not None
                else f"{self._cell} is {result.outcome}, {result.verdict}, so expected "
                f"{_shown(follows)}, got {_shown(element)}"
            )
        self.suite.results[self._cell] = result

    def _result(self, text: str) -> CellResult:
        line = text.partition("\n")[0]
        if not line.startswith(MARK):
            self._refuse(f"{self._cell}: details must begin with {MARK!r}, got {line[:40]!r}")
        try:
            wire = _wire(line[len(MARK) :])
            seconds = float(self._time or "") if wire.seconds is None else float(wire.seconds)
            worst = None if wire.worst_error is None else float(wire.worst_error)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            self._refuse(f"{self._cell}: details are malformed: {error}")
        return CellResult(
            self._cell,
            wire.outcome,
            wire.verdict,
            wire.why,
            wire.checks,
            wire.samples,
            wire.layouts,
            self._ran(wire.ran),
            worst,
            wire.raises,
            wire.message,
            wire.repro,
            seconds,
            wire.worker,
            wire.example,
        )

    def _ran(self, index: int | None) -> tuple[str, ...]:
        if index is None:
            return ()
        if self._sets is None or not 0 <= index < len(self._sets):
            self._refuse(f"{self._cell}: there is no set {index} of layouts")
        return self._sets[index]


def _wire(text: str) -> _Wire:
    try:
        return _decode(text)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        # Lone surrogates in a message are legal for Python's reader alone.
        return msgspec.convert(json.loads(text), _Wire)


def _shown(element: Element | None) -> str:
    return "no element" if element is None else f'<{element[0]} type="{element[1]}">'
