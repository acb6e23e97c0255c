"""What the recorder sees of a program."""

from __future__ import annotations

import itertools
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from conformance.recordings.recorder import CallRecorder, record, values_of
from conformance.recordings.wire import (
    RecordedCall,
    RecordingError,
    Values,
    read_recording,
)
from tests.recordings.tensor_classes import PROGRAMS


def calls_of(program: Any, *, elements: bool = False) -> list[RecordedCall]:
    recorder = CallRecorder(elements=elements)
    with recorder.recording_program():
        program()
    return list(recorder.recording().calls)


def named(calls: list[RecordedCall], op: str) -> list[RecordedCall]:
    return [each for each in calls if each.op == op]


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU())

    def forward(self, x: torch.Tensor) -> Any:
        return self.layers(x)


def test_equal_calls_are_counted_and_different_geometries_are_not_equal() -> None:
    x, y = torch.ones(4, 3), torch.ones(3, 4).T

    def program() -> None:
        for _ in range(3):
            x + 1
        y + 1
        x[1:] + 1

    added = named(calls_of(program), "aten.add.Tensor")
    assert [each.count for each in added] == [3, 1, 1]
    assert [each.tensors[0].stride for each in added] == [(3, 1), (1, 4), (3, 1)]
    assert [each.tensors[0].offset for each in added] == [0, 0, 3]


def test_calls_are_charged_to_module_and_line_in_backward_too() -> None:
    net, x = Net(), torch.randn(2, 3)
    calls = calls_of(lambda: net(x).sum().backward())
    (forward,) = named(calls, "aten.addmm.default")
    (backward,) = named(calls, "aten.threshold_backward.default")
    assert (forward.phase, backward.phase) == ("forward", "backward")
    assert forward.places[0][0].module == "Net.layers.0"
    assert backward.places[0][0].module == "Net.layers.1"
    assert __file__.endswith(forward.places[0][0].line.rpartition(":")[0].rpartition("/")[2])
    assert forward.tensors[0].parameter and not forward.tensors[1].requires_grad


def test_the_calls_of_an_optimizer_and_of_autocast_are_marked() -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def program() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = net(torch.ones(2, 3))
        found.sum().backward()
        optimizer.step()

    calls = calls_of(program)
    assert {each.phase for each in named(calls, "aten.add_.Tensor")} <= {"optimizer"}
    assert any(each.phase == "optimizer" for each in calls)
    (product,) = named(calls, "aten.addmm.default")
    assert product.autocast == "bfloat16" and product.tensors[0].dtype == "bfloat16"
    assert all(each.autocast == "" for each in calls if each.phase == "backward")


def test_threads_that_begin_while_a_program_is_recorded_are_recorded() -> None:
    def program() -> None:
        thread = threading.Thread(target=lambda: torch.ones(5).cos())
        thread.start()
        thread.join()

    assert len(named(calls_of(program), "aten.cos.default")) == 1
    assert threading.getprofile() is None
    thread = threading.Thread(target=lambda: torch.ones(5).cos())  # is not recorded any more
    thread.start()
    thread.join()


def test_operands_that_share_memory_are_marked() -> None:
    x = torch.ones(4)
    calls = calls_of(lambda: (x * x, x * torch.ones(4)))
    products = named(calls, "aten.mul.Tensor")
    assert [[t.storage for t in each.tensors] for each in products] == [[0, 0], [0, 1]]


def test_step_sizes_that_change_a_little_are_one_call() -> None:
    x = torch.ones(4)
    calls = calls_of(lambda: [x * value for value in (0.13, 0.14, 0.2, -0.13, float("inf"))])
    assert [each.count for each in named(calls, "aten.mul.Tensor")] == [3, 1, 1]


def test_exponents_that_kernels_treat_in_their_own_ways_are_calls_of_their_own() -> None:
    x = torch.ones(4)
    calls = calls_of(lambda: [x**value for value in (0.5, 0.7, 0.8, 2.0, 3.0, 2.0, 100.0, 101.0)])
    counts = [each.count for each in named(calls, "aten.pow.Tensor_Scalar")]
    assert counts == [1, 2, 2, 1, 2]


def test_what_cannot_be_recorded_is_said_with_its_number() -> None:
    recorder = CallRecorder()
    sparse = torch.eye(3).to_sparse()
    with recorder.recording_program():
        sparse * 2
        sparse * 2
    header = recorder.recording().header
    assert header.lacks == (
        "2 x aten.mul.Tensor: a tensor of layout sparse_coo cannot be recorded",
    )


def test_a_generator_is_left_out_of_a_call() -> None:
    generator = torch.Generator()
    calls = calls_of(lambda: torch.empty(3).normal_(generator=generator))
    (drawn,) = named(calls, "aten.normal_.default")
    assert drawn.kwargs == {"generator": None}


def test_compiled_functions_are_recorded_as_eager_calls() -> None:
    compiled = torch.compile(lambda x: x.sin() * 2, backend="eager")
    calls = calls_of(lambda: compiled(torch.ones(3)))
    assert {"aten.sin.default", "aten.mul.Tensor"} <= {each.op for each in calls}


def test_elements_are_recorded_on_demand() -> None:
    x = torch.tensor([1.0, 2.5])
    (with_them,) = calls_of(lambda: x.cos(), elements=True)
    (without,) = calls_of(lambda: x.cos())
    assert with_them.tensors[0].elements["values"] == ["1.0", "2.5"]
    assert without.tensors[0].elements is None
    assert without.tensors[0].values == Values(1.0, 2.5)


def test_the_range_of_elements() -> None:
    inf, nan = float("inf"), float("nan")
    assert values_of(torch.tensor([3.0, nan, -inf])) == Values(3.0, 3.0, nan=True, infinite=True)
    assert values_of(torch.tensor([nan])) == Values(nan=True)
    assert values_of(torch.tensor([4, 2, 4])) == Values(2, 4)
    assert values_of(torch.tensor([4, 2])) == Values(2, 4, repeats=False)
    assert values_of(torch.tensor([True, True])) == Values(1.0, 1.0)
    assert values_of(torch.tensor([1 - 2j])) == Values(-2.0, 1.0)
    assert values_of(torch.ones(0)) == Values(repeats=False)
    assert values_of(torch.tensor([0.5], dtype=torch.float8_e4m3fn)) == Values(0.5, 0.5)


def test_a_recording_is_written_although_the_program_raises(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    with pytest.raises(ZeroDivisionError), record(path):
        torch.ones(3).cos()
        raise ZeroDivisionError
    assert [each.op for each in read_recording(path).calls][-1] == "aten.cos.default"


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("name", PROGRAMS)
def test_calls_of_other_classes_are_said_and_the_calls_that_they_make_are_recorded(
    name: str,
) -> None:
    program, said, seen = PROGRAMS[name]
    recorder = CallRecorder()
    with recorder.recording_program():
        program()
    found = recorder.recording()
    assert len(named(list(found.calls), "aten.cos.default")) == seen
    assert said in "\n".join(found.header.lacks)
    assert not any(tensor.device == "meta" for call in found.calls for tensor in call.tensors)


def test_a_thread_that_goes_on_does_not_disturb_the_end(tmp_path: Path) -> None:
    """Each call of the thread is a new one, so the recording grows while it is written."""
    stop, sizes = threading.Event(), itertools.count(1)

    def work() -> None:
        while not stop.is_set():
            torch.ones(next(sizes))

    recorder = CallRecorder()
    with recorder.recording_program():
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        while next(sizes) < 200:
            pass
    try:
        for _ in range(20):
            recorder.recording()
    finally:
        stop.set()
        thread.join()


def test_an_autocast_region_around_the_recorder_is_marked() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        calls = calls_of(lambda: torch.ones(2, 2) @ torch.ones(2, 2))
    assert [each.autocast for each in named(calls, "aten.mm.default")] == ["bfloat16"]


def test_a_file_that_cannot_be_written_is_said_before_the_program(tmp_path: Path) -> None:
    for path in (tmp_path, Path("/dev/full")):
        ran = False
        said = pytest.raises(RecordingError, match="cannot be written: expected a file")
        with said, record(path):
            ran = True
        assert not ran


def test_the_recording_is_written_where_the_program_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "inner").mkdir()
    with record("calls.jsonl"):
        os.chdir("inner")
        torch.ones(3).cos()
    assert (tmp_path / "calls.jsonl").exists()
