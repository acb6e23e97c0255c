"""The example programs, recorded and replayed: green on the CPU and on the simulated device."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.recordings.running import ROOT, conform

PROGRAMS = sorted((ROOT / "examples" / "recordings").glob("*.py"))
#: The calls of a program that a replay does not make as they were recorded, and why.
APART = {
    "convnet_autocast": "; the op changes the sizes or strides of its operand in place: 1",
}


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", "simulated"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda each: each.stem)
def test_a_replay_of_an_example_is_green(program: Path, device: str, tmp_path: Path) -> None:
    recording = tmp_path / f"{program.stem}.jsonl"
    path = program.relative_to(ROOT)
    done = conform("record", "-o", str(recording), "--", "python", str(path))
    assert done.returncode == 0, done.stderr
    (recorded,) = re.findall(r"([\d,]+) of them distinct", done.stderr)
    assert recording.stat().st_size < 200_000
    done = conform(
        *("replay", str(recording), "--device", device),
        f"--results={tmp_path / 'run'}",
        seconds=1800,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    (fidelity,) = (each for each in lines if each.startswith("fidelity: "))
    exact, total, *_ = (int(each) for each in fidelity.split() if each.isdigit())
    assert total == int(recorded.replace(",", ""))
    assert fidelity.endswith(f"distinct calls exactly{APART.get(program.stem, '')}"), fidelity
    assert (exact == total) == (program.stem not in APART), fidelity
