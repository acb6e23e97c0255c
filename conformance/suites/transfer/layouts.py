"""Cases of the clauses transfer.strides and transfer.view_destination: copies from and to tensors of many
layouts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import CaseContext
from devices.failure import Kind
from opinfo.guarded import sliced_view
from opinfo.layouts import Geometry

cases = Cases(Kind.VALUES)

SHAPE: Final = (2, 3, 4)


@dataclass(frozen=True, slots=True)
class Form:
    """The layout of a tensor of shape ``SHAPE``: its strides and its storage offset, in elements."""

    strides: tuple[int, int, int]
    offset: int = 0

    def of(self, base: torch.Tensor) -> torch.Tensor:
        return base.as_strided(SHAPE, self.strides, self.offset)

    @property
    def geometry(self) -> Geometry:
        expanded = self.strides.index(0) if self.expanded else None
        return Geometry(SHAPE, self.strides, self.offset, self.elements, expanded)

    @property
    def run(self) -> int:
        """The number of elements that a one-dimensional base tensor must have so that the view can be cut from
        it by slicing."""
        return self.offset + max(n * step for n, step in zip(SHAPE, self.strides, strict=True))

    @property
    def elements(self) -> int:
        """The number of elements that the storage of the view must hold."""
        last = sum((n - 1) * step for n, step in zip(SHAPE, self.strides, strict=True))
        return self.offset + last + 1

    @property
    def expanded(self) -> bool:
        """True if elements of the view share memory, so the view cannot be the destination of a copy."""
        return 0 in self.strides

    @property
    def dense(self) -> bool:
        """True if the elements of the view fill a contiguous part of the storage without gaps or overlap."""
        return self.elements - self.offset == 24 and not self.expanded


FORMS: Final = {
    "contiguous": Form((12, 4, 1)),
    "offset": Form((12, 4, 1), 5),
    "transposed": Form((12, 1, 3)),
    "reversed": Form((1, 2, 6)),
    "reversed_offset": Form((1, 2, 6), 7),
    "stepped": Form((24, 8, 2)),
    "padded_rows": Form((18, 6, 1), 2),
    "stepped_transposed": Form((2, 4, 12), 3),
    "expanded": Form((0, 4, 1)),
    "expanded_inside": Form((4, 0, 1), 1),
}


def view(context: CaseContext, base: torch.Tensor, form: Form) -> torch.Tensor:
    """Returns a view of a base tensor in the given layout. The view is made by as_strided if the base is on the
    CPU or the device declares strides, otherwise by slicing."""
    on_host = base.device.type == "cpu"
    return form.of(base) if on_host or context.has("strides") else sliced_view(base, form.geometry)


def laid_out(
    context: CaseContext, values: torch.Tensor, form: Form, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns a base tensor on a device, and a view of the base tensor that has the given layout and the given
    values of shape ``SHAPE``.

    In a dimension of stride 0, all elements of the view have the value at index 0.
    """
    count = form.elements if context.has("strides") else max(form.elements, form.run)
    base = torch.full((count,), 99).to(values.dtype)
    first = form.of(base)
    for place, step in enumerate(form.strides):
        if step == 0:
            values, first = values.narrow(place, 0, 1), first.narrow(place, 0, 1)
    first.copy_(values)
    there = base.to(device)
    return there, view(context, there, form)


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


def _values(base: torch.Tensor, form: Form) -> torch.Tensor:
    """Returns the values of a view as a CPU tensor. The values are read by copying the whole base tensor,
    because the copy of a view may be wrong."""
    return form.of(base.cpu())


def _of_its_storage(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the values of a tensor as a CPU tensor. The values are read by copying the whole storage as one
    dimension."""
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


def pairs(context: CaseContext, way: str, changes: bool) -> None:
    """Tensors are copied with copy_() between every pair of layouts. The destination has the values of the
    source, converted to the dtype of the destination."""
    start, end = _ends(context, way)
    for given, taken in _CHANGES[1:] if changes else _CHANGES[:1]:
        if not _takes(context, given, taken):
            continue
        for name, form in FORMS.items():
            held, source = laid_out(context, numbered(given), form, start)
            want = _values(held, form).to(taken)
            for other_name, other in FORMS.items():
                if other.expanded:
                    continue
                base, target = laid_out(context, torch.zeros(SHAPE).to(taken), other, end)
                target.copy_(source)
                text = f"a copy from layout {name} of {given} to layout {other_name} of {taken} changed the values"
                context.equal(_values(base, other), want, text)


def to_keeps(context: CaseContext, way: str) -> None:
    """to() of a dense, non-overlapping tensor returns a tensor with the same strides and the same values."""
    start, end = _ends(context, way)
    for given, taken in ((torch.float32, torch.float32), (torch.float32, torch.float16)):
        if (start == end and given == taken) or not _takes(context, given, taken):
            continue
        for name, form in FORMS.items():
            if not form.dense:
                continue
            _, source = laid_out(context, numbered(given), form, start)
            made = source.to(end, taken)
            text = f"to({end}, {taken}) of a tensor in layout {name}"
            context.same(made.stride(), source.stride(), f"{text} changed the strides")
            context.equal(_of_its_storage(made), numbered(taken), f"{text} changed the values")


#: The directions of copies, and the number of device indices that each needs.
_WAYS = {"host_to_device": 1, "device_to_host": 1, "within_the_device": 1, "across_indices": 2}
for _way, _indices in _WAYS.items():
    _over = {_way: (_way, False), f"{_way}_to_another_dtype": (_way, True)}
    cases("transfer.strides", over=_over, indices=_indices)(pairs)
    _needs: dict[str, Any] = {"requires": {"strides", "storage"}, "indices": _indices}
    cases("transfer.strides", over={f"to_keeps_{_way}": (_way,)}, **_needs)(to_keeps)


@cases("transfer.strides")
def special(context: CaseContext) -> None:
    """Tensors without dimensions, without elements and with one element are copied to the device, on the device
    and back. They keep their shape and values."""
    for values in (torch.tensor(7.0), torch.empty(0, 3), torch.ones(1, 1, 1)):
        there = values.to(context.device)
        context.equal(there, values, "to() changed the tensor")
        context.equal(
            there.clone().copy_(values), values, "copy_() to the device changed the tensor"
        )
        context.equal(
            torch.empty_like(values).copy_(there), values, "copy_() to the CPU changed the tensor"
        )


_VIEWS = {
    "sliced": Form((20, 4, 1), 4),
    "transposed": Form((1, 2, 6), 3),
    "stepped": Form((24, 8, 2), 1),
    "stepped_transposed": Form((2, 4, 12), 3),
}


@cases(
    "transfer.view_destination",
    over={f"{view}_from_{at}": (view, at) for view in _VIEWS for at in ("host", "device")},
)
def exactly_the_view(context: CaseContext, view: str, at: str) -> None:
    """A copy into a view changes the elements of the view and no other element of the base tensor. The shape,
    the strides and the address of the view stay the same."""
    form, start = _VIEWS[view], torch.device("cpu") if at == "host" else context.device
    for name, source_form in FORMS.items():
        held, source = laid_out(context, numbered(), source_form, start)
        want, base, target = _known(context, form)
        place = base.data_ptr() if context.has("pointers") else 0
        target.copy_(source)
        form.of(want).copy_(_values(held, source_form))
        context.equal(
            base,
            want,
            f"copy_() of a source in layout {name} left wrong values in the base tensor of the view",
        )
        context.same(tuple(target.shape), SHAPE, "copy_() changed the shape of the destination")
        if context.has("strides"):
            lies = target.stride(), target.storage_offset()
            context.same(
                lies,
                (form.strides, form.offset),
                "copy_() changed the strides or storage offset of the destination",
            )
        now = base.data_ptr() if context.has("pointers") else 0
        context.same(now, place, "copy_() moved the memory of the destination")


def _known(context: CaseContext, form: Form) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns a base tensor of known values on the CPU, its copy on the device, and a view of that copy."""
    want = torch.full((max(form.elements + 6, form.run),), -1.0)
    base = want.to(context.device, copy=True)
    return want, base, view(context, base, form)


def _set_some(there: torch.Tensor, places: torch.Tensor) -> None:
    there[0, 1] = 5.0
    there[..., 2] = 6.0


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
    for at, form in _VIEWS.items():
        want, base, target = _known(context, form)
        _WRITES[name](target, context.to_device(places))
        _WRITES[name](form.of(want), places)
        context.equal(
            base, want, "writing into the view left wrong values in its base tensor", at=at
        )
        context.same(tuple(target.shape), SHAPE, "writing into the view changed its shape", at=at)
        base.fill_(9.0)
        context.equal(
            target,
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
        for form in _VIEWS.values():
            want, there, target = _known(context, form)
            target.copy_(source)
            form.of(want).copy_(values)
            context.equal(
                there,
                want,
                f"copy_() of a source of shape {list(size)}, which is broadcast, gave wrong values",
            )


@cases("transfer.view_destination")
def mismatch_raises(context: CaseContext) -> None:
    """copy_() of a source that cannot be broadcast to the destination raises RuntimeError and does not change
    the destination."""
    base = torch.zeros(40, device=context.device)
    target = view(context, base, Form((12, 4, 1), 2))
    for size in ((3,), (2, 3), (2, 3, 5), (1, 2, 3, 4, 1), (0,)):
        for at in (torch.device("cpu"), context.device):
            text = f"copy_() of a source of shape {list(size)} into shape {list(SHAPE)} did not raise the documented exception"
            context.raises(RuntimeError, target.copy_, torch.ones(size, device=at), text=text)
    context.equal(base, torch.zeros(40), "copy_() raised, but wrote into the destination")
