"""``conform record`` and ``conform replay``, as their users run them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
import torch

x = torch.arange(12.0).reshape(3, 4)
found = x.T[1:].cos() + x.T[:-1]
print(sys.argv[1:], __name__, tuple(found.shape))
sys.exit(3)
"""


def conform(*arguments: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "conformance.cli", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recorded program."""
    made = tmp_path_factory.mktemp("program")
    (made / "program.py").write_text(PROGRAM, encoding="utf-8")
    done = conform(
        *("record", "-o", "calls.jsonl", "--", "python", "program.py", "--epochs", "1"), folder=made
    )
    assert done.stdout == "['--epochs', '1'] __main__ (3, 3)\n", done.stderr
    assert done.returncode == 3, "the exit code is that of the program"
    assert "distinct" in done.stderr and "conform replay calls.jsonl" in done.stderr
    return made


def test_a_recording_names_the_lines_of_the_program(folder: Path) -> None:
    header, *calls = map(json.loads, (folder / "calls.jsonl").read_text().splitlines())
    assert header["command"] == "python program.py --epochs 1"
    (cos,) = (each for each in calls if each["op"] == "aten.cos.default")
    assert cos["places"] == [[{"line": "program.py:6"}, 1]]
    assert cos["tensors"][0]["stride"] == [1, 4] and cos["tensors"][0]["offset"] == 1


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (("torchrun", "x.py"), "expected a command that begins with python"),
        (("python",), "expected a file, -m MODULE or -c CODE"),
        (("python", "-m"), "expected a file, -m MODULE or -c CODE"),
        (("python", "absent.py"), "absent.py: the program does not exist"),
    ],
)
def test_a_wrong_command_line_is_one_line(
    program: tuple[str, ...], said: str, folder: Path
) -> None:
    done = conform("record", "-o", "other.jsonl", "--", *program, folder=folder)
    assert done.returncode == 4 and said in done.stderr
    assert done.stderr.count("\n") == 1 and not (folder / "other.jsonl").exists()


def test_modules_and_code_are_recorded_too(folder: Path) -> None:
    (folder / "a_module.py").write_text("import torch\ntorch.ones(3).sin()\n", encoding="utf-8")
    for program in (("-m", "a_module"), ("-c", "import torch; torch.ones(3).sin()")):
        done = conform("record", "-o", "m.jsonl", "--", "python", "-u", *program, folder=folder)
        assert done.returncode == 0, done.stderr
        assert '"aten.sin.default"' in (folder / "m.jsonl").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("program.py",), "is not a recording"),
        (("absent.jsonl",), "absent.jsonl cannot be read"),
        (("calls.jsonl", "--plan", "core"), "exclude each other"),
    ],
)
def test_what_cannot_be_replayed_is_one_line(
    arguments: tuple[str, ...], said: str, folder: Path
) -> None:
    done = conform("replay", *arguments, "--device", "cpu", folder=folder)
    assert done.returncode == 4 and said in done.stderr + done.stdout
    assert "Traceback" not in done.stderr + done.stdout


def test_a_replay_judges_the_calls(folder: Path) -> None:
    done = conform("replay", "calls.jsonl", "--device", "simulated", "-n", "0", folder=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "recorded calls: " in done.stdout and " wrong" not in done.stdout
    assert "fidelity: the replay repeats" in done.stdout
    results = folder / "conform-results" / "simulated-replay-calls"
    calls = json.loads((results / "calls.json").read_text())["calls"]
    assert {each["outcome"] for each in calls} == {"right"}
    assert conform("gate", str(results), folder=folder).returncode == 0


def test_a_fault_is_charged_to_its_call_and_line(folder: Path) -> None:
    done = conform(
        *("replay", "calls.jsonl", "--device", "simulated", "-n", "0", "--results=faulty"),
        folder=folder,
        SIMULATED_FAULTS="values.ignore_storage_offset",
    )
    assert done.returncode == 1, done.stdout + done.stderr
    wrong = [line for line in done.stdout.splitlines() if line.startswith("wrong: ")]
    assert any("cos.default~" in line and "program.py:6" in line for line in wrong), done.stdout
    calls = json.loads((folder / "faulty" / "calls.json").read_text())["calls"]
    (cos,) = (each for each in calls if each["op"] == "aten.cos.default")
    assert cos["outcome"] == "wrong" and cos["repro"]
    script = [sys.executable, str(folder / "faulty" / cos["repro"])]
    for faults, code in (("values.ignore_storage_offset", 1), ("", 0)):
        ran = subprocess.run(
            script,
            env={**os.environ, "PYTHONPATH": str(ROOT), "SIMULATED_FAULTS": faults},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert ran.returncode == code, ran.stdout + ran.stderr
