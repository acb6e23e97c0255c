"""The causes of a run on a device with many faults at once. The record of a larger run is in
``tests/reports/data/crowded.json``."""

from __future__ import annotations

from pathlib import Path

import pytest

from devices.cell import CellKey
from reports.causes import causes_of, unexpected
from reports.run import load_run
from tests.plugin.running import CHECKOUT, run_conform
from tests.strangers.bench import MODULES
from tests.strangers.crowded import NEGATED, fault_of

pytestmark = pytest.mark.slow

DESCRIPTOR = """
from dataclasses import replace

from devices.simulated.descriptor import DESCRIPTOR as SIMULATED

DESCRIPTOR = replace(SIMULATED, module="strange_crowded")
"""
#: One op of each of four faults, and two that have no fault but that of negated inputs.
OPS = "max.reduction_with_dim,mode,eq,abs,exp,addmm"


def test_each_fault_of_a_crowded_device_is_a_cause(tmp_path: Path, cache: Path) -> None:
    vendor, results = tmp_path / "vendor", tmp_path / "run"
    vendor.mkdir()
    (vendor / "descriptor.py").write_text(DESCRIPTOR, encoding="utf-8")
    (vendor / "expected.toml").write_text("", encoding="utf-8")
    ran = run_conform(
        *("run", "-q", "--tb=no", "-n", "1", "--minimise", "0", f"--descriptor={vendor}"),
        *(f"--results={results}", f"--ops={OPS}", "--clauses=layout.*"),
        cache=cache,
        cwd=tmp_path,
        PYTHONPATH=f"{MODULES}:{CHECKOUT}",
        SIMULATED_FAULTS="",
    )
    assert ran.code == 1, ran.text
    run = load_run(results)
    red = unexpected(run)
    planted = {result.key: fault_of(result, {}) for result in red}
    found = causes_of(run, red)
    assert all(planted.values())
    assert [c.key for c in found if not _common(planted, [r.key for r in c.results])] == []
    negated = {key for key, faults in planted.items() if NEGATED in faults}
    assert len(negated) >= 4
    assert [{r.key for r in c.results} for c in found if NEGATED in planted[c.results[0].key]] == [
        negated
    ]


def _common(planted: dict[CellKey, frozenset[str]], cells: list[CellKey]) -> frozenset[str]:
    return frozenset.intersection(*(planted[cell] for cell in cells))
