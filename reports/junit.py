"""Writes a run as JUnit XML for CI systems and other tools: one test suite per clause family, one test case per cell.

The files follow the Jenkins schema (junit-10.xsd), which GitHub, GitLab and Jenkins read. The suite itself reads only
the times of the cells from these files (``--shard-times``), if the record of the run is missing.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import asdict
from itertools import chain, groupby
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any

from junitparser import (
    Error,
    Failure,
    JUnitXml,
    JUnitXmlError,
    Skipped,
    SystemOut,
    TestCase,
    TestSuite,
)

# lxml, or xml.etree where that is not installed: elements must be of the kind that junitparser makes.
from junitparser.junitparser import etree  # type: ignore[attr-defined]

from devices.cell import CellKey, Outcome, Verdict
from devices.files import explained
from reports.model import CellResult, Run, RunError, problem_with
from reports.plain import without_boilerplate

_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_HEADLINE = 500

Element = tuple[str, str]  # tag, type

MISSING: Element = ("error", "missing")
NO_EVIDENCE: Element = ("error", "error")
NOT_GATING: Element = ("skipped", "not-gating")
_TAGS = {"failure": Failure, "error": Error, "skipped": Skipped}


class _Seconds(float):
    """A time in seconds that is written to XML without an exponent, because some readers of XML refuse exponents."""

    def __str__(self) -> str:
        return f"{self:.6f}"


def junit_file(family: str) -> str:
    """Returns the name of a clause family's JUnit file in the results folder."""
    return f"junit-{family}.xml"


def clean(text: str) -> str:
    """Returns a text in which every character that XML 1.0 cannot contain is written as a Python escape (``\\x1b``)."""
    if text.isascii() and text.isprintable():
        return text
    return _ILLEGAL.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match.group())
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def one_line(text: str) -> str:
    """Returns a text on one line, without control characters, which could forge output. Runs of white space become one
    space."""
    spaced = re.sub(r"\s+", " ", clean(text)).strip()
    return "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in spaced)


def element_of(result: CellResult, *, gates: bool = True) -> Element | None:
    """Returns the tag and the type of the JUnit element that shows the result of a cell; None for a cell that passed as
    expected.

    A result that contradicts itself (see ``problem_with``) becomes an error. ``gates`` is False for a cell of a
    provisional clause. A regression or improvement of such a cell does not make the run red, so the cell is shown as
    skipped.
    """
    outcome, verdict = result.outcome, result.verdict
    if problem_with(result) is not None:
        return NO_EVIDENCE
    if outcome is Outcome.NOT_RUN:
        return ("error", "not-run")
    if not gates and verdict in (Verdict.REGRESSION, Verdict.IMPROVEMENT):
        return NOT_GATING
    if verdict is Verdict.REGRESSION:
        if outcome in (Outcome.CRASH, Outcome.HANG, Outcome.ERROR):
            return ("error", outcome.value)
        return ("failure", "regression")
    if verdict is Verdict.IMPROVEMENT:
        return ("failure", "improvement")
    if verdict in (Verdict.EXPECTED, Verdict.FLAKY):
        return ("skipped", verdict.value)
    return None if outcome is Outcome.PASS else ("skipped", outcome.value)


def junit_of(
    run: Run, record: str, sha256: str, causes: Mapping[CellKey, str] = MappingProxyType({})
) -> dict[str, TestSuite]:
    """Returns the JUnit test suites of a run by clause family, for :func:`suites_as_xml`.

    ``record`` is the file name of the run's record, ``sha256`` its checksum. ``causes`` gives the sentence of the cause
    of each unexpected result that gates; properties of each suite state how many of its cells have each cause. A
    selected cell without a result is an error of the type ``missing``.
    """
    plan = run.parsed
    selected = plan.known if plan.selected is plan.cells else frozenset(plan.selected)
    properties = asdict(run.provenance) | {"record": record, "record_sha256": sha256}
    if not run.provenance.left_behind:  # most devices have none
        del properties["left_behind"]
    of_family: dict[str, list[CellKey]] = {}
    for clause, cells in groupby(plan.cells, attrgetter("clause")):
        if listed := [cell for cell in cells if cell in selected or cell in run.results]:
            of_family.setdefault(plan.clauses[clause].family, []).extend(listed)
    made: dict[str, TestSuite] = {}
    for name, listed in of_family.items():
        element = etree.Element("testsuite", name=name)
        suite = made[name] = TestSuite.fromelem(element)
        suite.timestamp = run.provenance.start
        if run.provenance.host:
            suite.hostname = run.provenance.host
        for key, value in properties.items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            suite.add_property(key, clean(text))
        counts = Counter(causes[cell] for cell in listed if cell in causes)
        for place, (cause, count) in enumerate(counts.most_common(), 1):
            suite.add_property(f"cause.{place}", clean(f"{count:,}: {cause}"))
        _add_cases(suite, element, listed, run)
    return made


def _add_cases(suite: TestSuite, element: Any, cells: Sequence[CellKey], run: Run) -> None:
    """Adds a test case for each cell to a test suite and to its XML ``element``. The counts are set at the end, because
    junitparser would count all cases again after each one."""
    counts = {"failure": 0, "error": 0, "skipped": 0}
    seconds = 0.0
    passes: dict[str, Any] = {}  # by clause, an element to copy
    for cell in cells:
        name = clean(cell.name)
        result = run.results.get(cell)
        if result is not None and result.passed_without_remark:
            # Most cells are plain passes, and copying an element is four times as fast as making one.
            if cell.clause not in passes:
                passes[cell.clause] = etree.Element("testcase", classname=clean(cell.clause))
            passed = copy(passes[cell.clause])
            passed.set("name", name)
            passed.set("time", f"{result.seconds:.6f}")
            element.append(passed)
            seconds += result.seconds
            continue
        case = TestCase(name, clean(cell.clause))
        suite.append(case)
        if result is None:
            case.append(
                Error("this cell was selected, but the run has no outcome for it", MISSING[1])
            )
            counts["error"] += 1
            continue
        case.time = _Seconds(result.seconds)
        seconds += max(result.seconds, 0.0) if math.isfinite(result.seconds) else 0.0
        text = clean(explain(result))
        shown = element_of(result, gates=not run.parsed.clauses[cell.clause].provisional)
        if shown is not None:
            tag, kind = shown
            counts[tag] += 1
            why = "does not gate yet (provisional clause): " if shown == NOT_GATING else ""
            case_element = _TAGS[tag](clean(why + headline(result)), kind)
            # Viewers show the body of failures and errors; of a skipped test they show the message only.
            case_element.text = "" if tag == "skipped" else text
            case.append(case_element)
        case.append(SystemOut(text))
    suite.tests, suite.time = len(cells), round(seconds, 3)
    suite.failures, suite.errors, suite.skipped = counts.values()


def suites_as_xml(suites: Sequence[TestSuite]) -> bytes:
    """Returns one XML document with the given test suites. Each suite and each test case begins on a new line."""
    whole = JUnitXml("torch-conformance")
    for name in ("tests", "failures", "errors"):  # the schema has no ``skipped`` here
        setattr(whole, name, sum(getattr(suite, name) for suite in suites))
    whole.time = round(sum(suite.time for suite in suites), 3)
    for suite in suites:
        whole.append(suite)
    text: bytes = whole.tostring()
    for tag in (b"<testsuite ", b"<properties>", b"<property ", b"<testcase ", b"</testsuite"):
        text = text.replace(tag, b"\n" + tag)  # safe: in texts and attributes < is written &lt;
    return b'<?xml version="1.0" encoding="utf-8"?>\n' + text + b"\n"


def seconds_in(path: Path) -> dict[CellKey, float]:
    """Returns the time of each cell, in seconds, from a JUnit file of a run. Raises RunError if the file is not a JUnit
    file of a run or cannot be read."""
    try:
        with explained(RunError, path, "cannot be read"):
            read = JUnitXml.fromfile(str(path))
        suites = (each if isinstance(each, TestSuite) else [each] for each in read)
        return {
            CellKey.parse(f"{case.classname or ''}::{case.name or ''}"): case.time or 0.0
            for case in chain.from_iterable(suites)
        }
    except (JUnitXmlError, SyntaxError, ValueError) as error:  # both XML parsers raise SyntaxErrors
        raise RunError(f"{path}: not the JUnit file of a run: {error}") from None


def headline(result: CellResult) -> str:
    """Returns the result of a cell on one line, without torch's boilerplate."""
    if (problem := problem_with(result)) is not None:
        return f"no evidence: {problem}"
    reasons = (result.message, result.why)
    if result.verdict in (Verdict.EXPECTED, Verdict.FLAKY, Verdict.IMPROVEMENT):
        reasons = (result.why, result.message)
    text = next((reason.strip() for reason in reasons if reason.strip()), "")
    line = without_boilerplate(text).partition("\n")[0]
    if result.raises and result.verdict is Verdict.REGRESSION and result.raises not in line:
        line = f"{result.raises}: {line}" if line else result.raises
    line = line or result.outcome.value
    return line if len(line) <= _HEADLINE else line[: _HEADLINE - 1] + "…"


def explain(result: CellResult) -> str:
    """Returns all details of a cell's result as lines of text for a person to read."""
    lines = [f"{result.key}: {result.outcome}, {result.verdict}"]
    if result.why:
        lines.append(result.why)
    if layouts := result.failing_layouts:
        count = f" of {len(result.ran_layouts)}" if result.ran_layouts else ""
        lines.append(f"failing layouts ({len(layouts)}{count}): {', '.join(layouts)}")
    if result.worst_error is not None:
        lines.append(f"worst absolute error: {result.worst_error:g}")
    if result.ulps is not None:
        lines.append(f"largest error: {result.ulps:.4g} ulps at {result.ulps_at}")
    if result.reached:
        lines.append(f"covered by the random programs: {result.reached}")
    if result.raises:
        lines.append(f"raised: {result.raises}")
    if result.message:
        lines.append(result.message)
    if result.on_cpu:
        lines.append(f"the CPU does the same: {result.on_cpu}")
    if result.example is not None:
        lines += result.example.lines()
    if result.repro:
        lines.append(f"to reproduce, in the results folder: python {result.repro}")
    if result.rest is not None and result.rest.repro:
        lines.append(f"to reproduce the failure of the other checks: python {result.rest.repro}")
    return "\n".join(lines)
