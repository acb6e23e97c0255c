"""``conform record`` and ``conform replay``, as their users run them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from conformance.recordings import launch
from devices.errors import ConformError
from tests.recordings.running import ROOT, conform

PROGRAM = """
import sys
import torch

x = torch.arange(12.0).reshape(3, 4)
found = x.T[1:].neg() + x.T[:-1]
print(sys.argv[1:], __name__, tuple(found.shape))
sys.exit(3)
"""


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


@pytest.mark.slow
def test_a_recording_names_the_lines_of_the_program(folder: Path) -> None:
    header, *calls = map(json.loads, (folder / "calls.jsonl").read_text().splitlines())
    assert header["command"] == "python program.py --epochs 1"
    (neg,) = (each for each in calls if each["op"] == "aten.neg.default")
    assert neg["places"] == [[{"line": "program.py:6"}, 1]]
    assert neg["tensors"][0]["stride"] == [1, 4] and neg["tensors"][0]["offset"] == 1


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
    program: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    from conformance.commands.recordings import record

    output = tmp_path / "other.jsonl"
    with pytest.raises(ConformError, match=said) as error:
        record.main(["-o", str(output), "--", *program], standalone_mode=False)
    assert "\n" not in str(error.value) and not output.exists()


@pytest.mark.parametrize("output", ["folder", "/dev/full", "file/calls.jsonl"])
def test_an_output_that_cannot_be_written_is_found_before_the_program_runs(
    output: str, tmp_path: Path
) -> None:
    from conformance.commands.recordings import record

    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    ran = tmp_path / "ran"
    program = "python", "-c", f"open({str(ran)!r}, 'w')"
    with pytest.raises(ConformError, match="cannot be written: ") as error:
        record.main(["-o", str(tmp_path / output), "--", *program], standalone_mode=False)
    assert error.value.exit_code == 4 and "\n" not in str(error.value)
    assert not ran.exists() and not Path("/dev/full").is_file()


@pytest.mark.parametrize(
    ("given", "options", "program"),
    [
        (("-u", "-X", "dev", "x.py", "-c"), ["-u", "-X", "dev"], ["x.py", "-c"]),
        (("-Xdev", "-um", "pdb", "y"), ["-Xdev", "-u"], ["-m", "pdb", "y"]),
        (("-mpdb",), [], ["-m", "pdb"]),
        (("-cpass", "a"), [], ["-c", "pass", "a"]),
        (("-Wignore", "-W", "error", "x.py"), ["-Wignore", "-W", "error"], ["x.py"]),
    ],
)
def test_the_options_of_python_are_told_from_the_program(
    given: tuple[str, ...],
    options: list[str],
    program: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from conformance.commands.program_command import command_of

    (tmp_path / "x.py").touch()
    monkeypatch.chdir(tmp_path)
    found = command_of(("python", *given))
    assert (found.options, found.program) == (options, program)


ENDS = """
import os, pickle, sys, threading, time
import torch

class Kept:
    pass

assert os.path.isabs(__file__) and type(pickle.loads(pickle.dumps(Kept()))) is Kept
end = sys.argv[1]
if end == "thread":
    threading.Thread(target=lambda: (time.sleep(0.2), torch.ones(3).cos())).start()
elif end == "fork" and os.fork() == 0:
    torch.ones(3).sin()
    sys.exit(9)
else:
    torch.ones(3).cos()
if end == "fork":
    os.wait()
elif end == "_exit":
    os._exit(6)
elif end == "raise":
    raise ValueError("no")
elif end == "term":
    os.kill(os.getpid(), 15)
    time.sleep(60)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "code"), [("thread", 0), ("fork", 0), ("_exit", 6), ("raise", 1), ("term", 143)]
)
def test_a_recording_is_written_however_the_program_ends(
    end: str, code: int, tmp_path: Path
) -> None:
    (tmp_path / "ends.py").write_text(ENDS, encoding="utf-8")
    done = conform("record", "-o", "ends.jsonl", "--", "python", "ends.py", end, folder=tmp_path)
    assert done.returncode == code, done.stderr
    text = (tmp_path / "ends.jsonl").read_text()
    assert '"aten.cos.default"' in text and '"aten.sin.default"' not in text
    assert "launch.py" not in done.stderr


def test_the_traceback_of_a_program_begins_with_its_own_frames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "program.py"
    program.write_text("def fail():\n    raise ValueError('no')\n\n\nfail()\n", encoding="utf-8")
    monkeypatch.setattr(sys, "argv", [*sys.argv])
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    with pytest.raises(ValueError, match="no") as raised:
        launch.run_to_end([str(program)], nullcontext(), lambda ended: None)
    sys.excepthook(raised.type, raised.value, raised.tb)
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == [
        "Traceback (most recent call last):",
        f'  File "{program}", line 5, in <module>',
    ]
    assert lines[-1] == "ValueError: no"


@pytest.mark.slow
def test_modules_and_code_are_recorded_too(folder: Path) -> None:
    (folder / "a_module.py").write_text("import torch\ntorch.ones(3).sin()\n", encoding="utf-8")
    for program in (("-m", "a_module"), ("-c", "import torch; torch.ones(3).sin()")):
        done = conform("record", "-o", "m.jsonl", "--", "python", "-u", *program, folder=folder)
        assert done.returncode == 0, done.stderr
        assert '"aten.sin.default"' in (folder / "m.jsonl").read_text()


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_replay_judges_the_calls(folder: Path) -> None:
    done = conform("replay", "calls.jsonl", "--device", "simulated", "-n", "0", folder=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "recorded calls: " in done.stdout and " wrong" not in done.stdout
    assert "fidelity: the replay repeats" in done.stdout
    results = folder / "conform-results" / "simulated-replay-calls"
    calls = json.loads((results / "calls.json").read_text())["calls"]
    assert {each["outcome"] for each in calls} == {"right"}
    assert conform("gate", str(results), folder=folder).returncode == 0


FAULT = "values.ignore_storage_offset"


@pytest.fixture(scope="module")
def faulty(folder: Path) -> subprocess.CompletedProcess[str]:
    """The replay on a device with a fault. Its results are in the folder ``faulty``."""
    return conform(
        *("replay", "calls.jsonl", "--device", "simulated", "-n", "0", "--results=faulty"),
        folder=folder,
        SIMULATED_FAULTS=FAULT,
    )


def call_of(op: str, folder: Path) -> Any:
    calls = json.loads((folder / "faulty" / "calls.json").read_text())["calls"]
    (found,) = (each for each in calls if each["op"] == op)
    return found


@pytest.mark.slow
def test_a_fault_is_charged_to_its_call_and_line(
    folder: Path, faulty: subprocess.CompletedProcess[str]
) -> None:
    assert faulty.returncode == 1, faulty.stdout + faulty.stderr
    wrong = [line for line in faulty.stdout.splitlines() if line.startswith("wrong: ")]
    assert any("neg.default~" in line and "program.py:6" in line for line in wrong), faulty.stdout
    neg = call_of("aten.neg.default", folder)
    assert neg["outcome"] == "wrong" and neg["repro"]
    script = [sys.executable, str(folder / "faulty" / neg["repro"])]
    for faults, code in ((FAULT, 1), ("", 0)):
        ran = subprocess.run(
            script,
            env={**os.environ, "PYTHONPATH": str(ROOT), "SIMULATED_FAULTS": faults},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert ran.returncode == code, ran.stdout + ran.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("faulty")
def test_a_failure_of_a_replay_is_minimised_from_its_results(folder: Path) -> None:
    (cell,) = (
        each
        for each in call_of("aten.neg.default", folder)["cells"]
        if each.startswith("layout.values::")
    )
    done = conform("minimise", cell, "--run", "faulty", folder=folder, SIMULATED_FAULTS=FAULT)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "offset" in done.stdout and "calls were tried" in done.stdout
    (folder / "faulty" / "recording.jsonl").unlink()
    done = conform("minimise", cell, "--run", "faulty", folder=folder, SIMULATED_FAULTS=FAULT)
    assert done.returncode == 4 and "replay the recording again" in done.stderr, done.stderr


@pytest.mark.slow
def test_a_wrong_gradient_is_found_with_backward(folder: Path) -> None:
    (folder / "gradient.py").write_text("import torch\ntorch.randn(3, 4).T.sigmoid()\n")
    done = conform("record", "-o", "g.jsonl", "--", "python", "gradient.py", folder=folder)
    assert done.returncode == 0, done.stderr
    found = {}
    for name, options in (("without", ()), ("with", ("--backward",))):
        done = conform(
            *("replay", "g.jsonl", "--device", "simulated", "-n", "0", f"--results={name}"),
            *("--ops", "sigmoid*", *options),
            folder=folder,
            SIMULATED_FAULTS="autograd.first_wrong",
        )
        found[name] = done.returncode
        assert ("wrong: sigmoid.default~" in done.stdout) == bool(options), done.stdout
        assert "not judged" not in done.stdout, "calls that --ops leaves out"
    assert found == {"without": 0, "with": 1}
