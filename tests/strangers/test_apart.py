"""A device that works within its own context is judged there, and our own work stays outside: in runs and in scripts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from devices.cell import CellKey, Outcome
from tests.plugin.running import cells_of, run_pytest
from tests.strangers.bench import MODULES

_DESCRIPTOR = """
from devices.descriptor import Descriptor

DESCRIPTOR = Descriptor(
    name="session",
    torch_type="session",
    title="Works within its session only",
    module="strange_session",
    around="strange_session:session",
    capabilities=frozenset({"strides"}),
    dtypes=frozenset({"float32"}),
)
"""


@pytest.mark.slow
def test_calls_and_scripts_are_within_the_context_that_the_descriptor_names(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(MODULES))
    monkeypatch.setenv("STRANGE_FAULT", "1")
    (tmp_path / "descriptor.py").write_text(_DESCRIPTOR)
    ran = run_pytest(
        *("-q", "-n", "0", "--minimise", "0", "--ops=neg,mul", "--clauses=layout.values"),
        *("--expectations", "none", f"--descriptor={tmp_path}", f"--results={tmp_path / 'run'}"),
        cache=cache,
    )
    cells = cells_of(tmp_path / "run")
    neg, mul = (cells[CellKey("layout.values", op, "float32")] for op in ("neg", "mul"))
    assert (neg.outcome, mul.outcome) == (Outcome.PASS, Outcome.FAIL), ran.text
    assert mul.repro is not None
    for fault in ("1", "0"):
        script = subprocess.run(
            [sys.executable, str(tmp_path / "run" / mul.repro)],
            env={**os.environ, "STRANGE_FAULT": fault},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert script.returncode == int(fault), script.stdout + script.stderr
