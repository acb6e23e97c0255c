"""Copies from and to every layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch

from conformance.checks.cases.cases import Cases
from conformance.checks.cases.context import Context
from devices.failure import Kind

cases = Cases(Kind.VALUES)

SHAPE: Final = (2, 3, 4)


@dataclass(frozen=True, slots=True)
class Form:
    """Strides and offset of a tensor of ``SHAPE``, in elements."""

    strides: tuple[int, int, int]
    offset: int = 0

    def of(self, base: torch.Tensor) -> torch.Tensor:
        return base.as_strided(SHAPE, self.strides, self.offset)

    @property
    def elements(self) -> int:
        """Of the storage that it needs."""
        last = sum((n - 1) * step for n, step in zip(SHAPE, self.strides, strict=True))
        return self.offset + last + 1

    @property
    def expanded(self) -> bool:
        """Whether elements share memory: no destination."""
        return 0 in self.strides

    @property
    def dense(self) -> bool:
        """Whether its elements fill their part of the storage, each once."""
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


def laid_out(values: torch.Tensor, form: Form, device: torch.device | str) -> torch.Tensor:
    """These values of ``SHAPE`` on a device, in a layout. An expanded one repeats what it can hold.

    Where elements share memory the values are those of the first index.
    """
    base = torch.full((form.elements,), 99).to(values.dtype)
    view = form.of(base)
    for place, step in enumerate(form.strides):
        if step == 0:
            values, view = values.narrow(place, 0, 1), view.narrow(place, 0, 1)
    view.copy_(values)
    return form.of(base.to(device))


def numbered(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Other values everywhere, on the CPU; each is one of int8 too."""
    return torch.arange(1, 25).reshape(SHAPE).to(dtype)


#: Dtypes of the source and the destination.
_CHANGES = (
    (torch.float32, torch.float32),
    (torch.float32, torch.int64),
    (torch.int64, torch.float32),
    (torch.float32, torch.bfloat16),
    (torch.int32, torch.bool),
)


def _takes(context: Context, *dtypes: torch.dtype) -> bool:
    return all(str(each).removeprefix("torch.") in context.descriptor.dtypes for each in dtypes)


def _values(tensor: torch.Tensor) -> torch.Tensor:
    """The values on the CPU, by a copy of the whole storage and no strides."""
    base = tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.itemsize,), (1,), 0)
    return base.cpu().as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


def _ends(context: Context, way: str) -> tuple[torch.device, torch.device]:
    cpu = torch.device("cpu")
    return {
        "host_to_device": (cpu, context.device),
        "device_to_host": (context.device, cpu),
        "within_the_device": (context.device, context.device),
        "across_indices": (context.at(0), context.at(context.indices[-1])),
    }[way]


def pairs(context: Context, way: str, changes: bool) -> None:
    """A copy keeps the values for every pair of layouts."""
    start, end = _ends(context, way)
    for given, taken in _CHANGES[1:] if changes else _CHANGES[:1]:
        if not _takes(context, given, taken):
            continue
        for name, form in FORMS.items():
            source = laid_out(numbered(given), form, start)
            want = _values(source).to(taken)
            for other_name, other in FORMS.items():
                if other.expanded:
                    continue
                target = laid_out(torch.zeros(SHAPE).to(taken), other, end)
                target.copy_(source)
                text = f"{name} {given} to {other_name} {taken} keeps the values"
                context.equal(_values(target), want, text)


def to_keeps(context: Context, way: str) -> None:
    """to() keeps the strides of dense tensors that do not overlap."""
    start, end = _ends(context, way)
    for given, taken in ((torch.float32, torch.float32), (torch.float32, torch.float16)):
        if (start == end and given == taken) or not _takes(context, given, taken):
            continue
        for name, form in FORMS.items():
            if not form.dense:
                continue
            source = laid_out(numbered(given), form, start)
            made = source.to(end, taken)
            text = f"to({end}, {taken}) of a {name} tensor"
            context.same(made.stride(), source.stride(), f"{text} keeps the strides")
            context.equal(_values(made), numbered(taken), f"{text} keeps the values")


#: Between which places copies go, and how many indices that takes.
_WAYS = {"host_to_device": 1, "device_to_host": 1, "within_the_device": 1, "across_indices": 2}
for _way, _indices in _WAYS.items():
    _needs: dict[str, Any] = {"requires": {"storage"}, "indices": _indices}
    _over = {_way: (_way, False), f"{_way}_to_another_dtype": (_way, True)}
    cases("transfer.strides", over=_over, **_needs)(pairs)
    cases("transfer.strides", over={f"to_keeps_{_way}": (_way,)}, **_needs)(to_keeps)


@cases("transfer.strides")
def special(context: Context) -> None:
    """Tensors without dimensions, without elements, and with one element keep shape and values."""
    for values in (torch.tensor(7.0), torch.empty(0, 3), torch.ones(1, 1, 1)):
        there = values.to(context.device)
        context.equal(there, values, "a tensor comes to the device")
        context.equal(there.clone().copy_(values), values, "a copy into it keeps the values")
        context.equal(torch.empty_like(values).copy_(there), values, "and comes back")


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
def exactly_the_view(context: Context, view: str, at: str) -> None:
    """A copy into a view changes its elements and no others, and neither its shape nor strides."""
    form, start = _VIEWS[view], torch.device("cpu") if at == "host" else context.device
    for name, source_form in FORMS.items():
        source = laid_out(numbered(), source_form, start)
        want = torch.full((form.elements + 6,), -1.0)
        base = want.to(context.device, copy=True)
        place, target = base.data_ptr(), form.of(base)
        target.copy_(source)
        form.of(want).copy_(_values(source))
        context.equal(base, want, f"a {name} source changes exactly the elements of the view")
        shape = tuple(target.shape), target.stride(), target.storage_offset()
        context.same(shape, (SHAPE, form.strides, form.offset), "the view stays as it was")
        context.same(base.data_ptr(), place, "so does its memory")


@cases("transfer.view_destination", over={"from_host": ("cpu",), "from_device": ("",)})
def broadcast_source(context: Context, where: str) -> None:
    """A source that is broadcast is never read past its buffer."""
    at = torch.device(where) if where else context.device
    for size, used in (((4,), 4), ((3, 1), 3), ((1, 4), 4), ((), 1), ((2, 1, 1), 2)):
        base = torch.full((64,), 99.0)
        base[:used] = torch.arange(used) + 1.0
        values = base[:used].reshape(size).clone()
        source = base.to(at)[:used].reshape(size)
        for form in _VIEWS.values():
            want = torch.full((form.elements + 6,), -1.0)
            there = want.to(context.device, copy=True)
            form.of(there).copy_(source)
            form.of(want).copy_(values)
            context.equal(there, want, f"a source of {list(size)} is repeated, and no more is read")


@cases("transfer.view_destination")
def mismatch_raises(context: Context) -> None:
    """A source that cannot be broadcast raises, and changes nothing."""
    base = torch.zeros(40, device=context.device)
    view = base.as_strided(SHAPE, (12, 4, 1), 2)
    for size in ((3,), (2, 3), (2, 3, 5), (1, 2, 3, 4, 1), (0,)):
        for at in (torch.device("cpu"), context.device):
            text = f"a source of {list(size)} is refused"
            context.raises(RuntimeError, view.copy_, torch.ones(size, device=at), text=text)
    context.equal(base, torch.zeros(40), "nothing was written")
