"""Cases of the clauses transfer.storage_resize and transfer.serialization: resizing storages, and saving,
loading, pickling and copying tensors."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from devices.failure import Kind

cases = Cases(Kind.VALUES)


def _resized(context: CaseContext, there: torch.Tensor, count: int) -> torch.UntypedStorage:
    """Resizes the storage of a tensor to ``count`` elements of the tensor's dtype, checks the new size and
    returns the storage."""
    storage = there.untyped_storage()
    storage.resize_(there.itemsize * count)
    context.same(
        storage.nbytes(),
        there.itemsize * count,
        "resize_() of a storage gave the wrong size in bytes",
    )
    return storage


@cases("transfer.storage_resize", over={"grown": (2,), "much": (4096,)})
def keeps_bytes_grown(context: CaseContext, factor: int) -> None:
    """UntypedStorage.resize_() to a larger size keeps the existing bytes, and the new part of the storage can
    be written."""
    want = torch.arange(100)
    there = context.to_device(want.clone())
    storage = _resized(context, there, 100 * factor)
    context.equal(there, want, "growing the storage changed the values of its tensor")
    more = there.set_(storage, 0, (100 * factor,), (1,))
    more[100:].fill_(7)
    context.equal(more[:100], want, "writing the new part of a grown storage changed its old part")
    context.equal(
        more[100:],
        torch.full((100 * factor - 100,), 7),
        "the new part of a grown storage does not have the values that were written to it",
    )


@cases("transfer.storage_resize")
def keeps_bytes_shrunk(context: CaseContext) -> None:
    """UntypedStorage.resize_() to a smaller size keeps the bytes that lie within the new size."""
    there = context.to_device(torch.arange(100))
    storage = _resized(context, there, 40)
    context.equal(
        there.set_(storage, 0, (40,), (1,)),
        torch.arange(40),
        "shrinking the storage changed its first bytes",
    )


@cases("transfer.storage_resize")
def by_the_tensor(context: CaseContext) -> None:
    """Tensor.resize_() to more elements keeps the existing elements. Tensor.resize_() to fewer elements keeps
    the first elements."""
    there = context.to_device(torch.arange(10.0))
    there.resize_(2000)
    context.equal(
        there[:10], torch.arange(10.0), "resize_() to more elements changed the existing elements"
    )
    there.resize_(4)
    context.equal(
        there, torch.arange(4.0), "resize_() to fewer elements changed the first elements"
    )


@cases("transfer.storage_resize")
def behind_work(context: CaseContext) -> None:
    """A storage is resized right after kernels were queued on its tensor. The tensor contains the result of the
    kernels."""
    for number in range(10):
        there = context.to_device(torch.zeros(1000))
        there.fill_(3.0).mul_(2.0)
        there.untyped_storage().resize_(16_000)
        context.equal(
            there,
            torch.full((1000,), 6.0),
            f"resizing the storage lost the result of queued work (repetition {number})",
        )


@cases("transfer.storage_resize", requires={"multi_device"}, indices=2)
def while_another_index_is_current(context: CaseContext) -> None:
    """The storage of a tensor on one device index is resized while another index is current. The bytes stay on their index,
    and the current index stays the same."""
    for mine, other in ((1, 0), (0, 1)):
        torch.accelerator.set_device_index(other)
        there = torch.arange(100, device=context.at(mine))
        before = _allocated(context)
        storage = _resized(context, there, 300_000)
        now = torch.accelerator.current_device_index()
        context.same(now, other, "resize_() of a storage changed the current index")
        text = "resize_() moved a storage to another device index"
        context.same(storage.device, context.at(mine), text)
        rises = [
            after - earlier for after, earlier in zip(_allocated(context), before, strict=True)
        ]
        text = "resize_() of a storage took memory of another device index"
        context.same(
            [index for index, rise in enumerate(rises) if rise > 0 and index != mine], [], text
        )
        context.equal(there, torch.arange(100), "resize_() changed the values of a tensor")
        there.resize_(500_000)
        now = torch.accelerator.current_device_index()
        context.same(now, other, "resize_() of a tensor changed the current index")
        context.equal(there[:100], torch.arange(100), "resize_() changed the values of a tensor")


def _allocated(context: CaseContext) -> list[int]:
    """Returns the allocated bytes of each device index; an empty list if the device does not count them."""
    if not context.has("allocator_statistics"):
        return []
    return [context.counters(index).allocated for index in context.indices]


@cases("transfer.storage_resize")
def to_nothing(context: CaseContext) -> None:
    """UntypedStorage.resize_(0) leaves a storage of 0 bytes, which can be grown again and written."""
    there = context.to_device(torch.arange(100.0))
    storage = _resized(context, there, 0)
    storage.resize_(400)
    there.fill_(5.0)
    context.equal(
        there,
        torch.full((100,), 5.0),
        "a storage that was resized to 0 and grown again has wrong values",
    )


@cases("transfer.storage_resize", requires={"allocator_statistics"})
def frees_memory(context: CaseContext) -> None:
    """UntypedStorage.resize_(0) frees the memory of the storage: the allocated bytes return to their previous
    value."""
    before = context.counters().allocated
    there = torch.ones(300_000, device=context.device)
    context.must(
        context.counters().allocated > before,
        "allocating a tensor did not increase the number of allocated bytes",
        by="allocator.accounting",
    )
    there.untyped_storage().resize_(0)
    context.same(
        context.counters().allocated,
        before,
        "the allocated bytes did not return to their previous value after resize_(0)",
    )


def _saved(value: Any, **named: Any) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(value, file, **named)
    file.seek(0)
    return file


_WAYS: dict[str, Callable[[Any], Any]] = {
    "save": lambda value: torch.load(_saved(value)),
    "pickle": lambda value: pickle.loads(pickle.dumps(value)),
    "deepcopy": copy.deepcopy,
}


@cases("transfer.serialization", over={name: (name,) for name in _WAYS}, requires={"strides"})
def keeps(context: CaseContext, way: str) -> None:
    """A tensor is saved with torch.save and loaded, pickled, or copied with copy.deepcopy. The result has the
    same values, dtype, device, strides and storage offset."""
    base = context.to_device(torch.arange(60.0))
    tensors = [
        base,
        base.as_strided((3, 4), (1, 5), 7),
        base.as_strided((3, 4), (8, 2), 3),
        base.as_strided((3, 4), (0, 1), 2),
        context.to_device(torch.tensor(5)),
        context.to_device(torch.empty(0, 3, dtype=torch.bool)),
    ]
    for index in context.indices[1:]:
        tensors.append(context.to_device(base, index).as_strided((3, 4), (1, 5), 7))
    for given in tensors:
        got = _WAYS[way](given)
        context.equal(got, given, "the values or the dtype of the tensor changed")
        context.same(got.device, given.device, "the device of the tensor changed")
        form = got.stride(), got.storage_offset()
        context.same(
            form,
            (given.stride(), given.storage_offset()),
            "the strides or the storage offset of the tensor changed",
        )


@cases("transfer.serialization")
def copied_without_its_data(context: CaseContext) -> None:
    """copy.copy returns another tensor with the memory of the given one, as the copies of other Python objects share what
    they contain. A write to either tensor shows in both."""
    given = context.to_device(torch.arange(6.0))
    made = copy.copy(given)
    context.check(made is not given, "copy.copy returned the tensor itself")
    context.same(made.device, given.device, "copy.copy changed the device of the tensor")
    context.equal(made, torch.arange(6.0), "copy.copy changed the values of the tensor")
    made.fill_(7)
    context.equal(given, torch.full((6,), 7.0), "the tensor does not show a write to its copy")
    given.fill_(8)
    context.equal(made, torch.full((6,), 8.0), "the copy does not show a write to the tensor")


@cases("transfer.serialization", over={f"{name}_shares": (name,) for name in _WAYS})
def keeps_sharing(context: CaseContext, way: str) -> None:
    """Tensors that share a storage are saved and loaded, pickled or copied together. The results share one
    storage, which is not the storage of the originals."""
    base = context.to_device(torch.arange(20.0))
    given = {"whole": base, "part": base[5:10], "other": base[8:]}
    if way == "pickle":
        # pickle alone does not keep sharing. Sharing is kept within one torch.save, whose older format is a
        # stream of pickles, and within deepcopy's memo.
        given = torch.load(_saved(given, _use_new_zipfile_serialization=False))
        context.must(
            given["part"].storage_offset() == 5,
            "torch.load in the older format lost a storage offset",
        )
        base = given["whole"]
    got = _WAYS["save" if way == "pickle" else way](given)
    got["whole"].fill_(-1.0)
    context.equal(
        got["part"],
        torch.full((5,), -1.0),
        "a view does not show a write to the tensor that it was saved with",
    )
    got["part"].fill_(2.0)
    want = torch.tensor([2.0, 2.0] + [-1.0] * 10)
    context.equal(
        got["other"], want, "a view does not show a write to another view that it was saved with"
    )
    context.equal(base, torch.arange(20.0), "writing to the result changed the original")


def _loaded(given: torch.Tensor, location: Any, at: torch.device, context: CaseContext) -> None:
    """Saves a tensor with the values 0 to 19 together with a view of its values 5 to 8. Checks that both are
    loaded onto the device ``at`` with map_location=``location``."""
    got, view = torch.load(_saved([given, given[5:9]]), map_location=location)
    context.same(
        [got.device, view.device],
        [at, at],
        "torch.load with map_location put the tensors on the wrong devices",
    )
    context.equal(got, torch.arange(20.0), "torch.load with map_location changed the values")
    context.same(
        view.storage_offset(),
        5,
        "torch.load with map_location changed the storage offset of a view",
    )
    got.zero_()
    context.equal(
        view, torch.zeros(4), "torch.load with map_location lost the sharing of a storage"
    )


@cases("transfer.serialization")
def to_the_cpu(context: CaseContext) -> None:
    """torch.load with map_location="cpu" returns tensors on the CPU with the same values and the same sharing
    of storages."""
    base, cpu = context.to_device(torch.arange(20.0)), torch.device("cpu")
    for location in ("cpu", cpu, {str(base.device): "cpu"}):
        _loaded(base, location, cpu, context)


@cases("transfer.serialization")
def to_the_device(context: CaseContext) -> None:
    """torch.load puts CPU tensors on a device that map_location names by a string, by a torch.device or by a
    function."""
    values = torch.arange(20.0)
    for index in context.indices:
        device = context.to_device(values, index).device
        # torch.load passes the storage on the CPU and its location, and expects a storage.
        moved = partial(_moved, to=str(device))
        for location in (str(device), device, moved):
            _loaded(values, location, device, context)


def _moved(storage: Any, _: str, to: str) -> Any:
    return torch.serialization.default_restore_location(storage, to)


@cases("transfer.serialization", indices=2)
def to_another_index(context: CaseContext) -> None:
    """torch.load with a dictionary as map_location moves tensors from one device index to another index."""
    base = context.to_device(torch.arange(20.0))
    got = torch.load(_saved(base), map_location={str(context.at(0)): str(context.at(1))})
    context.same(got.device, context.at(1), "torch.load put the tensor on the wrong device index")
    context.equal(got, torch.arange(20.0), "torch.load changed the values")


@cases("transfer.serialization", requires={"multi_device"})
def absent_index_raises(context: CaseContext) -> None:
    """torch.load raises an error if map_location names a device index that does not exist."""
    absent = f"{context.kind}:{len(context.indices) + 3}"
    errors, text = (
        (RuntimeError, AssertionError, ValueError),
        f"torch.load to the device {absent}, which does not exist, did not raise the documented exception",
    )
    for given in (torch.ones(3), context.to_device(torch.ones(3))):
        context.raises(errors, torch.load, _saved(given), map_location=absent, text=text)


@cases("transfer.serialization")
def parameters(context: CaseContext) -> None:
    """The state_dict of a module has the same values after it was saved and loaded. A deep copy of the module
    keeps requires_grad and has its own parameters."""
    module = torch.nn.Linear(3, 4).to(context.device)
    got = torch.load(_saved(module.state_dict()))
    for name, value in module.state_dict().items():
        context.equal(got[name], value, f"saving and loading changed the values of {name}")
    other = copy.deepcopy(module)
    context.check(other.weight.requires_grad, "a deep copy of a parameter lost requires_grad")
    with torch.no_grad():
        other.weight.zero_()
    context.check(
        bool(module.weight.any()),
        "setting the parameters of the copy to zero changed the original module",
    )
