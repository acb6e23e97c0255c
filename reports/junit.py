"""JUnit XML written from cells: one suite a clause family, one testcase a cell.

The form is that of the Jenkins schema (junit-10.xsd), which GitHub, GitLab and Jenkins read. What
JUnit has no place for stands in each testcase's ``system-out``: a first line ``conform {json}``
without the defaults, from which ``reports.junit_read`` rebuilds the result exactly, then text for
people. Files are written as they go; a suite is never held in memory.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, BinaryIO
from xml.sax.saxutils import escape, quoteattr

import msgspec

from devices.cell import CellKey, Outcome, Verdict
from reports.model import CellResult, Provenance, problem_with
from reports.plan import case_name

# The first word of a testcase's system-out.
MARK = "conform "

# Suite properties that are not provenance.
PLAN_DIGEST = "plan_digest"
RAN_LAYOUTS = "ran_layouts"

_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_HEADLINE = 500

# ASCII alone, so that nothing which XML cannot hold is left in it.
_encode = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode

_encode_fast = msgspec.json.Encoder().encode


def _text_of(wire: Mapping[str, Any]) -> str:
    """JSON of what has no infinities, in ASCII."""
    try:
        text = _encode_fast(wire)
    except (UnicodeEncodeError, msgspec.MsgspecError):  # lone surrogates
        return _encode(wire)
    return text.decode() if text.isascii() else _encode(wire)


Element = tuple[str, str]  # tag, type

MISSING: Element = ("error", "missing")
NO_EVIDENCE: Element = ("error", "error")


def clean(text: str) -> str:
    """The text with what XML 1.0 cannot hold written as Python writes it (``\\x1b``)."""
    if text.isascii() and text.isprintable():
        return text
    return _ILLEGAL.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match.group())
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def element_of(result: CellResult) -> Element | None:
    """The element that tells JUnit readers what became of the cell, None for a plain pass.

    A result that is no evidence (see ``problem_with``) becomes an error, whatever it claims.
    """
    outcome, verdict = result.outcome, result.verdict
    if problem_with(result) is not None:
        return NO_EVIDENCE
    if outcome is Outcome.NOT_RUN:
        return ("error", "not-run")
    if verdict is Verdict.REGRESSION:
        if outcome in (Outcome.CRASH, Outcome.HANG, Outcome.ERROR):
            return ("error", outcome.value)
        return ("failure", "regression")
    if verdict is Verdict.IMPROVEMENT:
        return ("failure", "improvement")
    if verdict in (Verdict.EXPECTED, Verdict.FLAKY):
        return ("skipped", verdict.value)
    return None if outcome is Outcome.PASS else ("skipped", outcome.value)


@dataclass(slots=True)
class Counts:
    """What a suite's header says of its elements."""

    tests: int = 0
    failures: int = 0
    errors: int = 0
    skipped: int = 0
    seconds: float = 0.0

    def add(self, tag: str | None) -> None:
        self.tests += 1
        if tag == "failure":
            self.failures += 1
        elif tag == "error":
            self.errors += 1
        elif tag == "skipped":
            self.skipped += 1

    def header(self, *, skipped: bool) -> str:
        """The counts as attributes; the schema gives ``testsuites`` no ``skipped``."""
        last = f' skipped="{self.skipped}"' if skipped else ""
        return (
            f'tests="{self.tests}" failures="{self.failures}" errors="{self.errors}"{last} '
            f'time="{self.seconds:.3f}"'
        )


@dataclass(frozen=True, slots=True)
class Suite:
    """One family's cells, in plan order; a cell without a result is written as missing."""

    family: str
    cells: Sequence[CellKey]
    results: Mapping[CellKey, CellResult]


@dataclass(slots=True)
class _Surveyed:
    """A suite as its head and its cases need it: read once, as runs have hundreds of thousands of cells."""

    suite: Suite
    counts: Counts = field(default_factory=Counts)
    #: Of each cell its result, and of a plain pass the time as it is written.
    cases: list[tuple[CellKey, CellResult | None, str | None]] = field(default_factory=list)
    #: The distinct ``ran_layouts``, numbered: they repeat from cell to cell.
    sets: dict[tuple[str, ...], int] = field(default_factory=dict)


def _survey(suite: Suite) -> _Surveyed:
    found = _Surveyed(suite)
    counts, sets, get = found.counts, found.sets, suite.results.get
    for cell in suite.cells:
        result = get(cell)
        time = None if result is None else _time_of_plain(result)
        found.cases.append((cell, result, time))
        if result is None:
            counts.add(MISSING[0])
            continue
        if result.ran_layouts:
            sets.setdefault(result.ran_layouts, len(sets))
        if time is not None:
            counts.tests += 1
            counts.seconds += result.seconds
            continue
        element = element_of(result)
        counts.add(None if element is None else element[0])
        if math.isfinite(result.seconds):
            counts.seconds += max(result.seconds, 0.0)
    return found


class Sink:
    """A binary file that counts the SHA-256 of what goes into it."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._sum = hashlib.sha256()

    def write(self, data: bytes) -> None:
        self._sum.update(data)
        self._stream.write(data)

    @property
    def sha256(self) -> str:
        return self._sum.hexdigest()


def write_suites(
    sink: Sink, suites: Sequence[Suite], provenance: Provenance, plan_digest: str
) -> None:
    """Write a whole document holding the suites."""
    surveyed = [_survey(suite) for suite in suites]
    total = Counts()
    for counts in (each.counts for each in surveyed):
        total.tests += counts.tests
        total.failures += counts.failures
        total.errors += counts.errors
        total.seconds += counts.seconds
    head = f'<testsuites name="torch-conformance" {total.header(skipped=False)}>\n'
    sink.write(('<?xml version="1.0" encoding="utf-8"?>\n' + head).encode())
    for each in surveyed:
        for chunk in _chunks(_suite(each, provenance, plan_digest)):
            sink.write(chunk)
    sink.write(b"</testsuites>\n")


def _chunks(lines: Iterable[str], size: int = 2000) -> Iterator[bytes]:
    held: list[str] = []
    for line in lines:
        held.append(line)
        if len(held) >= size:
            yield "".join(held).encode()
            held.clear()
    yield "".join(held).encode()


def _suite(surveyed: _Surveyed, provenance: Provenance, plan_digest: str) -> Iterator[str]:
    host = f" hostname={_attribute(provenance.host)}" if provenance.host else ""
    yield (
        f"<testsuite name={_attribute(surveyed.suite.family)} "
        f"{surveyed.counts.header(skipped=True)} "
        f"timestamp={_attribute(provenance.start)}{host}>\n<properties>\n"
    )
    sets = surveyed.sets
    properties = provenance_properties(provenance)
    properties[PLAN_DIGEST] = plan_digest
    properties[RAN_LAYOUTS] = _encode(list(sets))
    for name, value in properties.items():
        yield f"<property name={_attribute(name)} value={_attribute(value)}/>\n"
    yield "</properties>\n"
    wires: dict[object, str] = {}
    names: dict[tuple[str, str], str] = {}
    clause, opened = None, ""
    for cell, result, time in surveyed.cases:
        if result is not None and time is not None:
            if cell.clause != clause:
                clause, opened = cell.clause, f"<testcase classname={_attribute(cell.clause)} name="
            case = names.get(cell[1:])
            if case is None:
                case = names[cell[1:]] = _attribute(case_name(cell))
            wire = _wire_of_plain(result, sets, wires)
            yield f'{opened}{case} time="{time}"><system-out>{wire}</system-out></testcase>\n'
        else:
            yield _testcase(cell, result, sets)
    yield "</testsuite>\n"


def _time_of_plain(result: CellResult) -> str | None:
    """The time of a pass with nothing to tell but its counts, if six digits hold it. Most cells are such."""
    plain = (
        result.outcome is Outcome.PASS
        and result.verdict is Verdict.OK
        and result.checks > 0
        and result.samples >= 0
        and not (result.why or result.layouts or result.message or result.example)
        and result.raises is None
        and result.repro is None
        and 0 <= result.seconds < math.inf
    )
    text = f"{result.seconds:.6f}"
    return text if plain and float(text) == result.seconds else None


def _wire_of_plain(
    result: CellResult, sets: Mapping[tuple[str, ...], int], wires: dict[object, str]
) -> str:
    """The JSON of a plain pass. ``wires`` keeps it, as it repeats from cell to cell."""
    key = (result.checks, result.samples, result.ran_layouts, result.worst_error, result.worker)
    wire = wires.get(key)
    if wire is None or result.worst_error is not None:  # 0.0 and -0.0 are one key
        wire = wires[key] = MARK + escape(_text_of(wire_of(result, sets)))
    return wire


def provenance_properties(provenance: Provenance) -> dict[str, str]:
    """Each field as the text of a suite property."""
    properties: dict[str, str] = {}
    for each in fields(provenance):
        value = getattr(provenance, each.name)
        properties[each.name] = str(value).lower() if isinstance(value, bool) else str(value)
    return properties


# Text that an attribute holds as it is.
_PLAIN = re.compile(r"[A-Za-z0-9_.\[\]-]*").fullmatch


def _attribute(text: str) -> str:
    return f'"{text}"' if _PLAIN(text) else quoteattr(clean(text))


def _testcase(cell: CellKey, result: CellResult | None, sets: Mapping[tuple[str, ...], int]) -> str:
    names = f"<testcase classname={_attribute(cell.clause)} name={_attribute(case_name(cell))}"
    if result is None:
        return (
            f'{names}><error type="missing" message="planned and selected, and has no outcome"/>'
            "</testcase>\n"
        )
    wire = _text_of(wire_of(result, sets))
    opened = f'{names} time="{result.seconds:.6f}">'
    element = element_of(result)
    if element is None:
        return f"{opened}<system-out>{MARK}{escape(wire)}</system-out></testcase>\n"
    tag, kind = element
    text = escape(clean(explain(result)))
    message = _attribute(headline(result))
    # Viewers show the body of failures and errors, and the message alone of what was skipped.
    body = "" if tag == "skipped" else text
    return (
        f"{opened}<{tag} type={_attribute(kind)} message={message}>{body}</{tag}>"
        f"<system-out>{MARK}{escape(wire)}\n{text}</system-out></testcase>\n"
    )


def wire_of(result: CellResult, sets: Mapping[tuple[str, ...], int]) -> dict[str, Any]:
    """The result as JSON, without its key and without what has its default value."""
    wire: dict[str, Any] = {}
    if result.outcome is not Outcome.PASS:
        wire["outcome"] = result.outcome.value
    if result.verdict is not Verdict.OK:
        wire["verdict"] = result.verdict.value
    for name in ("why", "checks", "samples", "layouts", "raises", "message", "repro", "worker"):
        value = getattr(result, name)
        if value or (value == "" and name in ("raises", "repro")):
            wire[name] = value
    if result.ran_layouts:
        wire["ran"] = sets[result.ran_layouts]
    if result.worst_error is not None:
        wire["worst_error"] = _number(result.worst_error)
    if float(f"{result.seconds:.6f}") != result.seconds:
        wire["seconds"] = _number(result.seconds)
    if result.example is not None:
        wire["example"] = asdict(result.example)
    return wire


def _number(value: float) -> float | str:
    """JSON has no infinities and no NaN: they go as text."""
    return value if math.isfinite(value) else str(value)


def headline(result: CellResult) -> str:
    """One line that says what happened."""
    problem = problem_with(result)
    if problem is not None:
        return f"no evidence: {problem}"
    reasons = (result.message, result.why)
    if result.verdict in (Verdict.EXPECTED, Verdict.FLAKY, Verdict.IMPROVEMENT):
        reasons = (result.why, result.message)
    text = next((reason.strip() for reason in reasons if reason.strip()), "")
    line = text.partition("\n")[0]
    if result.raises and result.verdict is Verdict.REGRESSION and result.raises not in line:
        line = f"{result.raises}: {line}" if line else result.raises
    if not line:
        line = result.outcome.value
    return line if len(line) <= _HEADLINE else line[: _HEADLINE - 1] + "…"


def explain(result: CellResult) -> str:
    """What a person needs of a result that is no plain pass."""
    lines = [f"{result.key}: {result.outcome}, {result.verdict}"]
    if result.why:
        lines.append(result.why)
    if result.layouts:
        count = f" of {len(result.ran_layouts)}" if result.ran_layouts else ""
        lines.append(f"failing layouts ({len(result.layouts)}{count}): {', '.join(result.layouts)}")
    if result.worst_error is not None:
        lines.append(f"worst absolute error: {result.worst_error:g}")
    if result.raises:
        lines.append(f"raised: {result.raises}")
    if result.message:
        lines.append(result.message)
    if result.example is not None:
        lines += result.example.lines()
    if result.repro:
        lines.append(f"reproduce, in the results folder: python {result.repro}")
    return "\n".join(lines)
