"""The aten calls of a training step, recorded with their strides, are judged without torch's op database."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from conformance.checks.cells import Recorder
from conformance.checks.ops.context import OpContext, run_checks
from conformance.suites import layout
from devices import registry
from devices.cell import Outcome
from devices.simulated.backend.fault_switches import planted
from opinfo.compare import Arguments
from opinfo.device import open_device
from opinfo.exceptions import Exceptions, exceptions
from opinfo.layouts import recorded_geometry
from opinfo.reference import StrideReference
from opinfo.samples import Sample, Traits, probe
from opinfo.subject import Subject, names_of_packet


class Recording(TorchDispatchMode):
    """Records the aten calls that are made within it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Sample]] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        call = Arguments(args, dict(kwargs or {}))
        tensors = [each.detach() for each in call.tensors]
        places = tuple(recorded_geometry(t.shape, t.stride(), t.storage_offset()) for t in tensors)
        values = [each.clone(memory_format=torch.contiguous_format) for each in tensors]
        kept = Arguments(*call.bind(values))
        self.calls.append((function, Sample(len(self.calls), kept, None, geometries=places)))
        return function(*args, **(kwargs or {}))


class AtenCall(Subject):
    """An overload of an aten op."""

    schemas: tuple[Any, ...] = ()
    names: tuple[str, ...] = ()
    declares_view: bool = False

    def __init__(self, overload: Any) -> None:
        self.id, self.function, self.reference = str(overload), overload, overload
        self.schemas = (overload._schema,)
        self.names = names_of_packet(overload._schema.name.partition("::")[2])
        written = [each.alias_info for each in overload._schema.returns]
        self.declares_view = any(each is not None and not each.is_write for each in written)


def a_training_step() -> None:
    """A step of a small network: convolution, batch norm, linear, loss and backward."""
    torch.manual_seed(0)
    body = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten()
    )
    head = torch.nn.Linear(4 * 4 * 4, 5)
    found = head(body(torch.randn(2, 3, 6, 6).to(memory_format=torch.channels_last)))
    torch.nn.functional.cross_entropy(found, torch.tensor([1, 3])).backward()


def failures_of(
    calls: list[tuple[Any, Sample]], device: str, dtype: str = "float32"
) -> set[tuple[str, str]]:
    """The overloads and clauses whose cells fail on a device, or do not pass, if they run in every layout."""
    found, descriptor, known = set(), registry.get(device), exceptions()
    opened = open_device(descriptor)
    for overload, sample in calls:
        subject = AtenCall(overload)
        traits = probe(subject, dtype, [sample], known)
        recorder = Recorder(subject.id, dtype, [*planned(subject, traits, known)])
        strides = StrideReference(descriptor.torch_type, None)
        context = OpContext(subject, dtype, traits, [sample], opened, strides, recorder, known)
        run_checks(context, layout.SUITE.op_checks)
        for clause, record in recorder.cells.items():
            unchecked = sample.layouts is None and record.outcome() is not Outcome.PASS
            if unchecked or record.outcome() is Outcome.FAIL:
                found.add((subject.id, clause))
    return found


def planned(subject: Subject, traits: Traits, known: Exceptions) -> Iterator[str]:
    """The clauses that apply, without those that are excluded under any name of the subject."""
    for clause in layout.SUITE.applying(traits):
        about = [
            known.excluded(clause, name, traits.dtype, fake_only=False) for name in subject.names
        ]
        if not any(about):
            yield clause


@pytest.fixture(scope="module")
def calls() -> list[tuple[Any, Sample]]:
    with Recording() as recorded:
        a_training_step()
    names = {str(overload) for overload, _ in recorded.calls}
    assert {"aten.convolution.default", "aten.native_batch_norm.default"} <= names
    assert {"aten.addmm.default", "aten.convolution_backward.default"} <= names
    return recorded.calls


def test_a_recorded_step_has_no_false_alarm(calls: list[tuple[Any, Sample]]) -> None:
    assert failures_of(calls, "simulated") == set()


def test_a_call_is_judged_in_the_strides_of_its_recording_alone(
    calls: list[tuple[Any, Sample]],
) -> None:
    alone = [(overload, replace(sample, layouts=())) for overload, sample in calls]
    strides = {g.stride for _, sample in alone for g in sample.geometries or ()}
    assert (108, 1, 18, 3) in strides  # the input of the convolution, in channels_last
    assert failures_of(alone, "cpu") == set()
    with planted("precision.truncate_mantissa"):
        found = failures_of(alone, "simulated")
    assert found == {("aten.mm.default", f"layout.{each}") for each in ("values", "fp32_precision")}


def test_what_is_known_of_an_op_is_found_by_its_aten_name() -> None:
    def known(packet: str) -> frozenset[str]:
        return exceptions().families_of(*names_of_packet(packet))

    assert "mutates.running_stats" in known("batch_norm")  # nn.functional.batch_norm
    assert known("linalg_svd") == exceptions().families_of("linalg.svd") != frozenset()
    assert "values.free" in known("uniform_") and known("no_such_op") == frozenset()


def test_an_overload_that_writes_to_its_first_argument_mutates_it() -> None:
    aten = torch.ops.aten
    families = {
        str(overload): AtenCall(overload).own_families
        for overload in (aten.add_.Tensor, aten.add.Tensor, aten.add.out)
    }
    assert families == {
        "aten.add_.Tensor": {"mutates.self"},
        "aten.add.Tensor": frozenset(),
        "aten.add.out": frozenset(),
    }
    both = AtenCall(aten.add.Tensor)
    both.schemas += AtenCall(aten.add_.Tensor).schemas
    assert both.own_families == frozenset()


def test_a_recorded_tensor_may_repeat_its_elements_in_several_dimensions() -> None:
    with Recording() as recorded:
        torch.tensor([2.0, 3.0])[:1].expand(4, 3, 1).expand(4, 3, 5) * torch.ones(5)
    calls = [(f, s) for f, s in recorded.calls if str(f) == "aten.mul.Tensor"]
    ((_, sample),) = calls
    assert sample.geometries is not None and sample.geometries[0].stride == (0, 0, 0)
    assert failures_of(calls, "cpu") == set()
