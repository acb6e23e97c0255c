"""``conform locate``, as its users run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
#: A program whose third call on the device is made with an offset.
PROGRAM = """
import sys
import torch

device = sys.argv[1] if len(sys.argv) > 1 else None
x = torch.arange(12.0, device=device).reshape(3, 4)
y = x[1:] + 1
z = x.T[1:].neg()
print("sum:", float(z.sum() + y.sum()))
sys.exit(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
"""
NAMES_CUDA = """
import torch

net = torch.nn.Linear(4, 4).to("cuda")
x = torch.arange(8.0).reshape(2, 4).cuda()[1:]
net(x).sum().backward()
print(torch.ones(3, device=torch.device("cuda")).neg())
"""
WAITS = """
import torch

a, b = (torch.randn(60, 60).to("simulated") for _ in range(2))
side, main = torch.simulated.Stream(), torch.simulated.current_stream()
side.wait_stream(main)
with torch.simulated.stream(side):
    torch.simulated.busy(1000)
    c = a @ b
main.wait_stream(side)
d = c + 1
"""


DIES = """
import os, sys
import torch

library = torch.library.Library("dies", "DEF")
library.define("in_call(Tensor x) -> Tensor")
library.impl("in_call", lambda x: os.abort(), "CPU")
x = torch.ones(3)
if sys.argv[1] == "after":
    x.cos()
    os.abort()
torch.ops.dies.in_call(x)
"""


def conform(
    *arguments: str, folder: Path, faults: str = "", stdin: Any = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "conformance.cli", "locate", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "SIMULATED_FAULTS": faults},
        stdin=stdin,
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("program")
    for name, text in (("infer", PROGRAM), ("names_cuda", NAMES_CUDA), ("waits", WAITS)):
        (made / f"{name}.py").write_text(text, encoding="utf-8")
    (made / "dies.py").write_text(DIES, encoding="utf-8")
    return made


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--", "torchrun", "x.py"), "expected a command that begins with python"),
        (("--against", "absent", "--", "python", "infer.py"), "absent cannot be read"),
        (("--against", "infer.py", "--", "python", "infer.py"), "is not a trace"),
        (("--device", "nosuch", "--", "python", "infer.py"), "nosuch"),
        (("-o", "/dev/full", "--", "python", "infer.py"), "/dev/full cannot be written"),
        (("--results", "infer.py/x", "--", "python", "infer.py"), "cannot be written"),
    ],
)
def test_a_wrong_use_is_one_line(
    arguments: tuple[str, ...], said: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from click.testing import CliRunner

    from conformance.cli import conform as program
    from devices.errors import ConformError

    monkeypatch.chdir(folder)
    done = CliRunner().invoke(program, ["locate", *arguments], standalone_mode=False)
    assert isinstance(done.exception, ConformError) and said in str(done.exception)
    assert "\n" not in str(done.exception) and done.exception.exit_code == 4


@pytest.mark.slow
def test_a_healthy_device_has_no_wrong_call_and_the_program_runs_as_alone(folder: Path) -> None:
    done = conform("--device", "simulated", "--", "python", "infer.py", "simulated", folder=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    first, *_, last = done.stdout.splitlines()
    assert first == "sum: 14.0" and last.startswith("no wrong call on simulated: ")
    assert done.stdout.count("sum:") == 1, "the output of further runs is not shown"
    assert not (folder / "conform-results").exists()


@pytest.mark.slow
def test_a_fault_is_named_with_a_script_that_fails_with_it_alone(folder: Path) -> None:
    fault = "values.ignore_storage_offset"
    arguments = "--device", "simulated", "--results", "faulty", "--", "python"
    done = conform(*arguments, "infer.py", "simulated", folder=folder, faults=fault)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "aten.neg.default, at infer.py:8" in done.stdout
    assert "exits 1 while the fault is present" in done.stdout
    for faults, code in ((fault, 1), ("", 0)):
        ran = subprocess.run(
            [sys.executable, "call.py"],
            cwd=folder / "faulty",
            env={**os.environ, "PYTHONPATH": str(ROOT), "SIMULATED_FAULTS": faults},
            timeout=300,
        )
        assert ran.returncode == code


@pytest.mark.slow
def test_a_missing_wait_shows_in_a_window_and_not_alone(folder: Path) -> None:
    arguments = "--device", "simulated", "--results", "waits", "--json", "--", "python", "waits.py"
    done = conform(*arguments, folder=folder, faults="streams.ignore_wait")
    assert done.returncode == 1, done.stdout + done.stderr
    runs = json.loads(done.stdout)["runs"]
    assert runs[0].get("fault") is None
    assert runs[-1]["fault"]["call"]["op"] == "aten.add.Tensor"
    assert {"aten.mm.default", "aten.add.Tensor"} <= {
        each["op"] for each in runs[-1]["fault"]["with_calls"]
    }


@pytest.mark.slow
def test_how_a_program_is_given_the_device(folder: Path) -> None:
    device = "--device", "simulated", "--window", "1"
    alone = conform(*device, "--", "python", "infer.py", folder=folder)
    assert alone.returncode == 4 and "the program made no call on simulated" in alone.stderr
    default = conform(*device, "--default-device", "--", "python", "infer.py", folder=folder)
    assert default.returncode == 0 and "no wrong call" in default.stdout, default.stderr
    cuda = conform(*device, "--instead-of", "cuda", "--", "python", "names_cuda.py", folder=folder)
    assert cuda.returncode == 0 and "device='simulated:0'" in cuda.stdout, cuda.stderr


@pytest.mark.slow
def test_two_devices_are_compared_by_a_trace(folder: Path) -> None:
    program = "--window", "1", "--same-random", "--", "python", "infer.py"
    first = conform("--device", "cpu", "-o", "cpu.trace", *program, "cpu", folder=folder)
    assert first.returncode == 0, first.stderr
    against = "--device", "simulated", "--against", "cpu.trace", *program, "simulated"
    same = conform(*against, folder=folder)
    assert same.returncode == 0 and "the runs do not part" in same.stdout, same.stdout
    other = conform(*against, folder=folder, faults="values.ignore_storage_offset")
    assert other.returncode == 1
    assert "the runs first differ at call 8, aten.neg.default" in other.stdout, other.stdout


@pytest.mark.slow
def test_a_program_that_fails_is_no_success(folder: Path) -> None:
    failed = conform("--device", "cpu", "--", "python", "infer.py", "cpu", "3", folder=folder)
    assert failed.returncode == 2 and "the program failed: exit code 3" in failed.stdout
    died = conform("--device", "cpu", "--", "python", "dies.py", "within", folder=folder)
    assert died.returncode == 1 and "was ended by SIGABRT" in died.stdout, died.stdout
    assert "dies.in_call.default, at dies.py:12" in died.stdout
    died = conform("--device", "cpu", "--", "python", "dies.py", "after", folder=folder)
    assert died.returncode == 2 and "no wrong call" in died.stdout, died.stdout
    assert "was ended by SIGABRT after call 3, aten.cos.default, at dies.py:10" in died.stdout


@pytest.mark.slow
def test_a_program_that_fails_runs_in_windows_too_and_reads_its_input_again(folder: Path) -> None:
    (folder / "reads.py").write_text(WAITS + "import sys; sys.exit(input() != 'right' or 3)\n")
    (folder / "input.txt").write_text("right\n")
    with (folder / "input.txt").open() as stdin:
        done = conform(
            *("--device", "simulated", "--results", "reads", "--", "python", "reads.py"),
            folder=folder,
            faults="streams.ignore_wait",
            stdin=stdin,
        )
    assert done.returncode == 1 and "aten.add.Tensor" in done.stdout, done.stdout + done.stderr
    assert "exit code 3" not in done.stderr
