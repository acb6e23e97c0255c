"""Replays of each format, and the comparison of formats of the same program."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.recordings.formats.comparison import PROGRAMS, comparisons, table
from tests.recordings.formats.test_files import EXAMPLES
from tests.recordings.formats.writers import execution_trace, kineto
from tests.recordings.running import ROOT, conform

pytestmark = pytest.mark.slow
#: With this fault, kernels of the simulated device read a tensor from the start of its storage.
FAULT = "values.ignore_storage_offset"


def program() -> None:
    x = torch.randn(4, 6)
    x[1:].neg() + x[:-1]


def example(name: str) -> Callable[[Path], Path]:
    return lambda folder: EXAMPLES / name


class Net(torch.nn.Module):
    """A program that negates a view."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[1:].neg()


def exported() -> torch.export.ExportedProgram:
    return torch.export.export(Net(), (torch.randn(5, 4),))


def graph_of_torch(folder: Path) -> Path:
    """Writes the text of a graph as torch writes it."""
    path = folder / "graph.txt"
    path.write_text(exported().graph_module.print_readable(print_output=False))
    return path


def program_of_torch(folder: Path) -> Path:
    torch.export.save(exported(), folder / "net.pt2")
    return folder / "net.pt2"


FILES: dict[str, Callable[[Path], Path]] = {
    "execution_trace": lambda folder: execution_trace(program, folder / "trace.json"),
    "kineto": lambda folder: kineto(program, folder / "profile.json"),
    "operator_inputs": example("operator_inputs.txt"),
    "exported_program": program_of_torch,
    "fx_graph": graph_of_torch,
    "msprobe": example("dump.json"),
    "spyre": example("spyre.yaml"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_replay_of_each_format_notices_a_fault(name: str, tmp_path: Path) -> None:
    arguments = ("replay", str(FILES[name](tmp_path)), "--device", "simulated", "-n", "0")
    only = ("--clauses", "layout.values", "--results=found")
    done = conform(*arguments, *only, folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "recorded calls: " in done.stdout and "Traceback" not in done.stdout + done.stderr
    assert "ranges of the elements unknown" in done.stdout or "unknown which" in done.stdout
    calls = json.loads((tmp_path / "found" / "calls.json").read_text())["calls"]
    # Random numbers, of which only dtypes and strides are judged, are in the two programs that make their own input.
    by_value = [each for each in calls if each["op"] != "aten.randn.default"]
    assert {each["outcome"] for each in by_value} <= {"right", "not judged"}
    faulty = conform(*arguments, *only, folder=tmp_path, SIMULATED_FAULTS=FAULT)
    assert faulty.returncode == 1, faulty.stdout + faulty.stderr
    assert "\nwrong: " in faulty.stdout


def test_an_unknown_format_is_refused_with_those_that_are_known(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"weights": 3}')
    done = conform("replay", "x.json", "--device", "cpu", folder=tmp_path)
    said = done.stdout + done.stderr
    assert done.returncode == 4 and "Traceback" not in said
    assert "x.json is not a recording of a known format: expected one of recording" in said
    assert "found a JSON object with the keys weights" in said
    done = conform("replay", "x.json", "--format", "nonsense", "--device", "cpu", folder=tmp_path)
    assert done.returncode == 4 and "unknown format 'nonsense'" in done.stdout + done.stderr


def test_a_given_format_that_the_file_does_not_have_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"weights": 3}')
    done = conform("replay", "x.json", "--format=kineto", "--device", "cpu", folder=tmp_path)
    said = done.stdout + done.stderr
    assert done.returncode == 4 and "Traceback" not in said
    assert "expected a Chrome trace of torch.profiler with record_shapes=True" in said


#: Ops of which the recorder and a profiler of torch see different calls: the recorder makes torch detach the results that
#: autograd saves, and only a profiler sees how ``torch.tensor`` makes a tensor.
SEEN_BY_ONE = {"aten.detach.default", "aten.detach_.default", "aten.empty.memory_format"}


def test_formats_have_the_same_calls_of_a_program(tmp_path: Path) -> None:
    found = list(comparisons(tmp_path))
    assert {name for name, *_ in found} == {*PROGRAMS}
    for name, kind, ours, _, compared in found:
        assert {*compared.ours_alone, *compared.theirs_alone} <= SEEN_BY_ONE, (name, kind)
        assert compared.both >= 0.85 * len(ours.calls)


def test_the_table_of_the_page_is_that_of_the_command(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    assert "\n".join(table(tmp_path)) in page, "python -m tests.recordings.formats.comparison"
