"""A run's folder read by other means than ours: ElementTree and json, whole files at once, no checks."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from devices.cell import CellKey
from reports.model import CellResult

#: Outcomes and verdicts that may stand together where nothing is wrong with a cell.
FINE = {
    ("pass", "ok"), ("pass", "flaky"), ("fail", "expected"), ("fail", "flaky"), ("unsupported", "ok"),
    ("unsupported", "expected"), ("ambiguous-reference", "ok"), ("crash", "expected"), ("hang", "expected"),
}  # fmt: skip
#: Of a provisional clause these are reported, and stop nothing.
REPORTED = {
    (outcome, verdict)
    for outcome in ("pass", "fail", "unsupported", "crash", "hang", "error", "ambiguous-reference")
    for verdict in ("regression", "improvement")
}


@dataclass(frozen=True, slots=True)
class Told:
    """What the files say of one cell, as it stands there."""

    element: str | None  # its tag
    details: dict[str, Any]
    ran: tuple[str, ...]


def read(folder: Path) -> dict[CellKey, list[Told]]:
    """Every testcase of every JUnit file, by its names; raises whatever the files provoke."""
    plan = json.loads((folder / "plan.json").read_text())
    cells = {(clause, f"{op}[{dtype}]" if dtype else op): CellKey(clause, op, dtype)
             for clause, ops in plan["cells"] for op, dtypes in ops.items() for dtype in dtypes}  # fmt: skip
    told: dict[CellKey, list[Told]] = {}
    for name in plan["files"]:
        root = ElementTree.parse(folder / name).getroot()
        for each in (root, *root):
            assert counted(each), f"the header of {name} is wrong and was accepted"
        for suite in root:
            properties = {each.get("name"): each.get("value") for each in suite.iter("property")}
            sets = json.loads(properties["ran_layouts"] or "")
            for case in suite.iter("testcase"):
                key = cells[case.get("classname", ""), case.get("name", "")]
                out = case.find("system-out")
                text = "".join(out.itertext()) if out is not None else "conform {}"
                details = json.loads(text.split("\n")[0].removeprefix("conform "))
                tags = [each.tag for each in case if each.tag != "system-out"]
                ran = tuple(sets[details["ran"]]) if "ran" in details else ()
                missing = out is None
                details = {"outcome": "pass", "verdict": "ok", **details, "missing": missing}
                told.setdefault(key, []).append(Told(tags[0] if tags else None, details, ran))
    return told


def counted(suite: ElementTree.Element) -> bool:
    """Whether a header says how many elements there are."""
    cases = list(suite.iter("testcase"))
    wanted = {"tests": len(cases)} | {
        f"{tag}s": sum(case.find(tag) is not None for case in cases) for tag in ("failure", "error")
    }
    return all(suite.get(name) == str(count) for name, count in wanted.items())


def green(folder: Path) -> bool:
    """Whether the files show a complete run without a regression, by the rules as they are documented."""
    plan = json.loads((folder / "plan.json").read_text())
    told = read(folder)
    clauses = {each["id"]: each for each in plan["clauses"]}
    planned = [
        CellKey(clause, op, dtype)
        for clause, ops in plan["cells"]
        for op, dtypes in ops.items()
        for dtype in dtypes
    ]
    return (
        not plan["provenance"]["partial"]
        and bool(planned)
        and all(
            len(told.get(key, ())) == 1
            and _fine(told[key][0], provisional=clauses[key.clause]["provisional"])
            for key in planned
        )
    )


def _fine(told: Told, *, provisional: bool) -> bool:
    details = told.details
    if details["missing"]:
        return False
    pair = (details["outcome"], details["verdict"])
    if details["outcome"] == "pass" and (details.get("checks", 0) < 1 or details.get("layouts")):
        return False
    if pair in FINE:
        return told.element in (None, "skipped")
    return provisional and pair in REPORTED


def same(result: CellResult | None, told: Told) -> bool:
    """Whether a result says what the file says."""
    details = told.details
    if result is None:
        return bool(details["missing"])
    return (
        not details["missing"]
        and result.outcome.value == details["outcome"]
        and result.verdict.value == details["verdict"]
        and result.checks == details.get("checks", 0)
        and result.samples == details.get("samples", 0)
        and list(result.layouts) == details.get("layouts", [])
        and result.ran_layouts == told.ran
        and result.raises == details.get("raises")
        and result.message == details.get("message", "")
        and result.why == details.get("why", "")
        and result.repro == details.get("repro")
    )
