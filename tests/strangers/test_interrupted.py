"""An init that is ended at a chosen step. ``python -m tests.strangers.interrupted`` ends it at random moments."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.strangers.interrupted import Place, stop


@pytest.mark.slow
def test_an_init_that_was_ended_goes_on_and_leaves_nothing_elsewhere(
    tmp_path: Path, cache: Path
) -> None:
    place = Place(tmp_path, cache, ("--ops=neg", "--fast"))
    said = []
    steps = (
        ("asking twin", signal.SIGINT),
        ("run 1 of 1", signal.SIGTERM),
        ("run 1 of 1", signal.SIGKILL),
    )
    for step, how in steps:
        process = place.start()
        assert process.stdout is not None
        printed: list[str] = []
        for line in process.stdout:
            printed.append(line)
            if line.startswith(step):
                break
        assert printed and printed[-1].startswith(step), f"before {step!r}: {''.join(printed)}"
        said.append(stop(process, how))
    again = "Run the same command again to continue\n"
    assert said == [
        f"error: interrupted; nothing was written. {again}",
        f"error: interrupted; mytwin contains the descriptor, but no manifest yet. {again}",
        "",
    ]
    assert "continuing with the runs" in place.finish()
    assert '"float32"' in place.written()["descriptor.py"]
    assert [each for each in place.elsewhere() if not each.startswith("tmp/")] == []
