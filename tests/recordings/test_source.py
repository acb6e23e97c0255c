"""Recorded calls as subjects and samples of a plan."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from conformance.checks.cells import Recorder
from conformance.checks.ops.context import OpContext, run_checks
from conformance.recordings.fidelity import fidelity_of
from conformance.recordings.recorder import CallRecorder
from conformance.recordings.source import NEIGHBOURS, AtenCall, RecordedSource
from conformance.recordings.wire import FORMAT, Header, RecordedCall, RecordedTensor, Recording
from conformance.suites import precision
from conformance.suites.precision import stale_results
from devices import registry
from opinfo.axes import samples_of
from opinfo.database import DATABASE
from opinfo.device import open_device
from opinfo.exceptions import exceptions
from opinfo.reference import StrideReference
from opinfo.samples import probe


def source_of(program: Callable[[], Any]) -> RecordedSource:
    recorder = CallRecorder()
    with recorder.recording_program():
        program()
    return RecordedSource(recorder.recording(), "0" * 16)


def subject_of(program: Callable[[], Any], op: str) -> AtenCall:
    (found,) = (
        each
        for each in source_of(program).subjects().values()
        if isinstance(each, AtenCall) and each.call.op == op
    )
    return found


def sample_of(source: RecordedSource, op: str) -> Any:
    (found,) = (each for name, each in source.subjects().items() if name.startswith(op))
    (sample,) = source.samples(found, next(iter(found.dtypes)))
    return sample


def test_a_call_is_a_sample_with_its_recorded_geometries() -> None:
    x, y = torch.randn(3, 4), torch.randn(9)[1:].view(4, 2).T[:, :3]
    source = source_of(lambda: y @ x)
    sample = sample_of(source, "mm.default")
    assert [each.stride for each in sample.geometries] == [(1, 2), (4, 1)]
    assert sample.geometries[0].offset == 1
    assert [tuple(each.shape) for each in sample.tensors] == [(2, 3), (3, 4)]


def test_a_large_call_runs_in_the_neighbours_of_its_geometry_alone() -> None:
    x = torch.zeros(300, 300)
    assert sample_of(source_of(lambda: x.cos()), "cos").layouts == NEIGHBOURS
    assert sample_of(source_of(lambda: x[:3].cos()), "cos").layouts is None


def test_ops_that_only_torch_calls_keep_sizes_and_layouts() -> None:
    x = torch.randn(3, 4)
    inner = subject_of(lambda: torch.softmax(x, 1), "aten._softmax.default")
    outer = subject_of(lambda: x.cos(), "aten.cos.default")
    assert (inner.checks_sizes, outer.checks_sizes) == (False, True)
    source = source_of(lambda: torch.softmax(x, 1))
    drawn = source.samples(inner, "float32")
    samples = samples_of(inner, "float32", 16, (), drawn)
    assert len(samples) > 1 and {each.layouts for each in samples} <= {
        ("contiguous", "contiguous+offset"),
        ("contiguous",),
        ("contiguous+offset",),
    }
    assert {tuple(each.tensors[0].shape) for each in samples} == {(3, 4)}


def test_written_tensors_follow_from_the_schema() -> None:
    x, y = [torch.ones(3), torch.ones(2)], torch.ones(3)

    def written(program: Callable[[], Any], op: str) -> tuple[frozenset[int], bool]:
        subject = subject_of(program, op)
        (sample,) = source_of(program).samples(subject, "float32")
        mutates = any(each.startswith("mutates.") for each in subject.own_families)
        return subject.written_tensors(sample.call), mutates

    assert written(lambda: torch._foreach_add_(x, 1), "aten._foreach_add_.Scalar") == ({0, 1}, True)
    assert written(lambda: torch.cos(y, out=y.clone()), "aten.cos.out") == ({1}, True)
    assert written(lambda: y.clone().mul_(2), "aten.mul_.Tensor")[0] == {0}
    assert written(lambda: y.cos(), "aten.cos.default") == (frozenset(), False)


def test_an_op_that_returns_nothing_gives_what_it_wrote() -> None:
    x = [torch.ones(3), torch.zeros(2)]
    subject = subject_of(lambda: torch._foreach_add_(x, 1), "aten._foreach_add_.Scalar")
    given = [torch.ones(3), torch.zeros(2)]
    found = subject.function(given, 1)
    assert found[0] is given[0] and found[1].tolist() == [1.0, 1.0]
    text, used = subject.source_of(subject.function)
    assert text == "WrittenArguments(torch.ops.aten._foreach_add_.Scalar)" and len(used) == 1


def test_calls_that_cannot_be_replayed_are_left_out_with_a_reason() -> None:
    x = torch.ones(2, 3)
    source = source_of(lambda: (x.clone().t_(), x.cos()))
    assert [*source.left_out.values()] == [
        "the op changes the sizes or strides of its operand in place"
    ]
    header = Header(FORMAT, 1)
    unknown = RecordedSource(
        Recording(header, (RecordedCall("nowhere.f.default", [], {}, ()),)), "0"
    )
    (why,) = unknown.left_out.values()
    assert "has no op nowhere.f.default" in why and unknown.subjects() == {}


def test_a_call_that_is_too_large_is_left_out() -> None:
    tensor = RecordedTensor("float32", (2**20, 2**20), (2**20, 1))
    call = RecordedCall("aten.neg.default", [{"tensor": 0}], {}, (tensor,))
    source = RecordedSource(Recording(Header(FORMAT, 1), (call,)), "0")
    (why,) = source.left_out.values()
    assert why == "its tensors have more than 268,435,456 elements: 1,099,511,627,776"


def test_tolerances_are_those_of_the_database() -> None:
    x = torch.ones(2, 3, 3)
    product = subject_of(lambda: x.bmm(x), "aten.bmm.default")
    entry = DATABASE.subjects()["bmm"].tolerance("float32", "cpu")
    assert entry is not None and product.tolerance("float32", "cpu") == entry
    assert subject_of(lambda: x.neg(), "aten.neg.default").tolerance("float32", "cpu") is None


def test_a_recording_of_a_replay_is_compared_with_the_recording(tmp_path: Path) -> None:
    x = torch.randn(4, 3)

    def program() -> None:
        x.T @ x[:, :2].contiguous()
        x[::2].expand(2, 2, 3) + 1
        x * x
        x.clone().t_()

    found = fidelity_of(source_of(program))
    assert found.reasons == {
        "the op changes the sizes or strides of its operand in place": 1,
    }
    assert found.exact == len(source_of(program).subjects())
    assert str(found).startswith(f"fidelity: the replay repeats {found.exact} of the ")


def test_forward_calls_alone_have_gradients_to_judge() -> None:
    x = torch.randn(3, requires_grad=True)
    recorder = CallRecorder()
    with recorder.recording_program():
        x.tanh().sum().backward()
    recording = recorder.recording()
    for backward, wanted in ((False, frozenset()), (True, frozenset({"float32"}))):
        source = RecordedSource(recording, "0" * 16, backward=backward)
        found = {name.partition(".")[0]: each for name, each in source.subjects().items()}
        assert found["tanh"].gradient_dtypes == wanted
        assert found["tanh_backward"].gradient_dtypes == frozenset()
        assert source.describe().endswith("with gradients") == backward


def test_an_attention_without_dropout_has_one_result() -> None:
    x = torch.randn(1, 2, 3, 4)

    def free(dropout: float) -> bool:
        attention = torch.nn.functional.scaled_dot_product_attention
        found = source_of(lambda: attention(x, x, x, dropout_p=dropout)).subjects().values()
        return any("values.free" in each.own_families for each in found)

    assert [free(0.0), free(0.5)] == [False, True]
    x.requires_grad_(True)
    op = "aten._scaled_dot_product_flash_attention_for_cpu"
    (call,) = (
        each
        for each in source_of(
            lambda: torch.nn.functional.scaled_dot_product_attention(x, x, x).sum()
        )
        .subjects()
        .values()
        if isinstance(each, AtenCall) and each.call.op.startswith(op)
    )
    assert "values.free" not in call.own_families


def test_an_op_that_takes_each_tensor_on_its_own_may_mix_devices() -> None:
    x = [torch.ones(2), torch.ones(3)]
    norm = subject_of(lambda: torch._foreach_norm(x), "aten._foreach_norm.Scalar")
    added = subject_of(lambda: torch._foreach_add(x, x), "aten._foreach_add.List")
    assert "cross_device.any" in norm.own_families
    assert "cross_device.any" not in added.own_families


@pytest.mark.parametrize(
    ("size", "made"), [(9, [("", 10), ("", 10), ("step", 10)]), (2**17, [("", 2), ("", 2)])]
)
def test_a_large_call_is_asked_for_stale_results_fewer_times(
    size: int, made: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, int]] = []
    monkeypatch.setattr(
        stale_results.standalone_checks,
        "run",
        lambda *_, **given: asked.append((given["strided"], given.get("calls", 10))),
    )
    x = torch.randn(size)
    source = source_of(lambda: x.cos())
    (subject,) = source.subjects().values()
    samples, known = source.samples(subject, "float32"), exceptions()
    traits, recorder = (
        probe(subject, "float32", samples, known),
        Recorder(subject.id, "float32", [stale_results.TRUST]),
    )
    about = (open_device(registry.get("cpu")), StrideReference("cpu", None), recorder, known)
    context = OpContext(subject, "float32", traits, samples, *about)
    run_checks(context, precision.SUITE.op_checks)
    assert asked == made
