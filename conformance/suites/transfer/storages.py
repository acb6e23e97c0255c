"""transfer.storage_resize, serialization: storages that grow, and that are written down."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import Context
from devices.failure import Kind

cases = Cases(Kind.VALUES)


def _resized(context: Context, there: torch.Tensor, count: int) -> torch.UntypedStorage:
    """The tensor's storage, for so many elements now."""
    storage = there.untyped_storage()
    storage.resize_(there.itemsize * count)
    context.same(storage.nbytes(), there.itemsize * count, "the storage has the requested size")
    return storage


@cases("transfer.storage_resize", over={"grown": (2,), "much": (4096,)})
def keeps_bytes_grown(context: Context, factor: int) -> None:
    """A storage that grows keeps the bytes that it has."""
    want = torch.arange(100)
    there = context.to_device(want.clone())
    storage = _resized(context, there, 100 * factor)
    context.equal(there, want, "the tensor over it has its values")
    more = there.set_(storage, 0, (100 * factor,), (1,))
    more[100:].fill_(7)
    context.equal(more[:100], want, "the bytes stay when those after them are written")
    context.equal(more[100:], torch.full((100 * factor - 100,), 7), "and those can be written")


@cases("transfer.storage_resize")
def keeps_bytes_shrunk(context: Context) -> None:
    """A storage that shrinks keeps its first bytes."""
    there = context.to_device(torch.arange(100))
    storage = _resized(context, there, 40)
    context.equal(there.set_(storage, 0, (40,), (1,)), torch.arange(40), "its first bytes stay")


@cases("transfer.storage_resize")
def by_the_tensor(context: Context) -> None:
    """Tensor.resize_ to more elements keeps those that there are; to fewer, the first."""
    there = context.to_device(torch.arange(10.0))
    there.resize_(2000)
    context.equal(there[:10], torch.arange(10.0), "the elements stay when it grows")
    there.resize_(4)
    context.equal(there, torch.arange(4.0), "the first stay when it shrinks")


@cases("transfer.storage_resize")
def behind_work(context: Context) -> None:
    """What was queued before is done on the bytes that are kept."""
    for number in range(10):
        there = context.to_device(torch.zeros(1000))
        there.fill_(3.0).mul_(2.0)
        there.untyped_storage().resize_(16_000)
        context.equal(there, torch.full((1000,), 6.0), f"the work before is kept ({number})")


@cases("transfer.storage_resize")
def to_nothing(context: Context) -> None:
    """resize_(0) leaves a storage of no bytes, which can grow again."""
    there = context.to_device(torch.arange(100.0))
    storage = _resized(context, there, 0)
    storage.resize_(400)
    there.fill_(5.0)
    context.equal(there, torch.full((100,), 5.0), "it can be used again")


@cases("transfer.storage_resize", requires={"allocator_statistics"})
def frees_memory(context: Context) -> None:
    """resize_(0) frees the memory."""
    before = context.counters().allocated
    there = torch.ones(300_000, device=context.device)
    context.must(
        context.counters().allocated > before, "memory was taken", by="allocator.accounting"
    )
    there.untyped_storage().resize_(0)
    context.same(context.counters().allocated, before, "the memory is given back")


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
def keeps(context: Context, way: str) -> None:
    """Values, dtype, device, strides and storage offset come back."""
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
        context.equal(got, given, "the values and the dtype come back")
        context.same(got.device, given.device, "the device does")
        form = got.stride(), got.storage_offset()
        context.same(form, (given.stride(), given.storage_offset()), "strides and offset do")


@cases("transfer.serialization", over={f"{name}_shares": (name,) for name in _WAYS})
def keeps_sharing(context: Context, way: str) -> None:
    """Tensors that share a storage share one afterwards; a copy shares none with what it is of."""
    base = context.to_device(torch.arange(20.0))
    given = {"whole": base, "part": base[5:10], "other": base[8:]}
    if way == "pickle":
        # Storages are shared within one torch.save, whose older format is a stream of pickles, and in deepcopy's memo.
        given = torch.load(_saved(given, _use_new_zipfile_serialization=False))
        context.must(given["part"].storage_offset() == 5, "the parts are views")
        base = given["whole"]
    got = _WAYS["save" if way == "pickle" else way](given)
    got["whole"].fill_(-1.0)
    context.equal(got["part"], torch.full((5,), -1.0), "the part sees what is written to the whole")
    got["part"].fill_(2.0)
    want = torch.tensor([2.0, 2.0] + [-1.0] * 10)
    context.equal(got["other"], want, "another part sees what is written to the first")
    context.equal(base, torch.arange(20.0), "the originals are unchanged")


def _loaded(given: torch.Tensor, location: Any, at: torch.device, context: Context) -> None:
    """A check that a tensor and a view of it are loaded there: 0 to 19, and 5 to 8."""
    got, view = torch.load(_saved([given, given[5:9]]), map_location=location)
    context.same([got.device, view.device], [at, at], "the tensors are there")
    context.equal(got, torch.arange(20.0), "with their values")
    context.same(view.storage_offset(), 5, "the view keeps its offset")
    got.zero_()
    context.equal(view, torch.zeros(4), "and shares its storage")


@cases("transfer.serialization")
def to_the_cpu(context: Context) -> None:
    """map_location="cpu" gives tensors on the CPU, with the same values and sharing."""
    base, cpu = context.to_device(torch.arange(20.0)), torch.device("cpu")
    for location in ("cpu", cpu, {str(base.device): "cpu"}):
        _loaded(base, location, cpu, context)


@cases("transfer.serialization")
def to_the_device(context: Context) -> None:
    """map_location puts the CPU's tensors on a device, by name, by index and by a function."""
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
def to_another_index(context: Context) -> None:
    """map_location moves tensors from one index to another."""
    base = context.to_device(torch.arange(20.0))
    got = torch.load(_saved(base), map_location={str(context.at(0)): str(context.at(1))})
    context.same(got.device, context.at(1), "the tensor is on the other index")
    context.equal(got, torch.arange(20.0), "with its values")


@cases("transfer.serialization", requires={"multi_device"})
def absent_index_raises(context: Context) -> None:
    """Loading to an index that is absent raises."""
    absent = f"{context.kind}:{len(context.indices) + 3}"
    errors, text = (RuntimeError, AssertionError, ValueError), f"{absent} is not there"
    for given in (torch.ones(3), context.to_device(torch.ones(3))):
        context.raises(errors, torch.load, _saved(given), map_location=absent, text=text)


@cases("transfer.serialization")
def parameters(context: Context) -> None:
    """A module's state, with what requires grad, comes back and loads into another."""
    module = torch.nn.Linear(3, 4).to(context.device)
    got = torch.load(_saved(module.state_dict()))
    for name, value in module.state_dict().items():
        context.equal(got[name], value, f"{name} comes back")
    other = copy.deepcopy(module)
    context.check(other.weight.requires_grad, "a copied parameter requires grad as before")
    with torch.no_grad():
        other.weight.zero_()
    context.check(bool(module.weight.any()), "the copy is another")
