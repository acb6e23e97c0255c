"""Strangers on their first day: init, a green gate with honest red in it, a new fault that regresses, and the update."""

from __future__ import annotations

from pathlib import Path

import pytest

from devices.cell import Outcome
from reports.run import load_run
from tests.plugin.running import cells_of
from tests.strangers.bench import STRANGERS, FirstDay

#: Each starts a dozen processes. Fast are ``commands/test_init.py``, and strangers that are forked in ``test_by_values.py``.
pytestmark = pytest.mark.slow

#: Two ops that every stranger has, one of them with the fault of the vendor's next version.
OPS = "mul,neg"
#: One more: without int64 it cannot be given indices, and is not blamed for it; without kernels of slices a call that the
#: CPU refuses is all that `layout.bounds` could see of a view, and is not blamed either.
ONE_MORE = {"slim": "index_select", "carrier": "view_as"}

BY_DEVICE = {each.device: each for each in STRANGERS}


@pytest.mark.parametrize(
    "device",
    ["fragile", "fatal", "greedy", "auto", "slim", "tardy", "simulated", "carrier"],
)
def test_init_leads_to_a_green_gate(device: str, tmp_path: Path, cache: Path) -> None:
    """Those whose manners need a rule of their own; ``python -m tests.strangers.bench`` takes all of them."""
    stranger = BY_DEVICE[device]
    ops = ",".join(filter(None, (OPS, ONE_MORE.get(device))))
    day = FirstDay(stranger, tmp_path, cache, ops)
    day.init("--fast")
    if device == "slim":  # one that was interrupted before its last file goes on where it was
        (tmp_path / stranger.name / "expected.toml").unlink()
        assert "continuing with the runs" in day.init("--fast")
    day.green("first")
    text = (tmp_path / stranger.name / "descriptor.py").read_text(encoding="utf-8")
    assert '"float32"' in text
    if device == "greedy":  # said once in each, and not in the cells
        left = "enters the mode strange_greedy.Mine and does not leave it"
        reported = load_run(tmp_path / "first").provenance.left_behind
        assert text.count(left) == reported.count(left) == 1
    if device == "fragile":  # what died again, alone, cost copies of the worker
        log = (tmp_path / stranger.name / "init" / "run-1.log").read_text(encoding="utf-8")
        assert log.count("node down") == 1
        cells = cells_of(tmp_path / "first")
        dead = {key.clause for key, each in cells.items() if each.outcome is Outcome.CRASH}
        outs = {"out_kept", "out_resize", "variants", "overlap_raises"}
        assert dead == {f"layout.{each}" for each in (*outs, "values")}  # of negative views
        assert all(each.repro for each in cells.values() if each.outcome is Outcome.CRASH)
    if device == "fatal":  # a question that ends the process costs no other
        assert "facts: the process exited with status 3" in text
        assert '"properties",  # fails: the process was killed by SIGSEGV' in text


def test_a_fault_of_the_next_version_regresses_and_can_be_recorded(
    tmp_path: Path, cache: Path
) -> None:
    """Of one whose ``synchronize`` raises, too: that stays one cell."""
    FirstDay(BY_DEVICE["draft"], tmp_path, cache, OPS).all()
