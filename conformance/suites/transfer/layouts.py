"""Cases of the clauses transfer.strides and transfer.view_destination: copies from and to tensors of many
layouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from conformance.checks.cases.layouts import GuardedTensor
from devices.failure import Kind

cases = Cases(Kind.VALUES)

SHAPE: Final = (2, 3, 4)

#: The layouts of sources.
SOURCES: Final = {
    "contiguous": "contiguous",
    "offset": "free:offset=5",
    "transposed": "transposed",
    "reversed": "reversed",
    "reversed_offset": "free:order=2.1.0,offset=7",
    "stepped": "contiguous+step_inner",
    "padded_rows": "free:pads=2,offset=2",
    "stepped_transposed": "free:order=2.1.0,steps=2,offset=3",
    "expanded": "contiguous+expand_first",
    "expanded_inside": "free:expand=1,offset=1",
}
#: The layouts of destinations, whose elements share no memory.
DESTINATIONS: Final = {
    name: layout for name, layout in SOURCES.items() if not name.startswith("expanded")
}
#: The layouts whose elements fill a contiguous part of the storage.
DENSE: Final = ("contiguous", "offset", "transposed", "reversed", "reversed_offset")


def numbered(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Returns a CPU tensor of shape ``SHAPE`` with the values 1 to 24, which fit into int8."""
    return torch.arange(1, 25).reshape(SHAPE).to(dtype)


#: Dtypes of the source and the destination.
_CHANGES = (
    (torch.float32, torch.float32),
    (torch.float32, torch.int64),
    (torch.int64, torch.float32),
    (torch.float32, torch.bfloat16),
    (torch.int32, torch.bool),
)


def _takes(context: CaseContext, *dtypes: torch.dtype) -> bool:
    return all(str(each).removeprefix("torch.") in context.descriptor.dtypes for each in dtypes)


def _of_its_storage(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the values of a device tensor as a CPU tensor, without a strided copy: the whole storage is copied as
    one dimension, and the values are read from that copy."""
    base = tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.itemsize,), (1,), 0)
    return base.cpu().as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


def _ends(context: CaseContext, way: str) -> tuple[torch.device, torch.device]:
    cpu = torch.device("cpu")
    return {
        "host_to_device": (cpu, context.device),
        "device_to_host": (context.device, cpu),
        "within_the_device": (context.device, context.device),
        "across_indices": (context.at(0), context.at(context.indices[-1])),
    }[way]


def pairs(context: CaseContext, way: str, changes: bool, waits: bool = True) -> None:
    """Tensors are copied with copy_() between every pair of layouts. The destination has the values of the
    source, converted to the dtype of the destination. If ``waits`` is false, the copies are non_blocking, and the device
    is synchronized after each of them."""
    start, end = _ends(context, way)
    for given, taken in _CHANGES[1:] if changes else _CHANGES[:1]:
        if not _takes(context, given, taken):
            continue
        for name, layout in SOURCES.items():
            source = context.guarded(numbered(given), layout, start)
            want = source.values.to(taken)
            for other_name, other in DESTINATIONS.items():
                # What surrounds the destination differs from what surrounds the source: a copy of too much shows.
                zeros, around = torch.zeros(SHAPE).to(taken), 1.0 if end.type == "cpu" else None
                target = context.guarded(zeros, other, end, around=around)
                target.view.copy_(source.view, non_blocking=not waits)
                if not waits:
                    context.settle()
                text = f"a copy from layout {name} of {given} to layout {other_name} of {taken} changed the values"
                context.equal(target.read(), want, text)
                if end.type == "cpu":  # of views on the device: transfer.view_destination
                    context.check(target.outside_intact(), f"{text} outside of the destination")
    if changes:
        _each_pair(context, start, end)


#: The dtypes between which every conversion of a copy is tried.
_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


def _each_pair(context: CaseContext, start: torch.device, end: torch.device) -> None:
    """Copies a few numbers between every two dtypes: fractions and negative numbers, where the dtypes have them. The
    source has an offset of three elements, and keeps its values."""
    for given in _FLOATS + _INTEGERS:
        numbers = torch.tensor([0.0, 1.0, 2.75, 0.25, 100.5, 37.0, 1.3])
        if given.is_signed:
            numbers = torch.cat([numbers, -numbers])
        for taken in _FLOATS + _INTEGERS:
            if given == taken or not _takes(context, given, taken):
                continue
            kept = numbers if taken.is_signed or taken == torch.bool else numbers.abs()
            base = torch.cat([torch.ones(3), kept]).to(given)
            source = base.clone().to(start)[3:]  # a copy: `base` is the reference
            target = torch.zeros(len(kept), dtype=taken, device=end)
            target.copy_(source)
            text = f"a copy of {given} to {taken} changed"
            context.equal(target, base[3:].to(taken), f"{text} the values")
            context.equal(source, base[3:], f"{text} its source")


def to_keeps(context: CaseContext, way: str) -> None:
    """to() of a dense, non-overlapping tensor returns a tensor with the same strides and the same values."""
    start, end = _ends(context, way)
    for given, taken in ((torch.float32, torch.float32), (torch.float32, torch.float16)):
        if (start == end and given == taken) or not _takes(context, given, taken):
            continue
        for name in DENSE:
            source = context.lay(numbered(given), SOURCES[name], start)
            made = source.to(end, taken)
            text = f"to({end}, {taken}) of a tensor in layout {name}"
            context.same(made.stride(), source.stride(), f"{text} changed the strides")
            context.equal(_of_its_storage(made), numbered(taken), f"{text} changed the values")


#: The directions of copies, and the number of device indices that each needs.
_WAYS = {"host_to_device": 1, "device_to_host": 1, "within_the_device": 1, "across_indices": 2}
for _way, _indices in _WAYS.items():
    _over: dict[str, Any] = {_way: (_way, False), f"{_way}_to_another_dtype": (_way, True)}
    _over[f"{_way}_non_blocking"] = (_way, False, False)
    cases("transfer.strides", over=_over, indices=_indices)(pairs)
    _needs: dict[str, Any] = {"requires": {"strides", "storage"}, "indices": _indices}
    cases("transfer.strides", over={f"to_keeps_{_way}": (_way,)}, **_needs)(to_keeps)


@cases("transfer.strides")
def special(context: CaseContext) -> None:
    """Tensors without dimensions, without elements and with one element are copied to the device, on the device
    and back. They keep their shape and values."""
    for values in (torch.tensor(7.0), torch.empty(0, 3), torch.ones(1, 1, 1)):
        there = values.to(context.device)
        context.equal(there, values, "to() to the device changed the values of the tensor")
        context.equal(
            there.clone().copy_(values),
            values,
            "copy_() to the device changed the values of the tensor",
        )
        context.equal(
            torch.empty_like(values).copy_(there),
            values,
            "copy_() to the CPU changed the values of the tensor",
        )


_VIEWS = {
    "sliced": "free:pads=0.2,offset=4",
    "transposed": "free:order=2.1.0,offset=3",
    "stepped": "free:steps=2,offset=1",
    "stepped_transposed": "free:order=2.1.0,steps=2,offset=3",
}


@cases(
    "transfer.view_destination",
    over={f"{view}_from_{at}": (view, at) for view in _VIEWS for at in ("host", "device")},
)
def exactly_the_view(context: CaseContext, view: str, at: str) -> None:
    """A copy into a view changes the elements of the view and no other element of the base tensor. The shape,
    the strides and the address of the view stay the same."""
    start = torch.device("cpu") if at == "host" else context.device
    for name, layout in SOURCES.items():
        source = context.guarded(numbered(), layout, start)
        want, target = _known(context, _VIEWS[view])
        place = target.view.data_ptr() if context.has("pointers") else 0
        target.view.copy_(source.view)
        want.view.copy_(source.values)
        context.equal(
            target.stored(),
            want.stored(),
            f"copy_() of a source in layout {name} left wrong values in the base tensor of the view",
        )
        context.same(
            tuple(target.view.shape), SHAPE, "copy_() changed the shape of the destination"
        )
        if context.has("strides"):
            lies = target.view.stride(), target.view.storage_offset()
            context.same(
                lies,
                (target.geometry.stride, target.geometry.offset),
                "copy_() changed the strides or storage offset of the destination",
            )
        now = target.view.data_ptr() if context.has("pointers") else 0
        context.same(now, place, "copy_() moved the memory of the destination")


def _known(context: CaseContext, layout: str) -> tuple[GuardedTensor, GuardedTensor]:
    """Returns two equal tensors in the given layout, one on the CPU and one on the device, with known bytes around
    them."""
    values = torch.full(SHAPE, -1.0)
    here, there = torch.device("cpu"), context.device
    return context.guarded(values, layout, here), context.guarded(values, layout, there)


def _set_some(there: torch.Tensor, places: torch.Tensor) -> None:
    there[0, 1] = 5.0
    there[..., 2] = 6.0
    there[1, 2, 3] = there[0, 0, 0] * 2


def _set_places(there: torch.Tensor, places: torch.Tensor) -> None:
    there[places] = 7.0


#: Ways to write into a tensor other than copy_(); some use the index tensor ``[1, 0]`` on its device.
_WRITES: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "fill": lambda there, _: there.fill_(3.0),
    "zero": lambda there, _: there.zero_(),
    "add": lambda there, _: there.add_(4.0),
    "neg": lambda there, _: there.neg_(),
    "where": lambda there, _: there.masked_fill_(there < 0, 8.0),
    "indices": _set_some,
    "tensor_of_indices": _set_places,
    "out": lambda there, _: torch.add(there, 2.0, out=there),
}


@cases("transfer.view_destination", over={f"by_{name}": (name,) for name in _WRITES})
def written(context: CaseContext, name: str) -> None:
    """fill_, zero_, in-place ops, `out=` and index assignment are applied to a view. They change the elements
    of the view and no other element of the base tensor, and the view sees later writes to the base tensor."""
    places = torch.tensor([1, 0])
    for at, layout in _VIEWS.items():
        want, target = _known(context, layout)
        _WRITES[name](target.view, context.to_device(places))
        _WRITES[name](want.view, places)
        context.equal(
            target.stored(),
            want.stored(),
            "writing into the view left wrong values in its base tensor",
            at=at,
        )
        shape = tuple(target.view.shape)
        context.same(shape, SHAPE, "writing into the view changed its shape", at=at)
        target.storage.fill_(9.0)
        context.equal(
            target.view,
            torch.full(SHAPE, 9.0),
            "the view does not show what was written into its base tensor",
        )


@cases("transfer.view_destination", over={"from_host": ("cpu",), "from_device": ("",)})
def broadcast_source(context: CaseContext, where: str) -> None:
    """copy_() of a source that is broadcast repeats the elements of the source and never reads memory past
    the last element."""
    at = torch.device(where) if where else context.device
    for size, used in (((4,), 4), ((3, 1), 3), ((1, 4), 4), ((), 1), ((2, 1, 1), 2)):
        base = torch.full((64,), 99.0)
        base[:used] = torch.arange(used) + 1.0
        values = base[:used].reshape(size).clone()
        source = base.to(at)[:used].reshape(size)
        for layout in _VIEWS.values():
            want, target = _known(context, layout)
            target.view.copy_(source)
            want.view.copy_(values)
            context.equal(
                target.stored(),
                want.stored(),
                f"copy_() of a source of shape {list(size)}, which is broadcast, gave wrong values",
            )


@cases("transfer.view_destination")
def mismatch_raises(context: CaseContext) -> None:
    """copy_() of a source that cannot be broadcast to the destination raises RuntimeError and does not change
    the destination."""
    want, target = _known(context, "free:offset=2")
    for size in ((3,), (2, 3), (2, 3, 5), (1, 2, 3, 4, 1), (0,)):
        for at in (torch.device("cpu"), context.device):
            text = f"copy_() of a source of shape {list(size)} into shape {list(SHAPE)} did not raise the documented exception"
            context.raises(RuntimeError, target.view.copy_, torch.ones(size, device=at), text=text)
    context.equal(
        target.stored(),
        want.stored(),
        "copy_() raised an exception, but also wrote to the destination",
    )


@cases("transfer.view_destination")
def views_keep_the_old_data(context: CaseContext) -> None:
    """A tensor is given new data (x.data = y). Its views keep the old data, and the tensor has the new data, of another
    shape too. Later writes to the tensor reach the new data only."""
    for new in (torch.full((10,), 7.0), torch.full((2, 3), 7.0)):
        given = context.to_device(torch.zeros(10))
        views = [given.view(2, 5), given[3:], given.detach()]
        data = context.to_device(new.clone())
        given.data = data
        for written in (False, True):
            when = "after a write to the tensor with new data" if written else "after x.data = y"
            context.equal(given, new + written, f"the tensor has wrong values {when}")
            context.equal(data, new + written, f"the tensor y has wrong values {when}")
            for view in views:
                old = torch.zeros(tuple(view.shape))
                context.equal(view, old, f"a view of the old data has wrong values {when}")
            given.add_(1)
