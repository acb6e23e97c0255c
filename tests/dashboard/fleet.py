"""A small fleet of runs made up for the tests of the site: three devices, one of them hostile."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from conformance.contract import LEVELS, load
from devices.cell import CellKey, Outcome, Seen, Verdict
from devices.failure import Geometry, Kind
from reports.model import CellResult, PlanDocument, fold
from reports.replayed_calls import CallOutcome, JudgedCall, outcome_of, write_calls
from reports.run import write_run
from tests.reports.builders import PROVENANCE, changed_result, failure

VALUES, BOUNDS, OUT = "layout.values", "layout.bounds", "layout.out_kept"
QUERY = "streams.query"
OPS = ("add", "mul", "nn.functional.conv2d", "nn.functional.relu", "linalg.lu", "where", "T", "t")
DTYPES = ("float32", "bfloat16", "int64", "bool")

#: Names and texts that would do harm if a page took them for markup, code or an address.
MARKUP = "<script>window.harmed=1</script>"
IMAGE = '"><img src=x onerror="window.harmed=2">'
TEMPLATE = "${window.harmed=3}{{7*7}}"
BREAK_OUT = "</td></table></script><svg onload=window.harmed=4>'\"`"
FORMULA = "=cmd|'/c calc'!A0"
HOSTILE = (MARKUP, IMAGE, TEMPLATE, BREAK_OUT, FORMULA, "../../../etc/passwd", "__proto__", "CON")

MANIFEST = b"""\
[[expect]]
clause = "layout.bounds"
op = "linalg.lu"
outcome = "fail"
kind = "upstream-bug"
reason = "kernel: steps by one stride"
issue = "https://github.com/pytorch/pytorch/issues/84577"

[[expect]]
clause = "layout.values"
op = "nosuchop"
outcome = "fail"
reason = "matches nothing"

[[expect]]
clause = "layout.values"
op = "where"
dtype = "bool"
outcome = "fail"
kind = "device-bug"
reason = "was looked at in spring"
expires = 2026-03-01
"""

REPRO = '''"""layout.values"""
import torch
DEVICE = "cpu"
'''


#: Where the tensors of a failing call lie.
TENSORS = {
    "inputs": (Geometry("float32", (2, 3), (0, 2), 17),),
    "targets": (Geometry("float32", (2, 2), (4, 2)),),
}


def grid(clauses: Iterable[str], ops: Iterable[str], dtypes: Iterable[str]) -> list[CellKey]:
    return [CellKey(c, op, dtype) for c in clauses for op in ops for dtype in dtypes]


ALPHA = [*grid((VALUES, BOUNDS, OUT), OPS, DTYPES), CellKey(QUERY, "false while busy", "")]
CHECKED = frozenset({VALUES, BOUNDS, OUT, QUERY})  # at least, whatever the contract says
UNTRIED = CellKey("layout.memory_format", "add", "float32")
COMPILED = CellKey(VALUES, "mul", "float32", "compiled")
RANKS = CellKey(QUERY, "false while busy", "", "4 ranks")
BETA = [
    *grid((VALUES, BOUNDS), (*OPS[1:], "only.beta"), (*DTYPES[:3], "complex64")),
    UNTRIED,
    COMPILED,
    RANKS,
]


def passed(cell: CellKey) -> CellResult:
    return CellResult(
        cell, Outcome.PASS, Verdict.OK, checks=12, samples=3, seconds=0.0015, worker="gw0",
        ran_layouts=("contiguous", "transposed"),
    )  # fmt: skip


def failing(cell: CellKey, outcome: Outcome = Outcome.FAIL, **changed: Any) -> CellResult:
    plain = CellResult(
        cell, outcome, Verdict.REGRESSION, why="the manifest does not list it", checks=12,
        samples=3, layouts=("transposed+offset",), worst_error=0.5, raises="RuntimeError",
        ran_layouts=("contiguous", "transposed+offset"),
        failure=failure(f"{cell.unit}: 3 of 12 elements differ", layout="transposed+offset", **TENSORS),
        seconds=0.25,
        repro=f"repro/{cell.clause}/x.py", worker="gw1",
        seen=(Seen("pytorch#139006", "MPS", "https://github.com/pytorch/pytorch/issues/139006"),
              Seen(f"x{MARKUP}#1", MARKUP, "javascript:harmed()")),
    )  # fmt: skip
    if outcome in (Outcome.CRASH, Outcome.HANG):
        plain = changed_result(plain, "", layouts=(), ran_layouts=(), raises=None, repro=None)
    return changed_result(plain, **changed)


def expected(cell: CellKey, **changed: Any) -> CellResult:
    why = "kernel: steps by one stride (expected.toml:1)"
    return failing(cell, verdict=Verdict.EXPECTED, why=why, **changed)


def levels_of(cells: Iterable[CellKey]) -> list[dict[str, Any]]:
    """Every level lists the run's own cells and three that its plan has not."""
    count = len(list(cells))
    return [
        {"level": number, "title": title, "version": "0.1", "listed": count + 3,
         "planned": [[0, count]] if count else []}
        for number, title in LEVELS.items()
    ]  # fmt: skip


def plan_of(cells: Iterable[CellKey], device: str, **changed: Any) -> PlanDocument:
    """A plan document with the contract's own clauses."""
    used = {cell.clause for cell in cells}
    clauses = [
        {**clause.snapshot(), "status": "checked" if clause.id in used else clause.status.value}
        for clause in load().clauses.values()
    ]
    document = {
        "hash": hashlib.sha256(repr(list(cells)).encode()).hexdigest()[:16],
        "device": device, "plan": "quick", "torch": "2.13.0", "suite": "0.1.0", "partial": False,
        "selection": {}, "clauses": clauses,
        "capabilities": {"strides": {"declared": True, "probed": True}},
        "facts": {"os": "linux", "arch": "x86_64"}, "layouts_version": 1,
        "exclusions": [{"clause": VALUES, "ops": ["empty"], "reason": "free answer"}],
        "levels": levels_of(cells), "cells": fold(cells), **changed,
    }  # fmt: skip
    return msgspec.convert(document, PlanDocument)


def write(
    folder: Path,
    device: str,
    cells: Iterable[CellKey],
    *told: CellResult,
    day: int = 1,
    manifest: bytes = b"",
    plan: Mapping[str, Any] | None = None,
    **origin: Any,
) -> Path:
    """Write a complete run: ``told``, and a pass for every other cell."""
    listed = list(cells)
    document = plan_of(listed, device, **(plan or {}))
    provenance = replace(
        PROVENANCE,
        **{
            "device": device, "plan_hash": document.hash, "plan": document.plan,
            "start": f"2026-10-{day:02d}T08:00:00+00:00", "device_name": f"The {device}",
            "manifest_hash": hashlib.blake2b(manifest, digest_size=8).hexdigest() if manifest else "",
            "expectations": "/somewhere/expected.toml" if manifest else "none", **origin,
        },
    )  # fmt: skip
    results = {cell: passed(cell) for cell in listed} | {result.key: result for result in told}
    write_run(folder, document, results, provenance, manifest=manifest)
    for result in told:
        if result.repro:
            script = folder / result.repro
            script.parent.mkdir(parents=True, exist_ok=True)
            script.write_text(REPRO)
    return folder


def cell(clause: str, op: str, dtype: str = "float32") -> CellKey:
    return CellKey(clause, op, dtype)


def alpha(folder: Path, day: int) -> Path:
    """The first device: day 1, and day 2 with a change of every kind but missing and added."""
    lu = [expected(cell(BOUNDS, "linalg.lu", dtype)) for dtype in DTYPES]
    flaky = failing(cell(VALUES, "T"), Outcome.UNSUPPORTED)
    if day == 1:
        told = [*lu, flaky, failing(cell(VALUES, "mul")), failing(cell(BOUNDS, "add", "int64"))]
    else:
        told = [
            *lu[1:],
            failing(cell(BOUNDS, "linalg.lu")),  # changed expectation
            flaky,
            failing(cell(VALUES, "add")),  # newly failing; mul is fixed
            failing(cell(VALUES, "where", "bool"), Outcome.CRASH, message="died: SIGSEGV"),
            failing(cell(OUT, "mul"), Outcome.HANG, message="60 s"),
            failing(cell(BOUNDS, "add", "int64"), Outcome.ERROR, message="cannot be made"),
            failing(cell(VALUES, "t"), Outcome.AMBIGUOUS, verdict=Verdict.OK, repro=None),
            CellResult(
                cell(OUT, "T"), Outcome.PASS, Verdict.IMPROVEMENT, "better", checks=12, samples=3
            ),
        ]
    return write(
        folder, "alpha", ALPHA, *told, day=day, manifest=MANIFEST,
        torch=f"2.{12 + day}.0", driver=f"26.{day}",
    )  # fmt: skip


def beta(folder: Path) -> Path:
    """A device that declares no strides: a cell is not tried, and some clauses have none on it."""
    undeclared = {"capabilities": {"strides": {"declared": False, "probed": False}}}
    not_tried = CellResult(UNTRIED, Outcome.UNSUPPORTED, Verdict.OK, "by declaration")
    return write(
        folder, "beta", BETA, failing(cell(VALUES, "mul")), failing(COMPILED), failing(RANKS),
        not_tried, day=3, plan=undeclared,
    )  # fmt: skip


def hostile(folder: Path) -> Path:
    """A run whose every text would do harm if it were not escaped."""
    cells = [CellKey(VALUES, op, dtype) for op in HOSTILE for dtype in ("float32", MARKUP)]
    told = [
        failing(each, message=f"{IMAGE}\n{each.unit}", why=MARKUP, layouts=(MARKUP,), raises=IMAGE,
                ran_layouts=(MARKUP,), repro=f"repro/{number}.py")
        for number, each in enumerate(cells)
    ]  # fmt: skip
    return write(
        folder, MARKUP, cells, *told, day=4, device_name=IMAGE, driver=BREAK_OUT, os=TEMPLATE,
        plan={
            "facts": {MARKUP: IMAGE},
            "exclusions": [{"clause": VALUES, "ops": [MARKUP], "reason": BREAK_OUT}],
            "clauses": [
                {"id": VALUES, "family": "layout", "status": "checked", "statement": f"{MARKUP} `{IMAGE}`",
                 "source": f"{BREAK_OUT} pytorch/pytorch#1234", "faults": [MARKUP], "requires": []},
            ],
        },
    )  # fmt: skip


#: A replayed program: its calls with their counts and places.
CALLS = (
    ("mm.default~000001", 40, "net.py:7", "Net.first"),
    ("relu.default~000002", 8, "net.py:8", "Net.first"),
    ("add.Tensor~000003", 100, "net.py:9", ""),
    ("sort.default~000004", 2, "", ""),
    ("cos.default~000005", 5, "net.py:11", "Net.last"),
    ("flip.default~000006", 3, "net.py:12", "Net.last"),
    (MARKUP, 1, IMAGE, TEMPLATE),
)


def replay(folder: Path, program: str = "python train.py", day: int = 5) -> Path:
    """A replay in which three calls are wrong for one reason, and one of them for another too; one crashes, one is missing, and two are right."""
    first, second, right, missing, crashed, third, odd = (cell(VALUES, name) for name, *_ in CALLS)
    told = [
        failing(first, worst_error=0.25),
        failing(second, worst_error=2.5),
        failing(third, worst_error=0.125),
        failing(missing, Outcome.UNSUPPORTED, message="not implemented", worst_error=None, failure=None),
        failing(crashed, Outcome.CRASH, message="died: SIGSEGV", worst_error=None),
        failing(cell("layout.output_strides", first.unit), worst_error=1e9,
                failure=failure("other strides", kind=Kind.STRIDES, layout="transposed+offset")),
    ]  # fmt: skip
    cells = [*dict.fromkeys([first, second, right, missing, crashed, third, odd, told[-1].key])]
    families = {first.unit: "matmul", second.unit: "pointwise", third.unit: "movement"}
    plan = {"plan": "replay", "families": families}
    write(folder, "gamma", cells, *told, day=day, plan=plan)
    of_call = {each.key.unit: [each] for each in reversed(told)}
    judged = []
    for name, count, line, module in CALLS:
        outcome, deciding = outcome_of(of_call.get(name, [passed(cell(VALUES, name))]))
        why = deciding[0].message if name in of_call else ""
        judged.append(
            JudgedCall(name, f"aten.{name}", "float32", outcome, count, f"{line} ({module})", why, line=line, module=module)
        )  # fmt: skip
    order = list(CallOutcome)
    judged.sort(key=lambda each: (order.index(each.outcome), -each.count))
    write_calls(folder, judged, program)
    return folder


def fleet(folder: Path) -> list[Path]:
    """All of them, and what must come of them is in the tests."""
    return [
        alpha(folder / "alpha-1", 1),
        alpha(folder / "alpha-2", 2),
        beta(folder / "beta"),
        hostile(folder / "hostile"),
    ]
