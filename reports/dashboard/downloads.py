"""Downloads under ``v1/``: each device's newest run as CSV, and the schemas of the JSON files."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from reports.dashboard import documents
from reports.dashboard.axes import Axis, keys
from reports.dashboard.series import Series
from reports.statuses import ABSENT, OUTCOME_OF, VERDICT_OF

HEADER = "clause,op,dtype,outcome,verdict\r\n"

# Spreadsheets take a field that begins so for a formula.
_FORMULA = ("=", "+", "-", "@", "\t")


def write(folder: Path, series: Sequence[Series], axes: Mapping[str, Axis]) -> None:
    """Write ``v1/devices/<slug>/cells.csv`` and ``v1/schema/<name>.schema.json``."""
    lines: dict[str, list[str]] = {}  # runs of one plan share theirs
    endings = {code: _ending(code) for code in OUTCOME_OF}
    for each in series:
        latest = each.latest
        if latest.axis not in lines:
            lines[latest.axis] = beginnings(axes[latest.axis])
        rows = [
            beginning + endings[code]
            for beginning, code in zip(lines[latest.axis], latest.codes, strict=True)
            if code != ABSENT
        ]
        target = folder / "v1" / "devices" / each.slug / "cells.csv"
        documents.write(target, (HEADER + "".join(rows)).encode())
    for name in documents.SCHEMAS:
        text = json.dumps(documents.schema(name), indent=2) + "\n"
        documents.write(folder / "v1" / "schema" / f"{name}.schema.json", text.encode())


def beginnings(axis: Axis) -> list[str]:
    """The first three fields of each cell's row, with the comma behind them."""
    fields: dict[str, str] = {"": ""}
    for name in (*axis.clauses, *axis.dtypes, *(op for op, _ in axis.ops)):
        fields[name] = _field(name)
    return [f"{fields[clause]},{fields[op]},{fields[dtype]}," for clause, op, dtype in keys(axis)]


def _field(text: str) -> str:
    """A field as RFC 4180 writes it. A text that a spreadsheet would run gets an apostrophe."""
    if text.startswith(_FORMULA):
        text = f"'{text}"
    stream = io.StringIO()
    csv.writer(stream, lineterminator="").writerow([text])
    return stream.getvalue()


def _ending(code: str) -> str:
    return f"{OUTCOME_OF[code].value},{VERDICT_OF[code].value}\r\n"
