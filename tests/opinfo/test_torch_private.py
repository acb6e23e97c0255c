"""The private names of torch that opinfo/torch_private.py uses: a torch that changed one fails here, by name."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from opinfo import torch_private as private


def test_tensors_of_one_storage_have_one_id() -> None:
    one, other = torch.ones(4), torch.ones(4)
    assert private.storage_id(one) == private.storage_id(one[1:]) != private.storage_id(other)


def test_a_reference_to_a_storage_says_when_it_was_freed() -> None:
    tensor = torch.ones(4)
    reference = private.StorageReference(tensor.untyped_storage())
    assert reference.key == private.storage_id(tensor) and not reference.expired
    del tensor
    assert reference.expired


def test_a_composite_kernel_can_be_called_and_its_calls_are_seen() -> None:
    seen = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(str(func))
            if key := private.composite_kernel(func, "cpu"):
                with self:
                    return private.call_kernel(func, key, args, kwargs or {})
            return func(*args, **(kwargs or {}))

    ones = torch.ones(2)
    with Mode():
        found = torch.ops.aten.mul.Scalar(ones, 3.0)
    assert seen == ["aten.mul.Scalar", "aten.mul.Tensor"] and found.tolist() == [3.0, 3.0]
    assert private.composite_kernel(torch.ops.aten.mul.Tensor, "cpu") == ""
    assert private.composite_kernel(torch.ops.aten.reshape.default, "cpu").startswith("CompositeI")


def test_numbers_that_stand_for_tensors_become_tensors() -> None:
    x = torch.ones(2, dtype=torch.float64)
    _, number = private.with_tensors(torch.ops.aten.remainder.Tensor, (x, 0.3))
    assert number.dtype is torch.float64 and number.item() == 0.3
    assert torch.ops.aten.remainder.Tensor(x, number).dtype is torch.float64
    assert private.with_tensors(torch.ops.aten.mul.Tensor, (x, 0.3)) == (x, 0.3)
    assert private.with_tensors(torch.ops.aten.remainder.Scalar, (x, 0.3)) == (x, 0.3)


def test_a_negated_view_has_its_bit_and_a_write_is_counted() -> None:
    tensor = torch.ones(2)
    assert private.negated(tensor).is_neg() and private.version_of(tensor) == 0
    tensor.add_(1)
    assert private.version_of(tensor) == 1


def test_fake_tensors_know_strides_without_values() -> None:
    with private.FakeTensorMode():
        assert torch.empty(3, 2).t().stride() == (1, 2)


def test_the_dispatcher_s_tables_tell_a_device_s_kernels() -> None:
    assert private.key_of("cpu") == "CPU" and private.key_of("no such type") == "PrivateUse1"
    assert private.kernels("aten::add.Tensor", "CPU")
    assert "aten::add.Tensor" in private.all_overloads()["aten::add"]
    assert private.schema_of(torch.ops.aten.add.Tensor).name == "aten::add"


def test_the_profiler_sees_the_ops_of_a_call() -> None:
    events = [e for t in private.profiled(lambda: torch.ones(2) + 1)[0] for e in t]
    assert "aten::add" in {event.name() for event in events if str(event.kind()) == "push"}


def test_kineto_lists_the_ops_of_a_profile() -> None:
    private.quiet_kineto()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        torch.ones(2).add(1)
    [added] = [e for e in private.kineto_events(seen) if e.name() == "aten::add"]
    assert added.device_type() == torch.profiler.DeviceType.CPU and added.correlation_id() > 0
    assert added.start_ns() > 0 < added.duration_ns() and added.linked_correlation_id() == 0
    numbers = (added.sequence_nr(), added.fwd_thread_id(), added.is_user_annotation())
    places = (added.start_thread_id(), added.device_index(), added.device_resource_id())
    assert all(isinstance(each, int) for each in (*numbers, *places))


def test_a_profile_can_record_all_threads_from_torch_2_10_on() -> None:
    old = torch.__version__.startswith("2.9.")
    assert (private.every_thread() is None) == old


def test_torch_lists_the_devices_of_optimisers() -> None:
    ways = ("foreach", "fused", "capturable")
    assert [private.optimised_on(way, "cuda") for way in ways] == [True, True, True]
    assert [private.optimised_on(way, "cpu") for way in ways] == [True, True, False]


_FORWARD = """
import sys, torch
from torch.autograd import forward_ad
from opinfo.torch_private import load_forward_ad
load_forward_ad()
before = set(sys.modules)
with forward_ad.dual_level():
    forward_ad.make_dual(torch.ones(2), torch.ones(2))
assert set(sys.modules) == before, set(sys.modules) - before
"""


def test_forward_mode_loads_nothing_more_at_its_first_use() -> None:
    subprocess.run([sys.executable, "-W", "error::DeprecationWarning", "-c", _FORWARD], check=True)


def test_schemas_are_parsed_with_the_types_that_they_write() -> None:
    schema = private.parse_schema("x::f.out(Tensor a, ScalarType? b=None, int[2] c=0) -> Tensor")
    assert (schema.name, schema.overload_name) == ("x::f", "out")
    found = [private.type_of_argument(each) for each in schema.arguments]
    assert found == ["Tensor", "Optional[ScalarType]", "List[int]"]
    assert schema.arguments[2].default_value == [0, 0]


def test_composite_ops_reach_no_kernel() -> None:
    assert private.is_composite("aten::linear") and private.is_composite("aten::to.dtype")
    for name in ("aten::addmm", "aten::relu", "aten::t", "aten::zeros", "no::such_op"):
        assert not private.is_composite(name), name


@pytest.mark.slow
def test_a_record_has_the_ops_of_all_threads_and_says_that_it_was_switched_off() -> None:
    """In a process of its own, as torch's profiler cannot be used after a fork of a process that used it."""
    code = """
import threading, torch
from opinfo.torch_private import OpRecord, quiet_kineto
quiet_kineto()
record, x = OpRecord(), torch.ones(3)
record.start()
x.softmax(0)
thread = threading.Thread(target=x.cos)
thread.start()
thread.join()
events = record.stop()
print(sorted((e.name, *(c.name for c in e.children)) for e in events))
record.start()
torch.autograd._disable_profiler()
print(record.stop())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    first, second = done.stdout.splitlines()
    assert first == "[('aten::cos',), ('aten::softmax', 'aten::_softmax')]", done.stderr
    assert second == "None"


def test_ops_of_a_library_are_listed() -> None:
    found = private.op_names("aten")
    assert {"aten::softmax", "aten::relu_"} <= {*found} and all("." not in each for each in found)
