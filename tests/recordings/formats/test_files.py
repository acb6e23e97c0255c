"""Formats that are read from small files, written by hand: operator inputs, exported programs, graphs, msprobe, torch-spyre."""

from __future__ import annotations

import json
import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conformance.recordings.formats import read
from conformance.recordings.formats.decomposing import NoFunction, function_of
from conformance.recordings.formats.literals import parse_expression, read_literal
from conformance.recordings.formats.operator_inputs import contiguous
from conformance.recordings.formats.schemas import Constant, Unreadable
from conformance.recordings.wire import Place, RecordedCall, Recording, RecordingError

EXAMPLES = Path(__file__).parent / "examples"


def archive(folder: Path, graph: str | bytes, member: str = "net/models/model.json") -> Path:
    """Writes an archive with the graph of an exported program, and with weights that cannot be read."""
    path = folder / "net.pt2"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(member, graph)
        file.writestr("net/data/weights/weight_0", b"\x80\x04 no pickle")
    return path


def only(recording: Recording, op: str) -> RecordedCall:
    (found,) = (each for each in recording.calls if each.op == op)
    return found


def geometries(call: RecordedCall) -> list[tuple[object, ...]]:
    return [(each.shape, each.stride, each.offset, each.storage) for each in call.tensors]


def lacks(recording: Recording) -> str:
    return "\n".join(recording.header.lacks)


# -- operator inputs


def test_operator_inputs_have_counts_strides_and_constants() -> None:
    found = read(EXAMPLES / "operator_inputs.txt")
    (copy, other) = (each for each in found.calls if each.op == "aten._to_copy.default")
    assert (copy.count, copy.kwargs) == (12, {"dtype": {"dtype": "bool"}})
    assert other.kwargs == {
        "dtype": {"dtype": "float16"},
        "layout": {"layout": "strided"},
        "device": {"device": True},
    }
    cat = only(found, "aten.cat.default")
    assert cat.args == [[{"tensor": 0}, {"tensor": 1}], -1]
    assert [each.stride for each in cat.tensors] == [(8, 1), (1, 4)]
    add = only(found, "aten.add.Tensor")
    assert add.args[1] == {"float": "inf"} and add.kwargs == {"alpha": -2}
    assert only(found, "aten.sum.dim_IntList").count == 24


def test_composite_ops_of_operator_inputs_are_divided() -> None:
    found = read(EXAMPLES / "operator_inputs.txt")
    product = only(found, "aten.mm.default")
    assert product.count == 5
    assert geometries(product) == [((4, 2), (2, 1), 0, 0), ((2, 3), (1, 2), 0, 1)]
    assert "the file has composite ops instead of 2 of " in lacks(found)
    assert "not read: 7 x aten.add.Tensor: a sparse tensor" in lacks(found)


def test_a_log_of_a_training_run_is_read_whole() -> None:
    found = read(EXAMPLES / "training_log.txt")
    assert not [each for each in found.header.lacks if each.startswith("not read")]
    assert (len(found.calls), found.count) == (18, 99)
    assert [each.stride for each in only(found, "aten.mm.default").tensors] == [(0, 0), (3, 1)]
    assert only(found, "aten.masked_fill_.Scalar").args[2] == {"float": "-inf"}
    assert only(found, "aten.slice_backward.default").args[4] == 2**63 - 1
    rnn = only(found, "aten._cudnn_rnn.default")
    assert rnn.args[1] == [{"tensor": n} for n in (1, 2, 3, 4)] and rnn.args[14] == []
    assert [each.tensors[0].shape for each in found.calls if each.op == "aten.cat.default"] == [
        (0, 1)
    ]


@pytest.mark.parametrize(
    "line", ["cnt: 3", "cnt: x, ((), {})", "anything", "cnt: 9999999999999999, ((), {})"]
)
def test_a_damaged_line_of_operator_inputs_is_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text(f"Operator: aten.neg.default\n{line}\n")
    with pytest.raises(
        RecordingError, match=r"line 2: expected 'Operator: OP' or 'cnt: N"
    ) as raised:
        read(path)
    assert "\n" not in str(raised.value)


def test_expressions_that_run_code_are_not_evaluated(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    mark = tmp_path / "mark"
    texts = (
        f"((__import__('pathlib').Path({str(mark)!r}).touch(),), {{}})",
        "((T.__class__,), {})",
        "((T([2] * 9, f32),), {})",
        "((lambda: 1,), {})",
        "((T([2], f32, stride='x'),), {})",
        "((T(),), {})",
        "(" * 500,
        "((T([2], f32), T([2], f32)), {})",
        "3",
    )
    path.write_text("Operator: aten.neg.default\n" + "".join(f"cnt: 1, {t}\n" for t in texts))
    found = read(path)
    assert found.calls == () and len(found.header.lacks) == len(texts) and not mark.exists()


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.tuples(inner) | st.dictionaries(st.text(), inner)
    ),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(PLAIN)
def test_plain_values_are_read_as_python_writes_them(value: object) -> None:
    assert read_literal(parse_expression(repr(value))) == value


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="T([1, 2]f32)-.*'{}:=ab", max_size=30))
def test_any_text_is_a_value_or_unreadable(text: str) -> None:
    try:
        read_literal(parse_expression(text), {"T": lambda *given, **named: (given, named)})
    except Unreadable as error:
        assert "\n" not in str(error)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 4), max_size=4))
def test_strides_of_contiguous_tensors_are_those_of_torch(shape: list[int]) -> None:
    assert contiguous(tuple(shape)) == torch.empty(shape).stride()


def test_constants_of_torch_are_names() -> None:
    assert read_literal(parse_expression("(torch.float16, f16, -inf)")) == (
        Constant("float16"),
        Constant("float16"),
        float("-inf"),
    )


# -- exported programs


@pytest.mark.parametrize("member", ["net/models/model.json", "serialized_exported_program.json"])
def test_an_exported_program_has_geometry_places_and_views(member: str, tmp_path: Path) -> None:
    found = read(archive(tmp_path, (EXAMPLES / "model.json").read_bytes(), member))
    product = only(found, "aten.mm.default")
    assert geometries(product) == [((5, 4), (4, 1), 0, 0), ((4, 3), (1, 4), 0, 1)]
    assert product.places == ((Place("Net.a", "/src/net.py:6"), 1),)
    scaled = only(found, "aten.mul.Tensor")
    assert geometries(scaled) == [((4, 3), (3, 1), 3, 0), ((5, 3), (3, 1), 0, 0)]
    assert only(found, "aten._to_copy.default").kwargs == {
        "dtype": {"dtype": "bfloat16"},
        "device": {"device": True},
    }
    assert "sizes are symbolic of 1 of " in lacks(found)
    assert "not read: 1 x torch.ops.higher_order.cond" in lacks(found)


@dataclass(frozen=True)
class Damage:
    graph: str
    said: str


@pytest.mark.parametrize(
    "damage",
    [
        Damage("{", "the JSON is damaged or incomplete"),
        Damage(
            '{"graph_module": 3}', "expected an exported program of torch.export.save; Expected"
        ),
        Damage("[" * 100_000, "nested too deeply|damaged or incomplete|Expected `object`"),
    ],
    ids=["cut", "other", "deep"],
)
def test_a_damaged_program_is_one_sentence(damage: Damage, tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match=damage.said) as raised:
        read(archive(tmp_path, damage.graph))
    assert "\n" not in str(raised.value)


def test_a_truncated_archive_is_one_sentence(tmp_path: Path) -> None:
    path = archive(tmp_path, (EXAMPLES / "model.json").read_bytes())
    path.write_bytes(path.read_bytes()[:900])
    with pytest.raises(RecordingError, match="the zip archive is damaged or incomplete"):
        read(path, "exported_program")


def test_values_of_a_program_that_are_damaged_are_left_out(tmp_path: Path) -> None:
    document = json.loads((EXAMPLES / "model.json").read_text())
    document["graph_module"]["graph"]["tensor_values"]["x"]["sizes"] = [{"as_int": "5"}, {}]
    found = read(archive(tmp_path, json.dumps(document)))
    assert "aten.linear.default: an argument cannot be read" in lacks(found)
    assert only(found, "aten.slice.Tensor")


# -- graphs


def test_a_graph_has_annotated_geometry_views_and_lines() -> None:
    found = read(EXAMPLES / "graph.txt")
    assert geometries(only(found, "aten.addmm.default"))[2] == ((4, 3), (1, 4), 0, 2)
    add = only(found, "aten.add.Tensor")
    assert geometries(add) == [((4, 2), (6, 1), 0, 0), ((4, 2), (6, 1), 0, 0)]
    assert add.where == "/src/net.py:7"
    assert only(found, "aten._to_copy.default").tensors[0].stride is None
    assert "strides unknown of 1 of " in lacks(found)
    assert "torch.nn.functional.relu: not an overload that torch has" in lacks(found)
    assert "aten.neg.default: the file does not contain the argument 'self'" in lacks(found)


def test_a_graph_that_is_no_python_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "graph.txt"
    path.write_text("def forward(self, x):\n  torch.ops.aten.neg.default(x\n")
    with pytest.raises(RecordingError, match="the text is not Python") as raised:
        read(path)
    assert "\n" not in str(raised.value)


# -- msprobe


def test_a_dump_is_divided_into_forward_and_backward(tmp_path: Path) -> None:
    shutil.copy(EXAMPLES / "dump.json", tmp_path)
    found = read(tmp_path / "dump.json")
    forward = only(found, "aten.addmm.default")
    assert [each.shape for each in forward.tensors] == [(3,), (4, 6), (6, 3)]
    assert (forward.tensors[1].values.low, forward.tensors[1].values.high) == (-2.5, 1.5)
    backward = only(found, "aten.mm.default")
    assert backward.phase == "backward" and backward.tensors[0].values.high == 0.25
    assert only(found, "aten.slice.Tensor").args == [{"tensor": 0}, 0, 1, 2**63 - 1]
    assert only(found, "aten.zeros.default").kwargs["dtype"] == {"dtype": "float16"}
    total = sum(bool(each.tensors) for each in found.calls)
    assert f"strides unknown of {total} of {total} calls: contiguous assumed" in lacks(found)
    assert "ranges" not in lacks(found)


def test_the_stacks_beside_a_dump_name_the_lines() -> None:
    found = read(EXAMPLES / "dump.json")
    assert only(found, "aten.addmm.default").where == "/src/net.py:12"
    assert only(found, "aten.slice.Tensor").where == "/src/net.py:14"


def test_functions_that_are_none_of_tensors_are_not_called() -> None:
    said = lacks(read(EXAMPLES / "dump.json"))
    assert "not read: 1 x Torch.load: 'load' is not a function of torch for tensors" in said
    assert "not read: 1 x NPU.npu_rms_norm: functions of NPU are not of torch" in said
    for name in ("save", "from_file", "compile", "__reduce_ex__", "__class__", "_pin_memory"):
        with pytest.raises(NoFunction):
            function_of((torch, torch.Tensor), name)
    for name in ("matmul", "__radd__", "__getitem__", "arange", "new_ones", "view"):
        assert callable(function_of((torch, torch.Tensor), name))


def test_a_dump_cannot_ask_for_endless_lists_of_tensors(tmp_path: Path) -> None:
    document = json.loads((EXAMPLES / "dump.json").read_text())
    call = document["data"]["Tensor.neg.0.forward"]
    call["input_args"][0]["shape"] = [10**9, 10**9]
    document["data"] = {"Tensor.unbind.0.forward": call}
    (tmp_path / "dump.json").write_text(json.dumps(document))
    assert "a dimension is too large to be divided" in lacks(read(tmp_path / "dump.json"))


# -- torch-spyre


def test_a_configuration_has_geometry_ranges_and_lines() -> None:
    found = read(EXAMPLES / "spyre.yaml")
    part = only(found, "aten.slice.Tensor")
    assert geometries(part) == [((2, 13), (512, 1), 3, 0)] and part.args[1:] == [1, 0, 5]
    assert part.tensors[0].values.high == 999 and part.where == "modeling_tiny.py:84"
    assert only(found, "aten.bitwise_or.Tensor") and only(found, "aten.new_ones.default")
    assert only(found, "aten.native_layer_norm.default").args[1] == [8]
    assert only(found, "aten.cat.default").args[1] == -1
    assert "strides unknown of 1 of " in lacks(found)
    assert "torch.load: 'load' is not a function of torch for tensors" in lacks(found)


@pytest.mark.parametrize(
    "damage",
    [
        Damage("test_suite_config: [", "the YAML is damaged or incomplete"),
        Damage("test_suite_config: !!python/object/apply:os.system [x]", "the YAML is damaged"),
        Damage(
            "test_suite_config: {name: a, inputs: {args: 3}}", "the call of a: Expected `array`"
        ),
        Damage("test_suite_config: " + "[" * 60 + "]" * 60, "nested too deeply"),
    ],
    ids=["cut", "code", "other", "deep"],
)
def test_a_damaged_configuration_is_one_sentence(damage: Damage, tmp_path: Path) -> None:
    path = tmp_path / "suite.yaml"
    path.write_text(damage.graph)
    with pytest.raises(RecordingError, match=damage.said) as raised:
        read(path)
    assert "\n" not in str(raised.value)


# -- all of them


FILES = ("operator_inputs.txt", "training_log.txt", "dump.json", "graph.txt", "spyre.yaml")


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_changed_characters_raise_nothing_else(data: st.DataObject, tmp_path: Path) -> None:
    name = data.draw(st.sampled_from(FILES))
    text = (EXAMPLES / name).read_text()
    at = data.draw(st.integers(len(text) // 4, len(text) - 1))
    part = data.draw(st.text(alphabet="[]{}(),:'\"-0x\n", max_size=3))
    path = tmp_path / name
    path.write_text(text[:at] + part + text[at + data.draw(st.integers(0, 20)) :])
    form = dict.fromkeys(("operator_inputs.txt", "training_log.txt"), "operator_inputs")
    form |= {"dump.json": "msprobe"}
    form |= {"graph.txt": "fx_graph", "spyre.yaml": "spyre"}
    try:
        read(path, form[name])
    except RecordingError as error:
        assert "\n" not in str(error) and str(path) in str(error)
