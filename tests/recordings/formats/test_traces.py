"""Execution traces and Kineto's traces, written by torch for small programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conformance.recordings.formats import read
from conformance.recordings.wire import RecordedCall, Recording, RecordingError
from tests.recordings.formats.comparison import LACKS, compare
from tests.recordings.formats.writers import execution_trace, kineto, recorded


def program() -> None:
    """Views, an offset, shared memory, several dtypes, autocast, a composite op, backward."""
    torch.manual_seed(0)
    x = torch.randn(4, 6)
    weight = torch.nn.Parameter(torch.ones(3, 6))
    torch.cat([x[1:], x[:1]])
    x.half().T[2:].mul_(x.half().T[:4])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = torch.nn.functional.linear(x, weight)
        torch.mm(x, x.T)  # an op that is called once more below autocast
    (y.float().softmax(1) + 1).sum().backward()
    # torch.optim would import the compiler, which takes seconds
    with torch.no_grad(), torch.profiler.record_function("Optimizer.step#SGD.step"):
        weight.add_(torch.ones(3, 6), alpha=-0.5)


@pytest.fixture(scope="module")
def ours() -> Recording:
    return recorded(program)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return execution_trace(program, tmp_path_factory.mktemp("trace") / "et.json")


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kineto(program, tmp_path_factory.mktemp("trace") / "kineto.json")


def calls_of(recording: Recording, op: str) -> list[RecordedCall]:
    return [each for each in recording.calls if each.op == op]


@pytest.mark.parametrize("name", ["execution_trace", "kineto"])
def test_a_trace_has_the_calls_of_the_recording(
    name: str, ours: Recording, trace: Path, profile: Path
) -> None:
    theirs = read(trace if name == "execution_trace" else profile)
    found = compare(ours, theirs, LACKS[name])
    assert {*found.ours_alone, *found.theirs_alone} <= {"aten.detach.default"}
    assert found.both > 20
    assert {each.phase for each in theirs.calls} == {"forward", "backward", "optimizer"}


def test_an_execution_trace_knows_offsets_and_shared_memory(trace: Path) -> None:
    (cat,) = calls_of(read(trace), "aten.cat.default")
    assert [(each.offset, each.storage) for each in cat.tensors] == [(6, 0), (0, 0)]
    (product,) = calls_of(read(trace), "aten.mul_.Tensor")
    assert [(each.stride, each.offset) for each in product.tensors] == [((1, 6), 2), ((1, 6), 0)]


def test_the_end_of_a_replay_says_what_a_trace_lacks(trace: Path, profile: Path) -> None:
    lacks = read(profile).header.lacks
    assert any(each.startswith("storage offsets unknown of ") for each in lacks)
    assert "dtypes of the tensors in a list unknown of 1 of " in "\n".join(lacks)
    assert not any(each.startswith("storage offsets") for each in read(trace).header.lacks)


def test_calls_that_kineto_cannot_describe_are_counted(tmp_path: Path) -> None:
    def index() -> None:
        torch.zeros(3)[torch.arange(2)]

    (left,) = (
        each
        for each in read(kineto(index, tmp_path / "k.json")).header.lacks
        if each.startswith("not read")
    )
    assert (
        left == "not read: 1 x aten.index.Tensor: the file does not contain the argument 'indices'"
    )
    (call,) = calls_of(read(execution_trace(index, tmp_path / "e.json")), "aten.index.Tensor")
    assert call.args == [{"tensor": 0}, [{"tensor": 1}]]


def test_a_call_of_an_op_that_is_not_registered_is_read(trace: Path, tmp_path: Path) -> None:
    def rename(document: Any) -> None:
        for node in document["nodes"]:
            for each in node["attrs"]:
                if str(each["value"]).startswith("aten::cat("):
                    each["value"] = each["value"].replace("aten::cat", "vendor::join.dim", 1)

    (call,) = calls_of(read(change(trace, tmp_path / "custom.json", rename)), "vendor.join.dim")
    assert call.args == [[{"tensor": 0}, {"tensor": 1}]]


def test_the_range_of_integers_is_read(tmp_path: Path, trace: Path) -> None:
    document = json.loads(trace.read_text())
    node = next(each for each in document["nodes"] if each["name"] == "aten::mul_")
    next(a for a in node["attrs"] if a["name"] == "tensor_range")["value"] = '{"1":[0,49]}'
    path = tmp_path / "ranged.json"
    path.write_text(json.dumps(document))
    (call,) = calls_of(read(path), "aten.mul_.Tensor")
    assert (call.tensors[1].values.low, call.tensors[1].values.high) == (0, 49)


def test_a_tensor_of_which_a_trace_has_no_storage_shares_none(trace: Path, tmp_path: Path) -> None:
    def forget(document: Any) -> None:
        for node in document["nodes"]:
            if node["name"] == "aten::mul_":
                for value in node["inputs"]["values"]:
                    value[1:3] = [0, 0]

    found = read(change(trace, tmp_path / "forgotten.json", forget))
    (product,) = calls_of(found, "aten.mul_.Tensor")
    assert [each.storage for each in product.tensors] == [0, 1]
    lacks = "\n".join(found.header.lacks)
    assert "unknown which tensors share memory of 1 of " in lacks
    assert "storage offsets unknown of 1 of " in lacks


def test_a_number_that_rounds_to_the_default_is_the_default(tmp_path: Path) -> None:
    path = execution_trace(
        lambda: torch.cosine_similarity(torch.ones(3), torch.ones(3), 0), tmp_path / "trace.json"
    )

    def lose_digits(document: Any) -> Any:
        schema = "vendor::scaled(Tensor x, float eps=1e-08, float by=1.) -> Tensor"
        node = next(each for each in document["nodes"] if each["name"] == "aten::mul")
        node["inputs"]["values"][1:] = [0.0, 0.0]
        for part, value in (("shapes", []), ("types", "Double"), ("strides", [])):
            node["inputs"][part][1:] = [value, value]
        next(each for each in node["attrs"] if each["name"] == "op_schema")["value"] = schema

    found = read(change(path, tmp_path / "lost.json", lose_digits))
    (call,) = calls_of(found, "vendor.scaled.default")
    assert call.args[1:] == [{"float": "1e-08"}, {"float": "0.0"}]


def change(path: Path, to: Path, change: Callable[[Any], Any]) -> Path:
    document = json.loads(path.read_text())
    changed = change(document)
    to.write_text(json.dumps(document if changed is None else changed))
    return to


def test_hostile_execution_traces_are_one_sentence(trace: Path, tmp_path: Path) -> None:
    def cycle(document: Any) -> None:
        first, second = document["nodes"][:2]
        first["ctrl_deps"], second["ctrl_deps"] = second["id"], first["id"]

    def shorten(document: Any) -> None:
        next(n for n in document["nodes"] if n["name"] == "aten::cat")["inputs"]["types"] = []

    for damage, said in ((cycle, "cycle of ctrl_deps"), (shorten, "the arguments of node")):
        with pytest.raises(RecordingError, match=said) as raised:
            read(change(trace, tmp_path / "hostile.json", damage))
        assert "\n" not in str(raised.value)


def test_geometries_that_no_tensor_has_are_left_out(trace: Path, tmp_path: Path) -> None:
    def enlarge(document: Any) -> None:
        for node in document["nodes"]:
            if node["name"] == "aten::mul_":
                node["inputs"]["shapes"][0] = [-4, 2**70]

    found = read(change(trace, tmp_path / "hostile.json", enlarge))
    assert not calls_of(found, "aten.mul_.Tensor")
    assert any("no tensor has the sizes" in each for each in found.header.lacks)


def test_a_trace_without_shapes_says_how_to_record_them(profile: Path, tmp_path: Path) -> None:
    def strip(document: Any) -> None:
        for event in document["traceEvents"]:
            event.pop("args", None)

    with pytest.raises(RecordingError, match="record with record_shapes=True"):
        read(change(profile, tmp_path / "bare.json", strip))
    with pytest.raises(RecordingError, match=r"the trace has no ops: record with Prof"):
        read(change(profile, tmp_path / "bare.json", lambda _: {"traceEvents": []}))


def test_an_event_that_begins_with_the_one_around_it_is_inside(tmp_path: Path) -> None:
    arguments = {"Input Dims": [[4, 3]], "Input Strides": [[3, 1]], "Input type": ["float"]}
    common = {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": 10.0}
    common["args"] = {**arguments, "Concrete Inputs": [""]}
    events = [{**common, "name": "aten::t", "dur": 2}, {**common, "name": "aten::relu", "dur": 5}]
    path = tmp_path / "profile.json"
    for order in (events, events[::-1]):
        path.write_text(json.dumps({"traceEvents": order}))
        assert [each.op for each in read(path).calls] == ["aten.relu.default"]


def check_damaged(path: Path) -> None:
    """Reads a damaged file, which must end in a recording or in an error of one line."""
    try:
        read(path)
    except RecordingError as error:
        assert "\n" not in str(error) and str(path) in str(error)


@settings(
    max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(data=st.data())
def test_truncated_traces_are_one_sentence(
    data: st.DataObject, trace: Path, profile: Path, tmp_path: Path
) -> None:
    path = data.draw(st.sampled_from((trace, profile)))
    content = path.read_bytes()
    cut = tmp_path / "cut.json"
    cut.write_bytes(content[: data.draw(st.integers(0, len(content) - 2))])
    with pytest.raises(RecordingError) as raised:
        read(cut)
    assert "\n" not in str(raised.value)


JUNK = st.one_of(st.none(), st.integers(), st.text(max_size=3), st.lists(st.integers(), max_size=3))


@settings(
    max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(data=st.data())
def test_other_values_in_a_trace_raise_nothing_else(
    data: st.DataObject, trace: Path, profile: Path, tmp_path: Path
) -> None:
    document = json.loads(data.draw(st.sampled_from((trace, profile))).read_text())
    entries = document.get("nodes") or document["traceEvents"]
    replace_a_part([each for each in entries if "::" in each["name"]], data)
    path = tmp_path / "junk.json"
    path.write_text(json.dumps(document))
    check_damaged(path)


def replace_a_part(entries: list[Any], data: st.DataObject) -> None:
    """Puts another value in the place of a part of one of the entries."""

    def draw(parts: Sequence[Any]) -> Any:
        return parts[data.draw(st.integers(0, len(parts) - 1))]

    place = draw(entries)
    for _ in range(data.draw(st.integers(0, 3))):  # some way down into the entry
        parts = list(place.values()) if isinstance(place, dict) else place
        inner = [each for each in parts if isinstance(each, (dict, list)) and each]
        place = draw(inner) if inner else place
    place[draw(sorted(place) if isinstance(place, dict) else range(len(place)))] = data.draw(JUNK)
