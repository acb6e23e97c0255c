"""The planted faults of the simulated device fail the cells of compiled ops, and their repro scripts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from devices.cell import Outcome
from devices.simulated.backend.fault_switches import planted
from devices.simulated.faults import FAULTS
from tests.compile.running import EQUAL, META, record_of

#: The faults, each with its clause and one of its ops.
PLANTED = [
    (fault.name, clause, op)
    for fault in FAULTS.values()
    for clause in fault.clauses
    if clause in (EQUAL, META)
    for op in fault.ops
]


@pytest.mark.parametrize(("fault", "clause", "op"), PLANTED)
def test_a_planted_fault_fails_its_cell(fault: str, clause: str, op: str) -> None:
    with planted(fault):
        assert record_of(clause, op, device="simulated", variant="").outcome() is Outcome.FAIL
    record = record_of(clause, op, device="simulated", variant="")
    assert record.outcome() is Outcome.PASS, record.to_outcome().message


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "clause", "op"), PLANTED)
def test_the_repro_script_of_a_planted_fault_fails_with_the_fault_alone(
    fault: str, clause: str, op: str, tmp_path: Path
) -> None:
    with planted(fault):
        smallest = record_of(clause, op, device="simulated").smallest
    assert smallest is not None and smallest.repro is not None
    (tmp_path / "repro.py").write_text(smallest.repro())
    codes = []
    for faults in (fault, ""):
        command = [sys.executable, str(tmp_path / "repro.py")]
        environment = {**os.environ, "SIMULATED_FAULTS": faults}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        codes.append(done.returncode)
    assert codes == [1, 0]
