"""What is wrong with the device of ``modules/strange_crowded.py``, and which of its faults makes a cell red.

``python -m tests.strangers.crowded RUN… > tests/reports/data/crowded.json`` writes what fails in runs of the device,
with the fault of each cell, for tests of the causes. A cell of a case has the fault that makes it red alone:
``--alone FAULT=RUN`` names a run of the simulated device with this fault.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from devices.cell import CellKey, Outcome, Verdict
from reports.causes import unexpected
from reports.model import CellResult
from reports.run import load_run

#: Faults of the simulated device (``devices/simulated/faults.toml``), and the clauses that show nothing else.
SIMULATED: Final = {
    "allocator.count_too_little": "allocator.accounting",
    "allocator.ignore_record_stream": "allocator.record_stream",
    "events.elapsed_constant": "events.elapsed",
    "random.seed_ignored": "random.reproducible",
    "streams.ignore_wait": "streams.wait",
    "transfer.drop_strides": "",
}

#: The ops of torch's database that have each of the other faults.
OPS: Final = {
    "max.dim_max has no kernel": ("max.reduction_with_dim",),
    "min.dim_min has no kernel": ("min.reduction_with_dim",),
    "cumsum.out has no kernel": ("cumsum",),
    "sort.values_stable has no kernel": ("sort",),
    "mode has no kernel": ("mode",),
    "attention answers zeros": ("nn.functional.scaled_dot_product_attention",),
    "an out= of another shape crashes": (
        *("eq", "gather", "index_select", "heaviside", "copysign", "atan2", "nextafter"),
        *("take_along_dim", "bucketize", "nn.functional.leaky_relu"),
    ),
    "the CPU computes instead": (
        *("lgamma", "erfinv", "i0", "cumprod", "trace", "fmax", "hypot", "kthvalue"),
    ),
    "results are contiguous": ("abs", "sign", "atan", "floor", "sub", "minimum", "maximum"),
}
NEGATED: Final = "negated inputs crash"
UNKNOWN: Final = "unknown"


def fault_of(result: CellResult, alone: Mapping[str, Iterable[str]]) -> frozenset[str]:
    """The faults that redden a cell. Of a cell of an op, negated inputs are the fault if a call on one ended the
    process; what the CPU does as well is a fault of torch; all else is the fault of the op. ``alone`` has the red cells
    of runs with one fault each."""
    cell, failure = result.key, result.failure
    if cell.is_case:
        shown = {fault for fault, clause in SIMULATED.items() if clause == cell.clause}
        return frozenset(shown | {fault for fault, red in alone.items() if str(cell) in red})
    if result.outcome is Outcome.CRASH and failure is not None and failure.layout == "neg":
        return frozenset({NEGATED})
    if result.on_cpu:
        return frozenset({result.on_cpu})
    return frozenset(fault for fault, ops in OPS.items() if cell.unit in ops)


def record(runs: Iterable[Path], alone: Mapping[str, Iterable[str]]) -> dict[str, Any]:
    """What failed in the runs, in the form of ``tests/reports/data``. The result of a cell is that of the last run that
    has it."""
    families: dict[str, list[str]] = defaultdict(list)
    passed: dict[str, list[str]] = defaultdict(list)
    alike: dict[bytes, dict[str, Any]] = {}
    family_of: dict[str, str] = {}
    results: dict[CellKey, CellResult] = {}
    red: set[CellKey] = set()
    for path in runs:
        run = load_run(path)
        results |= run.results
        red = (red - run.results.keys()) | {result.key for result in unexpected(run)}
        family_of |= run.plan.families
    for op in dict.fromkeys(key.unit for key in results if not key.is_case):
        families[family_of.get(op, op)].append(op)
    for key, result in results.items():
        if not key.is_case and result.verdict is Verdict.OK:
            passed[key.clause].append(key.unit)
        if key not in red:
            continue
        faults = sorted(fault_of(result, alone)) or [UNKNOWN]
        failure = result.failure
        if failure is not None:  # what causes do not look at
            failure = msgspec.structs.replace(
                failure, where=None, call="", inputs=(), targets=(), sample=None
            )
        facts = {
            "outcome": result.outcome,
            "failure": failure,
            "layouts": result.layouts,
            "raises": result.raises,
            "said": result.said,
            "note": result.note if failure is None else "",
            "blocked_by": result.blocked_by,
            "on_cpu": result.on_cpu,
        }
        kept = {name: value for name, value in facts.items() if value}
        found = msgspec.to_builtins({"faults": faults, **kept})
        known = alike.setdefault(msgspec.json.encode(found), {"cells": {}, **found})
        known["cells"].setdefault(key.clause, []).append(key.name)
    return {"families": families, "passed": passed, "failed": list(alike.values())}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("runs", nargs="+", type=Path)
    options.add_argument("--alone", action="append", default=[], metavar="FAULT=RUN")
    asked = options.parse_args()
    alone: dict[str, set[str]] = {}
    for each in asked.alone:
        fault, _, path = each.partition("=")
        red = {str(result.key) for result in unexpected(load_run(Path(path)))}
        alone.setdefault(fault, set()).update(red)
    found = record(asked.runs, alone)
    head = [f"{json.dumps(name)}: {json.dumps(found[name])}," for name in ("families", "passed")]
    rows = ",\n".join(json.dumps(each) for each in found["failed"])
    sys.stdout.write("{" + "\n".join(head) + '\n"failed": [\n' + rows + "\n]}\n")


if __name__ == "__main__":
    main()
